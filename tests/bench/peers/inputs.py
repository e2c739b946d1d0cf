"""What both sides of a comparison get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NUM_STOP_IDS = 3


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of R rows, different ones for each.

    Attributes
    ----------
    repetition, frequency, presence : float32 [R]
        None is neutral.
    min_new_tokens : int64 [R]
        Beyond the output in every fourth row, else 0.
    stop_token_ids : int64 [R, S]
    """

    repetition: NDArray[np.float32]
    frequency: NDArray[np.float32]
    presence: NDArray[np.float32]
    min_new_tokens: NDArray[np.int64]
    stop_token_ids: NDArray[np.int64]

    @classmethod
    def draw(cls, rng: np.random.Generator, num_rows: int, vocab_size: int) -> Parameters:
        """Any parameters, the same for the same `rng`."""
        low, high = np.array([[1.05], [0.1], [0.1]]), np.array([[1.5], [1.0], [1.0]])
        repetition, frequency, presence = rng.uniform(low, high, (3, num_rows)).astype(np.float32)
        min_new_tokens = np.where(np.arange(num_rows) % 4 == 0, 10**6, 0)
        return cls(
            repetition, frequency, presence, min_new_tokens, rng.integers(0, vocab_size, (num_rows, _NUM_STOP_IDS))
        )


@dataclass(frozen=True, slots=True)
class Histories:
    """What R rows have seen, and their next tokens: every second row's is new to it.

    Attributes
    ----------
    prompts, outputs : int64 [R, P], int64 [R, L]
    next_token_ids : int64 [R]
    """

    prompts: NDArray[np.int64]
    outputs: NDArray[np.int64]
    next_token_ids: NDArray[np.int64]

    @classmethod
    def draw(
        cls, rng: np.random.Generator, num_rows: int, vocab_size: int, num_distinct: int, *, has_prompt: bool
    ) -> Histories:
        """Rows of `num_distinct` ids. A prompt has half of them, every second of which comes again in the output."""
        prompts, outputs, next_token_ids = [], [], []
        for row in range(num_rows):
            *seen, new = rng.choice(vocab_size, num_distinct + 1, replace=False)
            prompt = seen[: num_distinct // 2] if has_prompt else []
            output = seen[len(prompt) // 2 :]
            repeats = rng.choice(output, num_distinct // 2)
            prompts.append(prompt)
            outputs.append(rng.permutation([*output, *repeats]))
            next_token_ids.append(new if row % 2 == 0 else output[0])
        return cls(np.array(prompts, np.int64), np.array(outputs), np.array(next_token_ids))
