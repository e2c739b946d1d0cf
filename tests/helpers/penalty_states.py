"""Comparing penalty states by all that a caller can see of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from helpers.tensors import assert_same_bits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitd.sampling import Patch, PenaltyOrchestrator


def probe_logits(num_rows: int, vocab_size: int) -> torch.Tensor:
    """Float32 [num_rows, vocab_size] of both signs, with zeros of both signs and infinities."""
    random = np.random.default_rng(11)
    logits = torch.from_numpy(random.normal(0, 5, (num_rows, vocab_size)).astype(np.float32))
    kinds = torch.from_numpy(random.integers(0, 8, (num_rows, vocab_size)))
    for kind, value in enumerate((0.0, -0.0, float("-inf"), float("inf"))):
        logits[kinds == kind] = value
    return logits


def append(
    state: PenaltyOrchestrator, pieces: Sequence[Sequence[int]], rollback: Sequence[int] | None = None
) -> PenaltyOrchestrator:
    """The state after each row dropped its part of `rollback` and then output its piece."""
    splits = np.cumsum([0, *map(len, pieces)])
    return state.accumulate([token_id for piece in pieces for token_id in piece], splits, rollback=rollback)


def penalise(state: PenaltyOrchestrator, logits: torch.Tensor) -> torch.Tensor:
    """A penalised copy."""
    result = logits.clone()
    state.apply_inplace(result)
    return result


def assert_same_patch(actual: Patch, expected: Patch) -> None:
    assert actual.row_splits.tolist() == expected.row_splits.tolist()
    assert actual.token_ids.tolist() == expected.token_ids.tolist()
    assert_same_bits(actual.values, expected.values)


def assert_same_state(actual: PenaltyOrchestrator, expected: PenaltyOrchestrator) -> None:
    """Equal histories, sizes, results and patches, to the bit."""
    assert (actual.profile, actual.vocab_size, actual.num_rows) == (
        expected.profile,
        expected.vocab_size,
        expected.num_rows,
    )
    assert actual.output_lengths.tolist() == expected.output_lengths.tolist()
    for row in range(expected.num_rows):
        assert actual.output_token_ids(row).tolist() == expected.output_token_ids(row).tolist()
    assert (
        actual.patch_maker.table.keys.tolist() == expected.patch_maker.table.keys.tolist()
    )  # asking for them folds the layers
    assert actual.num_bytes == expected.num_bytes
    logits = probe_logits(expected.num_rows, expected.vocab_size)
    assert_same_bits(penalise(actual, logits), penalise(expected, logits))
    assert_same_patch(actual.compute_patch(logits), expected.compute_patch(logits))


def assert_patch_is_the_difference(state: PenaltyOrchestrator) -> None:
    """Writing the patch into the logits gives what apply gives, and nothing else differs."""
    logits = probe_logits(state.num_rows, state.vocab_size)
    patch = state.compute_patch(logits)
    rows = np.repeat(np.arange(state.num_rows), np.diff(patch.row_splits))
    patched = logits.clone()
    patched[rows, patch.token_ids.astype(np.int64)] = patch.values
    assert_same_bits(patched, penalise(state, logits))
    for start, stop in zip(patch.row_splits, patch.row_splits[1:], strict=False):
        assert (np.diff(patch.token_ids[start:stop]) > 0).all()
