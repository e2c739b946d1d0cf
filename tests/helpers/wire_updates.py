"""Token updates of property-based tests, sent to a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from hypothesis import strategies as st

from helpers.wire import token_update
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from helpers.wire import OpenBatch


class Update(NamedTuple):
    """What each sequence drops, then appends."""

    rollback: list[int]
    tokens: list[list[int]]


def draw_update(data: st.DataObject, batch: OpenBatch, vocab_size: int) -> Update:
    """Any number of tokens a sequence, after a rollback of any depth."""
    rollback = [data.draw(st.integers(0, min(3, len(output)))) for output in batch.outputs()]
    ids = st.lists(st.integers(0, min(vocab_size, 9) - 1), max_size=3)
    return Update(rollback, [data.draw(ids) for _ in rollback])


def message_of(update: Update) -> service_pb2.TokenUpdate:
    splits = np.cumsum([0, *map(len, update.tokens)]).tolist()
    flat = [token_id for tokens in update.tokens for token_id in tokens]
    return token_update(*flat, splits=tuple(splits), rollback=tuple(update.rollback))


def send_update(batch: OpenBatch, update: Update) -> None:
    request = service_pb2.AccumulateRequest(target=batch.target(), tokens=message_of(update))
    batch.revision = batch.wire.call("Accumulate", request).revision
