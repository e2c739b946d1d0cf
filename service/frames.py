"""A message's large payload, cut out and put in without the copies that a protobuf runtime makes of it.

``message.logits.data`` costs two copies on the way in (parse, then attribute) and two on the way out (set, then
serialise); for 32 MiB that takes longer than the penalties. Here the payload is a view of the received bytes, and on
the way out it is copied once, into the reply, and worked on there.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from logitd.v1 import types_pb2

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable

    from numpy.typing import NDArray

# Below this a parse is cheaper than the walk.
_SMALL_MESSAGE = 16_384
_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_WIDTHS = {1: 8, 5: 4}
_MAX_VARINT_BYTES, _MAX_LENGTH_BYTES = 10, 5
# The walk takes a hundred times as long a field as the parser; no message of ours has so many.
_MAX_FIELDS = 1024
_ALIGNMENT = 8


class Payload(NamedTuple):
    """Bytes [start, end) of `owner`, a received message or mapped shared memory."""

    owner: bytes | mmap.mmap
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


class _Field(NamedTuple):
    start: int
    value_start: int
    end: int


class _MalformedField(Exception):
    """A walk met bytes that are no field, or too many; the parser will say so to the caller."""


def split_payload(data: bytes, path: tuple[int, int]) -> tuple[bytes, Payload | None]:
    """Cut the bytes at `path`, a field of a field, out of a serialised message.

    Returns the message with that field left empty, and the payload. What is small, malformed, or has one of the
    fields twice is returned whole with None, for the parser to judge.
    """
    if len(data) < _SMALL_MESSAGE:
        return data, None
    try:
        outer = _find_only(data, 0, len(data), path[0])
        inner = None if outer is None else _find_only(data, outer.value_start, outer.end, path[1])
    except _MalformedField:
        return data, None
    if outer is None or inner is None:
        return data, None
    view = memoryview(data)
    kept = b"".join((view[outer.value_start : inner.start], _key(path[1]), b"\0", view[inner.end : outer.end]))
    rest = b"".join((view[: outer.start], _key(path[0]), _varint(len(kept)), kept, view[outer.end :]))
    return rest, Payload(data, inner.value_start, inner.end)


def append_payload(head: bytes, path: tuple[int, ...], tensor_head: bytes, payload: Payload) -> tuple[bytes, Payload]:
    """A serialised message: `head`, then at `path` a nested message of `tensor_head` and a copy of `payload`.

    The last number of `path` is the payload's own field. Returns the message, and the payload within it, aligned.
    """
    fronts = (_nest(path, tensor_head, len(payload), padding) for padding in _PADDINGS)
    front = next(front for front in fronts if (len(head) + len(front)) % _ALIGNMENT == 0)
    message = b"".join((head, front, memoryview(payload.owner)[payload.start : payload.end]))
    return message, Payload(message, len(message) - len(payload), len(message))


def append_arrays(head: bytes, number: int, arrays: Iterable[tuple[int, NDArray[Any]]], tail: bytes = b"") -> bytes:
    """A serialised message: `head`, then as its field `number` a message of contiguous arrays, each with its field.

    `tail` is what else that message has, serialised. Each array is copied once; the runtime copies it twice.
    """
    pieces: list[bytes | memoryview] = []
    size = len(tail)
    for field, array in arrays:
        if array.nbytes:
            front = _key(field) + _varint(array.nbytes)
            pieces += (front, array.data)
            size += len(front) + array.nbytes
    return b"".join((head, _key(number), _varint(size), *pieces, tail))


def view_array(payload: Payload, dtype: np.dtype[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """The payload as an array that shares its memory and keeps it alive; to be written only in shared memory."""
    return np.frombuffer(payload.owner, dtype, len(payload) // dtype.itemsize, payload.start).reshape(shape)


def view_unseen_array(payload: Payload, dtype: np.dtype[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """As `view_array`, but of a bytes object that nobody else has seen yet, so that it may be written."""
    address = np.frombuffer(payload.owner, np.uint8).ctypes.data + payload.start
    memory = (ctypes.c_char * len(payload)).from_address(address)
    memory.owner = payload.owner  # type: ignore[attr-defined]  # the array keeps `memory`, which keeps the bytes
    return np.frombuffer(memoryview(memory), dtype).reshape(shape)


def _nest(path: tuple[int, ...], tensor_head: bytes, num_bytes: int, padding: bytes) -> bytes:
    # All of the nested messages but the payload itself, which comes last in each of them.
    front = b"".join((tensor_head, padding, _key(path[-1]), _varint(num_bytes)))
    for number in reversed(path[:-1]):
        front = b"".join((_key(number), _varint(len(front) + num_bytes), front))
    return front


def _find_only(data: bytes, start: int, end: int, number: int) -> _Field | None:
    # None unless exactly one field has the number: of several the last counts, or they are merged.
    wanted, found = number << 3 | _LENGTH_DELIMITED, None
    for _ in range(_MAX_FIELDS):
        if start >= end:
            return found
        # Most numbers have one byte, and a call takes longer than to read it.
        tag, value_start = (data[start], start + 1) if data[start] < 0x80 else _read_varint(data, start, end)
        if tag & 7 == _LENGTH_DELIMITED:
            length, value_start = _read_varint(data, value_start, end)
            value_end = value_start + length
        else:
            value_end = _skip_number(data, tag & 7, value_start, end)
        if value_end > end:
            raise _MalformedField
        if tag >> 3 == number:
            if found is not None or tag != wanted:
                return None
            found = _Field(start, value_start, value_end)
        start = value_end
    raise _MalformedField


def _skip_number(data: bytes, wire_type: int, start: int, end: int) -> int:
    # Where a value ends that does not give its own length.
    if wire_type == _VARINT:
        return _read_varint(data, start, end, _MAX_VARINT_BYTES)[1]
    if wire_type in _FIXED_WIDTHS:
        return start + _FIXED_WIDTHS[wire_type]
    raise _MalformedField


def _read_varint(data: bytes, start: int, end: int, most_bytes: int = _MAX_LENGTH_BYTES) -> tuple[int, int]:
    # By default a tag or a length.
    if start < end and data[start] < 0x80:
        return data[start], start + 1
    value = 0
    for shift, position in enumerate(range(start, min(end, start + most_bytes))):
        byte = data[position]
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position + 1
    raise _MalformedField


@cache
def _key(number: int) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


# Serialised padding fields of every length that may be wanted; a longer one may lengthen the lengths around it too.
_PADDINGS = (b"", *(types_pb2.Tensor(padding=bytes(n)).SerializeToString() for n in range(1, 2 * _ALIGNMENT)))
