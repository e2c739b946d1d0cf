"""Which parameters each rule refuses, and what the error names."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from logitd.sampling.beam import RULES, BeamParameters, BeamSearch, EarlyStopping, RequestStart, find_rule
from logitd.sampling.errors import ParameterError
from logitd.sampling.orchestrator import PenaltyOrchestrator, RowStart
from logitd.sampling.parameters import PenaltyParameters

VALID = BeamParameters(4, 16, eos_token_ids=(2,), prompt_length=3)
ALL = tuple(RULES)
VLLM = ("VLLM", "VLLM_PROMPT_LENGTH")

REFUSED: list[tuple[tuple[str, ...], str, dict[str, Any]]] = [
    (ALL, "width", {"width": 0}),
    (ALL, "width", {"width": -1}),
    (("HF",), "width", {"width": 1}),
    (VLLM, "width", {"width": 51}),
    (ALL, "width", {"width": 2**31}),
    (ALL, "max_new_tokens", {"max_new_tokens": 0}),
    (ALL, "max_new_tokens", {"max_new_tokens": 2**31}),
    (ALL, "length_penalty", {"length_penalty": math.nan}),
    (ALL, "length_penalty", {"length_penalty": math.inf}),
    (ALL, "length_penalty", {"length_penalty": 1e6}),
    (ALL, "length_penalty", {"length_penalty": -1e6}),
    # 16 ** 40 is beyond float32 and within float64.
    (("HF",), "length_penalty", {"length_penalty": 40.0}),
    (VLLM, "early_stopping", {"early_stopping": EarlyStopping.TRUE}),
    (VLLM, "early_stopping", {"early_stopping": EarlyStopping.NEVER}),
    (ALL, "eos_token_ids[0]", {"eos_token_ids": (-1,)}),
    (ALL, "eos_token_ids[1]", {"eos_token_ids": (99, 100)}),
    (("HF",), "width", {"eos_token_ids": (1,) * 100}),
    (ALL, "num_return_sequences", {"num_return_sequences": 0}),
    (ALL, "num_return_sequences", {"num_return_sequences": 5}),
    (ALL, "prompt_length", {"prompt_length": -1}),
    (("VLLM_PROMPT_LENGTH",), "prompt_length", {"prompt_length": 0}),
]
ACCEPTED: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (ALL, {"width": 2}),
    (VLLM, {"width": 1}),
    (VLLM, {"width": 50}),
    (("HF",), {"width": 300}),
    (("HF",), {"early_stopping": EarlyStopping.NEVER}),
    (("HF",), {"eos_token_ids": (1,) * 99}),
    (VLLM, {"eos_token_ids": (1,) * 100}),
    (VLLM, {"length_penalty": 40.0}),
    (ALL, {"length_penalty": -2.0}),
    (ALL, {"eos_token_ids": (0, 99)}),
    (ALL, {"num_return_sequences": 4}),
    (("HF", "VLLM"), {"prompt_length": 0}),
]


@pytest.mark.parametrize(
    ("rule", "field", "values"), [(rule, field, values) for rules, field, values in REFUSED for rule in rules]
)
def test_refused(rule: str, field: str, values: dict[str, Any]) -> None:
    with pytest.raises(ParameterError) as caught:
        BeamSearch.start(rule, 100, [RequestStart(VALID), RequestStart(replace(VALID, **values))])
    assert caught.value.field == f"requests[1].{field}"


@pytest.mark.parametrize(("rule", "values"), [(rule, values) for rules, values in ACCEPTED for rule in rules])
def test_accepted(rule: str, values: dict[str, Any]) -> None:
    assert BeamSearch.start(rule, 100, [RequestStart(replace(VALID, **values))]).num_rows == 1


@pytest.mark.parametrize("rule", ALL)
def test_min_new_tokens_is_at_most_max_new_tokens(rule: str) -> None:
    RULES[rule].validate(VALID, 100, min_new_tokens=16)
    with pytest.raises(ParameterError) as caught:
        RULES[rule].validate(VALID, 100, min_new_tokens=17)
    assert caught.value.field == "min_new_tokens"


@pytest.mark.parametrize("rule", VLLM)
def test_penalties_under_vllm_need_the_flag(rule: str) -> None:
    with pytest.raises(ParameterError) as caught:
        RULES[rule].validate(VALID, 100, has_penalties=True)
    assert caught.value.field == "penalties"
    RULES[rule].validate(VALID, 100, has_penalties=True, allow_penalty_extension=True)
    RULES["HF"].validate(VALID, 100, has_penalties=True)


def test_penalties_have_a_row_for_each_row() -> None:
    penalties = PenaltyOrchestrator.create("HF", 100, [RowStart(PenaltyParameters(1.5))] * 2)
    with pytest.raises(ParameterError) as caught:
        BeamSearch.start("HF", 100, [RequestStart(VALID)], penalties)
    assert caught.value.field == "penalties"


def test_unknown_names_and_sizes() -> None:
    with pytest.raises(ParameterError, match="must be one of HF, VLLM, VLLM_PROMPT_LENGTH"):
        find_rule("GREEDY")
    with pytest.raises(ParameterError, match="vocab_size must be at least 1"):
        BeamSearch.start("HF", 0, [])


@pytest.mark.parametrize("vocab_size", [1, 2, 3])
def test_the_smallest_vocabularies(vocab_size: int) -> None:
    parameters = BeamParameters(2, 3)
    if vocab_size == 1:
        with pytest.raises(ParameterError):
            BeamSearch.start("HF", vocab_size, [RequestStart(parameters)])
    else:
        assert BeamSearch.start("HF", vocab_size, [RequestStart(parameters)]).num_rows == 1
