"""What the operations share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from logitd.service.beam_batch import BeamBatch
from logitd.service.codec import read_logits
from logitd.service.errors import ReplyTooLarge, WrongBatchKind
from logitd.service.penalty_batch import PenaltyBatch

if TYPE_CHECKING:
    from logitd.service.batch import Batch
    from logitd.service.codec import WireLogits
    from logitd.service.config import ServerConfig
    from logitd.service.frames import Payload
    from logitd.service.identity import Target
    from logitd.service.regions import RegionRegistry
    from logitd.service.registry import BatchRegistry
    from logitd.v1 import types_pb2


@dataclass(slots=True)
class OperationContext:
    """One server's configuration and state; `is_draining` is told in every reply of a step."""

    config: ServerConfig
    registry: BatchRegistry
    regions: RegionRegistry
    is_draining: bool = False

    def read_logits(self, batch: Batch, tensor: types_pb2.Tensor, payload: Payload | None) -> WireLogits:
        """The logits of a step's message for `batch`, wherever they lie; raises `InvalidField` or `RegionNotFound`."""
        return read_logits(
            "logits",
            tensor,
            payload,
            self.regions,
            vocab_size=batch.plan.vocab_size,
            max_columns=self.config.max_vocab_size,
        )

    def check_reply(self, reply: bytes) -> bytes:
        """`reply`, which can be sent; raises `ReplyTooLarge`. To be called before anything is committed."""
        if len(reply) > self.config.max_message_bytes:
            raise ReplyTooLarge(self.config.max_message_bytes, len(reply))
        return reply

    def find_penalty_batch(self, target: Target, method: str) -> PenaltyBatch:
        """The batch that a call of `method` is for; raises if it is gone or no penalty batch."""
        batch = self.registry.find(target.batch_id, target.uid)
        if not isinstance(batch, PenaltyBatch):
            raise WrongBatchKind(method, "penalty")
        return batch

    def find_beam_batch(self, target: Target, method: str) -> BeamBatch:
        """The batch that a call of `method` is for; raises if it is gone or no beam batch."""
        batch = self.registry.find(target.batch_id, target.uid)
        if not isinstance(batch, BeamBatch):
            raise WrongBatchKind(method, "beam")
        return batch
