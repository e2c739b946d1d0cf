"""min_new_tokens: bans a row's stop set while its output is too short. The prompt never counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitd.sampling.rows import RowParameters


def find_banned(rows: RowParameters, output_lengths: NDArray[np.int64], vocab_size: int) -> NDArray[np.int64]:
    """The keys ``row * vocab_size + token id`` that are banned now, int64, ascending and distinct.

    A banned logit is -inf. No penalty changes -inf, so the place of the ban in a profile's order cannot be seen in
    any result, and it is written last.
    """
    short_rows = np.flatnonzero(output_lengths < rows.min_new_tokens).tolist() if rows.has_bans else []
    if not short_rows:
        return np.empty(0, np.int64)
    return np.concatenate([rows.stop_token_ids[row] + row * vocab_size for row in short_rows])
