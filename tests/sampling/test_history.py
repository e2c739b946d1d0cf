"""Histories share their memory and hand out steps late; nobody sees either."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.penalty_states import assert_same_state
from logitd.sampling import PenaltyOrchestrator, PenaltyParameters, RowStart

VOCAB_SIZE = 50
# Steps are handed out to the rows 64 at a time.
LENGTHS = (1, 63, 64, 65, 129, 200)


def outputs_after(num_steps: int, num_rows: int = 3) -> list[list[int]]:
    return [[(7 * step + 11 * row) % VOCAB_SIZE for step in range(num_steps)] for row in range(num_rows)]


def open_state(outputs: list[list[int]]) -> PenaltyOrchestrator:
    rows = [RowStart(PenaltyParameters(1.2, 0.3, 0.1), (), output) for output in outputs]
    return PenaltyOrchestrator.create("SGLANG", VOCAB_SIZE, rows)


def step_by_step(state: PenaltyOrchestrator, outputs: list[list[int]]) -> list[PenaltyOrchestrator]:
    """All states on the way, the first one included."""
    states = [state]
    for token_ids in zip(*outputs, strict=True):
        states.append(states[-1].accumulate(token_ids))
    return states


@pytest.mark.parametrize("num_steps", LENGTHS)
def test_single_steps_give_what_the_whole_gives(num_steps: int) -> None:
    outputs = outputs_after(num_steps)
    assert_same_state(step_by_step(open_state([[], [], []]), outputs)[-1], open_state(outputs))


def test_every_state_on_the_way_keeps_its_own_history() -> None:
    outputs = outputs_after(150)
    for length, state in reversed(list(enumerate(step_by_step(open_state([[], [], []]), outputs)))):
        assert [state.output_token_ids(row).tolist() for row in range(3)] == [output[:length] for output in outputs]


@pytest.mark.parametrize("num_steps", LENGTHS)
def test_two_ways_on_from_one_state_do_not_meet(num_steps: int) -> None:
    outputs = outputs_after(num_steps)
    state = step_by_step(open_state([[], [], []]), outputs)[-1]
    left, right = (step_by_step(state, [[token_id] * 100 for _ in outputs])[-1] for token_id in (1, 2))
    for token_id, fork in ((1, left), (2, right)):
        assert_same_state(fork, open_state([output + [token_id] * 100 for output in outputs]))
    assert_same_state(state, open_state(outputs))


@pytest.mark.parametrize("num_steps", LENGTHS)
def test_a_rollback_reaches_behind_steps_that_were_not_handed_out(num_steps: int) -> None:
    outputs = outputs_after(num_steps)
    state = step_by_step(open_state([[5], [5], [5]]), outputs)[-1]
    rolled_back = state.accumulate([], [0, 0, 0, 0], rollback=[num_steps, 1, num_steps + 1])
    assert_same_state(rolled_back, open_state([[5], [5, *outputs[1][:-1]], []]))


def test_the_callers_array_is_copied() -> None:
    token_ids = np.array([1, 2, 3], np.int32)
    state = open_state([[], [], []]).accumulate(token_ids)
    token_ids[:] = 9
    assert_same_state(state, open_state([[1], [2], [3]]))
