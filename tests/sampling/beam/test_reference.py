"""The library against plain searches in float64, on random requests; and batches against requests on their own."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.beam_reference import log_softmax, search_hf, search_vllm
from helpers.beam_stub import Decoder, StubModel, bits
from logitd.sampling.beam import RULES, BeamParameters, BeamSearch, EarlyStopping, RequestStart
from logitd.sampling.orchestrator import PenaltyOrchestrator, RowStart
from logitd.sampling.parameters import PenaltyParameters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from helpers.beam_reference import Result
    from logitd.sampling.beam import RequestStep

PROMPT = (1, 2, 3)
NEUTRAL = PenaltyParameters()
RULE_NAMES = ("HF", "VLLM", "VLLM_PROMPT_LENGTH")


@st.composite
def requests(draw: st.DrawFn, rule: str) -> tuple[StubModel, BeamParameters]:
    """A request and its model; continuous logits, so that nothing ties."""
    vocab_size = 32
    eos = tuple(draw(st.lists(st.integers(0, vocab_size - 1), max_size=3)))
    width = draw(st.integers(2, 6))
    modes = list(EarlyStopping) if rule == "HF" else [EarlyStopping.FALSE]
    model = StubModel(
        seed=draw(st.integers(0, 2**31)),
        vocab_size=vocab_size,
        eos_token_ids=eos,
        eos_bias=draw(st.sampled_from([0.0, 2.0, 4.0])),
    )
    parameters = BeamParameters(
        width=width,
        max_new_tokens=draw(st.integers(1, 9)),
        length_penalty=draw(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0])),
        early_stopping=draw(st.sampled_from(modes)),
        eos_token_ids=eos,
        num_return_sequences=draw(st.integers(1, width)),
        prompt_length=len(PROMPT),
        return_token_log_probs=True,
    )
    return model, parameters


def search_alone(
    rule: str, model: StubModel, parameters: BeamParameters, penalties: PenaltyParameters = NEUTRAL
) -> tuple[RequestStep, int]:
    rows = [RowStart(penalties, PROMPT)]
    search = BeamSearch.start(
        rule,
        model.vocab_size,
        [RequestStart(parameters)],
        None
        if penalties == NEUTRAL
        else PenaltyOrchestrator.create(RULES[rule].penalty_profile, model.vocab_size, rows),
        allow_penalty_extension=True,
    )
    decoder = Decoder(search, [model], [PROMPT]).run()
    return decoder.results[0], decoder.num_steps[0]


def assert_same(found: RequestStep, num_steps: int, expected: Result) -> None:
    assert num_steps == expected.num_steps
    hypotheses = [h for h in found.hypotheses if not h.is_filler]
    assert [h.token_ids.tolist() for h in hypotheses] == [r.token_ids for r in expected.hypotheses]
    assert [h.score for h in hypotheses] == pytest.approx([r.score for r in expected.hypotheses], rel=1e-4)
    assert [h.running_sum for h in hypotheses] == pytest.approx([r.running_sum for r in expected.hypotheses], rel=1e-4)


def plain(model: StubModel) -> Callable[[tuple[int, ...]], NDArray[np.float64]]:
    return cache(lambda tokens: log_softmax(model(PROMPT + tokens)))


@settings(max_examples=50)
@given(requests("HF"))
def test_hf_finds_what_the_definition_finds(request_: tuple[StubModel, BeamParameters]) -> None:
    model, parameters = request_
    assert_same(*search_alone("HF", model, parameters), search_hf(plain(model), parameters))


@settings(max_examples=30)
@given(requests("HF"), st.sampled_from([0.7, 1.3, 2.0]), st.integers(0, 4))
def test_hf_penalises_log_probs(
    request_: tuple[StubModel, BeamParameters], repetition: float, min_new_tokens: int
) -> None:
    model, parameters = request_

    @cache
    def penalised(tokens: tuple[int, ...]) -> NDArray[np.float64]:
        values = log_softmax(model(PROMPT + tokens))
        # Log-probabilities are negative, where the penalty multiplies.
        seen = list({*PROMPT, *tokens})
        values[seen] *= np.float32(repetition)
        if len(tokens) < min_new_tokens:
            values[list(parameters.eos_token_ids)] = -np.inf
        return values

    asked = PenaltyParameters(repetition, min_new_tokens=min_new_tokens, stop_token_ids=parameters.eos_token_ids)
    found, num_steps = search_alone("HF", model, parameters, asked)
    assert_same(found, num_steps, search_hf(penalised, parameters))
    unpenalised = plain(model)
    for hypothesis in found.hypotheses:
        tokens = hypothesis.token_ids.tolist()
        expected = [unpenalised(tuple(tokens[:place]))[token_id] for place, token_id in enumerate(tokens)]
        assert hypothesis.token_log_probs == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert hypothesis.log_prob_sum == pytest.approx(sum(expected), rel=1e-4, abs=1e-5)


@settings(max_examples=50)
@given(requests("VLLM"))
def test_vllm_finds_what_the_definition_finds(request_: tuple[StubModel, BeamParameters]) -> None:
    model, parameters = request_
    expected = search_vllm(plain(model), parameters, lambda length, _: length**parameters.length_penalty)
    assert_same(*search_alone("VLLM", model, parameters), expected)


@settings(max_examples=30)
@given(requests("VLLM"))
def test_the_old_divisor_counts_the_prompt_and_no_eos(request_: tuple[StubModel, BeamParameters]) -> None:
    model, parameters = request_
    expected = search_vllm(
        plain(model),
        parameters,
        lambda length, has_eos: (len(PROMPT) + length - has_eos) ** parameters.length_penalty,
    )
    assert_same(*search_alone("VLLM_PROMPT_LENGTH", model, parameters), expected)


@settings(max_examples=30)
@given(requests("VLLM"), st.sampled_from([0.7, 1.3, 2.0]), st.integers(0, 4))
def test_the_vllm_extension_penalises_logits(
    request_: tuple[StubModel, BeamParameters], repetition: float, min_new_tokens: int
) -> None:
    model, parameters = request_

    @cache
    def penalised(tokens: tuple[int, ...]) -> NDArray[np.float64]:
        logits = model(PROMPT + tokens).astype(np.float64)
        if len(tokens) < min_new_tokens:
            logits[list(parameters.eos_token_ids)] = -np.inf
        seen = list({*PROMPT, *tokens})
        logits[seen] *= np.where(logits[seen] > 0, 1 / repetition, repetition)
        return log_softmax(logits)

    asked = PenaltyParameters(repetition, min_new_tokens=min_new_tokens, stop_token_ids=parameters.eos_token_ids)
    found, num_steps = search_alone("VLLM", model, parameters, asked)
    expected = search_vllm(penalised, parameters, lambda length, _: length**parameters.length_penalty)
    assert_same(found, num_steps, expected)
    assert all(h.log_prob_sum == h.running_sum for h in found.hypotheses)


@st.composite
def batches(draw: st.DrawFn) -> tuple[str, list[tuple[StubModel, BeamParameters]]]:
    rule = draw(st.sampled_from(RULE_NAMES))
    return rule, draw(st.lists(requests(rule), min_size=2, max_size=5))


@settings(max_examples=30)
@given(batches(), st.sampled_from([0.0, 0.5]), st.booleans())
def test_requests_of_a_batch_do_not_influence_each_other(
    batch: tuple[str, Sequence[tuple[StubModel, BeamParameters]]], step: float, has_penalties: bool
) -> None:
    rule, drawn = batch
    models = [StubModel(m.seed, m.vocab_size, step=step, eos_token_ids=m.eos_token_ids, eos_bias=1.0) for m, _ in drawn]
    asked = [
        PenaltyParameters(1.0 + 0.1 * place, min_new_tokens=place, stop_token_ids=p.eos_token_ids)
        if has_penalties
        else NEUTRAL
        for place, (_, p) in enumerate(drawn)
    ]
    rows = [RowStart(a, PROMPT) for a in asked]
    penalties = PenaltyOrchestrator.create(RULES[rule].penalty_profile, 32, rows) if has_penalties else None
    search = BeamSearch.start(
        rule, 32, [RequestStart(p) for _, p in drawn], penalties, allow_penalty_extension=has_penalties
    )
    together = Decoder(search, models, [PROMPT] * len(models)).run()
    for place, (_, parameters) in enumerate(drawn):
        alone, num_steps = search_alone(rule, models[place], parameters, asked[place])
        assert bits(together.results[place].hypotheses) == bits(alone.hypotheses)
        assert together.num_steps[place] == num_steps
