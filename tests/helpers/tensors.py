"""Comparing tensors bit by bit, and laying them out in memory in every way that a caller may."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_INTEGERS = {4: torch.int32, 2: torch.int16}
_GUARD = 77.0


def bits(values: torch.Tensor) -> torch.Tensor:
    """The items of any layout and device as integers on the host, so that -0 differs from 0 and NaN equals itself."""
    return values.cpu().contiguous().view(_INTEGERS[values.element_size()])


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal dtypes, shapes and bits, NaN payloads included: what was never written."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    different = (bits(actual) != bits(expected)).nonzero()
    assert len(different) == 0, _describe(actual, expected, different)


def assert_same_numbers(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bits, -0 told from 0, but any NaN for any NaN: what was computed."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    actual, expected = actual.cpu(), expected.cpu()
    different = ((bits(actual) != bits(expected)) & ~(actual.isnan() & expected.isnan())).nonzero()
    assert len(different) == 0, _describe(actual, expected, different)


def assert_same_values(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal by value: 0 equals -0, and any NaN any NaN."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    actual, expected = actual.cpu(), expected.cpu()
    different = ((actual != expected) & ~(actual.isnan() & expected.isnan())).nonzero()
    assert len(different) == 0, _describe(actual, expected, different)


def _describe(actual: torch.Tensor, expected: torch.Tensor, different: torch.Tensor) -> str:
    first = tuple(different[0].tolist())
    return f"{len(different)} differ, the first at {first}: {actual[first].item()!r}, not {expected[first].item()!r}"


class Placed(NamedTuple):
    """A tensor in a larger piece of memory, whose other items are guards."""

    view: torch.Tensor
    memory: torch.Tensor


LAYOUTS: Mapping[str, Callable[[Callable[..., torch.Tensor], int, int], torch.Tensor]] = {
    "contiguous": lambda memory, rows, width: memory(rows, width),
    "offset": lambda memory, rows, width: memory(rows + 2, width)[1 : rows + 1],
    "rows apart": lambda memory, rows, width: memory(rows, width + 5)[:, 2 : width + 2],
    "every other row": lambda memory, rows, width: memory(2 * rows, width)[::2],
    "columns apart": lambda memory, rows, width: memory(rows, 2 * width)[:, ::2],
    "both apart": lambda memory, rows, width: memory(3 * rows, 2 * width + 1)[1::3, 1::2],
    "transposed": lambda memory, rows, width: memory(width, rows).T,
    "transposed and apart": lambda memory, rows, width: memory(width, 2 * rows).T[::2],
}


def place(values: torch.Tensor, layout: str) -> Placed:
    """A copy of `values` [R, W] laid out in new memory; everything around it holds a guard value."""
    whole: list[torch.Tensor] = []

    def memory(rows: int, columns: int) -> torch.Tensor:
        whole.append(torch.full((rows, columns), _GUARD, dtype=values.dtype, device=values.device))
        return whole[0]

    view = LAYOUTS[layout](memory, *values.shape)
    view.copy_(values)
    return Placed(view, whole[0])
