"""Batches that the transport benches step."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from logitd.client import Penalties, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from logitd.client import Client, PenaltyBatch


@contextmanager
def open_batch(
    client: Client, rng: np.random.Generator, shape: tuple[int, int], num_distinct: int
) -> Iterator[PenaltyBatch]:
    """A batch of `shape` [rows, vocabulary] whose rows have output `num_distinct` ids, with all penalties on."""
    num_rows, vocab_size = shape
    sequences = [
        Sequence(
            output_token_ids=rng.choice(vocab_size, num_distinct, replace=False),
            penalties=Penalties(*rng.uniform((1.05, 0.1, 0.1), (1.5, 1.0, 1.0))),
            max_new_tokens=65_536,
        )
        for _ in range(num_rows)
    ]
    with client.create_batch(sequences, vocab_size=vocab_size) as batch:
        yield batch
