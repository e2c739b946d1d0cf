"""Numbers of faults that users of other engines reported; the other modules here test each case's kind."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logitd.sampling.beam import (
    RULES,
    BeamParameters,
    BeamSearch,
    EarlyStopping,
    FinishReason,
    LiveBeam,
    RequestStart,
)
from logitd.sampling.orchestrator import PenaltyOrchestrator, RowStart
from logitd.sampling.parameters import PenaltyParameters

# Case 15: log-probabilities are penalised under HF, logits under the VLLM extension.
LOGITS = [2.0, 1.5, -0.5, 0.25, 0.0]
SHIFTED = [5.0, 4.5, 2.5, 3.25, 3.0]


def first_step(rule: str, profile: str, logits: list[float]) -> tuple[list[int], list[float]]:
    penalties = PenaltyOrchestrator.create(profile, 5, [RowStart(PenaltyParameters(repetition_penalty=1.2), [0])])
    start = RequestStart(BeamParameters(2, 8, eos_token_ids=(4,)))
    search = BeamSearch.start(rule, 5, [start], penalties, allow_penalty_extension=True)
    _, step = search.step(torch.tensor([logits]))
    return step.token_ids.tolist(), step.scores.tolist()


@pytest.mark.parametrize("logits", [LOGITS, SHIFTED], ids=["base", "plus 3"])
def test_penalised_log_probs_do_not_depend_on_the_zero_point_of_logits(logits: list[float]) -> None:
    token_ids, scores = first_step("HF", "HF", logits)
    assert token_ids == [0, 1]
    assert scores == pytest.approx([-0.8304107706745454, -1.1920089755621213], rel=1e-5)


@pytest.mark.parametrize(
    ("logits", "token_ids", "scores"),
    [
        (LOGITS, [0, 1], [-0.8723126146829054, -1.0389792813495722]),
        (SHIFTED, [1, 0], [-0.8592976670631236, -1.1926310003964566]),
    ],
    ids=["base", "plus 3"],
)
def test_penalised_logits_depend_on_their_zero_point(
    logits: list[float], token_ids: list[int], scores: list[float]
) -> None:
    found_ids, found_scores = first_step("VLLM", "SGLANG", logits)
    # That profile counts output only, in which there is none yet; VLLM's counts the prompt.
    assert found_ids == [0, 1]
    found_ids, found_scores = first_step("VLLM", "VLLM", logits)
    assert found_ids == token_ids
    assert found_scores == pytest.approx(scores, rel=1e-5)


# Case 18: the prompt is not in the divisor, the EOS is.
EOS = 9
HYPOTHESES = {"A": ([3, 9], -2.0), "B": ([3, 1, 4, 2, 6, 9], -4.5), "C": ([5, 2, 9], -2.4), "D": ([1, 2, 6], -2.7)}
GENERATED = {
    1.0: {"B": -0.75, "C": -0.8, "D": -0.9, "A": -1.0},
    0.0: {"A": -2.0, "C": -2.4, "D": -2.7, "B": -4.5},
    2.0: {"B": -0.125, "C": -0.26666666666666666, "D": -0.3, "A": -0.5},
    -1.0: {"A": -4.0, "C": -7.2, "D": -8.1, "B": -27.0},
}
WITH_PROMPT = {
    1.0: {"A": -0.09523809523809523, "C": -0.10909090909090909, "D": -0.11739130434782609, "B": -0.18},
    0.0: {"A": -2.0, "C": -2.4, "D": -2.7, "B": -4.5},
    2.0: {"A": -0.0045351473922902496, "C": -0.004958677685950413, "D": -0.005103969754253308, "B": -0.0072},
    -1.0: {"A": -42.0, "C": -52.8, "D": -62.1, "B": -112.5},
}


def score_by_finishing(token_ids: list[int], total: float, parameters: BeamParameters) -> float:
    """The score with which a live beam ends by the HF rule; the other beams fill the width, far behind."""
    sums = [total, *[total - 100] * (parameters.width - 1)]
    beams = tuple(LiveBeam(np.array(token_ids, np.int32), one_sum) for one_sum in sums)
    _, step = BeamSearch.start("HF", EOS + 1, [RequestStart(parameters, beams)]).finish([0])
    return step.requests[0].hypotheses[0].score


def score_all(rule: str, length_penalty: float) -> dict[str, float]:
    parameters = BeamParameters(4, 20, length_penalty, eos_token_ids=(EOS,), prompt_length=20)

    def score(token_ids: list[int], total: float) -> float:
        if rule == "HF":
            return score_by_finishing(token_ids, total, parameters)
        return RULES[rule].score(total, len(token_ids), parameters, has_eos=token_ids[-1] == EOS)

    scores = {name: score(*hypothesis) for name, hypothesis in HYPOTHESES.items()}
    return dict(sorted(scores.items(), key=lambda entry: -entry[1]))


@pytest.mark.parametrize("length_penalty", GENERATED)
@pytest.mark.parametrize(
    ("rule", "table"), [("HF", GENERATED), ("VLLM", GENERATED), ("VLLM_PROMPT_LENGTH", WITH_PROMPT)]
)
def test_length_in_the_score(rule: str, table: dict[float, dict[str, float]], length_penalty: float) -> None:
    found, expected = score_all(rule, length_penalty), table[length_penalty]
    assert list(found) == list(expected)
    assert list(found.values()) == pytest.approx(list(expected.values()), rel=1e-6)


# Case 20: three modes of early stopping, three winners. The logits of a step follow from the last token.
START = [-3.5, 4.0, 2.0, -2.0, 3.5]
NEXT = [
    [-2.0, -3.5, -0.5, -1.0, 0.0],
    [1.5, -2.0, 0.5, -0.5, -3.5],
    [-3.0, 0.5, -2.5, 3.0, -1.0],
    [-4.0, -0.5, -1.5, -1.0, 2.5],
]
# Parents, tokens and sums of the beams that go on after each step.
STEPS = [
    ([0, 0], [1, 2], [-0.5566959748532165, -2.5566959748532163]),
    ([0, 0], [0, 2], [-0.9885758247329086, -1.9885758247329086]),
    ([1, 0], [3, 2], [-2.0901989099052605, -2.249354909270256]),
    ([1, 1], [3, 1], [-2.3509779944426077, -4.850977994442608]),
]
# What enters the pool in each step: tokens, sum, score.
ENTERED: list[list[tuple[list[int], float, float]]] = [
    [([4], -1.0566959381103516, -1.0566959748532165)],
    [],
    [([1, 0, 4], -1.749354909270256, -0.5831183030900854)],
    [([1, 2, 3, 4], -2.1853304645496925, -0.5463326161374231)],
    [([1, 0, 2, 3, 4], -2.4461095490870397, -0.48922190981740793)],
]
FINAL = {
    EarlyStopping.TRUE: (3, [[1, 0, 4], [4]]),
    EarlyStopping.FALSE: (4, [[1, 2, 3, 4], [1, 0, 4]]),
    EarlyStopping.NEVER: (5, [[1, 0, 2, 3, 4], [1, 2, 3, 4]]),
}


@pytest.mark.parametrize("mode", FINAL)
def test_each_mode_of_early_stopping_has_its_own_winner(mode: EarlyStopping) -> None:
    num_steps, winners = FINAL[mode]
    search = BeamSearch.start("HF", 5, [RequestStart(BeamParameters(2, 8, 1.0, mode, (4,)))])
    logits = torch.tensor([START])
    for number in range(num_steps):
        search, step = search.step(logits)
        (result,) = step.requests
        entered = [(h.token_ids.tolist(), h.running_sum, h.score) for h in result.entered]
        assert [tokens for tokens, _, _ in entered] == [tokens for tokens, _, _ in ENTERED[number]]
        for (_, *found), (_, *expected) in zip(entered, ENTERED[number], strict=True):
            assert found == pytest.approx(expected, rel=1e-6)
        assert result.is_done == (number == num_steps - 1)
        if not result.is_done:
            parents, token_ids, scores = STEPS[number]
            assert step.parent_rows.tolist() == parents
            assert step.token_ids.tolist() == token_ids
            assert step.scores.tolist() == pytest.approx(scores, rel=1e-6)
            logits = torch.tensor([NEXT[token_id] for token_id in token_ids])
    assert result.finish_reason is FinishReason.RULE
    assert [h.token_ids.tolist() for h in result.hypotheses] == winners


# Case 22: both children descend from beam 1, so no row may count beam 0's tokens.
def test_penalty_state_follows_the_parents() -> None:
    asked = PenaltyParameters(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    neutral_step = torch.tensor([[0.0, 0.125, 0.0, 0.0625, -0.125, -4.0], [-2.0, -1.0, 4.0, 3.5, -3.0, -4.0]])
    generated = [[0, 0], [1, 4]]
    start = RequestStart(
        BeamParameters(2, 6, eos_token_ids=(5,)),
        (LiveBeam(np.array([0, 0], np.int32), -1.0), LiveBeam(np.array([1, 4], np.int32), -1.25)),
    )
    search, step = BeamSearch.start("HF", 6, [start]).step(neutral_step)
    assert step.parent_rows.tolist() == [1, 1]
    assert step.token_ids.tolist() == [2, 3]
    assert step.scores.tolist() == pytest.approx([-1.7305693050681719, -2.2305693050681716], rel=1e-6)
    assert [beam.token_ids.tolist() for beam in search.snapshot(0).live_beams] == [[1, 4, 2], [1, 4, 3]]

    rows = [RowStart(asked, (), tokens) for tokens in generated]
    counts = PenaltyOrchestrator.create("SGLANG", 6, rows).filter(step.parent_rows).accumulate(step.token_ids)
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0, -1.0, 0.0]]).repeat(2, 1)
    counts.apply_inplace(logits)
    assert logits.tolist() == [[4.0, 0.75, 0.25, 1.0, -2.75, 0.0], [4.0, 0.75, 2.0, -0.25, -2.75, 0.0]]
