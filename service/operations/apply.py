"""Apply: logits in, processed logits out; token ids that come along are committed first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitd.service.codec import parse_step
from logitd.service.drafts import read_drafts
from logitd.service.errors import InvalidField
from logitd.service.identity import Standing, read_target
from logitd.service.operations.apply_forms import REPLIES, ApplyJob
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from logitd.service.identity import Target
    from logitd.service.operations.context import OperationContext
    from logitd.service.penalty_batch import NextState, PenaltyBatch

_METHOD = "Apply"


class ApplyStream:
    """One stream's messages, each a step or a chunk of rows of one."""

    def __init__(self, context: OperationContext) -> None:
        self._context = context

    def step(self, data: bytes) -> bytes:
        """Commit the message's token ids, if any, and answer for its rows."""
        request, payload = parse_step(service_pb2.ApplyRequest, data, service_pb2.ApplyRequest.LOGITS_FIELD_NUMBER)
        form = _read_form(request)
        target = read_target(request.target, is_mutation=request.HasField("tokens"))
        batch = self._context.find_penalty_batch(target, _METHOD)
        following = _compute_next(batch, target, request)
        state = batch.state if following is None else following.state
        drafted = read_drafts(state, request.drafts) if request.HasField("drafts") else state
        job = ApplyJob(self._context, batch, request, payload, following, drafted)
        reply = self._context.check_reply(REPLIES[form](job))
        if following is not None:
            batch.advance(following)
            batch.commit(target, _METHOD)
        return reply


def _read_form(request: service_pb2.ApplyRequest) -> types_pb2.ApplyForm:
    form = request.form or types_pb2.APPLY_FORM_DENSE
    if form not in REPLIES:
        raise InvalidField("form", "must be DENSE, SPARSE, IN_PLACE or EDITS", form)
    if form != types_pb2.APPLY_FORM_EDITS:
        for name in ("edits_since_revision", "row_count"):
            if request.HasField(name):
                raise InvalidField(name, "must not be set but in form EDITS", getattr(request, name))
    return form


def _compute_next(batch: PenaltyBatch, target: Target, request: service_pb2.ApplyRequest) -> NextState | None:
    # What the message's token ids make of the batch; None if there are none, or they are committed already.
    if not request.HasField("tokens"):
        batch.check_reading(target)
        return None
    if batch.check_mutation(target, _METHOD) is Standing.RETRY:
        return None
    return batch.compute_next("tokens", request.tokens)
