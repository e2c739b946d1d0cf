"""The rules for arrays of a caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitd.sampling.backends.base import SUPPORTED_DTYPES, SUPPORTED_ITEMS, has_overlap
from logitd.sampling.errors import ParameterError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from logitd.sampling.backends.base import Logits


def check_token_ids(field: str, token_ids: ArrayLike, vocab_size: int) -> NDArray[np.int32]:
    """`token_ids` as int32 [N]; raises `ParameterError` at the first one outside [0, vocab_size)."""
    ids = np.asarray(token_ids)
    if ids.size == 0:
        return np.empty(0, np.int32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ParameterError(field, "must be one dimension of integers", f"{ids.dtype} {ids.shape}")
    if np.minimum.reduce(ids) < 0 or np.maximum.reduce(ids) >= vocab_size:
        index = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
        raise ParameterError(f"{field}[{index}]", f"must be in [0, {vocab_size})", int(ids[index]))
    return ids.astype(np.int32, copy=False)


def check_integers(field: str, values: ArrayLike) -> NDArray[np.int64]:
    """`values` as int64 of the same shape; raises `ParameterError` for floats, booleans and anything else."""
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise ParameterError(field, "must be integers", array.dtype)
    return array.astype(np.int64)


def check_row_splits(row_splits: ArrayLike | None, num_tokens: int, num_rows: int) -> list[int] | None:
    """How many tokens each row gets, or None for one each; raises `ParameterError`."""
    if row_splits is None:
        if num_tokens != num_rows:
            raise ParameterError("token_ids", f"must be one a row, {num_rows}, where no row_splits come", num_tokens)
        return None
    splits = check_integers("row_splits", row_splits)
    if splits.shape != (num_rows + 1,):
        raise ParameterError("row_splits", f"must have shape ({num_rows + 1},)", splits.shape)
    lengths = np.diff(splits)
    if splits[0] != 0 or splits[-1] != num_tokens or (lengths < 0).any():
        rule = f"must start with 0, never fall, and end with the number of tokens, {num_tokens}"
        raise ParameterError("row_splits", rule, splits.tolist())
    result: list[int] = lengths.tolist()
    return None if result.count(1) == num_rows else result


def check_logits(logits: Logits, first_row: int, num_rows: int, vocab_size: int, *, is_written: bool = False) -> None:
    """Raise `ParameterError` unless `logits` can hold rows from `first_row` on, of `num_rows`."""
    if isinstance(logits, np.ndarray):
        _check_array(logits, is_written)
    elif logits.dtype not in SUPPORTED_DTYPES:
        raise ParameterError("logits", "must be float32, float16 or bfloat16", logits.dtype)
    if logits.ndim != 2 or logits.shape[1] < vocab_size:
        rule = f"must have shape [rows, columns >= {vocab_size}]"
        raise ParameterError("logits", rule, tuple(logits.shape))
    if not (first_row >= 0 and first_row + logits.shape[0] <= num_rows):
        got = f"rows {first_row} to {first_row + logits.shape[0] - 1}"
        raise ParameterError("logits", f"must hold rows of the batch's {num_rows}", got)
    if not isinstance(logits, np.ndarray) and not logits.is_contiguous() and has_overlap(logits):
        raise ParameterError("logits", "must not share memory between its items", logits.stride())


def _check_array(logits: NDArray[Any], is_written: bool) -> None:
    if logits.dtype not in SUPPORTED_ITEMS:
        raise ParameterError("logits", "must be float32, float16 or uint16 in an array", logits.dtype)
    if not logits.flags.c_contiguous:
        raise ParameterError("logits", "must be contiguous in an array", f"strides {logits.strides}")
    if is_written and not logits.flags.writeable:
        raise ParameterError("logits", "must be writable", "an array that is not")
