"""Both backends do the same to every bit; the one for accelerators is run on CPU tensors here as well."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from helpers.penalty_states import assert_same_patch
from helpers.penalty_strategies import DTYPES, Batch, batches
from helpers.tensors import LAYOUTS, assert_same_bits, assert_same_numbers, place
from logitd.sampling import PenaltyOrchestrator, PenaltyParameters, RowStart, edits
from logitd.sampling.backends import open_logits
from logitd.sampling.backends.base import has_overlap
from logitd.sampling.backends.device import DeviceLogits
from logitd.sampling.backends.host import HostLogits

if TYPE_CHECKING:
    from logitd.sampling.backends.base import LogitsBackend

BACKENDS = (HostLogits, DeviceLogits)
every_backend = pytest.mark.parametrize("backend", BACKENDS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def all_patterns(dtype: torch.dtype) -> torch.Tensor:
    """Every 16-bit item, or a million fp32 items spread over all bit patterns, as [1, N]."""
    if dtype == torch.float32:
        patterns = np.arange(-(2**31), 2**31, 4093, dtype=np.int64).astype(np.int32)
        return torch.from_numpy(patterns).view(torch.float32).unsqueeze(0)
    return torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).unsqueeze(0)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """The items of a contiguous tensor, sharing its memory; those of bfloat16 as uint16."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def test_cpu_tensors_are_worked_on_with_numpy() -> None:
    assert isinstance(open_logits(torch.zeros(1, 1)), HostLogits)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(batch=batches())
@settings(max_examples=40)
def test_torch_and_numpy_give_the_same_bits(layout: str, batch: Batch) -> None:
    by_numpy, by_torch = place(batch.logits, layout), place(batch.logits, layout)
    state = batch.open()
    expected = state.compute_patch(by_numpy.view)
    state.apply_inplace(by_numpy.view)
    with patch.object(edits, "open_logits", DeviceLogits):
        actual = state.compute_patch(by_torch.view)
        state.apply_inplace(by_torch.view)
    assert_same_numbers(by_torch.memory, by_numpy.memory)
    assert_same_numbers(actual.values, expected.values)
    assert actual.token_ids.tolist() == expected.token_ids.tolist()
    assert actual.row_splits.tolist() == expected.row_splits.tolist()


@given(batch=batches())
@settings(max_examples=60)
def test_an_array_gets_what_a_tensor_gets(batch: Batch) -> None:
    state, array = batch.open(), as_array(batch.logits).copy()
    array.flags.writeable = False
    patch, expected = state.compute_patch(array), state.compute_patch(batch.logits)
    assert isinstance(patch.values, np.ndarray)
    assert patch.values.tobytes() == as_array(expected.values).tobytes()
    assert patch.token_ids.tolist() == expected.token_ids.tolist()
    array = array.copy()
    state.apply_inplace(array)
    state.apply_inplace(batch.logits)
    assert array.tobytes() == as_array(batch.logits).tobytes()


@every_dtype
def test_an_array_need_not_be_aligned(dtype: torch.dtype) -> None:
    state = PenaltyOrchestrator.create("SGLANG", 5, [RowStart(PenaltyParameters(2.0), output_token_ids=[1, 4])] * 2)
    tensor = torch.arange(-4, 6, dtype=torch.float32).reshape(2, 5).to(dtype)
    memory = bytearray(b"?" + as_array(tensor).tobytes())
    array = np.frombuffer(memory, as_array(tensor).dtype, offset=1).reshape(2, 5)
    assert not array.flags.aligned
    assert state.compute_patch(array).values.tobytes() == as_array(state.compute_patch(tensor).values).tobytes()
    state.apply_inplace(array)
    state.apply_inplace(tensor)
    assert array.tobytes() == as_array(tensor).tobytes()


@every_backend
@every_dtype
def test_every_item_is_read_as_the_fp32_it_stands_for(backend: type[LogitsBackend], dtype: torch.dtype) -> None:
    logits = all_patterns(dtype)
    places = np.arange(logits.shape[1])
    read = torch.as_tensor(backend(logits).read(places))
    assert_same_numbers(read, logits[0].float())


@every_backend
@every_dtype
def test_every_fp32_number_is_written_as_a_cast_has_it(backend: type[LogitsBackend], dtype: torch.dtype) -> None:
    numbers = all_patterns(torch.float32)
    logits = torch.zeros(numbers.shape, dtype=dtype)
    opened = backend(logits)
    values = opened.put(numbers[0].numpy())
    opened.write_(np.arange(logits.shape[1]), values)
    assert_same_numbers(logits, numbers.to(dtype))
    assert_same_numbers(opened.round(values), numbers[0].to(dtype))


@every_backend
@every_dtype
def test_places_may_come_in_any_order(backend: type[LogitsBackend], dtype: torch.dtype) -> None:
    logits = torch.arange(6, dtype=dtype).reshape(2, 3)
    opened = backend(logits)
    assert opened.read(np.array([4, 1])).tolist() == [4, 1]
    opened.write_(np.array([5, 0]), opened.put(np.array([7, 8], np.float32)))
    opened.fill_(np.array([3, 2]), float("-inf"))
    assert logits.tolist() == [[8, 1, float("-inf")], [float("-inf"), 4, 7]]


@every_backend
def test_reading_copies(backend: type[LogitsBackend]) -> None:
    logits = torch.zeros(1, 2)
    opened = backend(logits)
    values = opened.read(np.array([0, 1]))
    values += 1
    assert logits.tolist() == [[0, 0]]


@every_backend
def test_select_keeps_each_sides_nan_to_itself(backend: type[LogitsBackend]) -> None:
    opened = backend(torch.zeros(1, 4))
    nan, inf = float("nan"), float("inf")
    left = opened.put(np.array([1, nan, -0.0, nan], np.float32))
    right = opened.put(np.array([nan, 2, nan, -inf], np.float32))
    condition = opened.put(np.array([1, 0, 1, 0], np.float32)) > 0
    chosen = torch.as_tensor(opened.select(condition, left, right))
    assert_same_bits(chosen, torch.tensor([1, 2, -0.0, -inf]))


@given(batch=batches())
def test_a_state_can_be_used_again_and_again(batch: Batch) -> None:
    state = batch.open()
    before = state.compute_patch(batch.logits)
    first, second = batch.logits.clone(), batch.logits.clone()
    state.apply_inplace(first)
    state.apply_inplace(second)
    assert_same_bits(first, second)
    assert_same_patch(state.compute_patch(batch.logits), before)


def test_overlap_is_told_for_every_pair_of_strides() -> None:
    memory = torch.zeros(100)
    for rows, columns, row_stride, column_stride in itertools.product(range(4), range(4), range(8), range(8)):
        logits = memory.as_strided((rows, columns), (row_stride, column_stride))
        places = [row * row_stride + column * column_stride for row in range(rows) for column in range(columns)]
        assert has_overlap(logits) == (len(set(places)) < len(places))
