from __future__ import annotations

import numpy as np
import pytest

from logitd.client import ProtocolError
from logitd.client._wire import DenseReply, read_dense_reply, with_field, with_tensor
from logitd.v1 import service_pb2, types_pb2

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

LOGITS = service_pb2.ApplyRequest.LOGITS_FIELD_NUMBER
DATA_TYPES = {"float32": "DATA_TYPE_FP32", "float16": "DATA_TYPE_FP16", "uint16": "DATA_TYPE_BF16"}
TENSORS = st.sampled_from([np.float32, np.float16, np.uint16]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=40))
)


def tensor(array: np.ndarray) -> types_pb2.Tensor:
    return types_pb2.Tensor(data_type=DATA_TYPES[array.dtype.name], shape=array.shape, data=array.tobytes())


def dense_response(array: np.ndarray, **fields: object) -> service_pb2.ApplyResponse:
    return service_pb2.ApplyResponse(dense=service_pb2.DenseResult(logits=tensor(array)), **fields)


@given(TENSORS, st.integers(0, 2**31 - 1))
def test_an_appended_tensor_is_what_protobuf_would_have_written(array, first_row):
    head = service_pb2.ApplyRequest(form="APPLY_FORM_DENSE", first_row=first_row)
    parsed = service_pb2.ApplyRequest.FromString(with_tensor(head.SerializeToString(), LOGITS, array))
    head.logits.CopyFrom(tensor(array))
    assert not any(parsed.logits.padding)
    parsed.logits.ClearField("padding")
    assert parsed == head
    assert parsed.SerializeToString(deterministic=True) == head.SerializeToString(deterministic=True)


@given(TENSORS, st.integers(0, 40))
def test_an_appended_tensor_is_the_same_each_time_and_its_items_lie_aligned_at_the_end(array, num_before):
    before = service_pb2.ApplyRequest(target=service_pb2.StepTarget(uid=bytes(num_before))).SerializeToString()
    message = with_tensor(before, LOGITS, array)
    assert message == with_tensor(before, LOGITS, array.copy())
    assert message.endswith(array.tobytes())
    assert (len(message) - array.nbytes) % 8 == 0


@given(st.integers(0, 2**40), st.text("ab", max_size=300))
def test_an_appended_field_is_what_protobuf_would_have_written(offset, region_id):
    shared = types_pb2.Tensor(shared_memory=types_pb2.SharedMemoryRef(region_id=region_id, offset=offset))
    appended = with_field(b"", LOGITS, shared.SerializeToString())
    assert appended == service_pb2.ApplyRequest(logits=shared).SerializeToString()


def test_big_endian_logits_are_appended_little_endian():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert with_tensor(b"", LOGITS, array.astype(">f4")) == with_tensor(b"", LOGITS, array)
    assert with_tensor(b"", LOGITS, array.T) == with_tensor(b"", LOGITS, array.T.copy())


@given(TENSORS, st.integers(0, 2**63 - 1), st.booleans(), st.integers(0, 2**31 - 1))
def test_a_dense_reply_is_read_as_protobuf_reads_it(array, revision, draining, first_row):
    reply = dense_response(array, revision=revision, draining=draining, first_row=first_row).SerializeToString()
    read = read_dense_reply(reply)
    assert (read.revision, read.draining, read.first_row) == (revision, draining, first_row)
    assert read.items is not None
    assert (read.items.dtype, read.items.shape) == (array.dtype, array.shape)
    assert read.items.tobytes() == array.tobytes()


def test_the_logits_of_a_reply_are_a_read_only_view_of_it():
    reply = dense_response(np.ones((1, 4), np.float32)).SerializeToString()
    items = read_dense_reply(reply).items
    assert items is not None
    assert not items.flags.writeable
    assert np.shares_memory(items, np.frombuffer(reply, np.uint8))


def test_fields_that_a_newer_server_adds_are_skipped():
    unknown = b"\xf8\x07\x01" + b"\xfa\x07\x02ab" + b"\xfd\x07abcd" + b"\xf9\x07abcdefgh"
    reply = dense_response(np.ones((1, 1), np.float16), revision=3).SerializeToString()
    assert read_dense_reply(unknown + reply + unknown).revision == 3


def test_a_shape_that_is_not_packed_is_read():
    half_precision_tensor = b"\x08\x02" + b"\x10\x01" + b"\x10\x02" + b"\x1a\x04\x00\x3c\x00\x40"
    items = read_dense_reply(b"\x22\x0e\x0a\x0c" + half_precision_tensor).items
    assert items is not None
    assert items.tolist() == [[1.0, 2.0]]


def test_other_forms_have_no_items():
    reply = service_pb2.ApplyResponse(revision=2, sparse=service_pb2.SparsePatch())
    assert read_dense_reply(reply.SerializeToString()) == DenseReply(revision=2)


@given(st.binary(max_size=60))
def test_garbage_is_read_or_refused_and_nothing_else(data):
    try:
        read_dense_reply(data)
    except ProtocolError:
        return


@given(st.data())
def test_a_reply_that_is_cut_off_is_refused(data):
    reply = dense_response(np.ones((2, 3), np.float32), revision=300).SerializeToString()
    size = data.draw(st.integers(4, len(reply) - 1))
    with pytest.raises(ProtocolError, match="ends within"):
        read_dense_reply(reply[:size])


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (types_pb2.Tensor(data_type="DATA_TYPE_FP32", shape=[1, 2], data=b"1234"), "1 items where the shape"),
        (types_pb2.Tensor(data_type="DATA_TYPE_FP32", shape=[-1, 2], data=b"1234"), "1 items where the shape"),
        (types_pb2.Tensor(data_type="DATA_TYPE_FP16", shape=[1, 1], data=b"123"), "3 bytes where items of 2"),
        (types_pb2.Tensor(shape=[1, 1], data=b"1234"), "unknown data type 0"),
    ],
)
def test_logits_that_contradict_themselves_are_refused(logits, message):
    reply = service_pb2.ApplyResponse(dense=service_pb2.DenseResult(logits=logits))
    with pytest.raises(ProtocolError, match=message):
        read_dense_reply(reply.SerializeToString())


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"\x22\x00", "has no logits"),
        (b"\x20\x01", "a number where bytes belong"),
        (b"\x0a\x01a", "bytes where a number belongs"),
        (b"\x0b", "wire type 3"),
        (b"\xff" * 11, "more than 64 bits"),
    ],
)
def test_fields_of_the_wrong_kind_are_refused(reply, message):
    with pytest.raises(ProtocolError, match=message):
        read_dense_reply(reply)
