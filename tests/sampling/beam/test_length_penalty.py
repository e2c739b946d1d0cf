"""What `length_penalty` decides under each rule when the prompt is long."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logitd.sampling.beam import BeamParameters, BeamSearch, RequestStart

VOCAB_SIZE = 16
EOS = 0
PROMPT_LENGTH = 590


def winner(rule: str, length_penalty: float, prompt_length: int = PROMPT_LENGTH) -> int:
    """The length of the best hypothesis: an EOS can come at once at a small cost, or late at a greater one."""
    asked = BeamParameters(2, 8, length_penalty, eos_token_ids=(EOS,), prompt_length=prompt_length)
    search = BeamSearch.start(rule, VOCAB_SIZE, [RequestStart(asked)])
    while search.requests:
        logits = torch.full((search.num_rows, VOCAB_SIZE), -20.0)
        logits[:, 1] = 0.0
        logits[:, EOS] = -1.0
        search, step = search.step(logits)
    return len(step.requests[0].hypotheses[0].token_ids)


def test_the_prompt_makes_length_penalty_inert_in_the_old_rule_alone() -> None:
    length_penalties = np.linspace(0, 2, 9).tolist()
    assert {winner("VLLM_PROMPT_LENGTH", value) for value in length_penalties} == {1}
    for rule in ("HF", "VLLM"):
        lengths = [winner(rule, value) for value in length_penalties]
        assert lengths[0] == 1
        assert lengths[-1] == 8
        assert lengths == sorted(lengths)


@pytest.mark.parametrize("rule", ["HF", "VLLM"])
def test_the_prompts_length_changes_nothing(rule: str) -> None:
    for value in (0.0, 1.0, 2.0):
        assert len({winner(rule, value, length) for length in (0, 1, 20, PROMPT_LENGTH)}) == 1
