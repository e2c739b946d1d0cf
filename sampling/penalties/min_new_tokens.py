"""min_new_tokens: bans a row's stop set while its output is too short. The prompt never counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from logitd.sampling.rows import RowParameters


def find_banned(rows: RowParameters, output_lengths: NDArray[np.int64], vocab_size: int) -> NDArray[np.int64]:
    """The keys ``row * vocab_size + token id`` that are banned now, int64, ascending and distinct.

    A banned logit is -inf. No penalty changes -inf, so the place of the ban in a profile's order cannot be seen in
    any result, and it is written last.
    """
    ban_rows, token_ids = rows.stop_sets
    if len(ban_rows) == 0:
        return ban_rows
    is_short = output_lengths < rows.min_new_tokens
    return (ban_rows * vocab_size + token_ids)[is_short[ban_rows]]
