"""A sequence's penalty parameters and the rules that they obey."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from logitd.sampling.errors import ParameterError

if TYPE_CHECKING:
    from logitd.sampling.profiles import Profile

MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PenaltyParameters:
    """What one sequence asks for; the defaults are neutral.

    Attributes
    ----------
    repetition_penalty : float
        Above 1 lowers ids that were seen, once an id.
    frequency_penalty : float
        Subtracted for every occurrence in the output; negative values boost.
    presence_penalty : float
        Subtracted once for ids in the output; negative values boost.
    min_new_tokens : int
        While fewer tokens were output, every id of `stop_token_ids` is banned. The prompt never counts.
    stop_token_ids : tuple of int
        The full stop set: EOS and every stop id. May be empty and may name an id twice.
    """

    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    min_new_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()

    @property
    def is_required(self) -> bool:
        """Whether any of them can change a logit."""
        additive = to_float32(self.frequency_penalty) != 0 or to_float32(self.presence_penalty) != 0
        bans = self.min_new_tokens > 0 and len(self.stop_token_ids) > 0
        return to_float32(self.repetition_penalty) != 1 or additive or bans

    def validate(self, profile: Profile, vocab_size: int) -> None:
        """Raise `ParameterError` for the first parameter that is out of the profile's range."""
        self._validate_repetition(profile)
        _validate_additive("frequency_penalty", self.frequency_penalty, profile)
        _validate_additive("presence_penalty", self.presence_penalty, profile)
        if not 0 <= self.min_new_tokens <= MAX_INT32:
            raise ParameterError("min_new_tokens", f"must be in [0, {MAX_INT32}]", self.min_new_tokens)
        for index, token_id in enumerate(self.stop_token_ids):
            if not 0 <= token_id < vocab_size:
                raise ParameterError(f"stop_token_ids[{index}]", f"must be in [0, {vocab_size})", token_id)

    def _validate_repetition(self, profile: Profile) -> None:
        rounded = to_float32(self.repetition_penalty)
        if not (math.isfinite(rounded) and rounded > 0):
            rule = "must be finite and > 0, also after rounding to fp32"
            raise ParameterError("repetition_penalty", rule, self.repetition_penalty)
        if self.repetition_penalty > profile.max_repetition:
            rule = f"must be at most {profile.max_repetition:g} in profile {profile.name}"
            raise ParameterError("repetition_penalty", rule, self.repetition_penalty)


def _validate_additive(field: str, value: float, profile: Profile) -> None:
    if not math.isfinite(to_float32(value)):
        raise ParameterError(field, "must be finite, also after rounding to fp32", value)
    if abs(value) > profile.max_additive:
        bound = f"[-{profile.max_additive:g}, {profile.max_additive:g}]"
        raise ParameterError(field, f"must be in {bound} in profile {profile.name}", value)


def to_float32(value: float) -> float:
    """`value` rounded to fp32; beyond its range an infinity."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))
