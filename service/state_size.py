"""How much state a server has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logitd.service.operations.context import OperationContext


@dataclass(frozen=True, slots=True)
class StateSize:
    """What is live now, and the batches that expired so far."""

    batches: int
    rows: int
    state_bytes: int
    reserved_bytes: int
    regions: int
    region_bytes: int
    expired_batches: int


def measure_state(context: OperationContext) -> StateSize:
    """The present size; in the worker's turn. It costs a few microseconds a batch, and never walks its tokens."""
    batches = context.registry.batches
    return StateSize(
        batches=len(batches),
        rows=sum(batch.num_rows for batch in batches),
        state_bytes=sum(batch.state_bytes for batch in batches),
        reserved_bytes=context.registry.reserved_bytes,
        regions=len(context.regions),
        region_bytes=context.regions.mapped_bytes,
        expired_batches=context.registry.num_expired,
    )
