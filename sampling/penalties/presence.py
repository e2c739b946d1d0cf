"""Presence: subtracted once from an id that is in the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitd.sampling.penalties.base import AdditivePenalty, spread

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from logitd.sampling.rows import RowParameters
    from logitd.sampling.token_table import TokenTable


class Presence(AdditivePenalty):
    """The row's presence penalty for ids of the output, 0 of its sign for ids that only the prompt has."""

    def is_required(self, rows: RowParameters) -> bool:
        return rows.has_presence

    def part(self, rows: RowParameters, table: TokenTable) -> NDArray[np.float32]:
        presence = spread(rows.presence, table)
        if table.in_prompt is not None:
            # A product, as in the engines: a negative penalty leaves -0, which turns a logit of -0 into 0.
            presence *= table.counts > 0
        return presence
