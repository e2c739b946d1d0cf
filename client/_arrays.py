"""numpy arrays as the wire has them: little-endian and packed, bfloat16 as the uint16 of its bits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from logitd.client._exceptions import ProtocolError
from logitd.v1 import types_pb2

if TYPE_CHECKING:
    from collections import abc

Logits: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float16] | npt.NDArray[np.uint16]
"""float32, float16, or uint16 for the bits of bfloat16."""

TokenIds: TypeAlias = "abc.Sequence[int] | npt.NDArray[np.integer[Any]]"
"""A flat list or array of integers."""

_DATA_TYPES = {
    ("f", 4): types_pb2.DATA_TYPE_FP32,
    ("f", 2): types_pb2.DATA_TYPE_FP16,
    ("u", 2): types_pb2.DATA_TYPE_BF16,
}
_INT32, _FLOAT32, _FLOAT64 = np.dtype("<i4"), np.dtype("<f4"), np.dtype("<f8")
_DTYPES: dict[int, np.dtype[Any]] = {
    types_pb2.DATA_TYPE_FP32: _FLOAT32,
    types_pb2.DATA_TYPE_FP16: np.dtype("<f2"),
    types_pb2.DATA_TYPE_BF16: np.dtype("<u2"),
}


def _view(data: bytes | memoryview, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if len(data) % dtype.itemsize:
        raise ProtocolError(f"a reply has {len(data)} bytes where items of {dtype.itemsize} bytes belong")
    items = np.frombuffer(data, dtype)
    return items if dtype.isnative else items.astype(dtype.newbyteorder("="))


ids_from_bytes: abc.Callable[[bytes], npt.NDArray[np.int32]] = partial(_view, dtype=_INT32)
"""int32 items of the wire, read-only."""
floats_from_bytes: abc.Callable[[bytes], npt.NDArray[np.float32]] = partial(_view, dtype=_FLOAT32)
"""float32 items of the wire, read-only."""
doubles_from_bytes: abc.Callable[[bytes], npt.NDArray[np.float64]] = partial(_view, dtype=_FLOAT64)
"""float64 items of the wire, read-only."""


def check_kind(name: str, value: object, kind: type, what: str) -> None:
    """TypeError unless `value` is of a kind, which is `what`."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, got {type(value).__name__}")


def data_type_of(dtype: np.dtype[Any]) -> types_pb2.DataType:
    """The wire's name of a numpy type; TypeError for one that it does not carry."""
    try:
        return _DATA_TYPES[dtype.kind, dtype.itemsize]
    except KeyError:
        rule = "logits must be float32, float16 or uint16 (the bits of bfloat16)"
        raise TypeError(f"{rule}, got {dtype}") from None


def check_logits(logits: npt.ArrayLike) -> npt.NDArray[Any]:
    """Logits as an array [rows, columns] of a type that the wire carries; a view where `logits` is an array."""
    array = np.asarray(logits)
    data_type_of(array.dtype)
    if array.ndim != 2:
        raise ValueError(f"logits must have the shape [rows, columns], got {list(array.shape)}")
    return array


def check_places(logits: npt.NDArray[Any], num_rows: int, token_ids: npt.NDArray[np.int32]) -> None:
    """TypeError or ValueError unless `logits` is an array [num_rows, columns] that has these columns."""
    check_kind("logits", logits, np.ndarray, "an array")
    if logits.ndim != 2 or len(logits) != num_rows:
        raise ValueError(f"logits must have the shape [{num_rows}, columns], got {list(logits.shape)}")
    if not are_below(token_ids, logits.shape[1]):
        raise ValueError(f"logits must have a column for each token id, up to {token_ids.max()}, got {logits.shape[1]}")


def to_wire(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same items little-endian and contiguous; the array itself where it is so already."""
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))


def from_wire(data: bytes | memoryview, data_type: int) -> npt.NDArray[Any]:
    """A read-only view of items of the wire, one axis."""
    dtype = _DTYPES.get(data_type)
    if dtype is None:
        raise ProtocolError(f"a reply has the unknown data type {data_type}")
    return _view(data, dtype)


def ids_to_bytes(ids: TokenIds, name: str = "token ids") -> bytes:
    """Integers as int32 of the wire; refuses other types and values that int32 does not hold."""
    array = np.asarray(ids)
    if array.size == 0:
        return b""
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise TypeError(f"{name} must be a flat list of integers, got {array.dtype} {list(array.shape)}")
    if array.dtype == _INT32:
        return array.tobytes()
    narrow = array.astype(_INT32)
    # A negative number of an unsigned type's bits would come back as it went.
    is_changed = narrow.astype(array.dtype).tobytes() != array.tobytes()
    if is_changed or (array.dtype.kind == "u" and narrow.min() < 0):
        raise ValueError(f"{name} must fit into int32, got {array.min()} to {array.max()}")
    return narrow.tobytes()


def doubles_to_bytes(values: npt.ArrayLike) -> bytes:
    """Numbers as float64 of the wire."""
    return np.asarray(values, dtype=_FLOAT64).tobytes()


def check_row_splits(splits: npt.NDArray[np.int32], num_rows: int, num_entries: int) -> None:
    """ProtocolError unless `splits` divide the entries of a reply among its rows."""
    bounds = splits.tolist()
    fits = len(bounds) == num_rows + 1 and bounds[0] == 0 and bounds[-1] == num_entries
    if not fits or bounds != sorted(bounds):
        raise ProtocolError(f"a reply has no row splits of {num_entries} entries over {num_rows} rows")


def are_below(ids: npt.NDArray[np.int32], limit: int) -> bool:
    """Whether all ids are in [0, limit)."""
    if not len(ids):
        return True
    # Without its sign a negative number is greater than any positive one.
    unsigned = ids.view(np.uint32)
    return unsigned.item(unsigned.argmax()) < min(limit, 2**31)


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """float32 values as the bits of bfloat16, rounded to nearest, ties to even.

    Overflow becomes an infinity; NaN stays NaN, quiet, with its sign.
    """
    array = np.asarray(values)
    if (array.dtype.kind, array.dtype.itemsize) != ("f", 4):
        raise TypeError(f"values must be float32, got {array.dtype}")
    bits = array.astype(np.float32, order="C", copy=False).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
    quiet_nan = (bits >> 16) | np.uint32(0x0040)
    return np.where(np.isnan(array), quiet_nan, rounded).astype(np.uint16)


def from_bfloat16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The float32 values that the bits of bfloat16 stand for; exact."""
    array = np.asarray(bits)
    if (array.dtype.kind, array.dtype.itemsize) != ("u", 2):
        raise TypeError(f"bits must be uint16, got {array.dtype}")
    return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
