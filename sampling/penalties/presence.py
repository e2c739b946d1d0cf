"""Presence: subtracted once from an id that is in the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitd.sampling.penalties.base import AdditivePenalty

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from logitd.sampling.entries import Entries
    from logitd.sampling.rows import RowParameters


class Presence(AdditivePenalty):
    """The row's presence penalty for ids of the output, 0 of its sign for ids that only the prompt has."""

    def is_required(self, rows: RowParameters) -> bool:
        return rows.has_presence

    def part(self, entries: Entries) -> NDArray[np.float32]:
        presence = entries.spread(entries.rows.presence)
        if entries.table.in_prompt is not None:
            # A product, as in the engines: a negative penalty leaves -0, which turns a logit of -0 into 0.
            presence = presence * (entries.table.counts[entries.span] > 0)
        return presence
