"""Which operation answers which RPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from logitd.service.operations.accumulate import AccumulateStream
from logitd.service.operations.apply import ApplyStream
from logitd.service.operations.beam_step import BeamStepStream
from logitd.service.operations.capabilities import get_capabilities
from logitd.service.operations.lifecycle import create_batch, delete_batch, get_batch, list_batches
from logitd.service.operations.membership import filter_batch, merge_batches
from logitd.service.operations.regions import register_shared_memory, unregister_shared_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logitd.service.operations.context import OperationContext
    from logitd.service.operations.unfinished import Unfinished


class StepStream(Protocol):
    """The server's side of one stream."""

    def step(self, data: bytes) -> bytes:
        """The reply to one message; raises `ServiceError` and changes nothing if it fails."""


UNARY: Mapping[str, Callable[[OperationContext, bytes], bytes | Unfinished]] = {
    "CreateBatch": create_batch,
    "GetBatch": get_batch,
    "ListBatches": list_batches,
    "DeleteBatch": delete_batch,
    "FilterBatch": filter_batch,
    "MergeBatches": merge_batches,
    "RegisterSharedMemory": register_shared_memory,
    "UnregisterSharedMemory": unregister_shared_memory,
    "GetCapabilities": get_capabilities,
}
STREAMS: Mapping[str, Callable[[OperationContext], StepStream]] = {
    "Accumulate": AccumulateStream,
    "Apply": ApplyStream,
    "BeamStep": BeamStepStream,
}
