"""The interface of a backend: single items of [R, W] logits, read as fp32 and written back rounded once."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# A numpy array or a torch tensor of fp32: both take the same operators, so a formula is written once.
Values: TypeAlias = Any
# A tensor, or a contiguous array, in which bfloat16 is the uint16 of its bits.
Logits: TypeAlias = "torch.Tensor | NDArray[Any]"
# Some of their items: a tensor of their dtype on their device, or an array of it, as they are.
Items: TypeAlias = Any

SUPPORTED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SUPPORTED_ITEMS = tuple(map(np.dtype, (np.float32, np.float16, np.uint16)))


class LogitsBackend(ABC):
    """Items of some [R, W] logits, addressed by their distance from its first item in memory.

    Attributes
    ----------
    row_stride, column_stride : int
        Items from one row, and from one column, to the next.
    block_size : int
        How many items to work on at once, so that what is computed stays in the cache.
    """

    row_stride: int
    column_stride: int
    block_size: int

    @abstractmethod
    def read(self, places: NDArray[np.int64]) -> Values:
        """The items at `places` as fp32; a copy."""

    @abstractmethod
    def write_(self, places: NDArray[np.int64], values: Values) -> None:
        """Put fp32 `values` at `places`, rounded once to the dtype of the logits."""

    @abstractmethod
    def fill_(self, places: NDArray[np.int64], value: float) -> None:
        """Put one value at all `places`."""

    @abstractmethod
    def put(self, array: NDArray[np.float32]) -> Values:
        """A host array as this backend's kind of array."""

    @abstractmethod
    def select(self, condition: Values, if_true: Values, if_false: Values) -> Values:
        """Elementwise choice; neither side's NaN leaks into the other."""

    @abstractmethod
    def minimum_(self, left: Values, right: Values) -> Values:
        """Elementwise the smaller one, NaN where either is; in the memory of `left`."""

    @abstractmethod
    def round(self, values: Values) -> Items:
        """Fp32 values in the dtype of the logits, rounded once."""

    @abstractmethod
    def join(self, pieces: Sequence[Items]) -> Items:
        """What `round` gave, [n] each and perhaps none, as one."""


def has_overlap(logits: torch.Tensor) -> bool:
    """Whether two items of a [R, W] tensor are at one place in memory."""
    (rows, columns), (row_stride, column_stride) = logits.shape, logits.stride()
    common = math.gcd(row_stride, column_stride) or 1
    return logits.numel() > 1 and column_stride // common < rows and row_stride // common < columns


def flatten(logits: torch.Tensor) -> torch.Tensor:
    """All memory that a [R, W] tensor of any strides spans, as one dimension; shares its memory."""
    if logits.is_contiguous():
        return logits.view(-1)
    rows, columns = logits.shape
    span = (rows - 1) * logits.stride(0) + (columns - 1) * logits.stride(1) + 1 if logits.numel() else 0
    return logits.as_strided((span,), (1,))
