"""The search of vLLM up to 0.32, whose score counted the prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitd.sampling.beam.vllm import VllmRule
from logitd.sampling.errors import ParameterError

if TYPE_CHECKING:
    from logitd.sampling.beam.parameters import BeamParameters


class VllmPromptLengthRule(VllmRule):
    """score = sum / (prompt + generated length, the EOS not counted) ** length_penalty."""

    name = "VLLM_PROMPT_LENGTH"
    checkpoint_tag = 3

    def _divisor(self, length: int, parameters: BeamParameters, has_eos: bool) -> float:
        return float((parameters.prompt_length + length - has_eos) ** parameters.length_penalty)

    def _validate_divisor(self, parameters: BeamParameters) -> None:
        if parameters.prompt_length < 1:
            # An EOS as the first token would be divided by 0.
            rule = f"must be at least 1 under {self.name}"
            raise ParameterError("prompt_length", rule, parameters.prompt_length)
        super()._validate_divisor(parameters)
