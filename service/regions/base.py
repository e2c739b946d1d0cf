"""The interface of a region, and the rule for places in one."""

from __future__ import annotations

import errno
import mmap
from abc import ABC, abstractmethod

from logitd.service.errors import InvalidField
from logitd.service.frames import Payload

# Linux 5.14: map all pages now, as a write would.
_MADV_POPULATE_WRITE = 23
# A few milliseconds' worth.
_BYTES_AT_ONCE = 4 << 20


class Region(ABC):
    """Mapped memory of `byte_size` bytes.

    Whoever works on a part of it holds a reference to the map, so that one in use is unmapped only when the last use
    has ended.
    """

    def __init__(self, descriptor: int, byte_size: int) -> None:
        self.byte_size = byte_size
        self._map = mmap.mmap(descriptor, byte_size)

    def touch_pages(self, start: int) -> int:
        """Have some pages from `start` on, page-aligned; where to go on, which is the region's size at the end.

        The first touch of 32 MiB takes tens of milliseconds: at registration, not in a step, and not all at once. Pages
        that cannot be had (a sparse file on a full file system) would end the process at their first touch: raises
        `InvalidField`.
        """
        stop = min(start + _BYTES_AT_ONCE, self.byte_size)
        try:
            self._map.madvise(_MADV_POPULATE_WRITE, start, stop - start)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise InvalidField("byte_size", "must be backed by pages that can be had", error.strerror) from error
            for place in range(start, stop, mmap.PAGESIZE):
                self._map[place]
        return stop

    def open(self, path: str, offset: int, num_bytes: int, item_size: int) -> Payload:
        """The bytes at `offset`; raises `InvalidField` unless all of them are inside, now, and aligned."""
        self.check_size(path)
        # Subtracted, never added: a sum could be anything by the time that it is compared.
        is_inside = 0 <= offset <= self.byte_size and 0 < num_bytes <= self.byte_size - offset
        if not is_inside:
            rule = f"must leave room for {num_bytes} bytes in the region's {self.byte_size}"
            raise InvalidField(f"{path}.offset", rule, offset)
        if offset % item_size:
            raise InvalidField(f"{path}.offset", f"must be a multiple of the item size, {item_size}", offset)
        return Payload(self._map, offset, offset + num_bytes)

    @abstractmethod
    def check_size(self, path: str) -> None:
        """Raise `InvalidField` if the object behind the map has become smaller than the map."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what stands behind the map; the map itself goes with its last use."""


def check_byte_size(byte_size: int, actual: int) -> None:
    """Raise `InvalidField` unless a region of `byte_size` fits an object of `actual` bytes."""
    if not 1 <= byte_size <= actual:
        raise InvalidField("byte_size", f"must be in [1, {actual}], the size of the object", byte_size)
