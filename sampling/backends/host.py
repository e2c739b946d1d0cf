"""Logits in host memory, worked on with numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from logitd.sampling.backends.base import LogitsBackend, Values, flatten

if TYPE_CHECKING:
    from numpy.typing import NDArray

# 8,192 fp32 values and their temporaries fit into the nearest caches and into blocks that malloc does not map anew.
_BLOCK_SIZE = 8192


class HostLogits(LogitsBackend):
    """A CPU tensor; 16-bit items are converted one by one where they are touched, never the tensor."""

    block_size = _BLOCK_SIZE

    def __init__(self, logits: torch.Tensor) -> None:
        # logits: [R, W]
        self.row_stride, self.column_stride = logits.stride(0), logits.stride(1)
        self._dtype = logits.dtype
        flat = flatten(logits)
        self._is_bfloat16 = logits.dtype == torch.bfloat16
        self._items = (flat.view(torch.uint16) if self._is_bfloat16 else flat).numpy()

    def read(self, places: NDArray[np.int64]) -> Values:
        # Clipping never happens: it takes the place of a check of every index, which costs a fifth of the time.
        items = self._items.take(places, mode="clip")
        if self._is_bfloat16:
            return np.left_shift(items, 16, dtype=np.uint32).view(np.float32)
        return items.astype(np.float32, copy=False)

    def write_(self, places: NDArray[np.int64], values: Values) -> None:
        self._items[places] = self._to_items(values)

    def fill_(self, places: NDArray[np.int64], value: float) -> None:
        self._items[places] = self._to_items(np.array([value], np.float32))

    def put(self, array: NDArray[np.float32]) -> Values:
        return array

    def select(self, condition: Values, if_true: Values, if_false: Values) -> Values:
        # By bits: np.where guesses each branch, and the signs of logits cannot be guessed (7 times slower).
        other = if_false.view(np.int32)
        chosen = if_true.view(np.int32) ^ other
        chosen *= condition
        chosen ^= other
        return chosen.view(np.float32)

    def minimum_(self, left: Values, right: Values) -> Values:
        return np.minimum(left, right, out=left)

    def round(self, values: Values) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        return tensor if self._dtype == torch.float32 else tensor.to(self._dtype)

    def _to_items(self, values: Values) -> Values:
        if self._dtype == torch.float32:
            return values
        rounded = self.round(values)
        return (rounded.view(torch.uint16) if self._is_bfloat16 else rounded).numpy()
