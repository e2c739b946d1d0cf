"""The candidate search and the log-probabilities under it: ties, order, bits, what penalties overwrite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from logitd.sampling.beam import LogitsError
from logitd.sampling.beam.candidates import joint_candidates, row_candidates
from logitd.sampling.beam.log_probs import RowLogProbs, penalise_log_probs, penalise_logits
from logitd.sampling.orchestrator import PenaltyOrchestrator, RowStart
from logitd.sampling.parameters import PenaltyParameters

if TYPE_CHECKING:
    from collections.abc import Callable


def rows_of(logits: torch.Tensor) -> RowLogProbs:
    return penalise_logits(logits, None)


def quantised(rows: int, vocab_size: int, seed: int, step: float = 0.5) -> torch.Tensor:
    values = np.random.default_rng(seed).standard_normal((rows, vocab_size)) * 2
    return torch.from_numpy((np.round(values / step) * step).astype(np.float32))


# From 8,192 on blocks are selected; 8,193 and 9,000 end in a short one.
SIZES = [(2, 7), (4, 33), (3, 1000), (2, 8191), (2, 8192), (3, 8193), (8, 9000), (300, 8193)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("width", "vocab_size"), SIZES[:-1])
def test_joint_candidates_are_the_flat_topk_ties_included(width: int, vocab_size: int, seed: int) -> None:
    check_joint_candidates(width, vocab_size, seed)


def test_joint_candidates_of_many_beams_are_the_flat_topk() -> None:
    check_joint_candidates(*SIZES[-1], seed=0)


def check_joint_candidates(width: int, vocab_size: int, seed: int) -> None:
    rows = rows_of(quantised(width, vocab_size, seed, step=(0.5, 1.0, 0.01, 1e-6)[seed % 4]))
    log_probs, sums = rows.values, quantised(1, width, seed + 100)[0]
    expected, places = torch.topk((log_probs[None] + sums[None, :, None]).reshape(1, -1), 2 * width)
    found = joint_candidates(rows, sums.numpy(), 2 * width)
    assert found.scores.tobytes() == expected[0].numpy().tobytes()
    assert (found.rows * vocab_size + found.token_ids).tolist() == places[0].tolist()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("vocab_size", "num_banned"), [(9, 0), (9, 7), (8193, 0), (8193, 8190)])
def test_one_row_stands_for_the_width(vocab_size: int, num_banned: int, seed: int) -> None:
    logits = quantised(1, vocab_size, seed, step=1.0)
    logits[:, np.random.default_rng(seed).permutation(vocab_size)[:num_banned]] = -torch.inf
    sums = np.array([0, -1e9, -1e9, -1e9], np.float32)
    one = joint_candidates(rows_of(logits), sums, 12)
    four = joint_candidates(rows_of(logits.repeat(4, 1)), sums, 12)
    flat = torch.topk((torch.log_softmax(logits, -1) + torch.from_numpy(sums)[:, None]).view(1, -1), 12)
    assert one.scores.tobytes() == flat.values[0].numpy().tobytes()
    assert one.token_ids.tolist() == (flat.indices[0] % vocab_size).tolist()
    assert one.scores.tobytes() == four.scores.tobytes()
    assert one.token_ids.tolist() == four.token_ids.tolist()
    assert set(one.rows.tolist()) == {0}


def test_vllm_lists_the_greedy_sample_first() -> None:
    # Three logits tie at the top; the sample is the first of them, wherever topk puts it.
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0, 3.0, 2.0]])
    (found,) = row_candidates(rows_of(logits), 4)
    assert found.token_ids[0] == 1
    assert sorted(found.token_ids[:3]) == [1, 3, 4]
    assert found.token_ids[3] == 5


def test_vllm_lists_one_more_where_topk_lacks_the_sample() -> None:
    for vocab_size in range(3, 200):
        logits = torch.zeros(1, vocab_size)
        rows = rows_of(logits)
        listed = rows.values.topk(2).indices[0].tolist()
        (found,) = row_candidates(rows, 2)
        others = [token_id for token_id in listed if token_id != 0]
        assert found.token_ids == [0, *others]
        assert len(found.token_ids) == len(found.log_probs) == 1 + len(others)


def test_vllm_breaks_ties_of_log_probs_by_the_logits() -> None:
    # Distinct logits whose log-probabilities round to the same: the sample is the greater logit.
    logits = torch.zeros(1, 64)
    logits[0, 40] = 1e-8
    rows = rows_of(logits)
    assert rows.values[0, 40] == rows.values[0, 0]
    (found,) = row_candidates(rows, 4)
    assert found.token_ids[0] == 40


def test_a_dead_row_lists_nothing() -> None:
    for vocab_size in (8, 8193):
        assert row_candidates(rows_of(torch.full((1, vocab_size), -torch.inf)), 4)[0].token_ids == []


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("rows", "vocab_size"), [(1, 50), (4, 8192), (3, 8193), (5, 20000)])
def test_row_candidates_are_each_rows_topk(rows: int, vocab_size: int, seed: int) -> None:
    logits = quantised(rows, vocab_size, seed, step=(0.5, 0.01, 1e-6)[seed % 3])
    logits[torch.from_numpy(np.random.default_rng(seed).random((rows, vocab_size)) < (seed % 4) / 3.2)] = -torch.inf
    values, token_ids = torch.log_softmax(logits, -1).topk(8)
    for row, found in enumerate(row_candidates(rows_of(logits), 8)):
        sample = int(logits[row].argmax())
        others = [t for t in token_ids[row].tolist() if t != sample]
        assert found.token_ids == [sample, *others]
        assert found.log_probs[:8] == values[row].tolist()


@pytest.mark.parametrize("domain", [penalise_log_probs, penalise_logits])
def test_strides_of_the_logits_do_not_matter_to_blocks(domain: Callable[..., RowLogProbs]) -> None:
    penalties = PenaltyOrchestrator.create("HF", 8193, [RowStart(PenaltyParameters(1.5), (1, 2))] * 3)
    wide = quantised(3, 9000, 0)
    for logits in (wide[:, :8193], wide[:, :8193].t().contiguous().t()):
        found, expected = domain(logits, penalties), domain(logits.clone().contiguous(), penalties)
        assert row_candidates(found, 4) == row_candidates(expected, 4)
        assert found.plain(np.arange(3), np.arange(3)).tolist() == expected.plain(np.arange(3), np.arange(3)).tolist()


def test_short_rows_and_other_devices_have_no_blocks() -> None:
    assert rows_of(torch.zeros(2, 8191)).maxima is None
    assert rows_of(torch.zeros(0, 8192)).maxima is None
    assert rows_of(torch.zeros(2, 8193)).maxima.shape == (2, 65)  # type: ignore[union-attr]


def test_rows_that_ascend_take_part_as_a_whole() -> None:
    ascending = torch.arange(9000.0)[None].repeat(2, 1) / 1000
    found = joint_candidates(rows_of(ascending), np.zeros(2, np.float32), 6)
    assert found.token_ids.tolist() == torch.topk(ascending.view(1, -1), 6).indices[0].remainder(9000).tolist()
    assert row_candidates(rows_of(ascending), 4)[1].token_ids == [8999, 8998, 8997, 8996]


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
def test_penalties_leave_the_callers_logits_alone(domain: Callable[..., RowLogProbs]) -> None:
    penalties = PenaltyOrchestrator.create("HF", 6, [RowStart(PenaltyParameters(1.5), (1,))])
    logits = quantised(1, 8, 2)
    before = logits.clone()
    domain(logits[:, :6], penalties)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("domain", [penalise_log_probs, penalise_logits])
def test_maxima_are_of_what_is_summed(domain: Callable[..., RowLogProbs]) -> None:
    boost = RowStart(PenaltyParameters(presence_penalty=-50.0), (), (9000,))
    banned = RowStart(PenaltyParameters(min_new_tokens=1, stop_token_ids=(5,)))
    logits = quantised(2, 9001, 3)
    logits[1, 5] = 99.0
    rows = domain(logits, PenaltyOrchestrator.create("HF", 9001, [boost, banned]))
    assert rows.maxima is not None
    blocks = rows.values.split(128, dim=1)
    assert torch.equal(rows.maxima, torch.stack([block.amax(1) for block in blocks], dim=1))
    assert rows.maxima[0].argmax() == 70
