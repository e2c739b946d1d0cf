"""What a state does to logits: the edits of its entries, and their application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from logitd.sampling.backends import open_logits
from logitd.sampling.penalties import PENALTIES
from logitd.sampling.token_table import merge_sorted, token_ids_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from numpy.typing import NDArray

    from logitd.sampling.backends.base import LogitsBackend, Values
    from logitd.sampling.profiles import PenaltyName, Profile

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


@dataclass(frozen=True, slots=True)
class Edits:
    """The edits of R consecutive rows; N entries and B bans.

    Attributes
    ----------
    row_splits : int64 [R + 1]
    keys, banned : int64 [N], int64 [B]
        ``row * vocab_size + token id``, ascending, rows counted from the first one here.
    parts : mapping from penalty to float32 [N]
        Only of penalties that a row asks for.
    """

    profile: Profile
    vocab_size: int
    row_splits: NDArray[np.int64]
    keys: NDArray[np.int64]
    parts: Mapping[PenaltyName, NDArray[np.float32]]
    banned: NDArray[np.int64]

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.row_splits) - 1

    @property
    def ban_splits(self) -> NDArray[np.int64]:
        """Int64 [R + 1]: bans [ban_splits[i], ban_splits[i + 1]) are row i's."""
        return self.banned.searchsorted(np.arange(self.num_rows + 1) * self.vocab_size)

    def slice_rows(self, first_row: int, num_rows: int) -> Edits:
        """The edits of rows [first_row, first_row + num_rows), counted from the first of them."""
        if first_row == 0 and num_rows == self.num_rows:
            return self
        end, shift = first_row + num_rows, first_row * self.vocab_size
        splits = self.row_splits[first_row : end + 1]
        entries = slice(splits[0], splits[-1])
        bans = slice(*self.banned.searchsorted((shift, end * self.vocab_size)))
        return Edits(
            self.profile,
            self.vocab_size,
            splits - splits[0],
            self.keys[entries] - shift,
            {name: part[entries] for name, part in self.parts.items()},
            self.banned[bans] - shift,
        )

    def apply_inplace(self, logits: torch.Tensor) -> None:
        """Edit `logits` [R, W >= vocab_size], any strides, any supported dtype and device."""
        backend = open_logits(logits)
        places = _find_places(backend, self.keys, self.row_splits, self.vocab_size)
        with np.errstate(all="ignore"):
            for block in _blocks(len(places), backend.block_size):
                here = places[block]
                backend.write_(here, self._penalise(backend, backend.read(here), block))
        if len(self.banned):
            backend.fill_(_find_places(backend, self.banned, self.ban_splits, self.vocab_size), _BANNED)

    def compute_patch(self, logits: torch.Tensor) -> Patch:
        """What `apply_inplace` would write into `logits` [R, W >= vocab_size], which stay as they are."""
        backend = open_logits(logits)
        places = _find_places(backend, self.keys, self.row_splits, self.vocab_size)
        with np.errstate(all="ignore"):
            values = backend.round(self._penalise(backend, backend.read(places), slice(0, len(places))))
        if len(self.banned) == 0:
            return Patch(self.row_splits, token_ids_of(self.keys, self.row_splits, self.vocab_size), values)
        keys, old, bans = merge_sorted(self.keys, self.banned)
        merged = values.new_empty(len(keys))
        merged[old] = values
        merged[bans] = _BANNED
        splits = np.searchsorted(keys, np.arange(self.num_rows + 1) * self.vocab_size)
        return Patch(splits, token_ids_of(keys, splits, self.vocab_size), merged)

    def _penalise(self, backend: LogitsBackend, values: Values, block: slice) -> Values:
        parts = {name: backend.put(part[block]) for name, part in self.parts.items()}
        if self.profile.is_additive_fused:
            values = values + _fuse_additive(self.profile, parts)
        for name in self.profile.order:
            if name in parts and not (self.profile.is_additive_fused and PENALTIES[name].is_additive):
                values = PENALTIES[name].apply(backend, values, parts[name], self.profile)
        return values


def _fuse_additive(profile: Profile, parts: Mapping[PenaltyName, Values]) -> Values:
    # 0 - frequency - presence, one after the other, as SGLang 0.5.23 accumulates them into a tensor of zeros.
    total: Values = 0.0
    for name in profile.order:
        if name in parts and PENALTIES[name].is_additive:
            total = total - parts[name]
    return total


def _blocks(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def _find_places(
    backend: LogitsBackend, keys: NDArray[np.int64], row_splits: NDArray[np.int64], vocab_size: int
) -> NDArray[np.int64]:
    # keys -> distance in memory: row * row_stride + token id * column_stride
    if backend.column_stride == 1 and backend.row_stride == vocab_size:
        return keys
    rows = np.repeat(np.arange(len(row_splits) - 1), np.diff(row_splits))
    return (keys - rows * vocab_size) * backend.column_stride + rows * backend.row_stride
