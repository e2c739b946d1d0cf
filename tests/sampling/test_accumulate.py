"""The state is a function of the history, to the bit, however the history came about."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.penalty_states import append, assert_same_state, penalise
from helpers.penalty_strategies import PROFILES, Batch, batches
from logitd.sampling import PenaltyOrchestrator, PenaltyParameters, RowStart

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.usefixtures("two_layers")
every_profile = pytest.mark.parametrize("profile", PROFILES)


def outputs_of(batch: Batch) -> list[tuple[int, ...]]:
    return [tuple(row.output_token_ids) for row in batch.rows]


def rebuild(batch: Batch, outputs: Sequence[Sequence[int]]) -> PenaltyOrchestrator:
    """A state created with these outputs."""
    rows = [replace(row, output_token_ids=tuple(ids)) for row, ids in zip(batch.rows, outputs, strict=True)]
    return PenaltyOrchestrator.create(batch.profile, batch.vocab_size, rows)


def start(batch: Batch) -> PenaltyOrchestrator:
    return rebuild(batch, [()] * len(batch.rows))


@given(batch=batches())
def test_one_call_equals_a_state_created_with_the_tokens(batch: Batch) -> None:
    assert_same_state(append(start(batch), outputs_of(batch)), batch.open())


@given(batch=batches())
def test_token_by_token_equals_a_state_created_with_the_tokens(batch: Batch) -> None:
    state, outputs = start(batch), outputs_of(batch)
    for step in range(max(map(len, outputs))):
        state = append(state, [ids[step : step + 1] for ids in outputs])
    assert_same_state(state, batch.open())


@given(batch=batches(), data=st.data())
def test_any_pieces_equal_a_state_created_with_the_tokens(batch: Batch, data: st.DataObject) -> None:
    state, left = start(batch), outputs_of(batch)
    while any(left):
        sizes = [data.draw(st.integers(0, len(ids))) for ids in left]
        state = append(state, [ids[:size] for ids, size in zip(left, sizes, strict=True)])
        left = [ids[size:] for ids, size in zip(left, sizes, strict=True)]
    assert_same_state(state, batch.open())


@given(batch=batches(), data=st.data())
def test_one_token_a_row_needs_no_splits(batch: Batch, data: st.DataObject) -> None:
    ids = [data.draw(st.integers(0, batch.vocab_size - 1)) for _ in batch.rows]
    splits = np.arange(len(ids) + 1)
    assert_same_state(batch.open().accumulate(ids), batch.open().accumulate(ids, splits))


@given(batch=batches(), data=st.data())
@settings(max_examples=150)
def test_a_rollback_is_as_if_the_tokens_had_never_come(batch: Batch, data: st.DataObject) -> None:
    outputs = outputs_of(batch)
    dropped = [data.draw(st.integers(0, len(ids))) for ids in outputs]
    kept = [ids[: len(ids) - count] for ids, count in zip(outputs, dropped, strict=True)]
    assert_same_state(batch.open().accumulate([], [0] * (len(outputs) + 1), rollback=dropped), rebuild(batch, kept))


@given(batch=batches(), data=st.data())
def test_rollback_and_tokens_in_one_call_equal_two_calls(batch: Batch, data: st.DataObject) -> None:
    outputs = outputs_of(batch)
    pool = [0, batch.vocab_size - 1]
    dropped = [data.draw(st.integers(0, len(ids))) for ids in outputs]
    pieces = [data.draw(st.lists(st.sampled_from(pool), max_size=4)) for _ in outputs]
    at_once = append(batch.open(), pieces, dropped)
    assert_same_state(at_once, append(append(batch.open(), [()] * len(outputs), dropped), pieces))
    kept = [[*ids[: len(ids) - n], *new] for ids, n, new in zip(outputs, dropped, pieces, strict=True)]
    assert_same_state(at_once, rebuild(batch, kept))


@every_profile
def test_more_new_tokens_in_one_call_than_are_inserted_one_by_one(profile: str) -> None:
    random = np.random.default_rng(3)
    vocab_size = 4000
    rows = (RowStart(PenaltyParameters(1.2, 0.3, -0.1), (5, 6)), RowStart(PenaltyParameters(1.0, -0.4)))
    batch = Batch(profile, vocab_size, rows, torch.empty(0))
    first, second = (random.integers(0, vocab_size, (2, size)).tolist() for size in (900, 700))
    whole = [[*one, *two] for one, two in zip(first, second, strict=True)]
    state = append(append(start(batch), first), second)
    assert_same_state(state, rebuild(batch, whole))
    assert_same_state(append(state, [(), ()], [700, 700]), rebuild(batch, first))


@pytest.mark.parametrize(
    ("profile", "is_added_up"), [("SGLANG", True), ("SGLANG_FUSED", True), ("VLLM", False), ("HF", False)]
)
def test_frequency_adds_up_as_the_engine_does(profile: str, is_added_up: bool) -> None:
    frequency, count = np.float32(1.1), 1000
    added = np.float32(0)
    for _ in range(count):
        added += frequency
    product = frequency * np.float32(count)
    assert added != product
    row = RowStart(PenaltyParameters(frequency_penalty=1.1), (), (0,) * count)
    after = penalise(PenaltyOrchestrator.create(profile, 1, [row]), torch.zeros(1, 1))
    assert after.item() == -(added if is_added_up else product)


def test_row_splits_may_name_rows_without_tokens() -> None:
    rows = [RowStart(PenaltyParameters(presence_penalty=1.0))] * 4
    state = PenaltyOrchestrator.create("SGLANG", 3, rows).accumulate([2, 0, 2], [0, 0, 2, 2, 3])
    assert [state.output_token_ids(row).tolist() for row in range(4)] == [[], [2, 0], [], [2]]
    expected = torch.tensor([[0.0, 0, 0], [-1, 0, -1], [0, 0, 0], [0, 0, -1]])
    assert torch.equal(penalise(state, torch.zeros(4, 3)), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_any_integer_type_is_taken(dtype: type[np.integer]) -> None:
    row = RowStart(PenaltyParameters(presence_penalty=1.0))
    state = PenaltyOrchestrator.create("SGLANG", 151_936, [row, row])
    ids, splits, rollback = np.array([7, 9, 100], dtype), np.array([0, 1, 3], dtype), np.array([0, 1], dtype)
    state = state.accumulate(ids, splits).accumulate(ids, splits, rollback=rollback)
    assert [state.output_token_ids(row).tolist() for row in range(2)] == [[7, 7], [9, 9, 100]]


def test_the_caller_keeps_its_arrays() -> None:
    ids, splits = np.array([1, 2], np.int32), np.array([0, 2], np.int64)
    row = RowStart(PenaltyParameters(presence_penalty=1.0), ids, ids)
    state = PenaltyOrchestrator.create("VLLM", 4, [row]).accumulate(ids, splits)
    ids[:], splits[:] = 3, 0
    assert state.output_token_ids(0).tolist() == [1, 2, 1, 2]
    state.output_token_ids(0)[:] = 0
    assert state.output_token_ids(0).tolist() == [1, 2, 1, 2]


def test_a_token_that_comes_very_often_is_summed_one_by_one() -> None:
    parameters, count = PenaltyParameters(frequency_penalty=0.1), 5000
    expected = np.float32(0)
    for _ in range(count):
        expected += np.float32(0.1)
    at_once = PenaltyOrchestrator.create("SGLANG", 4, [RowStart(parameters, (), [2] * count + [1] * 70)])
    in_two = PenaltyOrchestrator.create("SGLANG", 4, [RowStart(parameters, (), [2] * 4000)])
    in_two = in_two.accumulate([2] * (count - 4000) + [1] * 70, [0, count - 4000 + 70])
    back = at_once.accumulate([2] * 7, [0, 7]).accumulate([], [0, 0], rollback=[7])
    for state in (at_once, in_two, back):
        assert state.list_edits().frequency_sums[1] == expected
        assert_same_state(state, at_once)
