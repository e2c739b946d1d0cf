"""Draft positions against plain steps: a position is its row after the tokens of its path, one by one."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.drafts import DraftRow, draw_drafts, make_drafts, stack_positions, step_to
from helpers.penalty_states import append, assert_same_patch, penalise, probe_logits
from helpers.penalty_strategies import PROFILES, Batch, batches, draw_ids, draw_logits
from helpers.tensors import LAYOUTS, assert_same_bits, place
from logitd.sampling import DraftMode, Drafts, ParameterError, PenaltyOrchestrator, PenaltyParameters, RowStart, drafts

if TYPE_CHECKING:
    from logitd.sampling import EditList

pytestmark = pytest.mark.usefixtures("any_layers")
every_profile = pytest.mark.parametrize("profile", PROFILES)


def draw_case(data: st.DataObject, batch: Batch) -> tuple[list[DraftRow], Drafts, torch.Tensor]:
    """Drafts for a batch, and logits [P, W] of its dtype and width."""
    pool = (0, batch.vocab_size // 2, batch.vocab_size - 1)
    rows = draw_drafts(data.draw, len(batch.rows), pool)
    made = make_drafts(rows, batch.vocab_size)
    logits = draw_logits(data.draw, made.total_positions, batch.logits.shape[1], batch.logits.dtype, pool)
    return rows, made, logits


def open_with_steps(data: st.DataObject, batch: Batch) -> PenaltyOrchestrator:
    """The batch after a few tokens more, which stand in the upper layer."""
    pool = (0, batch.vocab_size // 2, batch.vocab_size - 1)
    return append(batch.open(), [draw_ids(data.draw, pool, st.binary(max_size=3)) for _ in batch.rows])


def assert_same_edits(actual: EditList, expected: EditList) -> None:
    for name in ("row_splits", "token_ids", "repetition", "presence", "flags"):
        assert getattr(actual, name).tolist() == getattr(expected, name).tolist(), name
    assert actual.frequency_sums.tobytes() == expected.frequency_sums.tobytes()


@every_profile
@given(data=st.data())
@settings(max_examples=60)
def test_a_position_is_its_row_after_its_path(profile: str, device: torch.device, data: st.DataObject) -> None:
    batch = data.draw(batches(profile))
    state = open_with_steps(data, batch)
    rows, made, logits = draw_case(data, batch)
    expected = penalise(stack_positions(state, rows), logits)
    drafted = state.with_drafts(made)
    assert drafted.num_rows == len(logits)
    on_device = logits.to(device, copy=True)
    drafted.apply_inplace(on_device)
    assert_same_bits(on_device.cpu(), expected)


@given(data=st.data())
@settings(max_examples=100)
def test_patch_and_edits_of_positions_are_those_of_plain_rows(data: st.DataObject) -> None:
    batch = data.draw(batches())
    state = open_with_steps(data, batch)
    rows, made, logits = draw_case(data, batch)
    plain, drafted = stack_positions(state, rows), state.with_drafts(made)
    assert_same_patch(drafted.compute_patch(logits), plain.compute_patch(logits))
    assert_same_edits(drafted.list_edits(), plain.list_edits())


@given(data=st.data(), layout=st.sampled_from(sorted(LAYOUTS)))
@settings(max_examples=100)
def test_chunks_may_split_a_rows_positions(data: st.DataObject, layout: str) -> None:
    batch = data.draw(batches())
    state = batch.open()
    _, made, logits = draw_case(data, batch)
    drafted, whole, chunked = state.with_drafts(made), logits.clone(), place(logits, layout).view
    drafted.apply_inplace(whole)
    cuts = sorted({0, len(logits), *data.draw(st.lists(st.integers(0, len(logits)), max_size=4))})
    for first, end in pairwise(cuts):
        expected = drafted.compute_patch(chunked[first:end], first_row=first)
        drafted.apply_inplace(chunked[first:end], first_row=first)
        at = np.repeat(np.arange(first, end), np.diff(expected.row_splits)), expected.token_ids.astype(np.int64)
        assert_same_bits(chunked[at], expected.values)
    assert_same_bits(chunked.clone(memory_format=torch.contiguous_format), whole)


@pytest.mark.parametrize("mode", DraftMode)
@given(data=st.data())
@settings(max_examples=100)
def test_differences_of_positions_lead_from_their_rows_to_their_whole(mode: DraftMode, data: st.DataObject) -> None:
    batch = data.draw(batches(None if mode is DraftMode.EXACT else "SGLANG_FUSED"))
    earlier = batch.open()
    state = open_with_steps(data, batch)
    rows, made, _ = draw_case(data, batch)
    drafted = state.with_drafts(made, mode)
    known = [dict(_entries(earlier.list_edits(), row)) for row in made.rows.tolist()]
    changes = drafted.list_edits(since=(state.touched, earlier.output_lengths))
    plain = stack_positions(state, rows) if mode is DraftMode.EXACT else state.filter(made.rows)
    whole = plain.list_edits()
    for position, entries in enumerate(known):
        entries.update(_entries(changes, position))
        assert {place: entry for place, entry in entries.items() if entry[0]} == dict(_entries(whole, position))


def _entries(edits: EditList, row: int) -> list[tuple[int, tuple[int, bytes]]]:
    start, stop = edits.row_splits[row], edits.row_splits[row + 1]
    return [
        (int(edits.token_ids[i]), (int(edits.flags[i]), edits.frequency_sums[i].tobytes())) for i in range(start, stop)
    ]


@given(data=st.data())
def test_nothing_is_committed(data: st.DataObject) -> None:
    batch = data.draw(batches())
    state = batch.open()
    before = penalise(state, batch.logits)
    _, made, logits = draw_case(data, batch)
    state.with_drafts(made).apply_inplace(logits)
    assert_same_bits(penalise(state, batch.logits), before)


@given(data=st.data())
def test_relaxed_drafts_see_the_committed_state_alone(data: st.DataObject) -> None:
    batch = data.draw(batches("SGLANG_FUSED"))
    state = batch.open()
    _, made, logits = draw_case(data, batch)
    expected = penalise(state.filter(made.rows), logits)
    for profile in ("SGLANG", "SGLANG_FUSED"):
        same = PenaltyOrchestrator.create(profile, batch.vocab_size, batch.rows)
        relaxed, result = same.with_drafts(made, DraftMode.SGLANG_RELAXED), logits.clone()
        relaxed.apply_inplace(result)
        assert_same_bits(result, expected)
        assert_same_patch(relaxed.compute_patch(logits), state.filter(made.rows).compute_patch(logits))


@pytest.mark.parametrize("profile", ["VLLM", "HF"])
def test_relaxed_drafts_are_sglangs(profile: str) -> None:
    state = PenaltyOrchestrator.create(profile, 4, [RowStart()])
    with pytest.raises(ParameterError, match="mode must be EXACT"):
        state.with_drafts(make_drafts([DraftRow((1,))], 4), DraftMode.SGLANG_RELAXED)


def test_a_large_state_is_applied_to_many_positions(device: torch.device) -> None:
    vocab_size, random = 20_000, np.random.default_rng(5)
    parameters = PenaltyParameters(1.3, 0.7, 0.2, 3010, (5, 6))
    rows = [RowStart(parameters, (), random.integers(0, vocab_size, 3000)) for _ in range(3)]
    state = PenaltyOrchestrator.create("SGLANG", vocab_size, rows)
    chains = [DraftRow(tuple(random.integers(0, vocab_size, length).tolist())) for length in (20, 0, 7)]
    drafted = state.with_drafts(make_drafts(chains, vocab_size))
    logits = probe_logits(drafted.num_rows, vocab_size)
    result = logits.to(device, copy=True)
    drafted.apply_inplace(result)
    assert_same_bits(result.cpu(), penalise(stack_positions(state, chains), logits))


def test_eos_stays_banned_along_a_path_until_it_is_long_enough() -> None:
    row = RowStart(PenaltyParameters(min_new_tokens=3, stop_token_ids=(9,)), (), (1,))
    state = PenaltyOrchestrator.create("VLLM", 10, [row])
    logits = torch.zeros(4, 10)
    state.with_drafts(make_drafts([DraftRow((9, 9, 2))], 10)).apply_inplace(logits)
    assert [bool(row[9] == float("-inf")) for row in logits] == [True, True, False, False]
    assert step_to(state, 0, (9, 9)).output_lengths.tolist() == [3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 10], [0, 2, 2]), r"token_ids\[1\] must be in \[0, 10\), got 10"),
        (([1.5], [0, 1, 1]), "token_ids must be one dimension of integers"),
        (([1, 2], [0, 1]), r"row_splits must have shape \(3,\)"),
        (([1, 2], [0, 3, 2]), "row_splits must start with 0, never fall, and end with the number of tokens, 2"),
        (([1],), "token_ids must be one a row, 2, where no row_splits come"),
        (([1, 2], [0, 2, 2], [-1]), r"parents must have shape \(2,\), one a draft"),
        (([1, 2], [0, 2, 2], [-1, 1]), r"parents\[1\] must be in \[-1, 1\), a draft before its own"),
        (([1, 2], [0, 2, 2], [1, 0]), r"parents\[0\] must be in \[-1, 0\)"),
        (([1, 2], [0, 2, 2], [-1, -2]), r"parents\[1\] must be in \[-1, 1\).*got -2"),
        (([1, 2], [0, 1, 2], [-1, 0]), r"parents\[1\] must be in \[-1, 0\)"),
        (([1, 2], [0, 2, 2], [-1.0, 0.0]), "parents must be integers"),
    ],
)
def test_wrong_drafts_are_refused(arguments: tuple[list[int], ...], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Drafts.create(*arguments, num_rows=2, vocab_size=10)


def test_paths_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "MAX_PATH_TOKENS", 10)
    Drafts.create([1] * 4, [0, 4], num_rows=1, vocab_size=2)
    Drafts.create([1] * 5, [0, 5], [-1, 0, 0, 0, 0], num_rows=1, vocab_size=2)
    for token_ids, parents in (([1] * 5, None), ([1] * 11, [-1] * 11)):
        with pytest.raises(ParameterError, match="token_ids must have paths of at most 10 tokens together"):
            Drafts.create(token_ids, [0, len(token_ids)], parents, num_rows=1, vocab_size=2)
