"""The list of edits, carried out by the formulas of the contract, against apply; and differences against the whole."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.dense_penalties import banned_ids, touched_ids
from helpers.penalty_states import append, penalise
from helpers.penalty_strategies import Batch, batches, draw_ids
from helpers.tensors import assert_same_numbers
from logitd.sampling.edit_list import IS_BANNED, IS_OUTPUT, IS_SEEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitd.sampling import EditList, PenaltyOrchestrator

pytestmark = pytest.mark.usefixtures("two_layers")
# Of one id of one row: flags, and the bits of its frequency sum.
Known = dict[tuple[int, int], tuple[int, int]]


def carry_out(profile: str, edits: EditList, logits: torch.Tensor) -> torch.Tensor:
    """Logits [R, W] after the edits, as a caller computes them who has but the contract."""
    rows = np.repeat(np.arange(len(logits)), np.diff(edits.row_splits))
    ids, flags = edits.token_ids.astype(np.int64), torch.from_numpy(edits.flags)
    sums, values = torch.from_numpy(edits.frequency_sums), logits[rows, ids].float()
    repetition = torch.from_numpy(edits.repetition[rows])
    presence = torch.from_numpy(edits.presence[rows]) * (flags & IS_OUTPUT > 0)
    if profile == "SGLANG_FUSED":
        values = scale(profile, values + ((0 - sums) - presence), repetition)
    else:
        values = scale(profile, values, repetition) - sums - presence
    values = torch.where(flags & IS_SEEN > 0, values, logits[rows, ids].float())
    result = logits.clone()
    result[rows, ids] = values.masked_fill(flags & IS_BANNED > 0, float("-inf")).to(logits.dtype)
    return result


def scale(profile: str, values: torch.Tensor, repetition: torch.Tensor) -> torch.Tensor:
    if profile == "VLLM":
        return torch.where(values > 0, values * (1 / repetition), values * repetition)
    return torch.where(values < 0, values * repetition, values / repetition)


def entries(edits: EditList) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    rows = np.repeat(np.arange(len(edits.row_splits) - 1), np.diff(edits.row_splits))
    places = zip(rows.tolist(), edits.token_ids.tolist(), strict=True)
    return zip(
        places, zip(edits.flags.tolist(), edits.frequency_sums.view(np.int32).tolist(), strict=True), strict=True
    )


def replace_known(known: Known, edits: EditList) -> Known:
    """What a caller knows after a difference: entries replace, and flags of 0 remove."""
    return {place: entry for place, entry in {**known, **dict(entries(edits))}.items() if entry[0]}


@given(batch=batches())
@settings(max_examples=200)
def test_edits_by_the_contracts_formulas_equal_apply(batch: Batch) -> None:
    state = batch.open()
    edited = carry_out(batch.profile, state.list_edits(), batch.logits)
    assert_same_numbers(edited, penalise(state, batch.logits))


@given(batch=batches())
def test_edits_name_every_touched_or_banned_id_and_why(batch: Batch) -> None:
    expected = {}
    for index, row in enumerate(batch.rows):
        touched, banned = touched_ids(batch.profile, row), banned_ids(row)
        for token_id in touched | banned:
            is_output = token_id in touched and token_id in row.output_token_ids
            flags = IS_SEEN * (token_id in touched) + IS_OUTPUT * is_output + IS_BANNED * (token_id in banned)
            expected[index, token_id] = flags
    edits = batch.open().list_edits()
    assert {place: flags for place, (flags, _) in entries(edits)} == expected
    assert len(edits.token_ids) == len(expected)
    assert all((np.diff(edits.token_ids[start:stop]) > 0).all() for start, stop in itertools.pairwise(edits.row_splits))


@given(batch=batches(), data=st.data())
def test_edits_of_some_rows_are_their_part_of_all(batch: Batch, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(batch.rows)))
    stop = data.draw(st.integers(first, len(batch.rows)))
    part = batch.open().list_edits().slice_rows(first, stop - first)
    alone = replace(batch, rows=batch.rows[first:stop]).open().list_edits()
    assert dict(entries(part)) == dict(entries(alone))
    assert part.repetition.tolist() == alone.repetition.tolist()
    assert part.presence.tolist() == alone.presence.tolist()


@given(batch=batches(), data=st.data())
@settings(max_examples=120)
def test_differences_since_a_state_lead_to_the_whole(batch: Batch, data: st.DataObject) -> None:
    state: PenaltyOrchestrator = batch.open()
    known, lengths = dict(entries(state.list_edits())), state.output_lengths
    touched: list[np.ndarray] = []
    pool = (0, batch.vocab_size // 2, batch.vocab_size - 1)
    for _ in range(data.draw(st.integers(1, 3))):
        pieces = [draw_ids(data.draw, pool, st.binary(max_size=4)) for _ in batch.rows]
        dropped = [data.draw(st.integers(0, min(4, length))) for length in state.output_lengths.tolist()]
        state = append(state, pieces, dropped)
        touched.append(state.touched)
    changes = state.list_edits(since=(np.unique(np.concatenate(touched)), lengths))
    assert replace_known(known, changes) == dict(entries(state.list_edits()))
    num_stop_ids = sum(len(set(row.parameters.stop_token_ids)) for row in batch.rows)
    assert len(changes.token_ids) <= sum(map(len, touched)) + num_stop_ids


@given(batch=batches(), data=st.data())
def test_one_token_a_row_touches_what_its_splits_say(batch: Batch, data: st.DataObject) -> None:
    state = batch.open()
    ids = [data.draw(st.integers(0, batch.vocab_size - 1)) for _ in batch.rows]
    splits = np.arange(len(ids) + 1)
    assert state.accumulate(ids).touched.tolist() == state.accumulate(ids, splits).touched.tolist()
