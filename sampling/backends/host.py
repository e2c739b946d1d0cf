"""Logits in host memory, worked on with numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from logitd.sampling.backends.base import LogitsBackend, Values, flatten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from logitd.sampling.backends.base import Items, Logits

# 8,192 fp32 values and their temporaries fit into the nearest caches and into blocks that malloc does not map anew.
_BLOCK_SIZE = 8192


class HostLogits(LogitsBackend):
    """A CPU tensor or an array; 16-bit items are converted one by one where they are touched, never the tensor."""

    block_size = _BLOCK_SIZE

    def __init__(self, logits: Logits) -> None:
        # logits: [R, W]
        self._is_tensor = not isinstance(logits, np.ndarray)
        if isinstance(logits, np.ndarray):
            self.row_stride, self.column_stride = logits.shape[1], 1
            self._items = logits.reshape(-1)
        else:
            self.row_stride, self.column_stride = logits.stride()
            self._items = _to_array(flatten(logits))
        self._is_float32 = self._items.dtype == np.float32
        self._is_bfloat16 = self._items.dtype == np.uint16

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

    def round(self, values: Values) -> Items:
        return self._as_given(self._to_items(values))

    def join(self, pieces: Sequence[Items]) -> Items:
        if self._is_tensor:
            return torch.cat([self._as_given(self._items[:0]), *pieces])
        return np.concatenate([self._items[:0], *pieces])

    def _to_items(self, values: NDArray[np.float32]) -> NDArray[Any]:
        if self._is_float32:
            return values
        return _to_array(torch.from_numpy(values).to(torch.bfloat16 if self._is_bfloat16 else torch.float16))

    def _as_given(self, items: NDArray[Any]) -> Items:
        if not self._is_tensor:
            return items
        tensor = torch.from_numpy(items)
        return tensor.view(torch.bfloat16) if self._is_bfloat16 else tensor


def _to_array(tensor: torch.Tensor) -> NDArray[Any]:
    array: NDArray[Any] = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array
