"""The sparse state of a batch: which token ids each row has seen, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_Item = TypeVar("_Item", bound=np.generic)
_MANY_VALUES = 256


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Immutable entries (row, token id), ordered by row, then by id; N entries over R rows.

    A key is ``row * vocab_size + token id``, so that one sorted array finds the tokens of all rows at once and is,
    where logits are as wide as the vocabulary, the place of the entry in them.

    Attributes
    ----------
    keys : int64 [N], ascending
    counts : int32 [N]
        Occurrences in the output.
    sums : float32 [N] or None
        Accumulated frequency penalties; None when no row has one.
    in_prompt : bool [N] or None
        Whether the prompt has the id too; None when no row counts its prompt.
    row_splits : int64 [R + 1]
        Entries [row_splits[i], row_splits[i + 1]) are row i's.
    """

    vocab_size: int
    row_splits: NDArray[np.int64]
    keys: NDArray[np.int64]
    counts: NDArray[np.int32]
    sums: NDArray[np.float32] | None
    in_prompt: NDArray[np.bool_] | None

    @classmethod
    def empty(cls, vocab_size: int, num_rows: int, *, has_sums: bool, has_prompt: bool) -> TokenTable:
        """A table without entries that has the columns asked for."""
        return cls(
            vocab_size,
            np.zeros(num_rows + 1, np.int64),
            np.empty(0, np.int64),
            np.empty(0, np.int32),
            np.empty(0, np.float32) if has_sums else None,
            np.empty(0, np.bool_) if has_prompt else None,
        )

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.row_splits) - 1

    @property
    def row_lengths(self) -> NDArray[np.int64]:
        """Int64 [R]: the entries of each row."""
        return self.row_splits[1:] - self.row_splits[:-1]

    @property
    def num_bytes(self) -> int:
        """Bytes of the entries."""
        columns = (self.keys, self.counts, self.sums, self.in_prompt)
        return sum(column.nbytes for column in columns if column is not None)

    def open_entries(self, keys: NDArray[np.int64]) -> tuple[TokenTable, NDArray[np.int64]]:
        """A copy with an entry for each of `keys` (ascending, distinct), of count 0 where this table lacks it.

        Returns
        -------
        table : TokenTable
            Its counts and sums are nobody else's yet: the caller may fill them in before it hands the table on.
        places : int64, as many as `keys`
            Where the entries stand in it.
        """
        places = self.keys.searchsorted(keys)
        missing = ~_found_at(self.keys, keys, places)
        if not missing.any():
            return self.replace(counts=self.counts.copy(), sums=None if self.sums is None else self.sums.copy()), places
        where, new = places[missing], keys[missing]
        table = TokenTable(
            self.vocab_size,
            self.row_splits + new.searchsorted(_first_keys(self.num_rows + 1, self.vocab_size)),
            _insert(self.keys, where, new),
            _insert(self.counts, where, 0),
            None if self.sums is None else _insert(self.sums, where, 0),
            None if self.in_prompt is None else _insert(self.in_prompt, where, 0),
        )
        return table, places + (missing.cumsum() - missing)

    def select(self, keys: NDArray[np.int64]) -> TokenTable:
        """A table of `keys` (ascending, distinct) alone, of count 0 where this table lacks it."""
        places = self.keys.searchsorted(keys)
        found = np.flatnonzero(_found_at(self.keys, keys, places))
        places = places[found]
        splits = keys.searchsorted(_first_keys(self.num_rows + 1, self.vocab_size))
        return TokenTable(
            self.vocab_size,
            splits,
            keys,
            _scatter(self.counts, places, found, len(keys)),
            None if self.sums is None else _scatter(self.sums, places, found, len(keys)),
            None if self.in_prompt is None else _scatter(self.in_prompt, places, found, len(keys)),
        )

    def token_ids(self, first_row: int = 0, end_row: int | None = None) -> NDArray[np.int32]:
        """Int32 [n]: the id of each entry of rows [first_row, end_row), by default of all."""
        splits = self.row_splits[first_row : None if end_row is None else end_row + 1]
        first_keys = np.arange(first_row, first_row + len(splits) - 1) * self.vocab_size
        return (self.keys[splits[0] : splits[-1]] - first_keys.repeat(splits[1:] - splits[:-1])).astype(np.int32)

    def find(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places of `keys`, all of which have an entry."""
        return np.searchsorted(self.keys, keys)

    def replace(
        self,
        *,
        counts: NDArray[np.int32] | None = None,
        sums: NDArray[np.float32] | None = None,
        in_prompt: NDArray[np.bool_] | None = None,
    ) -> TokenTable:
        """This table with other columns."""
        return TokenTable(
            self.vocab_size,
            self.row_splits,
            self.keys,
            self.counts if counts is None else counts,
            self.sums if sums is None else sums,
            self.in_prompt if in_prompt is None else in_prompt,
        )

    def drop_unseen(self) -> TokenTable:
        """This table without the entries that neither output nor prompt has any more."""
        seen = self.counts > 0
        if self.in_prompt is not None:
            seen |= self.in_prompt
        if seen.all():
            return self
        keys = self.keys[seen]
        splits = keys.searchsorted(_first_keys(self.num_rows + 1, self.vocab_size))
        return self._take(np.flatnonzero(seen), keys, splits)

    def gather(self, rows: NDArray[np.int64]) -> TokenTable:
        """The entries of `rows` (any order, repeats allowed), renumbered 0, 1, ..."""
        first, lengths = self.row_splits[rows], self.row_lengths[rows]
        splits = np.concatenate(([0], lengths.cumsum()))
        places = np.repeat(first - splits[:-1], lengths) + np.arange(splits[-1])
        shift = _first_keys(len(rows), self.vocab_size) - rows * self.vocab_size
        return self._take(places, self.keys[places] + np.repeat(shift, lengths), splits)

    def concatenate(self, other: TokenTable) -> TokenTable:
        """The rows of this table and then the other's; a side that lacks a column gets its neutral value."""
        return TokenTable(
            self.vocab_size,
            np.concatenate((self.row_splits, other.row_splits[1:] + len(self.keys))),
            np.concatenate((self.keys, other.keys + self.num_rows * self.vocab_size)),
            np.concatenate((self.counts, other.counts)),
            _concatenate_optional(self.sums, other.sums, len(self.keys), len(other.keys)),
            _concatenate_optional(self.in_prompt, other.in_prompt, len(self.keys), len(other.keys)),
        )

    def without(self, *, sums: bool, in_prompt: bool) -> TokenTable:
        """This table without the columns that are named and no row needs."""
        return TokenTable(
            self.vocab_size,
            self.row_splits,
            self.keys,
            self.counts,
            None if sums else self.sums,
            None if in_prompt else self.in_prompt,
        )

    def _take(self, places: NDArray[np.int64], keys: NDArray[np.int64], row_splits: NDArray[np.int64]) -> TokenTable:
        return TokenTable(
            self.vocab_size,
            row_splits,
            keys,
            self.counts[places],
            None if self.sums is None else self.sums[places],
            None if self.in_prompt is None else self.in_prompt[places],
        )


def _found_at(keys: NDArray[np.int64], wanted: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.bool_]:
    if len(keys) == 0:
        return np.zeros(len(wanted), np.bool_)
    is_found: NDArray[np.bool_] = keys.take(places, mode="clip") == wanted
    return is_found


def _insert(column: NDArray[_Item], places: NDArray[np.int64], values: ArrayLike) -> NDArray[_Item]:
    # Slices move whole runs, and a memoryview makes one in half the time that an array takes. np.insert goes through a
    # mask, which costs several times as much for a handful of values.
    num_new = len(places)
    if num_new > _MANY_VALUES:
        return np.insert(column, places, values)
    out = np.empty(len(column) + num_new, column.dtype)
    source, target, start = column.data, out.data, 0
    for number, place in enumerate(places.tolist()):
        target[start + number : place + number] = source[start:place]
        start = place
    target[start + num_new :] = source[start:]
    out[places + np.arange(num_new)] = values
    return out


def _scatter(
    column: NDArray[_Item], places: NDArray[np.int64], found: NDArray[np.int64], length: int
) -> NDArray[_Item]:
    out = np.zeros(length, column.dtype)
    out[found] = column[places]
    return out


def _first_keys(num_rows: int, vocab_size: int) -> NDArray[np.int64]:
    return np.arange(num_rows) * vocab_size


def _concatenate_optional(
    left: NDArray[_Item] | None, right: NDArray[_Item] | None, num_left: int, num_right: int
) -> NDArray[_Item] | None:
    if left is None and right is None:
        return None
    present = left if left is not None else right
    assert present is not None
    left = np.zeros(num_left, present.dtype) if left is None else left
    right = np.zeros(num_right, present.dtype) if right is None else right
    return np.concatenate((left, right))
