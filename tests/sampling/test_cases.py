"""The cases of `helpers.penalty_cases` through the library."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from helpers import penalty_cases as cases
from helpers.penalty_states import append, penalise
from helpers.penalty_strategies import DTYPES
from logitd.sampling import ParameterError, PenaltyOrchestrator, PenaltyParameters, RowStart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helpers.penalty_cases import BatchAction, CaseRow, ParameterCase, StepCase

every_profile = pytest.mark.parametrize("profile", cases.PROFILES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def to_start(row: CaseRow) -> RowStart:
    return RowStart(PenaltyParameters(**row.parameters), row.prompt, row.output)


def assert_logits(
    actual: torch.Tensor, expected: cases.Logits, faults: Mapping[str, cases.Logits], is_exact: bool
) -> None:
    """Equal, or the message names the fault that gives what came."""
    tolerance = 0.0 if is_exact else 1e-5

    def is_close(wanted: cases.Logits) -> bool:
        return torch.allclose(actual.double(), torch.tensor(wanted, dtype=torch.float64), rtol=tolerance, atol=0)

    assert is_close(expected), [*(name for name, wrong in faults.items() if is_close(wrong)), actual]


@pytest.mark.parametrize(
    ("case", "profile"),
    [
        pytest.param(case, profile, id=f"{profile}: {case.name}")
        for case in cases.STEP_CASES
        for profile in case.expected
    ],
)
@every_dtype
def test_a_step(case: StepCase, profile: str, dtype: torch.dtype, device: torch.device) -> None:
    state = PenaltyOrchestrator.create(profile, case.vocab_size, [to_start(row) for row in case.rows])
    after = penalise(state, torch.tensor(case.logits, dtype=dtype, device=device)).cpu()
    assert_logits(after, case.expected[profile], case.faults, case.is_exact)


@pytest.mark.parametrize("case", cases.STEP_CASES, ids=lambda case: case.name)
def test_the_faults_of_a_case_differ_from_what_is_expected(case: StepCase) -> None:
    assert case.expected.get("SGLANG") not in list(case.faults.values())


@pytest.mark.parametrize("case", cases.STEP_CASES, ids=lambda case: case.name)
def test_rows_give_the_same_alone_and_in_reverse(case: StepCase) -> None:
    for profile, expected in case.expected.items():
        state = PenaltyOrchestrator.create(profile, case.vocab_size, [to_start(row) for row in case.rows])
        order = range(len(case.rows))[::-1]
        logits = torch.tensor(case.logits)
        reverse = penalise(state.filter(order), logits.flip(0))
        assert_logits(reverse, expected[::-1], {}, case.is_exact)
        for row in order:
            alone = penalise(state.filter([row]), logits[row : row + 1])
            assert_logits(alone, (expected[row],), {}, case.is_exact)


@pytest.mark.parametrize("case", cases.STEP_CASES, ids=lambda case: case.name)
def test_tokens_one_by_one_give_the_same(case: StepCase) -> None:
    for profile, expected in case.expected.items():
        rows = [replace(to_start(row), output_token_ids=()) for row in case.rows]
        state = PenaltyOrchestrator.create(profile, case.vocab_size, rows)
        for step in range(max(len(row.output) for row in case.rows)):
            state = append(state, [row.output[step : step + 1] for row in case.rows])
        assert_logits(penalise(state, torch.tensor(case.logits)), expected, case.faults, case.is_exact)


class NamedRows:
    """Batches of sequences that are known by name."""

    def __init__(self, profile: str) -> None:
        self.profile = profile
        self.batches: dict[tuple[str, ...], PenaltyOrchestrator] = {}

    def open(self, action: BatchAction) -> None:
        for name in action.names:
            row = RowStart(PenaltyParameters(**cases.CONTINUOUS_BATCHING_PARAMETERS[name]))
            self.batches[name,] = PenaltyOrchestrator.create(self.profile, 6, [row])

    def accumulate(self, action: BatchAction) -> None:
        for names, state in self.batches.items():
            self.batches[names] = append(state, [action.tokens.get(name, ()) for name in names])

    def arrange(self, action: BatchAction) -> None:
        order = [name for names in self.batches for name in names]
        merged = functools.reduce(PenaltyOrchestrator.merge, self.batches.values())
        self.batches = {action.names: merged.filter([order.index(name) for name in action.names])}

    def apply(self, action: BatchAction) -> None:
        logits = torch.tensor([cases.CONTINUOUS_BATCHING_LOGITS] * len(action.names))
        assert_logits(penalise(self.batches[action.names], logits), action.expected[self.profile], {}, True)


@every_profile
def test_continuous_batching(profile: str) -> None:
    rows = NamedRows(profile)
    for action in cases.CONTINUOUS_BATCHING:
        getattr(rows, action.verb)(action)


@pytest.mark.parametrize("profile", ["SGLANG", "VLLM", "HF"])
def test_drafts_that_are_accepted_and_replaced(profile: str) -> None:
    state = PenaltyOrchestrator.create(profile, 6, [to_start(cases.DRAFTS_ROW)])
    faults = {name: (logits,) for name, logits in cases.DRAFTS_FAULTS.items()}
    for step in cases.DRAFTS:
        state = append(state, [step.tokens], [step.rollback])
        assert_logits(penalise(state, torch.tensor([step.logits])), (step.expected[profile],), faults, True)
    assert state.output_token_ids(0).tolist() == [2, 2, 4, 1]


@every_profile
@pytest.mark.parametrize("case", cases.PARAMETER_CASES, ids=lambda case: str(dict(case.parameters)))
def test_parameters_are_taken_or_refused_at_the_door(profile: str, case: ParameterCase) -> None:
    row = RowStart(PenaltyParameters(**case.parameters), (), cases.PARAMETER_OUTPUT)
    if profile not in case.accepted_by:
        with pytest.raises(ParameterError):
            PenaltyOrchestrator.create(profile, 5, [RowStart(), row])
        return
    after = penalise(PenaltyOrchestrator.create(profile, 5, [row]), torch.tensor([cases.PARAMETER_LOGITS]))
    if case.logits is None:
        assert all(map(math.isfinite, after[0].tolist()))
    else:
        assert_logits(after, (case.logits,), {}, True)
