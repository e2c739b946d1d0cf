"""Wrong messages without end: random bytes, valid messages with bytes changed, valid messages with fields changed."""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor

from helpers.faults_random import one_in
from helpers.right_requests import CREATIONS, STEPS, penalty_creation
from helpers.wire import METHODS, STREAM_METHODS, Failed, request_id
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from google.protobuf.message import Message

    from helpers.wire import Wire

_INTEGERS = (0, 1, 2, 3, 5, -1, 7, 127, 128, 255, 256, 4096, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, 1.0, 1.5, -1.0, 2.0, 1e-45, 1e300, -1e300, float("inf"), float("-inf"), float("nan"))
_TEXTS = ("", "a", "b", "x" * 129, "\0", "..", "../x", "/etc/passwd", "\u00e9", "\U0001f600" * 40)
_MOST_RANDOM_BYTES = 400
# There is most to get wrong in these.
_DEEP = ("CreateBatch", "Accumulate", "Apply", "BeamStep", "FilterBatch", "MergeBatches")
_FULL = types_pb2.BATCH_VIEW_FULL
_INT32 = FieldDescriptor.CPPTYPE_INT32
_WHOLE = {
    _INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


class Fuzzer:
    """Makes inputs for every RPC out of right messages to live batches, which `renew` opens."""

    def __init__(self, wire: Wire, random: Random, region_file: str) -> None:
        self._wire, self._random, self._region_file = wire, random, region_file
        self._rights: dict[str, list[Message]] = {}
        self._regions: list[str] = []

    def renew(self) -> None:
        """Let go of all batches and regions, whatever they are by now; open those that right messages are for."""
        while self._regions:
            request = service_pb2.UnregisterSharedMemoryRequest(region_id=self._regions.pop())
            with contextlib.suppress(Failed):  # a fuzzed message may have been faster
                self._wire.call("UnregisterSharedMemory", request)
        for batch in self._wire.call("ListBatches", service_pb2.ListBatchesRequest(page_size=1000)).batches:
            delete = service_pb2.DeleteBatchRequest(batch_id=batch.batch_id, allow_missing=True)
            self._wire.call("DeleteBatch", delete)
        self._rights = {method: [] for method in METHODS}
        for method, open_batch, make in STEPS.values():
            self._rights[method].append(make(open_batch(self._wire)))
        self._rights["CreateBatch"] = [make(self._wire) for make in CREATIONS.values()]
        for method, message in self._others():
            self._rights[method].append(message)

    def draw(self) -> tuple[str, list[bytes]]:
        """An RPC and what to send to it: one message, or up to three to a stream."""
        method = self._random.choice((*METHODS, *_DEEP * 3))
        count = self._random.choice((1, 1, 2, 3)) if method in STREAM_METHODS else 1
        return method, [self._draw_bytes(method) for _ in range(count)]

    def note(self, method: str, reply: bytes) -> None:
        """A region that came about is to be given back."""
        if method == "RegisterSharedMemory":
            self._regions.append(service_pb2.RegisterSharedMemoryResponse.FromString(reply).region_id)

    def _others(self) -> list[tuple[str, Message]]:
        batch, source = self._wire.open(penalty_creation()), self._wire.open(penalty_creation())
        keep = [service_pb2.SequenceSelection(sequence_id=name) for name in ("b", "a")]
        fork = service_pb2.SequenceSelection(sequence_id="a", new_sequence_id="c")
        rename = [
            service_pb2.SequenceSelection(sequence_id=name, new_sequence_id=f"{name}{name}") for name in ("a", "b")
        ]
        renaming = service_pb2.FilterBatchRequest(target=source.target(), sequences=rename)
        source.revision = self._wire.call("FilterBatch", renaming).revision
        return [
            (
                "GetBatch",
                service_pb2.GetBatchRequest(batch_id=batch.batch_id, uid=batch.uid, view=types_pb2.BATCH_VIEW_FULL),
            ),
            ("ListBatches", service_pb2.ListBatchesRequest(page_size=2, page_token=batch.batch_id)),
            ("DeleteBatch", service_pb2.DeleteBatchRequest(batch_id=batch.batch_id, uid=batch.uid)),
            ("FilterBatch", service_pb2.FilterBatchRequest(target=batch.target(), sequences=[*keep, fork])),
            ("MergeBatches", service_pb2.MergeBatchesRequest(target=batch.target(), source=source.target())),
            ("RegisterSharedMemory", service_pb2.RegisterSharedMemoryRequest(memory_file_token=bytes(16), byte_size=9)),
            (
                "RegisterSharedMemory",
                service_pb2.RegisterSharedMemoryRequest(file_name=self._region_file, byte_size=4096),
            ),
            ("UnregisterSharedMemory", service_pb2.UnregisterSharedMemoryRequest(region_id="x" * 32)),
            ("GetCapabilities", service_pb2.GetCapabilitiesRequest()),
        ]

    def _draw_bytes(self, method: str) -> bytes:
        if one_in(self._random, 10):
            return self._random.randbytes(self._random.randrange(_MOST_RANDOM_BYTES))
        right = self._random.choice(self._rights[method])
        if one_in(self._random, 2):
            return self._mutate_bytes(right.SerializeToString())
        wrong = type(right)()
        wrong.CopyFrom(right)
        for _ in range(self._random.randint(1, 3)):
            self._mutate_message(wrong)
        if one_in(self._random, 3):
            _renew_request_id(wrong)
        data = wrong.SerializeToString()
        return self._mutate_bytes(data) if one_in(self._random, 6) else data

    def _mutate_bytes(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self._random.choice((1, 1, 2, 8))):
            self._random.choice(_BYTE_MUTATIONS)(self._random, changed)
        return bytes(changed)

    def _mutate_message(self, message: Any) -> None:
        """Change, clear or repeat one field, of the message or of one within it."""
        if not message.DESCRIPTOR.fields:
            return
        field = self._random.choice(message.DESCRIPTOR.fields)
        if field.message_type is not None and not field.is_repeated:
            inner = getattr(message, field.name)
            if one_in(self._random, 6):
                message.ClearField(field.name)
            else:
                inner.SetInParent()
                self._mutate_message(inner)
        elif field.is_repeated:
            self._mutate_list(getattr(message, field.name), field)
        elif one_in(self._random, 8):
            message.ClearField(field.name)
        else:
            setattr(message, field.name, self._draw_value(field, getattr(message, field.name)))

    def _mutate_list(self, items: Any, field: FieldDescriptor) -> None:
        if items and one_in(self._random, 3):
            del items[self._random.randrange(len(items))]
        elif field.message_type is None:
            items.extend([self._draw_value(field, items[0] if items else None)] * self._random.choice((1, 1, 70)))
        elif items and one_in(self._random, 2):
            self._mutate_message(self._random.choice(items))
        else:
            (items.add()).MergeFrom(self._random.choice(items))

    def _draw_value(self, field: FieldDescriptor, present: Any) -> Any:
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_BOOL:
                return self._random.random() < 0.5
            case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
                return self._random.choice((*_FLOATS, self._random.gauss(0, 3)))
            case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
                return self._draw_array(present or b"")
            case FieldDescriptor.CPPTYPE_STRING:
                return self._random.choice((*_TEXTS, present or ""))
            case kind:
                least, most = _WHOLE[kind]
                return min(max(self._random.choice((*_INTEGERS, self._random.randint(-3, 9))), least), most)

    def _draw_array(self, present: bytes) -> bytes:
        match self._random.randrange(5):
            case 0:
                return self._random.randbytes(self._random.randrange(40))
            case 1:
                return struct.pack("<i", self._random.choice([n for n in _INTEGERS if -(2**31) <= n < 2**31])) * 4
            case 2:
                return present * 2
            case 3:
                return present[: self._random.randrange(len(present) + 1)]
            case _:
                return self._mutate_bytes(present)


def _renew_request_id(message: Any) -> None:
    if "target" in message.DESCRIPTOR.fields_by_name:
        message.target.request_id = request_id()


def _flip(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _overwrite(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))


def _insert(random: Random, data: bytearray) -> None:
    place = random.randint(0, len(data))
    data[place:place] = random.randbytes(random.choice((1, 2, 9)))


def _cut(random: Random, data: bytearray) -> None:
    del data[random.randint(0, len(data)) :]


def _remove(random: Random, data: bytearray) -> None:
    place = random.randint(0, len(data))
    del data[place : place + random.randint(1, 8)]


def _repeat(random: Random, data: bytearray) -> None:
    place = random.randint(0, len(data))
    data[place:place] = data[place : place + random.randint(1, 64)]


_BYTE_MUTATIONS: tuple[Callable[[Random, bytearray], None], ...] = (_flip, _overwrite, _insert, _cut, _remove, _repeat)
