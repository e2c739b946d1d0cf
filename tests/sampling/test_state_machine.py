"""Any chain of verbs against plain lists of tokens, and every state that was left behind as it was."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from helpers.penalty_states import append, assert_patch_is_the_difference, assert_same_state
from helpers.penalty_strategies import PROFILES, draw_row
from logitd.sampling import ParameterError, PenaltyOrchestrator, RowStart

pytestmark = pytest.mark.usefixtures("two_layers")
VOCAB_SIZE = 7
POOL = tuple(range(VOCAB_SIZE))
MAX_ROWS = 8

# A row of the model: its parameters, its prompt, and all of its output as plain tuples.
Model: TypeAlias = tuple[RowStart, ...]


class PenaltyStates(RuleBasedStateMachine):
    """The state under test beside the rows that it stands for."""

    state: PenaltyOrchestrator
    model: Model

    def __init__(self) -> None:
        super().__init__()
        self.left_behind: list[tuple[PenaltyOrchestrator, Model]] = []

    def become(self, state: PenaltyOrchestrator, model: Model) -> None:
        self.left_behind.append((self.state, self.model))
        self.state, self.model = state, model

    @initialize(profile=st.sampled_from(PROFILES), data=st.data())
    def create(self, profile: str, data: st.DataObject) -> None:
        self.profile = profile
        self.model = self.draw_rows(data)
        self.state = PenaltyOrchestrator.create(profile, VOCAB_SIZE, self.model)

    def draw_rows(self, data: st.DataObject) -> Model:
        return tuple(draw_row(data.draw, self.profile, POOL) for _ in range(data.draw(st.integers(1, 3))))

    @rule(data=st.data())
    def accumulate_one_token_a_row(self, data: st.DataObject) -> None:
        ids = [data.draw(st.integers(0, VOCAB_SIZE - 1)) for _ in self.model]
        self.become(self.state.accumulate(ids), extend(self.model, [(token_id,) for token_id in ids]))

    @rule(data=st.data())
    def roll_back_and_accumulate(self, data: st.DataObject) -> None:
        dropped = [data.draw(st.integers(0, min(3, len(row.output_token_ids)))) for row in self.model]
        pieces = [tuple(b % VOCAB_SIZE for b in data.draw(st.binary(max_size=4))) for _ in self.model]
        self.become(append(self.state, pieces, dropped), extend(self.model, pieces, dropped))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def filter_reorder_and_fork(self, data: st.DataObject) -> None:
        last = len(self.model) - 1
        rows = data.draw(st.lists(st.integers(0, last), max_size=min(MAX_ROWS, last + 2)))
        self.become(self.state.filter(rows), tuple(self.model[row] for row in rows))

    @precondition(lambda self: len(self.model) < MAX_ROWS)
    @rule(data=st.data())
    def merge_newcomers(self, data: st.DataObject) -> None:
        rows = self.draw_rows(data)
        newcomers = PenaltyOrchestrator.create(self.profile, VOCAB_SIZE, rows)
        self.become(self.state.merge(newcomers), self.model + rows)

    @precondition(lambda self: self.left_behind and len(self.model) < MAX_ROWS)
    @rule(data=st.data())
    def merge_with_a_state_left_behind(self, data: st.DataObject) -> None:
        state, model = data.draw(st.sampled_from(self.left_behind))
        both = (state.merge(self.state), model + self.model)
        self.become(both[0].filter(range(min(len(both[1]), MAX_ROWS))), both[1][:MAX_ROWS])

    @precondition(lambda self: self.left_behind)
    @rule(data=st.data())
    def go_on_from_a_state_left_behind(self, data: st.DataObject) -> None:
        self.become(*data.draw(st.sampled_from(self.left_behind)))

    @precondition(lambda self: self.model)
    @rule()
    def be_refused(self) -> None:
        splits = [0] * len(self.model) + [1]
        too_many = self.state.output_lengths + 1
        for ids, rollback in (([VOCAB_SIZE], None), ([-1], None), ([0], too_many)):
            with pytest.raises(ParameterError):
                self.state.accumulate(ids, splits, rollback=rollback)

    @invariant()
    def equals_a_state_created_from_the_lists(self) -> None:
        assert_same_state(self.state, PenaltyOrchestrator.create(self.profile, VOCAB_SIZE, self.model))
        assert_patch_is_the_difference(self.state)

    def teardown(self) -> None:
        for state, model in self.left_behind:
            assert_same_state(state, PenaltyOrchestrator.create(self.profile, VOCAB_SIZE, model))


def extend(model: Model, pieces: list[tuple[int, ...]], dropped: list[int] | None = None) -> Model:
    return tuple(
        replace(row, output_token_ids=row.output_token_ids[: len(row.output_token_ids) - count] + piece)
        for row, piece, count in zip(model, pieces, dropped or [0] * len(model), strict=True)
    )


def test_any_chain_of_verbs_equals_a_rebuild_and_leaves_old_states_alone() -> None:
    # Shrinking a chain outlasts the time limit of a test; a failure's chain is short enough to read.
    limits = settings(max_examples=60, stateful_step_count=15, phases=[Phase.generate])
    run_state_machine_as_test(PenaltyStates, settings=limits)
