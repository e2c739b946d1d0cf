"""Logits on an accelerator (or anywhere torch reaches), worked on with torch where they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from logitd.sampling.backends.base import LogitsBackend, Values, flatten

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from logitd.sampling.backends.base import Items

# Everything at once: a launch costs more than the work.
_BLOCK_SIZE = 2**62


class DeviceLogits(LogitsBackend):
    """A tensor of any device; only the entries cross from the host, never the logits."""

    block_size = _BLOCK_SIZE

    def __init__(self, logits: torch.Tensor) -> None:
        # logits: [R, W]
        self.row_stride, self.column_stride = logits.stride(0), logits.stride(1)
        self._flat = flatten(logits)

    def read(self, places: NDArray[np.int64]) -> Values:
        return self._flat[self._index(places)].float()

    def write_(self, places: NDArray[np.int64], values: Values) -> None:
        self._flat[self._index(places)] = self.round(values)

    def fill_(self, places: NDArray[np.int64], value: float) -> None:
        self._flat[self._index(places)] = value

    def put(self, array: NDArray[np.float32]) -> Values:
        return torch.from_numpy(array).to(self._flat.device)

    def select(self, condition: Values, if_true: Values, if_false: Values) -> Values:
        return torch.where(condition, if_true, if_false)

    def minimum_(self, left: Values, right: Values) -> Values:
        return torch.minimum(left, right, out=left)

    def round(self, values: Values) -> Items:
        tensor: torch.Tensor = values.to(self._flat.dtype)
        return tensor

    def join(self, pieces: Sequence[Items]) -> Items:
        return torch.cat([self._flat.new_empty(0), *pieces])

    def _index(self, places: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(places).to(self._flat.device)
