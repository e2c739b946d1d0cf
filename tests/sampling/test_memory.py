"""What a state holds on to: the distinct tokens of rows that need them, and nothing else."""

from __future__ import annotations

import pytest

from helpers.penalty_strategies import PROFILES
from logitd.sampling import PenaltyOrchestrator, PenaltyParameters, RowStart

VOCAB_SIZE = 131_072
HISTORY_ITEM = 4
NEUTRAL = PenaltyParameters()
BANS_ONLY = PenaltyParameters(min_new_tokens=100, stop_token_ids=(1, 2))
REPETITION = PenaltyParameters(repetition_penalty=1.2)
FREQUENCY = PenaltyParameters(frequency_penalty=0.5)
PRESENCE = PenaltyParameters(presence_penalty=0.5)
ALL = PenaltyParameters(1.2, 0.5, 0.5, 100, (1, 2))

every_profile = pytest.mark.parametrize("profile", PROFILES)


def open_rows(profile: str, *parameters: PenaltyParameters, num_tokens: int = 1000) -> PenaltyOrchestrator:
    """A state whose rows have each output the same distinct tokens, after a prompt of as many others."""
    output, prompt = range(0, 2 * num_tokens, 2), range(1, 2 * num_tokens, 2)
    rows = [RowStart(p, tuple(prompt), tuple(output)) for p in parameters]
    return PenaltyOrchestrator.create(profile, VOCAB_SIZE, rows)


@every_profile
@pytest.mark.parametrize("num_rows", [1, 8, 64])
def test_a_thousand_distinct_tokens_take_a_twentieth_of_a_dense_row(profile: str, num_rows: int) -> None:
    row = RowStart(ALL, (), tuple(range(0, 100_000, 100)))
    state = PenaltyOrchestrator.create(profile, VOCAB_SIZE, [row] * num_rows)
    assert len(set(row.output_token_ids)) == 1000
    assert 0 < state.num_bytes <= num_rows * VOCAB_SIZE * 4 / 20


@every_profile
def test_memory_does_not_grow_with_the_vocabulary(profile: str) -> None:
    row = RowStart(ALL, (3, 4), (1, 2, 2))
    small, large = (PenaltyOrchestrator.create(profile, size, [row]).num_bytes for size in (10, 10_000_000))
    assert small == large


@every_profile
def test_memory_does_not_grow_with_the_rows_that_have_no_tokens(profile: str) -> None:
    state = PenaltyOrchestrator.create(profile, VOCAB_SIZE, [RowStart(ALL)] * 100)
    assert state.num_bytes == 0


@every_profile
def test_a_token_that_comes_again_adds_its_place_in_the_history_only(profile: str) -> None:
    state = open_rows(profile, ALL)
    assert state.accumulate([0]).num_bytes == state.num_bytes + HISTORY_ITEM


@every_profile
@pytest.mark.parametrize("parameters", [NEUTRAL, BANS_ONLY])
def test_nothing_but_the_history_is_kept_for_rows_without_penalties(
    profile: str, parameters: PenaltyParameters
) -> None:
    state = open_rows(profile, parameters, parameters)
    assert state.num_bytes == 2 * 1000 * HISTORY_ITEM
    assert state.accumulate([7, 9]).num_bytes == 2 * 1001 * HISTORY_ITEM
    assert state.patch_maker.arithmetic.required == {}
    assert len(state.patch_maker.table.keys) == 0


@every_profile
def test_neutral_neighbours_of_a_penalised_row_cost_their_history_only(profile: str) -> None:
    alone, among = open_rows(profile, ALL), open_rows(profile, NEUTRAL, ALL, BANS_ONLY)
    assert among.num_bytes == alone.num_bytes + 2 * 1000 * HISTORY_ITEM


@every_profile
def test_only_penalties_that_a_row_asks_for_have_a_part(profile: str) -> None:
    asked = {"repetition_penalty": REPETITION, "frequency_penalty": FREQUENCY, "presence_penalty": PRESENCE}
    for name, parameters in asked.items():
        assert [part.value for part in open_rows(profile, NEUTRAL, parameters).patch_maker.arithmetic.required] == [
            name
        ]


@every_profile
def test_sums_are_kept_for_frequency_only(profile: str) -> None:
    per_token = 1000 * 4
    assert open_rows(profile, FREQUENCY).num_bytes == open_rows(profile, PRESENCE).num_bytes + per_token


@pytest.mark.parametrize(
    ("profile", "counts_prompt"), [("SGLANG", False), ("SGLANG_FUSED", False), ("VLLM", True), ("HF", True)]
)
def test_the_prompt_is_kept_for_repetition_where_it_counts(profile: str, counts_prompt: bool) -> None:
    without_prompt = PenaltyOrchestrator.create(profile, VOCAB_SIZE, [RowStart(REPETITION)])
    with_prompt = PenaltyOrchestrator.create(profile, VOCAB_SIZE, [RowStart(REPETITION, (1, 2, 3))])
    assert (with_prompt.num_bytes > without_prompt.num_bytes) == counts_prompt
    presence_only = PenaltyOrchestrator.create(profile, VOCAB_SIZE, [RowStart(PRESENCE, (1, 2, 3))])
    assert presence_only.num_bytes == 0


@every_profile
def test_filter_releases_what_no_row_needs_any_more(profile: str) -> None:
    together = open_rows(profile, NEUTRAL, PRESENCE, ALL)
    assert together.filter([1]).num_bytes == open_rows(profile, PRESENCE).num_bytes
    assert together.filter([0]).num_bytes == open_rows(profile, NEUTRAL).num_bytes
    assert together.filter([]).num_bytes == 0


@every_profile
def test_rollback_releases_the_tokens(profile: str) -> None:
    state = open_rows(profile, ALL)
    emptied = state.accumulate([], [0, 0], rollback=[1000])
    prompt_only = PenaltyOrchestrator.create(profile, VOCAB_SIZE, [RowStart(ALL, tuple(range(1, 2000, 2)))])
    assert emptied.num_bytes == prompt_only.num_bytes
