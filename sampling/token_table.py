"""The sparse state of a batch: which token ids each row has seen, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_Item = TypeVar("_Item", bound=np.generic)
# Runs that are shorter are moved item by item, but for a few.
_RUN_LENGTH, _FEW_VALUES = 128, 16


class _Values(NamedTuple):
    """The columns of some keys, beside the keys."""

    counts: NDArray[np.int32]
    sums: NDArray[np.float32]
    in_prompt: NDArray[np.bool_]

    @classmethod
    def zeros(cls, length: int) -> _Values:
        """Those of entries that nothing is known of."""
        return cls(np.zeros(length, np.int32), np.zeros(length, np.float32), np.zeros(length, np.bool_))


_NEUTRAL = _Values.zeros(1)


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

    def open_entries(
        self, keys: NDArray[np.int64], below: TokenTable | None = None
    ) -> tuple[TokenTable, NDArray[np.int64]]:
        """A copy with an entry for each of `keys` (ascending, distinct).

        One that this table lacks is as `below` has it, or of count 0.

        Returns
        -------
        table : TokenTable
            Its counts and sums are nobody else's yet: the caller may fill them in before it hands the table on.
        places : int64, as many as `keys`
            Where the entries stand in it.
        """
        places = self.keys.searchsorted(keys)
        missing = ~_found_at(self.keys, keys, places)
        num_missing = np.count_nonzero(missing)
        if num_missing == 0:
            return self.replace(counts=self.counts.copy(), sums=None if self.sums is None else self.sums.copy()), places
        if num_missing == len(keys):
            return self._insert(places, keys, below), places + np.arange(num_missing)
        return self._insert(places[missing], keys[missing], below), places + (missing.cumsum() - missing)

    def select(self, keys: NDArray[np.int64], below: TokenTable) -> TokenTable:
        """A table of `keys` (ascending, distinct) alone; one that this table lacks is as `below` has it, or 0."""
        splits = keys.searchsorted(_first_keys(self.num_rows + 1, self.vocab_size))
        counts, sums, in_prompt = self._look_up(keys, below._look_up(keys))
        return TokenTable(
            self.vocab_size,
            splits,
            keys,
            counts,
            None if self.sums is None else sums,
            None if self.in_prompt is None else in_prompt,
        )

    def overlay(self, other: TokenTable) -> TokenTable:
        """The entries of both; where both have one, the other's, which is one of the prompt only if ours is."""
        table, places = self.open_entries(other.keys)
        table.counts[places] = other.counts
        if table.sums is not None:
            table.sums[places] = other.sums
        return table

    def spread(self, keys: NDArray[np.int64], places: NDArray[np.int64], *, num_rows: int) -> TokenTable:
        """A table of other rows, whose entry `keys[i]` (ascending, distinct) is as that at `places[i]` here."""
        return self._take(places, keys, keys.searchsorted(_first_keys(num_rows + 1, self.vocab_size)))

    def without_entries(self) -> TokenTable:
        """A table of as many rows with the same columns, and no entry."""
        has_sums, has_prompt = self.sums is not None, self.in_prompt is not None
        return TokenTable.empty(self.vocab_size, self.num_rows, has_sums=has_sums, has_prompt=has_prompt)

    def token_ids(self, first_row: int = 0, end_row: int | None = None) -> NDArray[np.int32]:
        """Int32 [n]: the id of each entry of rows [first_row, end_row), by default of all."""
        splits = self.row_splits[first_row : None if end_row is None else end_row + 1]
        # In 32 bits, which may wrap: the differences, which are token ids, are right all the same.
        ids = self.keys[splits[0] : splits[-1]].astype(np.int32)
        first_keys = (np.arange(first_row, first_row + len(splits) - 1) * self.vocab_size).astype(np.int32)
        ids -= first_keys if len(first_keys) == 1 else first_keys.repeat(splits[1:] - splits[:-1])
        return ids

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

    def slice_rows(self, first_row: int, end_row: int) -> TokenTable:
        """The entries of rows [first_row, end_row), renumbered from 0 on."""
        splits = self.row_splits[first_row : end_row + 1]
        entries = slice(splits[0], splits[-1])
        return TokenTable(
            self.vocab_size,
            splits - splits[0],
            self.keys[entries] - first_row * self.vocab_size,
            self.counts[entries],
            None if self.sums is None else self.sums[entries],
            None if self.in_prompt is None else self.in_prompt[entries],
        )

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

    def _insert(self, places: NDArray[np.int64], keys: NDArray[np.int64], below: TokenTable | None) -> TokenTable:
        # A copy with entries for `keys`, of which it has none, before those at `places`.
        values = _NEUTRAL if below is None else below._look_up(keys)
        gaps = _Gaps(places, len(self.keys))
        return TokenTable(
            self.vocab_size,
            self.row_splits + keys.searchsorted(_first_keys(self.num_rows + 1, self.vocab_size)),
            gaps.fill(self.keys, keys),
            gaps.fill(self.counts, values.counts),
            None if self.sums is None else gaps.fill(self.sums, values.sums),
            None if self.in_prompt is None else gaps.fill(self.in_prompt, values.in_prompt),
        )

    def _look_up(self, keys: NDArray[np.int64], values: _Values | None = None) -> _Values:
        # The columns of `keys` alone: `values`, which are changed, where this table lacks them; by default 0.
        places = self.keys.searchsorted(keys)
        found = np.flatnonzero(_found_at(self.keys, keys, places))
        places = places[found]
        values = _Values.zeros(len(keys)) if values is None else values
        values.counts[found] = self.counts[places]
        if self.sums is not None:
            values.sums[found] = self.sums[places]
        if self.in_prompt is not None:
            values.in_prompt[found] = self.in_prompt[places]
        return values

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


class _Gaps:
    """Where items come in between those of a table's columns."""

    def __init__(self, places: NDArray[np.int64], num_old: int) -> None:
        # places: [N], ascending, before which of the old items each of the new ones comes
        num_new = len(places)
        self._size = num_old + num_new
        self._new_places = places + np.arange(num_new)
        self._starts = [0, *places.tolist(), num_old] if num_new <= num_old // _RUN_LENGTH + _FEW_VALUES else None

    def fill(self, column: NDArray[_Item], values: ArrayLike) -> NDArray[_Item]:
        """A copy of a column with the new items in their places."""
        out = np.empty(self._size, column.dtype)
        if self._starts is None:
            out[self._is_old] = column
        else:
            # A few long runs: a memoryview's slice moves one in half the time that an array's takes.
            source, target = column.data, out.data
            for number, (start, stop) in enumerate(pairwise(self._starts)):
                target[start + number : stop + number] = source[start:stop]
        out[self._new_places] = values
        return out

    @cached_property
    def _is_old(self) -> NDArray[np.bool_]:
        is_old = np.ones(self._size, np.bool_)
        is_old[self._new_places] = False
        return is_old


@lru_cache(maxsize=64)
def _first_keys(num_rows: int, vocab_size: int) -> NDArray[np.int64]:
    keys = np.arange(num_rows) * vocab_size
    keys.flags.writeable = False
    return keys


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
