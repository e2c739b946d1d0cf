"""Unix sockets: a path is taken only if nobody serves it, and the file has its permissions from the start."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from logitd.service.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_PATH = 107
_BACKLOG = 64


@contextmanager
def claiming(*paths: str, mode: int) -> Iterator[None]:
    """A block in which sockets are bound to these paths of one directory, which get the permissions `mode`.

    Stale sockets are removed. Raises `ConfigError` if a path cannot be had. Servers that start at once take turns, so
    that none removes what another has just bound.
    """
    with _locked(os.path.dirname(paths[0]) or "."):
        for path in paths:
            _free(path)
        # Until a later chmod the socket would be open to whom the inherited mask lets in.
        inherited = os.umask(0o777 & ~mode)
        try:
            yield
        finally:
            os.umask(inherited)


def listen_unix(path: str) -> socket.socket:
    """A stream socket that listens at a claimed path."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"unix_socket must be free to listen on, got {path!r}: {error.strerror}") from error
    return listener


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        rule = "unix_socket must be in a directory that can be read"
        raise ConfigError(f"{rule}, got {directory!r}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _free(path: str) -> None:
    # gRPC would silently take a socket over; one that still answers belongs to another server.
    if len(os.fsencode(path)) > _MAX_PATH:
        raise ConfigError(f"unix_socket must be at most {_MAX_PATH} bytes, with its suffix, got {path!r}")
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise ConfigError(f"unix_socket must be free or a stale socket, got another file at {path!r}")
    if _is_served(path):
        raise ConfigError(f"unix_socket must not be served already, got {path!r}")
    try:
        os.unlink(path)
    except OSError as error:
        raise ConfigError(f"unix_socket must be free, got a stale one at {path!r}: {error.strerror}") from error


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True  # a full backlog, or somebody else's socket: not ours to remove
    return True
