"""A run of the state's entries, as the penalties see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from logitd.sampling.rows import RowParameters
    from logitd.sampling.token_table import TokenTable


class Entries(NamedTuple):
    """All entries of some consecutive rows, n of them.

    Attributes
    ----------
    rows, table : RowParameters, TokenTable
        Of the whole batch.
    row_range, span : slice
        The rows, and their entries in the table's columns.
    row_lengths : int64
        How many entries each of the rows has.
    """

    rows: RowParameters
    table: TokenTable
    row_range: slice
    span: slice
    row_lengths: NDArray[np.int64]

    def spread(self, column: NDArray[np.float32]) -> NDArray[np.float32]:
        """A column over the batch's rows [R] as one over these entries [n]; a copy."""
        return column[self.row_range].repeat(self.row_lengths)
