"""What to do to logits that stay elsewhere: the parts of each edit, not their sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitd.sampling.layered_table import LayeredTable
    from logitd.sampling.rows import RowParameters
    from logitd.sampling.token_table import TokenTable

IS_SEEN = 1
IS_OUTPUT = 2
IS_BANNED = 4


@dataclass(frozen=True, slots=True)
class EditList:
    """The edits of R rows, N entries; the formulas are in ``proto/logitd/v1/service.proto``, message Edits.

    Attributes
    ----------
    row_splits : int64 [R + 1]
    token_ids : int32 [N]
        Ascending within a row.
    repetition, presence : float32 [R]
    frequency_sums : float32 [N]
        0 where no row has a frequency penalty.
    flags : uint8 [N]
        IS_SEEN: repetition applies. IS_OUTPUT: the id is in the output, so frequency and presence apply. IS_BANNED.
        0: the id has no edit any more.
    """

    row_splits: NDArray[np.int64]
    token_ids: NDArray[np.int32]
    repetition: NDArray[np.float32]
    presence: NDArray[np.float32]
    frequency_sums: NDArray[np.float32]
    flags: NDArray[np.uint8]

    def slice_rows(self, first_row: int, num_rows: int) -> EditList:
        """The edits of rows [first_row, first_row + num_rows)."""
        end = first_row + num_rows
        splits = self.row_splits[first_row : end + 1]
        entries = slice(splits[0], splits[-1])
        return EditList(
            splits - splits[0],
            self.token_ids[entries],
            self.repetition[first_row:end],
            self.presence[first_row:end],
            self.frequency_sums[entries],
            self.flags[entries],
        )


def list_edits(
    rows: RowParameters, table: LayeredTable, banned: NDArray[np.int64], only: NDArray[np.int64] | None = None
) -> EditList:
    """The edits of every seen or banned id, or only those of some.

    Parameters
    ----------
    banned : int64, ascending
        Keys, ``row * vocab_size + token id``.
    only : int64, ascending and distinct, optional
        The keys to list, whether or not they have an edit.
    """
    if only is None:
        wanted, places = table.fold(), banned
        if len(banned):
            wanted, places = wanted.open_entries(banned)
    else:
        wanted = table.select(only)
        places = np.flatnonzero(np.isin(only, banned, assume_unique=True)) if len(banned) else banned
    flags = _flags(wanted)
    flags[places] |= IS_BANNED
    return EditList(
        row_splits=wanted.row_splits,
        token_ids=wanted.token_ids(),
        repetition=rows.repetition,
        presence=rows.presence,
        frequency_sums=np.zeros(len(flags), np.float32) if wanted.sums is None else wanted.sums,
        flags=flags,
    )


def _flags(table: TokenTable) -> NDArray[np.uint8]:
    is_output = table.counts > 0
    is_seen = is_output if table.in_prompt is None else is_output | table.in_prompt
    return is_output * np.uint8(IS_OUTPUT) + is_seen * np.uint8(IS_SEEN)
