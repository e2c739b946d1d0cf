"""Token ids that a sequence has output, shared between the states that have them in common."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_NO_TOKENS = array("i")


class History:
    """An immutable sequence of token ids whose extension costs what is appended.

    Histories share one growing buffer: the history that ends where the buffer ends appends in place, which no
    shorter one can see; any other copies its part first. A fork costs nothing until one side goes on.
    """

    __slots__ = ("_buffer", "length")

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        self._buffer = array("i", token_ids)
        self.length = len(self._buffer)

    def extend(self, token_ids: Iterable[int]) -> History:
        """This history with `token_ids` after it; this one stays as it is."""
        buffer = self._buffer if len(self._buffer) == self.length else self._buffer[: self.length]
        buffer.extend(token_ids)
        return self._view(buffer, len(buffer))

    def append(self, token_id: int) -> History:
        """This history with one more token id; this one stays as it is."""
        buffer = self._buffer if len(self._buffer) == self.length else self._buffer[: self.length]
        buffer.append(token_id)
        return self._view(buffer, len(buffer))

    def drop_last(self, count: int) -> History:
        """This history without its last `count` token ids; this one stays as it is."""
        return self._view(self._buffer, self.length - count)

    def last(self, count: int) -> NDArray[np.int32]:
        """The last `count` token ids, int32 [count]; a copy."""
        tail = self._buffer[self.length - count : self.length]
        return np.frombuffer(tail, dtype=np.int32) if count else np.empty(0, np.int32)

    def to_array(self) -> NDArray[np.int32]:
        """All token ids, int32 [length]; a copy."""
        return self.last(self.length)

    @property
    def num_bytes(self) -> int:
        """Bytes that this history accounts for."""
        return self.length * _NO_TOKENS.itemsize

    @staticmethod
    def _view(buffer: array[int], length: int) -> History:
        history = History.__new__(History)
        history._buffer = buffer
        history.length = length
        return history

    def __len__(self) -> int:
        return self.length
