"""Bytes on the wire to arrays and tensors, and back. Every byte trick of the server is here or in `frames`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from google.protobuf.message import DecodeError, Message

from logitd.service.errors import InvalidField, MalformedMessage
from logitd.service.frames import Payload, append_payload, split_payload, view_array, view_unseen_array
from logitd.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from logitd.service.regions import RegionRegistry

_M = TypeVar("_M", bound=Message)

# Of logits as arrays have them, bfloat16 as the uint16 of its bits.
ITEM_TYPES: Mapping[types_pb2.DataType, np.dtype[Any]] = {
    types_pb2.DATA_TYPE_FP32: np.dtype(np.float32),
    types_pb2.DATA_TYPE_FP16: np.dtype(np.float16),
    types_pb2.DATA_TYPE_BF16: np.dtype(np.uint16),
}
_MAX_DIMENSION = 2**31 - 1
_MOST_DIMENSIONS_QUOTED = 8

if sys.byteorder != "little":  # arrays are viewed, not converted
    raise ImportError("logitd.service needs a little-endian machine")


def parse(message_type: type[_M], data: bytes) -> _M:
    """The message in `data`; raises `MalformedMessage`."""
    try:
        return message_type.FromString(data)
    except DecodeError as error:
        raise MalformedMessage(message_type.DESCRIPTOR.full_name, len(data)) from error


def read_int32(path: str, data: bytes) -> NDArray[np.int32]:
    """An int32 array field, [N]; shares the bytes."""
    return _read_array(path, data, np.dtype(np.int32))


def read_float64(path: str, data: bytes) -> NDArray[np.float64]:
    """A float64 array field, [N]; shares the bytes."""
    return _read_array(path, data, np.dtype(np.float64))


def write_int32(array: NDArray[np.integer]) -> bytes:
    """An integer array as the bytes of int32[N]."""
    return array.astype(np.int32, copy=False).tobytes()


def as_int32(array: NDArray[np.integer]) -> NDArray[np.int32]:
    """An integer array as int32; itself if it is that."""
    return array.astype(np.int32, copy=False)


def write_float64(array: NDArray[np.floating]) -> bytes:
    """A float array as the bytes of float64[N]."""
    return array.astype(np.float64, copy=False).tobytes()


def parse_step(message_type: type[_M], data: bytes, logits_field: int) -> tuple[_M, Payload | None]:
    """The message in `data`, and the payload of its logits where it was large enough to be left aside."""
    rest, payload = split_payload(data, (logits_field, types_pb2.Tensor.DATA_FIELD_NUMBER))
    return parse(message_type, rest), payload


class WireLogits(NamedTuple):
    """Checked logits [rows, columns] of a message."""

    data_type: types_pb2.DataType
    shape: tuple[int, int]
    payload: Payload

    @property
    def is_shared(self) -> bool:
        """Whether they lie in shared memory."""
        return not isinstance(self.payload.owner, bytes)

    def view(self) -> NDArray[Any]:
        """The logits, [rows, columns], bfloat16 as uint16; only those in shared memory may be changed.

        A copy where they are not aligned, which numpy would make for each block of them that is read.
        """
        array = view_array(self.payload, ITEM_TYPES[self.data_type], self.shape)
        return array if array.flags.aligned else array.copy()

    def view_tensor(self) -> torch.Tensor:
        """The logits, [rows, columns], not to be changed; a copy where they are not aligned."""
        # torch takes no array that may not be written.
        view = view_array if self.is_shared else view_unseen_array
        array = view(self.payload, ITEM_TYPES[self.data_type], self.shape)
        tensor = torch.from_numpy(array if array.flags.aligned else array.copy())
        return tensor.view(torch.bfloat16) if self.data_type == types_pb2.DATA_TYPE_BF16 else tensor

    def copy_into(self, head: bytes, path: tuple[int, ...]) -> tuple[bytes, NDArray[Any]]:
        """A serialised reply, `head` and a Tensor at `path` with a copy of the logits; and the copy, to be changed."""
        tensor_head = types_pb2.Tensor(data_type=self.data_type, shape=self.shape).SerializeToString()
        full_path = (*path, types_pb2.Tensor.DATA_FIELD_NUMBER)
        message, payload = append_payload(head, full_path, tensor_head, self.payload)
        return message, view_unseen_array(payload, ITEM_TYPES[self.data_type], self.shape)


def read_logits(
    path: str,
    tensor: types_pb2.Tensor,
    payload: Payload | None,
    regions: RegionRegistry,
    *,
    vocab_size: int,
    max_columns: int,
) -> WireLogits:
    """The logits of a message, rows >= 1, columns >= vocab_size; `payload` is its data if it was left aside.

    Raises `InvalidField` for a wrong type, shape or byte count, `RegionNotFound` for a region that is not there;
    nothing is allocated before all of it is checked.
    """
    data_type = tensor.data_type
    if data_type not in ITEM_TYPES:
        raise InvalidField(f"{path}.data_type", "must be FP32, FP16 or BF16", data_type)
    item_size = ITEM_TYPES[data_type].itemsize
    rows, columns = _check_shape(path, tensor.shape, vocab_size, max_columns)
    num_bytes = rows * columns * item_size
    if tensor.HasField("shared_memory"):
        place = tensor.shared_memory
        region = regions.find(place.region_id)
        payload = region.open(f"{path}.shared_memory", place.offset, num_bytes, item_size)
    elif not tensor.HasField("data"):
        raise InvalidField(f"{path}.data", "must be set, or shared_memory", "nothing")
    elif payload is None:
        data = tensor.data
        payload = Payload(data, 0, len(data))
    if len(payload) != num_bytes:
        rule = f"must have {num_bytes} bytes, {rows} x {columns} x {item_size}"
        raise InvalidField(f"{path}.data", rule, f"{len(payload)} bytes")
    return WireLogits(data_type, (rows, columns), payload)


def _read_array(path: str, data: bytes, dtype: np.dtype) -> NDArray:  # type: ignore[type-arg]
    if len(data) % dtype.itemsize:
        raise InvalidField(path, f"must have a multiple of {dtype.itemsize} bytes", f"{len(data)} bytes")
    return np.frombuffer(data, dtype)


def _check_shape(path: str, shape: Sequence[int], vocab_size: int, max_columns: int) -> tuple[int, int]:
    if len(shape) != 2:
        got = list(shape) if len(shape) <= _MOST_DIMENSIONS_QUOTED else f"{len(shape)} dimensions"
        raise InvalidField(f"{path}.shape", "must be [rows, columns]", got)
    rows, columns = shape
    if not 1 <= rows <= _MAX_DIMENSION:
        raise InvalidField(f"{path}.shape[0]", f"must be in [1, {_MAX_DIMENSION}]", rows)
    most = max(max_columns, vocab_size)
    if not vocab_size <= columns <= most:
        raise InvalidField(f"{path}.shape[1]", f"must be in [{vocab_size}, {most}], vocab_size or wider", columns)
    return rows, columns
