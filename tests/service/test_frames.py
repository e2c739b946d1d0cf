"""The hand-made way of a payload through the server against the way of the protobuf runtime, on any bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logitd.service import frames
from logitd.service.frames import Payload, append_payload, split_payload, view_array, view_unseen_array
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    ViewPayload = Callable[[Payload, np.dtype, tuple[int, int]], np.ndarray]

LOGITS, DATA = service_pb2.ApplyRequest.LOGITS_FIELD_NUMBER, types_pb2.Tensor.DATA_FIELD_NUMBER
thorough = settings(
    derandomize=True,
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def every_message_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_SMALL_MESSAGE", 0)


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value > 0x7F else bytes([value])


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensors() -> st.SearchStrategy[bytes]:
    """The fields of a Tensor in any order and number, some unknown."""
    parts = st.one_of(
        st.binary(max_size=40).map(lambda data: field(DATA, data)),
        st.integers(0, 300).map(lambda number: b"\x08" + varint(number)),
        st.lists(st.integers(0, 300), max_size=3).map(lambda shape: field(2, b"".join(map(varint, shape)))),
        st.just(types_pb2.Tensor(shared_memory=types_pb2.SharedMemoryRef(region_id="r")).SerializeToString()),
        st.binary(max_size=9).map(lambda data: field(5, data)),
        st.binary(max_size=9).map(lambda data: field(99, data)),
        st.just(b"\x4d1234"),  # fixed 32
        st.just(b"\x4912345678"),  # fixed 64
    )
    return st.lists(parts, max_size=5).map(b"".join)


def requests() -> st.SearchStrategy[bytes]:
    """The fields of an ApplyRequest in any order and number, some unknown."""
    targets = st.binary(max_size=20).map(lambda uid: field(1, service_pb2.StepTarget(uid=uid).SerializeToString()))
    parts = st.one_of(
        tensors().map(lambda data: field(LOGITS, data)), targets, st.just(b"\x20\x07"), st.just(b"\x18\x02")
    )
    return st.lists(parts, max_size=5).map(b"".join)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A request with some bytes changed, cut off or put in."""
    data = bytearray(draw(requests()))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(data)))
        data[place : place + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)


def parsed(data: bytes) -> service_pb2.ApplyRequest | None:
    try:
        return service_pb2.ApplyRequest.FromString(data)
    except DecodeError:
        return None


@thorough
@given(st.one_of(requests(), damaged(), st.binary(max_size=60)))
def test_cut_message_and_payload_say_what_the_whole_says(data: bytes) -> None:
    rest, payload = split_payload(data, (LOGITS, DATA))
    whole, message = parsed(data), parsed(rest)
    if payload is not None and message is not None and message.logits.HasField("data"):
        assert message.logits.data == b""
        message.logits.data = payload.owner[payload.start : payload.end]
    assert message == whole


@pytest.mark.parametrize("num_bytes", range(2, 12))
@pytest.mark.parametrize("place", ["tag", "length", "inner tag", "inner length", "another value"])
def test_numbers_of_many_bytes_are_judged_as_the_runtime_judges_them(place: str, num_bytes: int) -> None:
    """Five for a tag or a length, ten for a value; the runtime refuses more."""

    def number(value: int, name: str) -> bytes:
        return long_varint(value, num_bytes) if name == place else varint(value)

    inner = number(DATA << 3 | 2, "inner tag") + number(8, "inner length") + b"12345678"
    outer = number(LOGITS << 3 | 2, "tag") + number(len(inner), "length") + inner
    data = b"\x20" + number(7, "another value") + outer
    rest, payload = split_payload(data, (LOGITS, DATA))
    whole, message = parsed(data), parsed(rest)
    assert (message is None) == (whole is None)
    if message is not None and payload is not None:
        message.logits.data = payload.owner[payload.start : payload.end]
    assert message == whole


def long_varint(value: int, num_bytes: int) -> bytes:
    return bytes([value & 0x7F | 0x80, *[0x80] * (num_bytes - 2), 0])


@thorough
@given(requests())
def test_payload_of_a_usual_message_is_cut(data: bytes) -> None:
    """One tensor with one payload is what every client sends: there the copy must not be made."""
    inner = [value for number, value in top_fields(data) if number == LOGITS]
    payloads = [value for tensor in inner for number, value in top_fields(tensor) if number == DATA]
    _, payload = split_payload(data, (LOGITS, DATA))
    assert (payload is not None) == (len(inner) == len(payloads) == 1)


def top_fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message without groups."""
    while data:
        tag, data = read_varint(data)
        if tag & 7 == 0:
            _, data = read_varint(data)
            yield tag >> 3, b""
            continue
        length, data = read_varint(data) if tag & 7 == 2 else ({1: 8, 5: 4}[tag & 7], data)
        yield tag >> 3, data[:length]
        data = data[length:]


def read_varint(data: bytes) -> tuple[int, bytes]:
    value, shift = 0, 0
    while True:
        byte, data = data[0], data[1:]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, data
        shift += 7


def test_walk_gives_up_on_a_message_of_very_many_fields() -> None:
    """Two bytes a field: a message of the greatest size would keep the worker busy for a minute."""
    many = b"\x20\x01" * 2000
    assert split_payload(many + field(LOGITS, field(DATA, b"1234")), (LOGITS, DATA)) == (
        many + field(LOGITS, field(DATA, b"1234")),
        None,
    )


@thorough
@given(st.binary(max_size=30), st.binary(min_size=4, max_size=300), st.integers(0, 20))
def test_appended_payload_is_the_field_and_lies_aligned(uid: bytes, data: bytes, before: int) -> None:
    head = service_pb2.ApplyResponse(revision=2**before, first_row=len(uid)).SerializeToString()
    path = (
        service_pb2.ApplyResponse.DENSE_FIELD_NUMBER,
        service_pb2.DenseResult.LOGITS_FIELD_NUMBER,
        DATA,
    )
    tensor_head = types_pb2.Tensor(data_type=1, shape=[1, len(data)]).SerializeToString()
    source = Payload(uid + data, len(uid), len(uid) + len(data))
    message, payload = append_payload(head, path, tensor_head, source)
    assert payload.start % 8 == 0
    response = service_pb2.ApplyResponse.FromString(message)
    assert (response.revision, response.first_row) == (2**before, len(uid))
    assert response.dense.logits.data == data == message[payload.start : payload.end]
    assert list(response.dense.logits.shape) == [1, len(data)]
    assert response.dense.logits.data_type == 1


@pytest.mark.parametrize("offset", range(9))
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint16"])
@pytest.mark.parametrize("view_payload", [view_array, view_unseen_array])
def test_view_of_a_payload_has_its_items_wherever_it_lies(view_payload: ViewPayload, dtype: str, offset: int) -> None:
    values = np.arange(6).astype(dtype).reshape(2, 3)
    owner = b"x" * offset + values.tobytes() + b"y"
    view = view_payload(Payload(owner, offset, offset + values.nbytes), values.dtype, (2, 3))
    assert (view.dtype, view.tolist()) == (values.dtype, values.tolist())
    del owner
    assert view.tolist() == values.tolist()
    assert view.flags.writeable == (view_payload is view_unseen_array)


def test_only_the_payload_is_written_through_its_view() -> None:
    owner = bytes(bytearray(b"abcdefgh"))
    view_unseen_array(Payload(owner, 2, 6), np.dtype(np.uint16), (1, 2))[...] = 0
    assert owner == b"ab\0\0\0\0gh"
