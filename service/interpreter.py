"""What a process that does nothing but serve asks of its interpreter and allocator."""

from __future__ import annotations

import ctypes
import gc
import sys

# glibc's mallopt parameters, from malloc.h, and the largest threshold that it takes.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_KEPT_BYTES = 64 << 20
_MMAP_THRESHOLD = 32 << 20


def tune_allocator() -> None:
    """Let glibc keep the memory of arrays and messages that come and go in every step.

    By default it gives what is over 128 KiB back to the system and takes it again, zeroed page by page, which makes a
    step of 64 rows a tenth to a quarter slower. Elsewhere than on glibc nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_TOP_PAD, 1 << 20)


def freeze_objects() -> None:
    """Spare the garbage collector what was loaded, which lives as long as the process."""
    gc.collect()
    gc.freeze()
