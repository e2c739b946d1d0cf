"""Where the logits of a step come from: an array of the caller, sent in chunks, or shared memory, which is named."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from logitd.client._arrays import check_logits
from logitd.client._wire import with_field, with_tensor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from logitd.client._shared import SharedMemory


class LogitsSource(ABC):
    """The logits of a step, `num_messages` messages of consecutive rows."""

    num_messages: int
    num_rows: int
    num_columns: int
    dtype: np.dtype[Any]
    memory: SharedMemory | None = None

    @abstractmethod
    def rows(self, index: int) -> slice:
        """The batch's rows that a message carries."""

    @abstractmethod
    def append_to(self, head: bytes, field_number: int, rows: slice) -> bytes:
        """A serialised message with these of the batch's rows added as its field `field_number`."""

    @abstractmethod
    def limit_rows(self, most: int) -> None:
        """Let no message carry more rows than this; before any is made."""

    @abstractmethod
    def keep(self) -> None:
        """Copies what the caller may change from now on."""


class InlineLogits(LogitsSource):
    """An array [rows, columns] whose rows are all of the batch."""

    def __init__(self, logits: npt.ArrayLike, chunk_bytes: int) -> None:
        self.array = check_logits(logits)
        self.num_rows, self.num_columns = self.array.shape
        self.dtype = self.array.dtype
        row_bytes = max(1, self.num_columns * self.array.itemsize)
        self._rows_per_chunk = max(1, chunk_bytes // row_bytes)
        self.num_messages = max(1, -(-self.num_rows // self._rows_per_chunk))

    def limit_rows(self, most: int) -> None:
        self._rows_per_chunk = min(self._rows_per_chunk, most)
        self.num_messages = max(1, -(-self.num_rows // self._rows_per_chunk))

    def rows(self, index: int) -> slice:
        first = index * self._rows_per_chunk
        return slice(first, min(first + self._rows_per_chunk, self.num_rows))

    def append_to(self, head: bytes, field_number: int, rows: slice) -> bytes:
        return with_tensor(head, field_number, self.array[rows])

    def keep(self) -> None:
        self.array = self.array.copy()


class SharedRows(LogitsSource):
    """Rows of shared memory that stand at the same places in it as in the batch; messages only name them."""

    def __init__(self, memory: SharedMemory, rows: slice) -> None:
        memory_rows, self.num_columns = memory.shape
        if rows.step not in (None, 1) or not 0 <= rows.start < rows.stop <= memory_rows:
            raise ValueError(f"rows must be some in a row of the {memory_rows} of the shared logits, got {rows}")
        self.memory = memory
        self.dtype = memory.dtype
        self.num_rows = rows.stop - rows.start
        self.num_messages = 1
        self._rows = rows
        self._rows_per_message = self.num_rows

    def limit_rows(self, most: int) -> None:
        self._rows_per_message = min(self._rows_per_message, most)
        self.num_messages = -(-self.num_rows // self._rows_per_message)

    def rows(self, index: int) -> slice:
        first = self._rows.start + index * self._rows_per_message
        return slice(first, min(first + self._rows_per_message, self._rows.stop))

    def append_to(self, head: bytes, field_number: int, rows: slice) -> bytes:
        assert self.memory is not None
        return with_field(head, field_number, self.memory.tensor(rows.start, rows.stop - rows.start))

    def keep(self) -> None:
        """The caller keeps them."""
