"""Draft tokens of a message, read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitd.sampling import DraftMode, Drafts, ParameterError
from logitd.service.codec import read_int32
from logitd.service.errors import InvalidField
from logitd.v1 import types_pb2

if TYPE_CHECKING:
    from logitd.sampling import DraftState, PenaltyOrchestrator
    from logitd.v1 import service_pb2

_MODES = {
    types_pb2.DRAFT_MODE_UNSPECIFIED: DraftMode.EXACT,
    types_pb2.DRAFT_MODE_EXACT: DraftMode.EXACT,
    types_pb2.DRAFT_MODE_SGLANG_RELAXED: DraftMode.SGLANG_RELAXED,
}


def read_drafts(state: PenaltyOrchestrator, message: service_pb2.DraftTokens) -> DraftState:
    """`state` at the positions of the message's drafts; raises `InvalidField`."""
    if message.mode not in _MODES:
        raise InvalidField("drafts.mode", "must be EXACT or SGLANG_RELAXED", message.mode)
    try:
        drafts = Drafts.create(
            read_int32("drafts.token_ids", message.token_ids),
            read_int32("drafts.row_splits", message.row_splits) if message.row_splits else None,
            read_int32("drafts.parents", message.parents) if message.parents else None,
            num_rows=state.num_rows,
            vocab_size=state.vocab_size,
        )
        return state.with_drafts(drafts, _MODES[message.mode])
    except ParameterError as error:
        raise InvalidField(f"drafts.{error.field}", error.rule, error.got) from error
