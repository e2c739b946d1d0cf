"""What one request asks of its search, and the rules that hold for every beam rule."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from logitd.sampling.errors import ParameterError

MAX_INT32 = 2**31 - 1


class EarlyStopping(enum.Enum):
    """When a search ends before `max_new_tokens`; Transformers' `early_stopping`.

    FALSE stops when the best live beam over its present length cannot beat the worst finished hypothesis; TRUE
    stops as soon as the pool is full; NEVER is FALSE with the greatest length that can be reached in the bound,
    where the length penalty is positive.
    """

    FALSE = "false"
    TRUE = "true"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class BeamParameters:
    """One request's search.

    Attributes
    ----------
    width : int
        Live beams, and size of the pool of finished hypotheses.
    max_new_tokens : int
        Generated tokens at which a search ends.
    length_penalty : float
        Exponent of the length by which a sum of log-probabilities is divided.
    early_stopping : EarlyStopping
        Only the HF rule has any but FALSE.
    eos_token_ids : tuple of int
        The ids that finish a beam, as listed: the HF rule counts duplicates.
    num_return_sequences : int or None
        Hypotheses in the answer, at most; None is `width`.
    prompt_length : int
        Tokens in the prompt; only VLLM_PROMPT_LENGTH looks at it.
    return_token_log_probs : bool
        Whether hypotheses carry the log-probability of each token.
    """

    width: int
    max_new_tokens: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = EarlyStopping.FALSE
    eos_token_ids: tuple[int, ...] = ()
    num_return_sequences: int | None = None
    prompt_length: int = 0
    return_token_log_probs: bool = False

    @property
    def max_hypotheses(self) -> int:
        """Hypotheses in the answer, at most."""
        return self.width if self.num_return_sequences is None else self.num_return_sequences

    def validate(self, vocab_size: int, min_width: int) -> None:
        """Raise `ParameterError` for the first value that no rule takes; each rule adds its own."""
        _validate_range("width", self.width, min_width, MAX_INT32)
        _validate_range("max_new_tokens", self.max_new_tokens, 1, MAX_INT32)
        _validate_range("prompt_length", self.prompt_length, 0, MAX_INT32)
        _validate_range("num_return_sequences", self.max_hypotheses, 1, self.width)
        if not math.isfinite(self.length_penalty):
            raise ParameterError("length_penalty", "must be finite", self.length_penalty)
        for index, token_id in enumerate(self.eos_token_ids):
            _validate_range(f"eos_token_ids[{index}]", token_id, 0, vocab_size - 1)


def _validate_range(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ParameterError(field, f"must be in [{low}, {high}]", value)
