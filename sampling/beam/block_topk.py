"""The bits of `torch.topk`, the order of ties included, from a small part of a long row.

On the CPU, where 64 * count <= length, torch selects as `std::partial_sort` does: a heap of the first `count` items,
which each later item enters only if it is greater than the heap's least. An item that does not enter leaves no trace,
so that the order of ties stays the same when such items are left out. Whole blocks of them are found by their greatest
item: a block cannot take part if `count` blocks before it each hold an item at least as great.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

BLOCK = 128
# Below this many items of a row `topk` itself is as fast.
_MIN_LENGTH = 8192
_ITEMS_PER_CANDIDATE = 64


def block_maxima(values: torch.Tensor) -> torch.Tensor | None:
    """The greatest item of each block of each row; None where they are of no use.

    Parameters
    ----------
    values : torch.Tensor, float32 [R, V], without NaN
        Blocks start anew in each row; the last may be short.

    Returns
    -------
    torch.Tensor or None, float32 [R, ceil(V / BLOCK)]
    """
    rows, width = values.shape
    if values.device.type != "cpu" or width < _MIN_LENGTH or rows == 0 or not _selects_by_heap():
        return None
    return _maxima(values)


def can_select(maxima: torch.Tensor | None, num_items: int, count: int) -> bool:
    """Whether blocks may stand for rows of so many items: `topk` goes by heap, which begins in whole blocks."""
    return maxima is not None and _ITEMS_PER_CANDIDATE * count <= num_items and count <= _MIN_LENGTH // 2


def select_blocks(maxima: NDArray[np.float32], count: int) -> NDArray[np.bool_]:
    """The blocks whose items decide the `count` greatest of each row and the order of their ties.

    Parameters
    ----------
    maxima : float32 [S, N]
        In the order of the items.

    Returns
    -------
    bool [S, N]
    """
    # So many blocks hold items enough for the heap way, and have a `count`-th greatest; two may be short.
    end = count + 2
    chosen = np.zeros(maxima.shape, np.bool_)
    chosen[:, :end] = True
    for start, stop in _doublings(end, maxima.shape[1]):
        place = start - count
        least = np.partition(maxima[:, :start], place, axis=1)[:, place, None]
        chosen[:, start:stop] = maxima[:, start:stop] > least
    return chosen


def take_blocks(values: torch.Tensor, rows: NDArray[np.int64], blocks: NDArray[np.int64]) -> NDArray[np.float32]:
    """Float32 [..., BLOCK]: the items of block `blocks` of row `rows`; what a short block lacks is -inf.

    Parameters
    ----------
    values : torch.Tensor, float32 [R, V], contiguous, on the host
    rows, blocks : int64 [...]
    """
    num_items, width = values.numel(), values.shape[1]
    starts = rows * width + blocks * BLOCK
    inside = np.minimum(starts, num_items - BLOCK)
    items: NDArray[np.float32] = values.view(-1).unfold(0, BLOCK, 1).numpy()[inside]
    if width % BLOCK:
        for place in np.argwhere(inside < starts):
            # The last row's short block, which was read from too far ahead.
            ahead = int(starts[*place] - inside[*place])
            items[*place, :-ahead] = items[*place, ahead:]
        items[blocks * BLOCK + BLOCK > width, width % BLOCK :] = -np.inf
    return items


def _doublings(first: int, last: int) -> Iterator[tuple[int, int]]:
    while first < last:
        yield first, min(2 * first, last)
        first *= 2


def _maxima(values: torch.Tensor) -> torch.Tensor:
    rows, width = values.shape
    whole = width - width % BLOCK
    maxima = values[:, :whole].view(rows, -1, BLOCK).amax(-1)
    return maxima if whole == width else torch.cat((maxima, values[:, whole:].amax(-1, keepdim=True)), dim=1)


@cache
def _selects_by_heap() -> bool:
    """Whether this torch selects as described, tried on rows full of ties; another way would only cost time here."""
    rng = np.random.default_rng(0)
    return all(
        _agrees(torch.from_numpy(rng.integers(0, greatest, (1, 64 * BLOCK)).astype(np.float32)), count)
        for greatest in (2, 40, 3000)
        for count in (2, 8, 24)
    )


def _agrees(row: torch.Tensor, count: int) -> bool:
    blocks = np.flatnonzero(select_blocks(_maxima(row).numpy(), count)[0])
    _, places = torch.topk(row.view(-1, BLOCK)[torch.from_numpy(blocks)].view(1, -1), count)
    found = torch.from_numpy(blocks)[places // BLOCK] * BLOCK + places % BLOCK
    return torch.equal(found, torch.topk(row, count).indices)
