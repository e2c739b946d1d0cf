"""The one table of beam rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitd.sampling.beam.hf import HfRule
from logitd.sampling.beam.vllm import VllmRule
from logitd.sampling.beam.vllm_prompt_length import VllmPromptLengthRule
from logitd.sampling.errors import ParameterError

if TYPE_CHECKING:
    from logitd.sampling.beam.rule import BeamRule

RULES: dict[str, BeamRule] = {rule.name: rule for rule in (HfRule(), VllmRule(), VllmPromptLengthRule())}


def find_rule(name: str) -> BeamRule:
    """The rule of that name, else `ParameterError`."""
    if name not in RULES:
        raise ParameterError("rule", f"must be one of {', '.join(RULES)}", name)
    return RULES[name]
