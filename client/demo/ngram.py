"""A language model small enough to be built from a book at every start, in numpy alone.

The book, `corpus.txt` beside this file, is "Alice's Adventures in Wonderland" by Lewis Carroll, the whole
narrative. It was published in 1865 and its author died in 1898, so it is in the public domain everywhere.
The transcription is a common plain-text one, here without title, chapter headings and editor's notes, its
quotation marks and dashes set as such and its emphasis by capitals undone.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["DEFAULT_PROMPT", "SHORT_PROMPT", "NgramModel", "NgramSession", "load_ngram"]

DEFAULT_PROMPT = "Alice looked at the"
"""Greedy decoding from here ends in a loop."""

SHORT_PROMPT = "The Gryphon"
"""Greedy decoding from here ends its paragraph at once: a case for min_new_tokens."""

ORDER = 3
# Leaving this much of every count to the shorter contexts keeps the model from reciting the book.
DISCOUNT = 0.9

_EOS = "\n\n"
_TOKEN = re.compile(r"\n\s*\n|'?[A-Za-z0-9]+(?:['-][A-Za-z0-9]+)*|[^\sA-Za-z0-9]")
# The inner marks of a quotation in a quotation, as escapes since they look like a backtick and an apostrophe.
_INNER_OPEN, _INNER_CLOSE = "\u2018", "\u2019"
_NO_SPACE_BEFORE = frozenset(".,;:!?”)—") | {_INNER_CLOSE, _EOS}
_NO_SPACE_AFTER = frozenset("“(—") | {_INNER_OPEN, _EOS}


class _Continuations(NamedTuple):
    """What followed one context in the corpus."""

    token_ids: npt.NDArray[np.int64]
    # Sums with `backoff` to 1.
    probabilities: npt.NDArray[np.float64]
    # The share left to the next shorter context.
    backoff: float


class NgramModel:
    """An interpolated n-gram model over words and punctuation marks.

    Probabilities follow absolute discounting (Ney, Essen and Kneser, 1994): with c(hw) the count of w after
    the context h, c(h) the count of h, t(h) the number of different words after it, and h' the context
    without its first word,

        p(w | h) = max(c(hw) - D, 0) / c(h) + D * t(h) / c(h) * p(w | h')

    down to the uniform distribution, so that no probability is zero. The end-of-sequence token ends a
    paragraph; it also stands before the first word of a text.
    """

    def __init__(self, text: str, order: int = ORDER, discount: float = DISCOUNT) -> None:
        """Counts `text`, whose paragraphs are separated by empty lines, in contexts of up to order - 1."""
        words = [*_tokenize(text.strip()), _EOS]
        self._words = [_EOS, *sorted(set(words) - {_EOS})]
        self._ids = {word: i for i, word in enumerate(self._words)}
        self._order = order
        self._contexts = _continuations([self._ids[word] for word in words], order, discount)

    @property
    def vocab_size(self) -> int:
        return len(self._words)

    @property
    def eos_token_id(self) -> int:
        return self._ids[_EOS]

    @property
    def default_prompt(self) -> str:
        return DEFAULT_PROMPT

    @property
    def short_prompt(self) -> str:
        return SHORT_PROMPT

    def encode(self, text: str) -> list[int]:
        """The token ids of a text; an empty line is the end-of-sequence token.

        Raises:
            ValueError: a word is not in the vocabulary, capitalised or not.
        """
        return [self._token_id(word) for word in _tokenize(text)]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, spaced as in print."""
        words = [self._words[i] for i in token_ids]
        pieces = words[:1]
        for before, word in pairwise(words):
            glued = before in _NO_SPACE_AFTER or word in _NO_SPACE_BEFORE
            pieces.append(word if glued else f" {word}")
        return "".join(pieces)

    def next_logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Natural log probabilities [V] of the next token, finite; the same for the same history."""
        probabilities = np.full(self.vocab_size, 1.0 / self.vocab_size)
        # More than the last order - 1 tokens are never looked at; a text starts as if a paragraph had ended.
        history = (self.eos_token_id, *token_ids[-self._order :])
        for length in range(self._order):
            seen = self._contexts.get(history[len(history) - length :])
            if seen is None:
                break
            probabilities *= seen.backoff
            probabilities[seen.token_ids] += seen.probabilities
        logits: npt.NDArray[np.float32] = np.log(probabilities).astype(np.float32)
        return logits

    def next_logits_batch(self, rows: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Natural log probabilities [R, V] after R histories."""
        return np.stack([self.next_logits(row) for row in rows])

    def session(self) -> NgramSession:
        return NgramSession(self)

    def shortened(self, order: int) -> NgramModel:
        """This model when it looks at contexts of up to order - 1 alone: a small one with the same vocabulary."""
        shorter = copy.copy(self)
        shorter._order = min(order, self._order)
        return shorter

    def _token_id(self, word: str) -> int:
        for form in (word, word.lower(), word.capitalize()):
            if form in self._ids:
                return self._ids[form]
        raise ValueError(f"every word must occur in the corpus, got {word!r}")


class NgramSession:
    """A decode with an n-gram model: the histories of its rows."""

    def __init__(self, model: NgramModel) -> None:
        self._model = model
        self._rows: list[tuple[int, ...]] = []

    def start(self, prompt_ids: Sequence[int], rows: int = 1) -> npt.NDArray[np.float32]:
        """Begins `rows` copies of the prompt, dropping what came before; logits [rows, V]."""
        self._rows = [tuple(prompt_ids)] * rows
        return self._model.next_logits_batch(self._rows)

    def step(self, parent_rows: Sequence[int], token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Makes new row i the history of old row `parent_rows[i]` plus `token_ids[i]`; logits [R, V].

        Raises:
            ValueError: the arguments differ in length.
        """
        if len(parent_rows) != len(token_ids):
            raise ValueError(
                f"every new row needs one parent and one token, got {len(parent_rows)} and {len(token_ids)}"
            )
        pairs = zip(parent_rows, token_ids, strict=True)
        self._rows = [(*self._rows[parent], token_id) for parent, token_id in pairs]
        return self._model.next_logits_batch(self._rows)

    def extend(self, token_ids: Sequence[int], num_dropped: int = 0) -> npt.NDArray[np.float32]:
        """Of a single row: forgets its last tokens, then appends others; logits [len(token_ids), V] after each.

        Raises:
            ValueError: there are more rows.
        """
        if len(self._rows) != 1:
            raise ValueError(f"only a single row can be extended, got {len(self._rows)}")
        (row,) = self._rows
        kept = row[: len(row) - num_dropped]
        self._rows = [(*kept, *token_ids)]
        lengths = range(len(kept) + 1, len(kept) + len(token_ids) + 1)
        return self._model.next_logits_batch([self._rows[0][:length] for length in lengths])


def load_ngram() -> NgramModel:
    """The model of the book in this package."""
    return NgramModel(files("logitd.client.demo").joinpath("corpus.txt").read_text(encoding="utf-8"))


def _tokenize(text: str) -> list[str]:
    return [_EOS if token.isspace() else token for token in _TOKEN.findall(_as_printed(text))]


def _as_printed(text: str) -> str:
    """Typewriter quotation marks and dashes as the corpus has them; an apostrophe stays straight."""
    text = text.replace("--", "—")
    text = re.sub(rf"(?<=[A-Za-z]){_INNER_CLOSE}(?=[A-Za-z])", "'", text)
    text = re.sub(r'(?<![^\s(])"', "“", text)
    return text.replace('"', "”")


def _continuations(token_ids: Sequence[int], order: int, discount: float) -> dict[tuple[int, ...], _Continuations]:
    counts: dict[tuple[int, ...], Counter[int]] = {}
    for end, token_id in enumerate(token_ids):
        for length in range(min(order, end + 1)):
            counts.setdefault(tuple(token_ids[end - length : end]), Counter())[token_id] += 1
    return {context: _discounted(following, discount) for context, following in counts.items()}


def _discounted(following: Counter[int], discount: float) -> _Continuations:
    total = following.total()
    counts = np.fromiter(following.values(), np.float64, len(following))
    return _Continuations(
        np.fromiter(following, np.int64, len(following)),
        (counts - discount) / total,
        discount * len(following) / total,
    )
