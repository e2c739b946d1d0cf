"""Rows without a continuation, requests without one, and candidates that only fill the width."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.beam_stub import Decoder, StubModel, bits
from logitd.sampling.beam import BeamParameters, BeamSearch, FinishReason, RequestStart
from logitd.sampling.orchestrator import PenaltyOrchestrator, RowStart
from logitd.sampling.parameters import PenaltyParameters

RULE_NAMES = ("HF", "VLLM", "VLLM_PROMPT_LENGTH")
VOCAB_SIZE = 16
EOS = 5


def parameters(width: int = 3, max_new_tokens: int = 4) -> BeamParameters:
    return BeamParameters(width, max_new_tokens, eos_token_ids=(EOS,), prompt_length=1)


def begin(rule: str, *asked: BeamParameters) -> BeamSearch:
    return BeamSearch.start(rule, VOCAB_SIZE, [RequestStart(p) for p in asked])


def random_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, VOCAB_SIZE)).astype(np.float32))


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_a_row_of_minus_inf_is_a_dead_beam_and_the_others_go_on(rule: str) -> None:
    search, step = begin(rule, parameters()).step(random_logits(1))
    logits = random_logits(3, 1)
    logits[1] = -torch.inf
    search, step = search.step(logits)
    assert 1 not in step.parent_rows
    assert np.isfinite(step.scores).all()
    assert search.num_rows == 3


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_a_request_without_a_candidate_finishes_alone_with_its_pool(rule: str) -> None:
    prompts, models = [(1,), (2,)], [StubModel(seed, VOCAB_SIZE, eos_token_ids=(EOS,), eos_bias=3.0) for seed in (0, 1)]
    asked = [parameters(3, 8), parameters(2, 8)]
    decoder = Decoder(begin(rule, *asked), models, prompts)
    while not decoder.search.snapshot(0).pool:
        decoder.step()
    pool = decoder.search.snapshot(0).pool
    logits = decoder.logits()
    logits[:3] = -torch.inf
    step = decoder.step(logits)
    assert step.requests[0].finish_reason is FinishReason.NO_CANDIDATE
    assert bits(step.requests[0].hypotheses) == bits(pool)
    assert step.requests[0].entered == ()
    assert not step.requests[1].is_done
    decoder.run()
    alone = Decoder(begin(rule, asked[1]), models[1:], prompts[1:]).run()
    assert bits(decoder.results[1].hypotheses) == bits(alone.results[0].hypotheses)


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_no_candidate_at_the_first_step_finds_nothing(rule: str) -> None:
    search, step = begin(rule, parameters()).step(torch.full((1, VOCAB_SIZE), -torch.inf))
    assert step.requests[0].finish_reason is FinishReason.NO_CANDIDATE
    assert step.requests[0].hypotheses == ()
    assert search.requests == ()


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_a_ban_can_leave_no_candidate(rule: str) -> None:
    only_eos = torch.full((1, VOCAB_SIZE), -torch.inf)
    only_eos[0, EOS] = 0.0
    asked = PenaltyParameters(min_new_tokens=1, stop_token_ids=(EOS,))
    for profile in ("HF", "VLLM"):
        penalties = PenaltyOrchestrator.create(profile, VOCAB_SIZE, [RowStart(asked)])
        search = BeamSearch.start(
            rule, VOCAB_SIZE, [RequestStart(parameters())], penalties, allow_penalty_extension=True
        )
        _, step = search.step(only_eos)
        assert step.requests[0].finish_reason is FinishReason.NO_CANDIDATE


def test_one_legal_token_fills_the_width_with_what_the_engine_has() -> None:
    # Measured with Transformers 5.24: three beams, seven tokens, one legal token a step.
    search = BeamSearch.start("HF", VOCAB_SIZE, [RequestStart(BeamParameters(3, 7))])
    legal = torch.full((1, VOCAB_SIZE), -torch.inf)
    legal[0, 3] = 1.0
    while search.requests:
        search, step = search.step(legal.repeat(search.num_rows, 1))
    found = step.requests[0].hypotheses
    assert [h.score for h in found] == [0.0, -142857136.0, -142857136.0]
    assert [h.is_filler for h in found] == [False, True, True]
    assert all(h.token_ids.tolist() == [3] * 7 for h in found)


def test_live_fillers_are_told_by_their_score() -> None:
    legal = torch.full((1, VOCAB_SIZE), -torch.inf)
    legal[0, 3] = 1.0
    _, step = begin("HF", parameters()).step(legal)
    assert (step.scores < -1e8).tolist() == [False, True, True]
    _, step = begin("VLLM", parameters()).step(legal)
    assert (step.scores < -1e8).tolist() == [False, True, True]


def test_empty_slots_of_the_pool_are_never_returned() -> None:
    # Nothing but the EOS is legal: the engine stops with one finished hypothesis and slots that nothing filled.
    only_eos = torch.full((1, VOCAB_SIZE), -torch.inf)
    only_eos[0, EOS] = 0.0
    _, step = begin("HF", parameters()).step(only_eos)
    assert step.requests[0].finish_reason is FinishReason.RULE
    found = [h for h in step.requests[0].hypotheses if not h.is_filler]
    assert [h.token_ids.tolist() for h in found] == [[EOS]]
    assert all(h.token_ids.tolist() == [EOS] for h in step.requests[0].hypotheses)


def test_vllm_ends_when_nothing_but_an_eos_is_left() -> None:
    asked = BeamParameters(1, 9, eos_token_ids=(0, 1), prompt_length=1)
    search, step = BeamSearch.start("VLLM", 2, [RequestStart(asked)]).step(torch.tensor([[1.0, 0.0]]))
    assert step.requests[0].finish_reason is FinishReason.RULE
    assert [h.token_ids.tolist() for h in step.requests[0].hypotheses] == [[0]]
    assert search.requests == ()


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_live_beams_can_be_fewer_than_the_width_under_vllm(rule: str) -> None:
    asked = BeamParameters(3, 9, eos_token_ids=tuple(range(2, 6)), prompt_length=1)
    search = BeamSearch.start(rule, 6, [RequestStart(asked)])
    if rule == "HF":
        search, _ = search.step(torch.zeros(1, 6))
        assert search.num_rows == 3
    else:
        search, _ = search.step(torch.zeros(1, 6))
        assert search.num_rows == 2


def test_a_vocabulary_smaller_than_the_candidates_uses_dead_beams() -> None:
    asked = BeamParameters(4, 3)
    search, step = BeamSearch.start("HF", 3, [RequestStart(asked)]).step(torch.tensor([[2.0, 1.0, 0.0]]))
    assert (step.scores < -1e8).tolist() == [False, False, False, True]
    assert search.num_rows == 4
    decoder = Decoder(search, [StubModel(0, 3)], [(1,)])
    decoder.sequences = [(1, int(token_id)) for token_id in step.token_ids]
    found = decoder.run().results[0].hypotheses
    assert len({tuple(h.token_ids.tolist()) for h in found}) == 4
    assert not any(h.is_filler for h in found)
