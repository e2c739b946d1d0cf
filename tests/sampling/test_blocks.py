"""Entries are worked on in blocks of whole rows; where one ends changes no bit."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings

from helpers.penalty_states import assert_same_patch
from helpers.penalty_strategies import Batch, batches
from helpers.tensors import assert_same_bits
from logitd.sampling.backends.host import HostLogits


@pytest.mark.parametrize("block_size", [0, 1, 5, 20])
@given(batch=batches())
@settings(max_examples=60)
def test_any_block_size_gives_the_same_bits(block_size: int, batch: Batch) -> None:
    state = batch.open()
    whole, in_blocks = batch.logits.clone(), batch.logits.clone()
    expected = state.compute_patch(whole)
    state.apply_inplace(whole)
    with patch.object(HostLogits, "block_size", block_size):
        actual = state.compute_patch(in_blocks)
        state.apply_inplace(in_blocks)
    assert_same_bits(in_blocks, whole)
    assert_same_patch(actual, expected)
