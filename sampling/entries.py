"""The entries of a state as the penalties see them: layers of tables, run by run."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from logitd.sampling.backends.base import LogitsBackend
    from logitd.sampling.rows import RowParameters
    from logitd.sampling.token_table import TokenTable


class Entries(NamedTuple):
    """All entries of some consecutive rows, n of them, and the logits that they are for.

    Attributes
    ----------
    rows, table : RowParameters, TokenTable
        Of the whole batch.
    row_range, span : slice
        The rows, and their entries in the table's columns.
    row_lengths : int64
        How many entries each of the rows has.
    repeats : int
        How many rows of logits each of the rows has, one after the other.
    first_logits_row : int
        The first row of logits of the first row.
    """

    rows: RowParameters
    table: TokenTable
    row_range: slice
    span: slice
    row_lengths: NDArray[np.int64]
    repeats: int = 1
    first_logits_row: int = 0

    def spread(self, column: NDArray[np.float32]) -> NDArray[np.float32]:
        """A column over the batch's rows [R] as one over these entries: [n], or [1] where all have the same."""
        rows = column[self.row_range]
        is_same = len(rows) == 1 or np.count_nonzero(rows != rows[0]) == 0
        return rows[:1] if is_same else rows.repeat(self.row_lengths)

    def find_places(self, backend: LogitsBackend) -> NDArray[np.int64]:
        """The distance in memory of each entry's logit, [n], or [repeats, n] where there are several."""
        keys, vocab_size, first_row = self.table.keys[self.span], self.table.vocab_size, self.row_range.start
        row_stride, column_stride = backend.row_stride, backend.column_stride
        if column_stride == 1 and row_stride == vocab_size and self.repeats == 1:
            shift = (self.first_logits_row - first_row) * vocab_size
            return keys + shift if shift else keys
        numbers = np.arange(first_row, self.row_range.stop)
        logits_rows = self.first_logits_row + (numbers - first_row) * self.repeats
        starts = logits_rows * row_stride - numbers * (vocab_size * column_stride)
        places: NDArray[np.int64] = keys * column_stride + starts.repeat(self.row_lengths)
        if self.repeats > 1:
            places = places + (np.arange(self.repeats) * row_stride)[:, None]
        return places


class Layer(NamedTuple):
    """The entries of R rows; rows of logits are counted through all of them.

    Attributes
    ----------
    repeats : int64 [R] or None
        How many rows of logits each row has, at least one; None: one each.
    """

    rows: RowParameters
    table: TokenTable
    repeats: NDArray[np.int64] | None = None

    def split_entries(self, first: int, end: int, size: int) -> Iterator[Entries]:
        """The entries for rows [first, end) of the logits, which are numbered from 0 on then.

        They come as whole rows, as many as have `size` entries together, repeats included, and at least one.
        """
        if len(self.table.keys) == 0:
            return
        row_splits, lengths = self.table.row_splits, self.table.row_lengths
        if self.repeats is None and row_splits[end] - row_splits[first] <= size:
            rows, span = slice(first, end), slice(row_splits[first], row_splits[end])
            if span.start < span.stop:
                yield Entries(self.rows, self.table, rows, span, lengths[rows])
            return
        splits = row_splits.tolist()
        for row, end_row, repeats, logits_row in self._find_runs(first, end):
            while row < end_row:
                start = splits[row]
                stop = max(row + 1, bisect_right(splits, start + size // repeats, row, end_row + 1) - 1)
                span = slice(start, splits[stop])
                if span.start < span.stop:
                    yield Entries(self.rows, self.table, slice(row, stop), span, lengths[row:stop], repeats, logits_row)
                row, logits_row = stop, logits_row + (stop - row) * repeats

    def _find_runs(self, first: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        # Rows [row, end_row) that have the same number of rows of logits, which begin at one.
        if self.repeats is None:
            yield first, end, 1, 0
            return
        stops = self.repeats.cumsum()
        first_row, end_row = int(stops.searchsorted(first, side="right")), int(stops.searchsorted(end)) + 1
        rows = slice(first_row, end_row)
        starts = np.maximum(stops[rows] - self.repeats[rows], first)
        repeats = np.minimum(stops[rows], end) - starts
        edges = [0, *(np.flatnonzero(np.diff(repeats)) + 1).tolist(), len(repeats)]
        for start, stop in pairwise(edges):
            yield first_row + start, first_row + stop, int(repeats[start]), int(starts[start]) - first
