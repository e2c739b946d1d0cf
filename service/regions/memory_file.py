"""A sealed memory file: nobody can shrink it, so reading it can never fault."""

from __future__ import annotations

import fcntl
import os

from logitd.service.errors import InvalidField
from logitd.service.regions.base import Region, check_byte_size

_FIELD = "memory_file_token"


class MemoryFileRegion(Region):
    """Memory of a descriptor that came through the side socket."""

    @classmethod
    def map(cls, descriptor: int, byte_size: int) -> MemoryFileRegion:
        """Map the file behind `descriptor`, which the caller may close after; raises `InvalidField`."""
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        except OSError as error:
            raise InvalidField(_FIELD, "must stand for a memory file (memfd_create)", error.strerror) from error
        if not seals & fcntl.F_SEAL_SHRINK:
            raise InvalidField(_FIELD, "must stand for a file sealed with F_SEAL_SHRINK", f"seals {seals:#x}")
        check_byte_size(byte_size, os.fstat(descriptor).st_size)
        try:
            return cls(descriptor, byte_size)
        except OSError as error:  # sealed against writing, or opened for reading only
            raise InvalidField(_FIELD, "must stand for a file that can be mapped to write", error.strerror) from error

    def check_size(self, path: str) -> None:
        """The seal holds the size; nothing to check."""

    def close(self) -> None:
        """The descriptor was closed when the file was mapped; nothing is left."""
