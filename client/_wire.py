"""The messages that carry logits, written and read field by field.

The protobuf runtime copies a `bytes` field when it is set, when the message is serialised and each time it is read;
for megabytes of logits that is most of the work of a step. Here a tensor is appended to a serialised message, and
found in a reply without a copy. Both are plain protobuf encoding, and the tests compare them with the runtime's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from logitd.client._arrays import data_type_of, from_wire, to_wire
from logitd.client._exceptions import ProtocolError
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_ALIGNMENT = 8


def with_tensor(message: bytes, field_number: int, array: npt.NDArray[Any]) -> bytes:
    """A serialised message with the tensor `array` added as its field `field_number`; one copy of the items.

    They lie aligned in it, so that the server need not copy them either.
    """
    items = to_wire(array)
    head = _tensor_head(len(message) % _ALIGNMENT, field_number, items.dtype, items.shape)
    return b"".join((message, head, items.data))


def with_field(message: bytes, field_number: int, value: bytes) -> bytes:
    """A serialised message with the serialised message `value` added as its field `field_number`."""
    return b"".join((message, _length_prefix(field_number, len(value)), value))


@dataclass(slots=True)
class DenseReply:
    """An ApplyResponse; `items` is None when its form is not dense."""

    revision: int = 0
    draining: bool = False
    first_row: int = 0
    items: npt.NDArray[Any] | None = None
    """Shaped; a read-only view of the reply."""


def read_dense_reply(reply: bytes) -> DenseReply:
    """Reads an ApplyResponse of the form dense; the logits stay where they are."""
    names = service_pb2.ApplyResponse
    result = DenseReply()
    for number, value in _fields(memoryview(reply)):
        if number == names.REVISION_FIELD_NUMBER:
            result.revision = _integer(value)
        elif number == names.DRAINING_FIELD_NUMBER:
            result.draining = bool(_integer(value))
        elif number == names.FIRST_ROW_FIELD_NUMBER:
            result.first_row = _integer(value)
        elif number == names.DENSE_FIELD_NUMBER:
            result.items = _read_dense_result(_bytes(value))
    return result


def _read_dense_result(message: memoryview) -> npt.NDArray[Any]:
    for number, value in _fields(message):
        if number == service_pb2.DenseResult.LOGITS_FIELD_NUMBER:
            return _read_tensor(_bytes(value))
    raise ProtocolError("a dense reply has no logits")


def _read_tensor(message: memoryview) -> npt.NDArray[Any]:
    names = types_pb2.Tensor
    data_type, shape, data = 0, list[int](), memoryview(b"")
    for number, value in _fields(message):
        if number == names.DATA_TYPE_FIELD_NUMBER:
            data_type = _integer(value)
        elif number == names.SHAPE_FIELD_NUMBER:
            shape += [value] if isinstance(value, int) else _packed_varints(value)
        elif number == names.DATA_FIELD_NUMBER:
            data = _bytes(value)
    items = from_wire(data, data_type)
    try:
        return items.reshape(shape)
    except ValueError:
        raise ProtocolError(f"a reply has {items.size} items where the shape {shape} belongs") from None


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _read_varint(message, position)
            yield number, value
            continue
        if wire_type == _LENGTH_DELIMITED:
            size, position = _read_varint(message, position)
        elif wire_type in _FIXED_SIZES:
            size = _FIXED_SIZES[wire_type]
        else:
            raise ProtocolError(f"a reply has a field of the wire type {wire_type}")
        if size > len(message) - position:
            raise ProtocolError("a reply ends within a field")
        yield number, message[position : position + size]
        position += size


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise ProtocolError("a reply ends within a number")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ProtocolError("a reply has a number of more than 64 bits")


def _packed_varints(data: memoryview) -> list[int]:
    values, position = [], 0
    while position < len(data):
        value, position = _read_varint(data, position)
        values.append(value)
    return values


def _integer(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise ProtocolError("a reply has bytes where a number belongs")
    return value


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ProtocolError("a reply has a number where bytes belong")
    return value


@lru_cache(maxsize=256)
def _tensor_head(start: int, field_number: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    # All of the field but the items, for a place in the message; in the steps of a batch the same again and again.
    heads = (_padded_head(number, field_number, dtype, shape) for number in range(2 * _ALIGNMENT))
    return next(head for head in heads if (start + len(head)) % _ALIGNMENT == 0)


def _padded_head(num_padding: int, field_number: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    num_bytes = math.prod(shape) * dtype.itemsize
    tensor = types_pb2.Tensor(data_type=data_type_of(dtype), shape=shape, padding=bytes(num_padding))
    head = tensor.SerializeToString() + _length_prefix(types_pb2.Tensor.DATA_FIELD_NUMBER, num_bytes)
    return _length_prefix(field_number, len(head) + num_bytes) + head


def _length_prefix(field_number: int, size: int) -> bytes:
    return _varint(field_number << 3 | _LENGTH_DELIMITED) + _varint(size)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
