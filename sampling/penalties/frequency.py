"""Frequency: subtracted from an id of the output for every occurrence there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logitd.sampling.penalties.base import AdditivePenalty
from logitd.sampling.profiles import FrequencySum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitd.sampling.entries import Entries
    from logitd.sampling.profiles import Profile
    from logitd.sampling.rows import RowParameters

# After so many additions to all entries at once, the few that need more go one by one.
_MOST_ROUNDS = 64
_GREATEST = np.finfo(np.float32).max


class Frequency(AdditivePenalty):
    """Its part is the table's sums, which `extend_sums` keeps while tokens are accumulated."""

    def is_required(self, rows: RowParameters) -> bool:
        return rows.has_frequency

    def part(self, entries: Entries) -> NDArray[np.float32]:
        assert entries.table.sums is not None
        return entries.table.sums[entries.span]


def extend_sums(
    profile: Profile,
    sums: NDArray[np.float32],
    counts: NDArray[np.int32],
    increments: NDArray[np.int32] | int,
    penalties: NDArray[np.float32],
) -> NDArray[np.float32]:
    """The accumulated penalty of entries that occurred `increments` more times.

    Parameters
    ----------
    sums, counts : float32 [n], int32 [n]
        Before. A sum from nothing starts at 0 with a count of 0.
    increments : int32 [n], >= 0; or 1 for all
    penalties : float32 [n]
        The frequency penalty of each entry's row.

    Returns
    -------
    float32 [n], always finite: an infinite sum would turn an infinite logit into NaN.
    """
    if profile.frequency_sum is FrequencySum.PRODUCT:
        with np.errstate(over="ignore"):
            product = penalties * (counts + increments).astype(np.float32)
        return np.clip(product, -_GREATEST, _GREATEST)
    return sums + penalties if isinstance(increments, int) else _add_repeatedly(sums, increments, penalties)


def _add_repeatedly(
    sums: NDArray[np.float32], increments: NDArray[np.int32], penalties: NDArray[np.float32]
) -> NDArray[np.float32]:
    sums = sums.copy()
    left = np.flatnonzero(increments > 0)
    added = 0
    while len(left) and added < _MOST_ROUNDS:
        sums[left] += penalties[left]
        added += 1
        left = left[increments[left] > added]
    for place in left.tolist():
        terms = np.full(increments[place] - added + 1, penalties[place])
        terms[0] = sums[place]
        sums[place] = np.add.accumulate(terms)[-1]
    return sums
