"""Token ids that a sequence has output, shared between the states that have them in common."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_NO_TOKENS = array("i")
_MOST_RECENT = 64


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


class Histories:
    """The immutable histories of R rows. One more token id for each of them costs the same for any number of rows.

    The last steps wait as they came, one array each, until there are enough to be handed out to the rows.
    """

    __slots__ = ("_parts",)

    def __init__(self, rows: tuple[History, ...], recent: tuple[NDArray[np.int32], ...] = ()) -> None:
        self._parts = rows, recent

    def append(self, token_ids: NDArray[np.int32]) -> Histories:
        """These histories with one more token id each, [R]."""
        rows, recent = self._parts
        if len(recent) == _MOST_RECENT:
            rows, recent = self._settle(), ()
        return Histories(rows, (*recent, token_ids.copy()))

    def extend(self, pieces: Sequence[Sequence[int]]) -> Histories:
        """These histories with any number of token ids more for each row."""
        pairs = zip(self._settle(), pieces, strict=True)
        return Histories(tuple([history.extend(piece) if piece else history for history, piece in pairs]))

    def drop_last(self, counts: Sequence[int]) -> Histories:
        """These histories without the last `counts[i]` token ids of each row i."""
        pairs = zip(self._settle(), counts, strict=True)
        return Histories(tuple([history.drop_last(count) if count else history for history, count in pairs]))

    def last(self, row: int, count: int) -> NDArray[np.int32]:
        """The last `count` token ids of a row, int32 [count]; a copy."""
        return self._settle()[row].last(count)

    def to_array(self, row: int) -> NDArray[np.int32]:
        """All token ids of a row, int32 [length]; a copy."""
        return self._settle()[row].to_array()

    def gather(self, rows: Sequence[int]) -> Histories:
        """The histories of `rows`, in that order, repeats allowed."""
        histories = self._settle()
        return Histories(tuple([histories[row] for row in rows]))

    def concatenate(self, other: Histories) -> Histories:
        """These rows and then the other's."""
        return Histories(self._settle() + other._settle())

    @property
    def num_bytes(self) -> int:
        """Bytes of all token ids."""
        rows, recent = self._parts
        return sum([history.num_bytes for history in rows]) + sum([token_ids.nbytes for token_ids in recent])

    def _settle(self) -> tuple[History, ...]:
        # What a reader sees stays the same; the next one need not hand out the steps again.
        rows, recent = self._parts
        if recent:
            columns = np.stack(recent, axis=1).tolist()
            rows = tuple([history.extend(column) for history, column in zip(rows, columns, strict=True)])
            self._parts = rows, ()
        return rows
