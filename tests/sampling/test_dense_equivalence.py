"""The sparse library against the dense forms: bit by bit at what it touches, to the last bit elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.dense_penalties import banned_ids, mark, penalise_densely, touched_ids
from helpers.exact_penalties import penalise_exactly
from helpers.penalty_strategies import DTYPES, LARGE_VOCABULARIES, PROFILES, Batch, batches
from helpers.tensors import LAYOUTS, assert_same_bits, assert_same_numbers, assert_same_values, place
from logitd.sampling import PenaltyOrchestrator, PenaltyParameters, RowStart

if TYPE_CHECKING:
    from logitd.sampling import Patch

every_profile = pytest.mark.parametrize("profile", PROFILES)


def edited_ids(batch: Batch) -> list[set[int]]:
    return [touched_ids(batch.profile, row) | banned_ids(row) for row in batch.rows]


def expect(batch: Batch) -> torch.Tensor:
    """The dense result at every touched or banned id, the input everywhere else."""
    dense = penalise_densely(batch.profile, batch.vocab_size, batch.rows, batch.logits)
    return torch.where(mark(edited_ids(batch), batch.logits.shape[1]), dense, batch.logits)


def apply(batch: Batch, device: torch.device) -> torch.Tensor:
    logits = batch.logits.to(device, copy=True)
    batch.open().apply_inplace(logits)
    return logits.cpu()


def assert_equals_dense_form(batch: Batch, device: torch.device) -> None:
    actual = apply(batch, device)
    dense = penalise_densely(batch.profile, batch.vocab_size, batch.rows, batch.logits)
    edited = mark(edited_ids(batch), batch.logits.shape[1])
    assert_same_numbers(actual[edited], dense[edited])
    assert_same_bits(actual[~edited], batch.logits[~edited])
    assert_same_values(actual, dense)


def assert_is_patch_of(patch: Patch, batch: Batch) -> None:
    ids = [sorted(ids) for ids in edited_ids(batch)]
    assert patch.token_ids.dtype == np.int32
    assert patch.token_ids.tolist() == [token_id for row_ids in ids for token_id in row_ids]
    assert patch.row_splits.dtype == np.int64
    assert patch.row_splits.tolist() == np.cumsum([0, *map(len, ids)]).tolist()
    rows = np.repeat(np.arange(len(ids)), np.diff(patch.row_splits))
    assert_same_numbers(patch.values, expect(batch)[rows, patch.token_ids.astype(np.int64)])


@every_profile
@given(data=st.data())
@settings(max_examples=150)
def test_apply_equals_the_dense_form(profile: str, device: torch.device, data: st.DataObject) -> None:
    assert_equals_dense_form(data.draw(batches(profile)), device)


@every_profile
@pytest.mark.parametrize("vocab_size", LARGE_VOCABULARIES)
@given(data=st.data())
@settings(max_examples=4)
def test_apply_equals_the_dense_form_at_the_vocabularies_of_models(
    profile: str, vocab_size: int, device: torch.device, data: st.DataObject
) -> None:
    assert_equals_dense_form(data.draw(batches(profile, vocab_size, max_rows=2)), device)


@every_profile
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_more_tokens_than_a_block_holds_equal_the_dense_form(
    profile: str, dtype: torch.dtype, device: torch.device
) -> None:
    random = np.random.default_rng(7)
    vocab_size = 32_001
    asked = [(12_000, 1.3, 0.7, -0.5), (100, 1.0, 0.0, 0.0), (4000, 1.0, -1.1, 0.0), (9000, 0.6, 0.0, 0.3)]
    rows = tuple(
        RowStart(
            PenaltyParameters(r, f, p, min_new_tokens=9000, stop_token_ids=(2, vocab_size - 1)),
            tuple(random.integers(0, vocab_size, 500).tolist()),
            tuple(random.integers(0, vocab_size, length).tolist()),
        )
        for length, r, f, p in asked
    )
    logits = torch.from_numpy(random.normal(0, 5, (len(rows), vocab_size)).astype(np.float32)).to(dtype)
    batch = Batch(profile, vocab_size, rows, logits)
    assert_equals_dense_form(batch, device)
    part = logits[1:].to(device, copy=True)
    batch.open().apply_inplace(part, first_row=1)
    assert_same_bits(part.cpu(), apply(batch, device)[1:])


@every_profile
@given(data=st.data())
def test_float64_agrees_with_fp32_work(profile: str, data: st.DataObject) -> None:
    batch = data.draw(batches(profile, dtype=torch.float32, moderate=True))
    actual = apply(batch, torch.device("cpu"))[:, : batch.vocab_size].double().numpy()
    logits = batch.logits[:, : batch.vocab_size].double().numpy()
    for row, before, after in zip(batch.rows, logits, actual, strict=True):
        exact = penalise_exactly(profile, row, before)
        finite = np.isfinite(exact.logits)
        np.testing.assert_array_equal(after[~finite], exact.logits[~finite])
        assert (np.abs(after[finite] - exact.logits[finite]) <= exact.tolerance[finite]).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@given(batch=batches())
@settings(max_examples=30)
def test_any_memory_layout_is_edited_in_place(layout: str, device: torch.device, batch: Batch) -> None:
    placed = place(batch.logits.to(device), layout)
    batch.open().apply_inplace(placed.view)
    assert_same_numbers(placed.memory, place(expect(batch), layout).memory)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(batch=batches())
@settings(max_examples=30)
def test_a_patch_holds_what_apply_would_write(layout: str, device: torch.device, batch: Batch) -> None:
    placed = place(batch.logits.to(device), layout)
    patch = batch.open().compute_patch(placed.view)
    assert patch.values.device.type == device.type
    assert_is_patch_of(patch, batch)
    assert_same_bits(placed.memory, place(batch.logits, layout).memory)


@given(batch=batches(min_rows=3, max_rows=5), data=st.data())
@settings(max_examples=200)
def test_a_range_of_rows_equals_its_part_of_the_whole(batch: Batch, device: torch.device, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(batch.rows) - 1))
    stop = data.draw(st.integers(first, len(batch.rows)))
    part = Batch(batch.profile, batch.vocab_size, batch.rows[first:stop], batch.logits[first:stop])
    logits = part.logits.to(device, copy=True)
    state = batch.open()
    patch = state.compute_patch(logits, first_row=first)
    state.apply_inplace(logits, first_row=first)
    if part.rows:
        assert_same_numbers(logits.cpu(), expect(part))
        assert_is_patch_of(patch, part)
    assert patch.row_splits[0] == 0
    assert len(patch.row_splits) == stop - first + 1


@given(batch=batches())
def test_each_row_alone_equals_the_batch(batch: Batch, device: torch.device) -> None:
    whole = apply(batch, device)
    for index, row in enumerate(batch.rows):
        alone = Batch(batch.profile, batch.vocab_size, (row,), batch.logits[index : index + 1])
        assert_same_bits(apply(alone, device)[0], whole[index])


@given(batch=batches(), data=st.data())
def test_neutral_rows_keep_every_bit_whatever_their_neighbours_ask(
    batch: Batch, device: torch.device, data: st.DataObject
) -> None:
    neutral = data.draw(st.lists(st.booleans(), min_size=len(batch.rows), max_size=len(batch.rows)))
    calm = PenaltyParameters(1.0, data.draw(st.sampled_from((0.0, -0.0))), -0.0, 5, ())
    rows = tuple(
        RowStart(calm, row.prompt_token_ids, row.output_token_ids) if is_neutral else row
        for row, is_neutral in zip(batch.rows, neutral, strict=True)
    )
    changed = Batch(batch.profile, batch.vocab_size, rows, batch.logits)
    assert_same_bits(apply(changed, device)[torch.tensor(neutral)], batch.logits[torch.tensor(neutral)])


@given(batch=batches())
@settings(max_examples=200)
def test_no_nan_appears_and_no_minus_infinity_leaves(batch: Batch, device: torch.device) -> None:
    after = apply(batch, device)
    assert not (after.isnan() & ~batch.logits.isnan()).any()
    assert after[batch.logits == float("-inf")].eq(float("-inf")).all()


@every_profile
def test_a_row_without_any_token_comes_back_as_it_was(profile: str, device: torch.device) -> None:
    logits = torch.tensor([[-0.0, float("nan"), float("-inf"), 1.0]])
    batch = Batch(profile, 4, (RowStart(PenaltyParameters(1.5, 0.5, 0.5)),), logits)
    assert_same_bits(apply(batch, device), logits)


@every_profile
def test_a_batch_without_rows_takes_logits_without_rows(profile: str, device: torch.device) -> None:
    state = PenaltyOrchestrator.create(profile, 4, []).accumulate([])
    logits = torch.empty(0, 4, device=device)
    state.apply_inplace(logits)
    patch = state.compute_patch(logits)
    assert (patch.row_splits.tolist(), patch.token_ids.tolist(), patch.values.tolist()) == ([0], [], [])
