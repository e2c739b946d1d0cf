"""What the demo asks of a language model, whichever it is, and how repetitive its text came out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

__all__ = ["DecodeSession", "LanguageModel", "repeated_fraction"]


class DecodeSession(Protocol):
    """One decode: rows of equal length that grow a token a step and follow their beams."""

    def start(self, prompt_ids: Sequence[int], rows: int = 1) -> npt.NDArray[np.float32]:
        """Begins `rows` copies of the prompt, dropping what came before; logits [rows, V]."""
        ...

    def step(self, parent_rows: Sequence[int], token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Makes new row i the history of old row `parent_rows[i]` plus `token_ids[i]`; logits [R, V].

        Both arguments have R entries; a parent may be named several times or never.

        Raises:
            ValueError: the arguments differ in length.
        """
        ...

    def extend(self, token_ids: Sequence[int], num_dropped: int = 0) -> npt.NDArray[np.float32]:
        """Of a single row: forgets its last tokens, then appends others; logits [len(token_ids), V] after each.

        Raises:
            ValueError: there are more rows.
        """
        ...


class LanguageModel(Protocol):
    """A vocabulary and the logits of the next token."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_id(self) -> int: ...

    @property
    def default_prompt(self) -> str:
        """A prompt from which greedy decoding without penalties repeats itself."""
        ...

    @property
    def short_prompt(self) -> str:
        """A prompt from which greedy decoding soon ends with the end-of-sequence token."""
        ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def next_logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits [V] after one history, finite."""
        ...

    def next_logits_batch(self, rows: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Logits [R, V] after R histories of any lengths, finite."""
        ...

    def session(self) -> DecodeSession: ...


def repeated_fraction(token_ids: Sequence[int], n: int = 3) -> float:
    """The share of the n-grams of a text that stood in it before, in [0, 1); 0.0 when it has none."""
    ngrams = [tuple(token_ids[i : i + n]) for i in range(len(token_ids) - n + 1)]
    return 1.0 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0
