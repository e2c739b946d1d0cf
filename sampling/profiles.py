"""The one table of penalty profiles: whose scope, order and arithmetic is reproduced.

| profile | repetition counts | frequency sum | order |
|---|---|---|---|
| SGLANG | output | f added count times | repetition, frequency, presence, min_new_tokens |
| SGLANG_FUSED | output | f added count times | 0 - frequency - presence added once, then repetition |
| VLLM | prompt and output | f * count | min_new_tokens, repetition, frequency, presence |
| HF | prompt and output | f * count | repetition, frequency, presence, min_new_tokens |

Sources: SGLang 0.5.23 (PenaltyLib's documented order; what its scheduler computes), vLLM 0.33 (default kernel and CPU
path), Transformers 5.24 (RepetitionPenaltyLogitsProcessor; its frequency and presence are our extension).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class PenaltyName(enum.Enum):
    """The penalties, by the names that users of the engines know."""

    REPETITION = "repetition_penalty"
    FREQUENCY = "frequency_penalty"
    PRESENCE = "presence_penalty"
    MIN_NEW_TOKENS = "min_new_tokens"


class RepetitionForm(enum.Enum):
    """How a logit that repetition lowers is computed; both agree in exact arithmetic."""

    DIVIDE = "l < 0 ? l * r : l / r"
    RECIPROCAL = "l > 0 ? l * (1 / r) : l * r"


class FrequencySum(enum.Enum):
    """How `count` occurrences of the frequency penalty add up in fp32."""

    ADDED_COUNT_TIMES = "f + f + ... + f, as a scatter-add does"
    PRODUCT = "f * count"


@dataclass(frozen=True, slots=True)
class Profile:
    """One engine's numerics.

    Attributes
    ----------
    order : tuple of PenaltyName
        The order in which the penalties act on a logit.
    is_additive_fused : bool
        The additive penalties are summed first and added once, where the first of them stands in `order`.
    counts_prompt : bool
        Repetition counts the prompt beside the output. Frequency and presence never do.
    max_repetition, max_additive : float
        The greatest repetition penalty; the greatest magnitude of frequency and presence penalty.
    """

    name: str
    order: tuple[PenaltyName, ...]
    is_additive_fused: bool
    counts_prompt: bool
    repetition_form: RepetitionForm
    frequency_sum: FrequencySum
    max_repetition: float
    max_additive: float


_REPETITION_FIRST = (
    PenaltyName.REPETITION,
    PenaltyName.FREQUENCY,
    PenaltyName.PRESENCE,
    PenaltyName.MIN_NEW_TOKENS,
)
_UNBOUNDED = float("inf")

SGLANG = Profile(
    name="SGLANG",
    order=_REPETITION_FIRST,
    is_additive_fused=False,
    counts_prompt=False,
    repetition_form=RepetitionForm.DIVIDE,
    frequency_sum=FrequencySum.ADDED_COUNT_TIMES,
    max_repetition=2.0,
    max_additive=2.0,
)
SGLANG_FUSED = Profile(
    name="SGLANG_FUSED",
    order=(
        PenaltyName.FREQUENCY,
        PenaltyName.PRESENCE,
        PenaltyName.MIN_NEW_TOKENS,
        PenaltyName.REPETITION,
    ),
    is_additive_fused=True,
    counts_prompt=False,
    repetition_form=RepetitionForm.DIVIDE,
    frequency_sum=FrequencySum.ADDED_COUNT_TIMES,
    max_repetition=2.0,
    max_additive=2.0,
)
VLLM = Profile(
    name="VLLM",
    order=(
        PenaltyName.MIN_NEW_TOKENS,
        PenaltyName.REPETITION,
        PenaltyName.FREQUENCY,
        PenaltyName.PRESENCE,
    ),
    is_additive_fused=False,
    counts_prompt=True,
    repetition_form=RepetitionForm.RECIPROCAL,
    frequency_sum=FrequencySum.PRODUCT,
    max_repetition=_UNBOUNDED,
    max_additive=2.0,
)
HF = Profile(
    name="HF",
    order=_REPETITION_FIRST,
    is_additive_fused=False,
    counts_prompt=True,
    repetition_form=RepetitionForm.DIVIDE,
    frequency_sum=FrequencySum.PRODUCT,
    max_repetition=_UNBOUNDED,
    max_additive=_UNBOUNDED,
)

PROFILES: dict[str, Profile] = {p.name: p for p in (SGLANG, SGLANG_FUSED, VLLM, HF)}
DEFAULT_PROFILE = SGLANG
