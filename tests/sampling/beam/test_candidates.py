"""The candidate search and the log-probabilities under it: ties, order, bits, what penalties overwrite."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logitd.sampling.beam import LogitsError
from logitd.sampling.beam.candidates import joint_candidates, row_candidates
from logitd.sampling.beam.log_probs import penalise_log_probs, penalise_logits
from logitd.sampling.orchestrator import PenaltyOrchestrator, RowStart
from logitd.sampling.parameters import PenaltyParameters


def quantised(rows: int, vocab_size: int, seed: int, step: float = 0.5) -> torch.Tensor:
    values = np.random.default_rng(seed).standard_normal((rows, vocab_size)) * 2
    return torch.from_numpy((np.round(values / step) * step).astype(np.float32))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("width", "vocab_size"), [(2, 7), (4, 33), (3, 1000)])
def test_joint_candidates_are_the_flat_topk_ties_included(width: int, vocab_size: int, seed: int) -> None:
    log_probs = torch.log_softmax(quantised(width, vocab_size, seed), -1)
    sums = quantised(1, width, seed + 100)[0]
    expected, places = torch.topk((log_probs[None] + sums[None, :, None]).reshape(1, -1), 2 * width)
    found = joint_candidates(log_probs, sums.numpy(), 2 * width)
    assert found.scores.tobytes() == expected[0].numpy().tobytes()
    assert (found.rows * vocab_size + found.token_ids).tolist() == places[0].tolist()


@pytest.mark.parametrize("seed", range(20))
def test_one_row_stands_for_the_width(seed: int) -> None:
    log_probs = torch.log_softmax(quantised(1, 9, seed, step=1.0), -1)
    sums = np.array([0, -1e9, -1e9, -1e9], np.float32)
    one = joint_candidates(log_probs, sums, 12)
    four = joint_candidates(log_probs.repeat(4, 1), sums, 12)
    assert one.scores.tobytes() == four.scores.tobytes()
    assert one.token_ids.tolist() == four.token_ids.tolist()
    assert set(one.rows.tolist()) == {0}


def test_vllm_lists_the_greedy_sample_first() -> None:
    # Three logits tie at the top; the sample is the first of them, wherever topk puts it.
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0, 3.0, 2.0]])
    log_probs = torch.log_softmax(logits, -1)
    (found,) = row_candidates(log_probs, logits, 4)
    assert found.token_ids[0] == 1
    assert sorted(found.token_ids[:3]) == [1, 3, 4]
    assert found.token_ids[3] == 5


def test_vllm_lists_one_more_where_topk_lacks_the_sample() -> None:
    for vocab_size in range(3, 200):
        logits = torch.zeros(1, vocab_size)
        log_probs = torch.log_softmax(logits, -1)
        listed = log_probs.topk(2).indices[0].tolist()
        (found,) = row_candidates(log_probs, logits, 2)
        others = [token_id for token_id in listed if token_id != 0]
        assert found.token_ids == [0, *others]
        assert len(found.token_ids) == len(found.log_probs) == 1 + len(others)


def test_vllm_breaks_ties_of_log_probs_by_the_logits() -> None:
    # Distinct logits whose log-probabilities round to the same: the sample is the greater logit.
    logits = torch.zeros(1, 64)
    logits[0, 40] = 1e-8
    log_probs = torch.log_softmax(logits, -1)
    assert log_probs[0, 40] == log_probs[0, 0]
    (found,) = row_candidates(log_probs, logits, 4)
    assert found.token_ids[0] == 40


def test_a_dead_row_lists_nothing() -> None:
    rows = penalise_logits(torch.full((1, 8), -torch.inf), None)
    assert row_candidates(rows.values, rows.logits, 4)[0].token_ids == []


@pytest.mark.parametrize("vocab_size", [5, 64, 1000, 32001])
def test_rows_are_normalised_alone(vocab_size: int) -> None:
    logits = torch.from_numpy(np.random.default_rng(0).standard_normal((6, vocab_size)).astype(np.float32))
    together = penalise_log_probs(logits, None).values
    for row in range(6):
        assert torch.equal(penalise_log_probs(logits[row : row + 1], None).values[0], together[row])


@pytest.mark.parametrize("vocab_size", [1, 2, 3, 8, 9, 31, 257])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_bad_logit_is_found_in_any_column(vocab_size: int, value: float) -> None:
    for column in range(vocab_size):
        logits = torch.zeros(3, vocab_size)
        logits[0] = -torch.inf
        logits[2, column] = value
        with pytest.raises(LogitsError) as caught:
            penalise_log_probs(logits, None)
        assert (caught.value.row, caught.value.token_id) == (2, column)


def test_a_nan_beside_minus_inf_is_no_dead_row() -> None:
    logits = torch.full((1, 4), -torch.inf)
    logits[0, 2] = torch.nan
    with pytest.raises(LogitsError):
        penalise_logits(logits, None)


def test_plain_log_probs_are_those_before_the_penalties() -> None:
    asked = PenaltyParameters(1.5, 0.25, min_new_tokens=9, stop_token_ids=(3,))
    rows = [RowStart(asked, (1, 2), (4,)), RowStart(PenaltyParameters()), RowStart(asked, (), (0, 5, 5))]
    penalties = PenaltyOrchestrator.create("HF", 6, rows)
    logits = quantised(3, 6, 1)
    before = torch.log_softmax(logits, -1)
    found = penalise_log_probs(logits, penalties)
    touched = found.values != before
    assert touched.tolist() == [
        [False, True, True, True, True, False],
        [False] * 6,
        [True, False, False, True, False, True],
    ]
    for first in range(3):
        part = found.part(first, 3)
        places = np.indices((3 - first, 6), np.int64).reshape(2, -1)
        assert part.plain(*places).tobytes() == before[first:].numpy().tobytes()


@pytest.mark.parametrize("domain", [penalise_log_probs, penalise_logits])
def test_penalties_leave_the_callers_logits_alone(domain: object) -> None:
    penalties = PenaltyOrchestrator.create("HF", 6, [RowStart(PenaltyParameters(1.5), (1,))])
    logits = quantised(1, 8, 2)
    before = logits.clone()
    domain(logits[:, :6], penalties)  # type: ignore[operator]
    assert torch.equal(logits, before)
