"""Accumulate: token ids in, counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitd.service.codec import parse
from logitd.service.errors import InvalidField
from logitd.service.identity import Standing, read_target
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from logitd.service.operations.context import OperationContext

_METHOD = "Accumulate"


class AccumulateStream:
    """One stream's messages, each a step."""

    def __init__(self, context: OperationContext) -> None:
        self._context = context

    def step(self, data: bytes) -> bytes:
        """Commit a message's token ids and acknowledge them; a retry is acknowledged again."""
        request = parse(service_pb2.AccumulateRequest, data)
        target = read_target(request.target, is_mutation=True)
        batch = self._context.find_penalty_batch(target, _METHOD)
        if not request.HasField("tokens"):
            raise InvalidField("tokens", "must be set", "nothing")
        if batch.check_mutation(target, _METHOD) is Standing.CURRENT:
            batch.advance(batch.compute_next("tokens", request.tokens))
            batch.commit(target, _METHOD)
        response = service_pb2.AccumulateResponse(revision=batch.revision, draining=self._context.is_draining)
        return response.SerializeToString()
