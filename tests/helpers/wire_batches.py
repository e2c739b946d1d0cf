"""The batches of property-based tests as messages."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from helpers.wire import creation, ints
from logitd.v1 import types_pb2

if TYPE_CHECKING:
    from helpers.penalty_strategies import Batch
    from logitd.sampling import PenaltyParameters, RowStart
    from logitd.v1 import service_pb2


def creation_of(batch: Batch, **fields: Any) -> service_pb2.CreateBatchRequest:
    """A CreateBatchRequest for the rows of a batch."""
    sequences = [sequence_of(f"row {number}", row) for number, row in enumerate(batch.rows)]
    return creation(*sequences, vocab_size=batch.vocab_size, profile=profile_number(batch.profile), **fields)


def sequence_of(sequence_id: str, row: RowStart) -> types_pb2.Sequence:
    return types_pb2.Sequence(
        sequence_id=sequence_id,
        prompt_token_ids=ints(*row.prompt_token_ids),
        output_token_ids=ints(*row.output_token_ids),
        penalties=penalties_of(row.parameters),
        stop_token_ids=row.parameters.stop_token_ids,
    )


def penalties_of(parameters: PenaltyParameters) -> types_pb2.PenaltyParameters:
    return types_pb2.PenaltyParameters(
        repetition_penalty=parameters.repetition_penalty,
        frequency_penalty=parameters.frequency_penalty,
        presence_penalty=parameters.presence_penalty,
        min_new_tokens=parameters.min_new_tokens,
    )


def profile_number(name: str) -> types_pb2.PenaltyProfile:
    return types_pb2.PenaltyProfile.Value(f"PENALTY_PROFILE_{name}")


@st.composite
def partitions(draw: st.DrawFn, num_rows: int) -> list[tuple[int, int]]:
    """All rows once in chunks of any size and any order, each as its first row and its number of rows."""
    cuts: set[int] = draw(st.sets(st.integers(1, num_rows - 1))) if num_rows > 1 else set()
    pieces = [(start, stop - start) for start, stop in pairwise([0, *sorted(cuts), num_rows])]
    return draw(st.permutations(pieces))
