"""A named file below the configured directory, for decoders that cannot pass descriptors.

Whoever can write the file can truncate it while it is mapped, and the next access then kills the process (SIGBUS). The
size is checked at every use, which narrows that to a truncation during a use; only a sealed memory file ends it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat

from logitd.service.errors import InvalidField
from logitd.service.regions.base import Region, check_byte_size

_FIELD = "file_name"
# Clients that follow the convention name their files so and hold a shared lock on them while they live.
STALE_PREFIX = "logitd-"


class NamedFileRegion(Region):
    """Memory of a regular file."""

    def __init__(self, descriptor: int, byte_size: int) -> None:
        super().__init__(descriptor, byte_size)
        self._descriptor = descriptor

    @classmethod
    def map(cls, directory: str, name: str, byte_size: int) -> NamedFileRegion:
        """Map the file `name` of `directory`; raises `InvalidField`."""
        descriptor = _open(directory, name)
        try:
            check_byte_size(byte_size, os.fstat(descriptor).st_size)
            return cls(descriptor, byte_size)
        except BaseException:
            os.close(descriptor)
            raise

    def check_size(self, path: str) -> None:
        size = os.fstat(self._descriptor).st_size
        if size < self.byte_size:
            raise InvalidField(f"{path}.region_id", f"must name a region of {self.byte_size} bytes still", size)

    def close(self) -> None:
        os.close(self._descriptor)


def clean_directory(directory: str) -> int:
    """Remove the files of clients that are gone, and return how many. Raises OSError for what is no directory."""
    removed = 0
    for entry in os.scandir(directory):
        if entry.name.startswith(STALE_PREFIX) and entry.is_file(follow_symlinks=False) and _is_abandoned(entry.path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(entry.path)
                removed += 1
    return removed


def _open(directory: str, name: str) -> int:
    if not name or "/" in name or "\0" in name or name.startswith("."):
        raise InvalidField(_FIELD, "must be a plain name: no separator, no leading dot", name)
    try:
        descriptor = _open_below(directory, name)
    except OSError as error:
        raise InvalidField(_FIELD, "must name a file of the directory, no link", error.strerror) from error
    try:
        _check_file(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_below(directory: str, name: str) -> int:
    directory_descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # O_NONBLOCK: a pipe of that name must not hold the server up; it is refused later.
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(name, flags, dir_fd=directory_descriptor)
    finally:
        os.close(directory_descriptor)


def _check_file(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise InvalidField(_FIELD, "must name a regular file with one name", stat.filemode(status.st_mode))
    is_ours = status.st_uid == os.geteuid() or status.st_gid in {os.getegid(), *os.getgroups()}
    if not is_ours or status.st_mode & stat.S_IWOTH:
        rule = "must name a file of the server's user or group that others cannot write"
        raise InvalidField(_FIELD, rule, f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid}")


def _is_abandoned(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
