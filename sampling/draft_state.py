"""What a state does to the logits of draft positions, with the verbs of the state itself."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logitd.sampling.checks import check_logits
from logitd.sampling.drafts import DraftMode
from logitd.sampling.edit_list import list_edits
from logitd.sampling.edits import Arithmetic, Edits
from logitd.sampling.entries import Layer
from logitd.sampling.errors import ParameterError
from logitd.sampling.layered_table import LayeredTable
from logitd.sampling.patches import PatchMaker
from logitd.sampling.penalties.frequency import extend_sums
from logitd.sampling.penalties.min_new_tokens import find_banned
from logitd.sampling.profiles import SGLANG, SGLANG_FUSED, Profile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitd.sampling.backends.base import Logits
    from logitd.sampling.drafts import Drafts
    from logitd.sampling.edit_list import EditList
    from logitd.sampling.patches import Patch
    from logitd.sampling.rows import RowParameters
    from logitd.sampling.token_table import TokenTable


class _Positions(NamedTuple):
    """Some positions as plain rows, numbered from 0 on."""

    rows: RowParameters
    table: TokenTable
    banned: NDArray[np.int64]


class DraftState:
    """A state of R rows seen from the P positions of their drafts; immutable, and nothing is committed by it.

    In place, each row's entries are applied to all of its positions as they are, and what a path adds is laid over
    them: no entry is kept once for every position. A patch or a list of edits, which has them so, gathers those of its
    own positions alone.
    """

    def __init__(
        self,
        profile: Profile,
        rows: RowParameters,
        table: LayeredTable,
        output_lengths: NDArray[np.int64],
        drafts: Drafts,
        mode: DraftMode,
    ) -> None:
        self._is_relaxed = mode is DraftMode.SGLANG_RELAXED
        self._profile = _find_profile(profile, self._is_relaxed)
        self._rows = rows
        self._table = table
        self._output_lengths = output_lengths
        self._drafts = drafts

    @property
    def num_rows(self) -> int:
        """P, the rows of logits."""
        return self._drafts.total_positions

    def apply_inplace(self, logits: Logits, *, first_row: int = 0) -> None:
        """Penalise logits [n, W >= vocab_size] of positions from `first_row` on, as `PenaltyOrchestrator` does."""
        check_logits(logits, first_row, self.num_rows, self._table.vocab_size, is_written=True)
        self._edits.apply_inplace(logits, first_row)

    def compute_patch(self, logits: Logits, *, first_row: int = 0) -> Patch:
        """What `apply_inplace` would change in `logits`, which stay as they are."""
        check_logits(logits, first_row, self.num_rows, self._table.vocab_size)
        part = self._gather(self._table.fold(), first_row, first_row + len(logits))
        return PatchMaker(Arithmetic(self._profile, part.rows), *part).compute_patch(logits)

    def list_edits(
        self,
        since: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
        *,
        first_row: int = 0,
        num_rows: int | None = None,
    ) -> EditList:
        """The edits of some positions, by default of all.

        Parameters
        ----------
        since : (touched, output_lengths), optional
            As in `PenaltyOrchestrator.list_edits`: only what differs from an earlier state of the position's row, which
            is what the row's steps since then and the position's path have touched. By default everything.
        first_row, num_rows : int
            The positions to list.
        """
        end = self.num_rows if num_rows is None else first_row + num_rows
        if since is None:
            rows, table, banned = self._gather(self._table.fold(), first_row, end)
            return list_edits(rows, LayeredTable(table), banned)
        touched, output_lengths = since
        numbers = self._drafts.rows[first_row:end]
        before = find_banned(self._rows.gather(numbers), output_lengths[numbers], self._table.vocab_size)
        differing = np.setxor1d(before, self._slice_bans(first_row, end), assume_unique=True)
        changed = self._table.select(np.union1d(touched, self._find_row_keys(differing, first_row)))
        rows, table, banned = self._gather(changed, first_row, end)
        only = self._gather(self._table.select(touched), first_row, end).table.keys
        return list_edits(rows, LayeredTable(table), banned, np.union1d(only, differing))

    def count_entries(self, first_row: int, num_rows: int, touched: NDArray[np.int64] | None = None) -> int:
        """How many entries some positions have at least, those of their paths and their bans left aside.

        All of them, or only those of `touched`.
        """
        if touched is None:
            lengths = np.maximum(self._table.base.row_lengths, self._table.recent.row_lengths)
        else:
            lengths = np.bincount(touched // self._table.vocab_size, minlength=self._rows.num_rows)
        return int(lengths[self._drafts.rows[first_row : first_row + num_rows]].sum())

    @cached_property
    def _edits(self) -> Edits:
        drafts = self._drafts
        layers = [Layer(self._rows, table, drafts.num_positions) for table in self._table.layers]
        if not self._is_relaxed:
            layers.insert(0, Layer(self._position_rows, self._paths))
        return Edits(Arithmetic(self._profile, self._rows), layers, self._banned)

    @cached_property
    def _position_rows(self) -> RowParameters:
        return self._rows.gather(self._drafts.rows)

    @cached_property
    def _banned(self) -> NDArray[np.int64]:
        lengths = self._output_lengths[self._drafts.rows]
        if not self._is_relaxed:
            lengths = lengths + self._drafts.depths
        return find_banned(self._position_rows, lengths, self._table.vocab_size)

    def _gather(self, table: TokenTable, first: int, end: int) -> _Positions:
        # The positions [first, end), each with the entries that `table` has of its row.
        numbers = self._drafts.rows[first:end]
        table = table.gather(numbers)
        if not self._is_relaxed:
            table = table.overlay(self._paths.slice_rows(first, end))
        return _Positions(self._rows.gather(numbers), table, self._slice_bans(first, end))

    def _slice_bans(self, first: int, end: int) -> NDArray[np.int64]:
        vocab_size = self._table.vocab_size
        start, stop = self._banned.searchsorted(np.array((first, end)) * vocab_size)
        return self._banned[start:stop] - first * vocab_size

    def _find_row_keys(self, keys: NDArray[np.int64], first: int) -> NDArray[np.int64]:
        # The keys in the state's own table of entries of positions, which are numbered from `first` on.
        positions, token_ids = np.divmod(keys, self._table.vocab_size)
        row_keys: NDArray[np.int64] = self._drafts.rows[first + positions] * self._table.vocab_size + token_ids
        return row_keys

    @cached_property
    def _paths(self) -> TokenTable:
        # An entry for every token on a position's path, counted with the committed ones.
        vocab_size, drafts = self._table.vocab_size, self._drafts
        is_counted = self._rows.is_counted[drafts.rows[drafts.path_positions]]
        keys = drafts.path_positions[is_counted] * vocab_size + drafts.path_token_ids[is_counted]
        keys, increments = np.unique(keys, return_counts=True)
        positions, token_ids = np.divmod(keys, vocab_size)
        rows = drafts.rows[positions]
        committed, places = np.unique(rows * vocab_size + token_ids, return_inverse=True)
        known = self._table.select(committed)
        return known.spread(keys, places, num_rows=self.num_rows).replace(
            counts=known.counts[places] + increments.astype(np.int32),
            sums=self._extend_sums(known, places, increments.astype(np.int32), rows),
        )

    def _extend_sums(
        self, known: TokenTable, places: NDArray[np.int64], increments: NDArray[np.int32], rows: NDArray[np.int64]
    ) -> NDArray[np.float32] | None:
        if known.sums is None:
            return None
        penalties = self._rows.frequency[rows]
        return extend_sums(self._profile, known.sums[places], known.counts[places], increments, penalties)


def _find_profile(profile: Profile, is_relaxed: bool) -> Profile:
    # SGLang repeats what its served steps sum up, whatever the order of a plain step.
    if not is_relaxed:
        return profile
    if profile not in (SGLANG, SGLANG_FUSED):
        raise ParameterError("mode", "must be EXACT but in the profiles SGLANG and SGLANG_FUSED", profile.name)
    return SGLANG_FUSED
