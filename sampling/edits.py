"""What a state does to logits: the edits of its entries, and their application."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from logitd.sampling.backends import open_logits
from logitd.sampling.entries import Entries
from logitd.sampling.penalties import PENALTIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from logitd.sampling.backends.base import LogitsBackend, Values
    from logitd.sampling.layered_table import LayeredTable
    from logitd.sampling.penalties.base import Penalty
    from logitd.sampling.profiles import PenaltyName, Profile
    from logitd.sampling.rows import RowParameters
    from logitd.sampling.token_table import TokenTable

_BANNED = float("-inf")


@dataclass(frozen=True, slots=True)
class Patch:
    """New values of every touched or banned id of some rows.

    Attributes
    ----------
    row_splits : int64 [R + 1]
        Entries [row_splits[i], row_splits[i + 1]) are row i's.
    token_ids : int32 [N]
        Ascending within a row.
    values : tensor [N]
        In the dtype and on the device of the logits.
    """

    row_splits: NDArray[np.int64]
    token_ids: NDArray[np.int32]
    values: torch.Tensor


@dataclass(frozen=True)
class Edits:
    """The edits of R rows; N entries and B bans.

    Attributes
    ----------
    rows, table : RowParameters, LayeredTable
        Of all R rows.
    banned : int64 [B]
        Keys, ``row * vocab_size + token id``, ascending.
    """

    profile: Profile
    rows: RowParameters
    table: LayeredTable
    banned: NDArray[np.int64]

    @property
    def keys(self) -> NDArray[np.int64]:
        """Int64 [N], ascending: ``row * vocab_size + token id`` of each entry."""
        return self.table.fold().keys

    @property
    def parts(self) -> Mapping[PenaltyName, NDArray[np.float32]]:
        """What each penalty that a row asks for has for each entry, float32 [N]."""
        table = self.table.fold()
        everything = Entries(self.rows, table, slice(None), slice(None), table.row_lengths)
        return {name: penalty.part(everything) for name, penalty in self._required.items()}

    def apply_inplace(self, logits: torch.Tensor, first_row: int = 0) -> None:
        """Edit `logits` [n, W >= vocab_size], rows from `first_row` on; any strides, any supported dtype and device."""
        backend, end_row = open_logits(logits), first_row + len(logits)
        with np.errstate(all="ignore"):
            # The upper layer reads before the lower one writes, some of whose entries it stands for, and writes last.
            recent = list(self._penalise(backend, self.table.recent, first_row, end_row))
            for places, values in self._penalise(backend, self.table.base, first_row, end_row):
                backend.write_(places, values)
            for places, values in recent:
                backend.write_(places, values)
        banned = self._bans_of(first_row, end_row)
        if len(banned):
            backend.fill_(self._find_places(backend, banned, first_row), _BANNED)

    def compute_patch(self, logits: torch.Tensor, first_row: int = 0) -> Patch:
        """What `apply_inplace` would write into `logits` [n, W >= vocab_size], which stay as they are."""
        backend, end_row = open_logits(logits), first_row + len(logits)
        table, bans = self._table_with_bans
        with np.errstate(all="ignore"):
            pieces = [backend.round(values) for _, values in self._penalise(backend, table, first_row, end_row)]
        values = pieces[0] if len(pieces) == 1 else torch.cat([logits.new_empty(0), *pieces])
        splits = table.row_splits[first_row : end_row + 1]
        if len(bans):
            start, stop = bans.searchsorted(splits[[0, -1]])
            values[torch.from_numpy(bans[start:stop] - splits[0])] = _BANNED
        return Patch(splits - splits[0], table.token_ids(first_row, end_row), values)

    @cached_property
    def _table_with_bans(self) -> tuple[TokenTable, NDArray[np.int64]]:
        # All entries and one for every banned id, whatever its value, and where those of the bans stand.
        table = self.table.fold()
        return table.open_entries(self.banned) if len(self.banned) else (table, self.banned)

    def _bans_of(self, first_row: int, end_row: int) -> NDArray[np.int64]:
        if len(self.banned) == 0:
            return self.banned
        start, stop = self.banned.searchsorted(np.array((first_row, end_row)) * self.table.vocab_size)
        return self.banned[start:stop]

    def _penalise(
        self, backend: LogitsBackend, table: TokenTable, first_row: int, end_row: int
    ) -> Iterator[tuple[NDArray[np.int64], Values]]:
        # Where the entries of some rows lie, and their new values; block by block, as they are asked for.
        for entries in self._blocks(table, first_row, end_row, backend.block_size):
            places = self._find_places(backend, table.keys[entries.span], first_row)
            yield places, self._penalise_(backend, backend.read(places), entries)

    def _blocks(self, table: TokenTable, first_row: int, end_row: int, size: int) -> Iterator[Entries]:
        # Whole rows, as many as have `size` entries together and at least one.
        if len(table.keys) == 0:
            return
        splits, lengths = table.row_splits.tolist(), table.row_lengths
        while first_row < end_row:
            start = splits[first_row]
            stop_row = max(first_row + 1, bisect_right(splits, start + size, first_row, end_row + 1) - 1)
            row_range, span = slice(first_row, stop_row), slice(start, splits[stop_row])
            if span.start < span.stop:
                yield Entries(self.rows, table, row_range, span, lengths[row_range])
            first_row = stop_row

    def _find_places(self, backend: LogitsBackend, keys: NDArray[np.int64], first_row: int) -> NDArray[np.int64]:
        # Distances in memory: (row - first_row) * row_stride + token id * column_stride
        vocab_size, row_stride, column_stride = self.table.vocab_size, backend.row_stride, backend.column_stride
        if column_stride == 1 and row_stride == vocab_size:
            return keys - first_row * vocab_size if first_row else keys
        rows = keys // vocab_size
        return keys * column_stride + (rows * (row_stride - vocab_size * column_stride) - first_row * row_stride)

    def _penalise_(self, backend: LogitsBackend, values: Values, entries: Entries) -> Values:
        # values: [n] fp32, whose memory is used
        is_fused = self.profile.is_additive_fused
        if is_fused:
            values += _fuse_additive(backend, [p for p in self._required.values() if p.is_additive], entries)
        for penalty in self._required.values():
            if not (is_fused and penalty.is_additive):
                values = penalty.apply_(backend, values, entries, self.profile)
        return values

    @cached_property
    def _required(self) -> Mapping[PenaltyName, Penalty]:
        # In the profile's order; the bans are none of them.
        order = [name for name in self.profile.order if name in PENALTIES]
        return {name: PENALTIES[name] for name in order if PENALTIES[name].is_required(self.rows)}


def _fuse_additive(backend: LogitsBackend, penalties: list[Penalty], entries: Entries) -> Values:
    # 0 - frequency - presence, one after the other, as SGLang 0.5.23 accumulates them into a tensor of zeros.
    total: Values = 0.0
    for penalty in penalties:
        total = total - backend.put(penalty.part(entries))
    return total
