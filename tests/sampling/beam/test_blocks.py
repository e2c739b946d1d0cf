"""Whole searches over vocabularies in which candidates are found by blocks, against the same without blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helpers.beam_stub import Decoder, StubModel, bits
from logitd.sampling.beam import RULES, BeamParameters, BeamSearch, RequestStart, log_probs
from logitd.sampling.orchestrator import PenaltyOrchestrator, RowStart
from logitd.sampling.parameters import PenaltyParameters

if TYPE_CHECKING:
    import torch

PROMPT = (3, 4)
ASKED = PenaltyParameters(1.4, 0.3, -0.2, 2, (7,))


def run(rule: str, vocab_size: int, step: float, has_penalties: bool) -> list[object]:
    models = [StubModel(seed, vocab_size, step=step, eos_token_ids=(7,), eos_bias=9.0) for seed in range(3)]
    asked = [
        BeamParameters(width, 5, eos_token_ids=(7,), prompt_length=2, return_token_log_probs=True)
        for width in (2, 5, 3)
    ]
    rows = [RowStart(ASKED, PROMPT) for _ in models]
    penalties = PenaltyOrchestrator.create(RULES[rule].penalty_profile, vocab_size, rows) if has_penalties else None
    starts = [RequestStart(parameters) for parameters in asked]
    search = BeamSearch.start(rule, vocab_size, starts, penalties, allow_penalty_extension=True)
    decoder = Decoder(search, models, [PROMPT] * 3).run()
    return [bits(decoder.results[place].hypotheses) for place in range(3)]


@pytest.mark.parametrize("has_penalties", [False, True], ids=["plain", "penalties"])
@pytest.mark.parametrize("step", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("vocab_size", [8192, 8195])
@pytest.mark.parametrize("rule", ["HF", "VLLM"])
def test_blocks_change_nothing(
    rule: str, vocab_size: int, step: float, has_penalties: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    def watch(values: torch.Tensor) -> None:
        used.append(values.shape)

    by_blocks = run(rule, vocab_size, step, has_penalties)
    monkeypatch.setattr(log_probs, "block_maxima", watch)
    assert run(rule, vocab_size, step, has_penalties) == by_blocks
    assert used
