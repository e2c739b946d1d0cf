from __future__ import annotations

import numpy as np
import pytest

from logitd.client import ProtocolError, from_bfloat16, to_bfloat16
from logitd.client import _arrays as arrays
from logitd.v1 import types_pb2

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

DTYPES = [np.float32, np.float16, np.uint16]
SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=7)


def nearest_even(value: float) -> int:
    """The bits of bfloat16 of a finite float32, from the definition: the nearer neighbour, or the even one."""
    exact = int(np.float32(abs(value)).view(np.uint32))
    below, rest = exact >> 16, exact & 0xFFFF
    up = rest > 0x8000 or (rest == 0x8000 and below % 2 == 1)
    return (below + up) | (0x8000 if np.signbit(np.float32(value)) else 0)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_logits_come_back_from_the_wire_as_they_were(dtype, data):
    array = data.draw(hnp.arrays(dtype, SHAPES))
    wire = arrays.to_wire(array)
    back = arrays.from_wire(wire.tobytes(), arrays.data_type_of(array.dtype)).reshape(array.shape)
    assert back.dtype == dtype
    assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_big_endian_and_strided_logits_are_sent_little_endian_and_packed(dtype):
    array = np.arange(24, dtype=dtype).reshape(4, 6)
    expected = array[::2, 1::2].astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    assert arrays.to_wire(array[::2, 1::2]).tobytes() == expected
    assert arrays.to_wire(array.astype(np.dtype(dtype).newbyteorder(">"))[::2, 1::2]).tobytes() == expected
    assert arrays.to_wire(np.asfortranarray(array)).tobytes() == array.tobytes()


def test_contiguous_logits_are_not_copied():
    array = np.zeros((2, 3), np.float32)
    assert np.shares_memory(arrays.to_wire(arrays.check_logits(array)), array)


@pytest.mark.parametrize("dtype", [np.float64, np.int16, np.int32, np.bool_, np.complex64])
def test_other_types_of_logits_are_refused(dtype):
    with pytest.raises(TypeError, match=r"float32, float16 or uint16 .*got " + np.dtype(dtype).name):
        arrays.check_logits(np.zeros((1, 2), dtype))


@pytest.mark.parametrize("shape", [(), (3,), (1, 2, 3)])
def test_logits_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"\[rows, columns\]"):
        arrays.check_logits(np.zeros(shape, np.float32))


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.sampled_from(["<i8", ">i8", "<i4", ">i4"]))
def test_token_ids_come_back_as_they_were(ids, dtype):
    for given_ids in (ids, tuple(ids), np.array(ids, dtype)):
        data = arrays.ids_to_bytes(given_ids)
        assert len(data) == 4 * len(ids)
        assert arrays.ids_from_bytes(data).tolist() == ids


BEYOND = [[2**31], [-(2**31) - 1], [2**63], [2**64 - 1]]
UNSIGNED = [(2**31, np.uint32), (2**32 - 1, np.uint32), (2**32, np.uint64), (2**64 - 1, np.uint64)]


@pytest.mark.parametrize("ids", [*BEYOND, *(np.array([one], dtype) for one, dtype in UNSIGNED)])
def test_token_ids_beyond_int32_are_refused_and_never_wrapped(ids):
    with pytest.raises(ValueError, match="int32"):
        arrays.ids_to_bytes(ids)


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.integers(0, 2**33))
def test_ids_are_below_a_limit_as_numbers_are(ids, limit):
    assert arrays.are_below(np.array(ids, np.int32), limit) == all(0 <= one < limit for one in ids)


@given(st.lists(st.integers(0, 255)), st.sampled_from(["u1", "<u2", ">u4", "<u8", "i2"]))
def test_token_ids_of_any_integer_type_come_back_as_they_were(ids, dtype):
    assert arrays.ids_from_bytes(arrays.ids_to_bytes(np.array(ids, dtype))).tolist() == ids


@pytest.mark.parametrize("ids", [[1.0], [True], [[1], [2]], ["7"], 7, [None]])
def test_token_ids_of_other_types_are_refused(ids):
    with pytest.raises(TypeError, match="flat list of integers"):
        arrays.ids_to_bytes(ids)


@given(hnp.arrays(np.float64, st.integers(0, 9), elements=st.floats(allow_nan=False)))
def test_doubles_come_back_as_they_were(values):
    assert arrays.doubles_from_bytes(arrays.doubles_to_bytes(values)).tolist() == values.tolist()


def test_bytes_that_are_no_whole_items_break_the_contract():
    with pytest.raises(ProtocolError, match="6 bytes where items of 4 bytes"):
        arrays.ids_from_bytes(b"123456")
    with pytest.raises(ProtocolError, match="unknown data type 9"):
        arrays.from_wire(b"", 9)


def test_the_types_of_the_wire_are_those_of_the_contract():
    assert arrays.data_type_of(np.dtype(np.float32)) == types_pb2.DATA_TYPE_FP32
    assert arrays.data_type_of(np.dtype(np.float16)) == types_pb2.DATA_TYPE_FP16
    assert arrays.data_type_of(np.dtype(np.uint16)) == types_pb2.DATA_TYPE_BF16


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bfloat16_rounds_to_nearest_even(value):
    assert to_bfloat16(np.array([value], np.float32))[0] == nearest_even(value)


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x3F80_8000, 0x3F80),  # a tie between odd and even goes to even: down
        (0x3F81_8000, 0x3F82),  # and up
        (0x3F80_8001, 0x3F81),
        (0x7F7F_FFFF, 0x7F80),  # the greatest float32 becomes an infinity
        (0x8000_0000, 0x8000),  # -0
        (0x0000_0001, 0x0000),
        (0xFF80_0000, 0xFF80),  # -inf
        (0x7F80_0001, 0x7FC0),  # a signalling NaN must not become an infinity
        (0xFFFF_FFFF, 0xFFFF),  # a NaN must not wrap round to a number
    ],
)
def test_bfloat16_of_special_values(bits, expected):
    assert to_bfloat16(np.array([bits], np.uint32).view(np.float32))[0] == expected


@given(hnp.arrays(np.uint16, SHAPES))
def test_every_bfloat16_survives_the_way_through_float32(bits):
    values = from_bfloat16(bits)
    assert values.shape == bits.shape
    is_nan = np.isnan(values)
    assert np.array_equal(np.where(is_nan, 0, to_bfloat16(values)), np.where(is_nan, 0, bits))
    assert np.isnan(from_bfloat16(to_bfloat16(values)))[is_nan].all()


def test_bfloat16_of_strided_and_big_endian_values():
    values = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    expected = to_bfloat16(values)
    assert np.array_equal(to_bfloat16(values.astype(">f4")), expected)
    assert np.array_equal(to_bfloat16(values.T), expected.T)
    assert np.array_equal(from_bfloat16(expected.astype(">u2")), from_bfloat16(expected))


def test_bfloat16_refuses_other_types():
    with pytest.raises(TypeError, match="float32, got float64"):
        to_bfloat16(np.zeros(1))
    with pytest.raises(TypeError, match="uint16, got int16"):
        from_bfloat16(np.zeros(1, np.int16))
