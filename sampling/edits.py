"""What a state does to logits in their own memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from logitd.sampling.backends import open_logits
from logitd.sampling.penalties import PENALTIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from logitd.sampling.backends.base import Logits, LogitsBackend, Values
    from logitd.sampling.entries import Entries, Layer
    from logitd.sampling.penalties.base import Penalty
    from logitd.sampling.profiles import PenaltyName, Profile
    from logitd.sampling.rows import RowParameters

BANNED = float("-inf")


@dataclass(frozen=True)
class Arithmetic:
    """A profile's formulas for the penalties that some rows ask for."""

    profile: Profile
    rows: RowParameters

    def penalise_(self, backend: LogitsBackend, values: Values, entries: Entries) -> Values:
        """The new values of `entries` from their logits, fp32 [n] or [repeats, n], whose memory is used."""
        is_fused = self.profile.is_additive_fused
        if is_fused:
            values += _fuse_additive(backend, [p for p in self.required.values() if p.is_additive], entries)
        for penalty in self.required.values():
            if not (is_fused and penalty.is_additive):
                values = penalty.apply_(backend, values, entries, self.profile)
        return values

    @cached_property
    def required(self) -> Mapping[PenaltyName, Penalty]:
        """Those that a row asks for, in the profile's order; the bans are none of them."""
        order = [name for name in self.profile.order if name in PENALTIES]
        return {name: PENALTIES[name] for name in order if PENALTIES[name].is_required(self.rows)}


@dataclass(frozen=True, slots=True)
class Edits:
    """The edits of L rows of logits.

    Attributes
    ----------
    layers : sequence of Layer
        The upper ones first, whose entries stand for those of the lower ones at the same places.
    banned : int64, ascending
        Keys, ``row of logits * vocab_size + token id``.
    """

    arithmetic: Arithmetic
    layers: Sequence[Layer]
    banned: NDArray[np.int64]

    def apply_inplace(self, logits: Logits, first_row: int = 0) -> None:
        """Edit `logits` [n, W >= vocab_size], rows from `first_row` on; any strides, any supported dtype and device."""
        backend, end_row = open_logits(logits), first_row + len(logits)
        *upper, lowest = self.layers
        with np.errstate(all="ignore"):
            # The upper layers read before a lower one writes, some of whose entries they stand for, and write after it.
            waiting = [list(self._penalise(backend, layer, first_row, end_row)) for layer in upper]
            for places, values in self._penalise(backend, lowest, first_row, end_row):
                backend.write_(places, values)
            for blocks in reversed(waiting):
                for places, values in blocks:
                    backend.write_(places, values)
        self._ban(backend, first_row, end_row)

    def _penalise(
        self, backend: LogitsBackend, layer: Layer, first_row: int, end_row: int
    ) -> Iterator[tuple[NDArray[np.int64], Values]]:
        # Where entries lie and their new values, block by block, as they are asked for.
        for entries in layer.split_entries(first_row, end_row, backend.block_size):
            places = entries.find_places(backend)
            yield places, self.arithmetic.penalise_(backend, backend.read(places), entries)

    def _ban(self, backend: LogitsBackend, first_row: int, end_row: int) -> None:
        if len(self.banned) == 0:
            return
        vocab_size = self.layers[0].table.vocab_size
        start, stop = self.banned.searchsorted(np.array((first_row, end_row)) * vocab_size)
        rows, token_ids = np.divmod(self.banned[start:stop], vocab_size)
        if len(rows):
            places = (rows - first_row) * backend.row_stride + token_ids * backend.column_stride
            backend.fill_(places, BANNED)


def _fuse_additive(backend: LogitsBackend, penalties: list[Penalty], entries: Entries) -> Values:
    # 0 - frequency - presence, one after the other, as SGLang 0.5.23 accumulates them into a tensor of zeros.
    total: Values = 0.0
    for penalty in penalties:
        total = total - backend.put(penalty.part(entries))
    return total
