"""What a state would write into logits that stay as they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from logitd.sampling.backends import open_logits
from logitd.sampling.edits import BANNED
from logitd.sampling.entries import Layer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitd.sampling.backends.base import Items, Logits
    from logitd.sampling.edits import Arithmetic
    from logitd.sampling.rows import RowParameters
    from logitd.sampling.token_table import TokenTable


@dataclass(frozen=True, slots=True)
class Patch:
    """New values of every touched or banned id of some rows.

    Attributes
    ----------
    row_splits : int64 [R + 1]
        Entries [row_splits[i], row_splits[i + 1]) are row i's.
    token_ids : int32 [N]
        Ascending within a row.
    values : tensor or array [N]
        As the logits are: of their dtype, and on their device.
    """

    row_splits: NDArray[np.int64]
    token_ids: NDArray[np.int32]
    values: Items


@dataclass(frozen=True)
class PatchMaker:
    """The edits of R rows, one row of logits each; N entries, and bans.

    Attributes
    ----------
    rows, table : RowParameters, TokenTable
        Of all R rows.
    banned : int64, ascending
        Keys, ``row * vocab_size + token id``.
    """

    arithmetic: Arithmetic
    rows: RowParameters
    table: TokenTable
    banned: NDArray[np.int64]

    def compute_patch(self, logits: Logits, first_row: int = 0) -> Patch:
        """The new values for `logits` [n, W >= vocab_size], rows from `first_row` on; any strides, dtype and device."""
        backend, end_row = open_logits(logits), first_row + len(logits)
        table, bans = self._table_with_bans
        pieces = []
        with np.errstate(all="ignore"):
            for entries in Layer(self.rows, table).split_entries(first_row, end_row, backend.block_size):
                values = backend.read(entries.find_places(backend))
                pieces.append(backend.round(self.arithmetic.penalise_(backend, values, entries)))
        values = pieces[0] if len(pieces) == 1 else backend.join(pieces)
        splits = table.row_splits[first_row : end_row + 1]
        if len(bans):
            start, stop = bans.searchsorted(splits[[0, -1]])
            open_logits(values.reshape(1, -1)).fill_(bans[start:stop] - splits[0], BANNED)
        return Patch(splits - splits[0], table.token_ids(first_row, end_row), values)

    @cached_property
    def _table_with_bans(self) -> tuple[TokenTable, NDArray[np.int64]]:
        # All entries and one for every banned id, whatever its value, and where those of the bans stand.
        return self.table.open_entries(self.banned) if len(self.banned) else (self.table, self.banned)
