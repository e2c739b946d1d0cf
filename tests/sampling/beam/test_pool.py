"""Which of equal scores stay in the pool, and in which order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logitd.sampling.beam import BeamParameters, BeamSearch, FinishReason, Hypothesis, LiveBeam, RequestStart

VOCAB_SIZE = 16
EOS = 5
OLD = 15


def finished(token_id: int, score: float, parents: tuple[int, int] = (0, 0)) -> Hypothesis:
    token_ids, chain = np.array([token_id, EOS], np.int32), np.array(parents, np.int32)
    return Hypothesis(token_ids, score, 2 * score, 2 * score, FinishReason.EOS, chain)


def tie(rule: str, width: int, pool: tuple[Hypothesis, ...]) -> list[int]:
    """First tokens of the pool after every live beam ended with the score -1, row r having begun with token r."""
    beams = tuple(LiveBeam(np.array([row, 1], np.int32), -3.0) for row in range(width))
    start = RequestStart(BeamParameters(width, 9, eos_token_ids=(EOS,), prompt_length=1), beams, pool)
    only_eos = torch.full((width, VOCAB_SIZE), -torch.inf)
    only_eos[:, EOS] = 0.0
    search, step = BeamSearch.start(rule, VOCAB_SIZE, [start]).step(only_eos)
    found = step.requests[0].hypotheses or search.snapshot(0).pool
    return [int(h.token_ids[0]) for h in found]


@pytest.mark.parametrize("width", range(2, 9))
def test_hf_ranks_ties_as_topk_does(width: int) -> None:
    old = tuple(finished(OLD, -1.0) for _ in range(width - 1))
    beams = torch.tensor([[-3.0] * width])
    candidates = torch.full((width, VOCAB_SIZE), -torch.inf)
    candidates[:, EOS] = 0.0
    scores, places = torch.topk((candidates + beams.T).view(1, -1), 2 * width)
    new = scores / 3
    new[:, width:] += -1e9
    merged = torch.cat((torch.tensor([[-1.0] * (width - 1) + [-1e9]]), new), dim=1)
    names = [OLD] * (width - 1) + [-1] + (places[0] // VOCAB_SIZE).tolist()
    assert tie("HF", width, old) == [names[place] for place in torch.topk(merged, width).indices[0].tolist()]


def test_hf_has_ties_that_a_stable_sort_would_rank_otherwise() -> None:
    scores = torch.full((1, 12), -1.0)
    assert torch.topk(scores, 4).indices[0].tolist() != [0, 1, 2, 3]


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_vllm_keeps_the_earlier_of_equal_scores(width: int) -> None:
    old = tuple(finished(10 + place, -1.0) for place in range(width // 2))
    expected = [10 + place for place in range(width // 2)] + list(range(width))
    assert tie("VLLM", width, old) == expected[:width]


def test_hypotheses_that_differ_in_their_parents_alone_keep_their_places() -> None:
    pool = (finished(3, -1.0, (0, 1)), finished(3, -1.0, (0, 0)))
    beams = tuple(LiveBeam(np.array([row, 1], np.int32), -1.5) for row in range(2))
    start = RequestStart(BeamParameters(2, 9, eos_token_ids=(EOS,)), beams, pool)
    search = BeamSearch.start("HF", VOCAB_SIZE, [start])
    rebuilt = BeamSearch.start("HF", VOCAB_SIZE, [search.snapshot(0)]).snapshot(0)
    assert [h.parent_chain.tolist() for h in rebuilt.pool] == [[0, 1], [0, 0]]


def test_hypotheses_that_differ_in_their_tokens_alone_keep_their_places() -> None:
    pool = (finished(7, -1.0), finished(3, -1.0))
    beams = tuple(LiveBeam(np.array([row, 1], np.int32), -1.5) for row in range(2))
    search = BeamSearch.start("HF", VOCAB_SIZE, [RequestStart(BeamParameters(2, 9, eos_token_ids=(EOS,)), beams, pool)])
    rebuilt = BeamSearch.start("HF", VOCAB_SIZE, [search.snapshot(0)]).snapshot(0)
    assert [int(h.token_ids[0]) for h in rebuilt.pool] == [7, 3]


def test_vllm_keeps_the_earlier_rows_of_equal_beams() -> None:
    beams = tuple(LiveBeam(np.array([row, 1], np.int32), -3.0) for row in range(4))
    search = BeamSearch.start("VLLM", VOCAB_SIZE, [RequestStart(BeamParameters(4, 9), beams)])
    one_legal = torch.full((4, VOCAB_SIZE), -torch.inf)
    one_legal[:, 2] = 0.0
    _, step = search.step(one_legal)
    assert step.parent_rows.tolist() == [0, 1, 2, 3]
