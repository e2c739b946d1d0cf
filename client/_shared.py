"""Shared memory for logits: what the operating system has to do for it, and the names it gets on the wire.

Two kinds. A memory file has no name and is sealed, so that it can never shrink under the server; its descriptor goes
over the side socket, a Unix socket beside that of gRPC, and the server keeps it for as long as that connection lives.
A named file lies in a directory that both sides have, for decoders and servers that cannot pass descriptors.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import secrets
import socket
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from logitd.client._arrays import data_type_of
from logitd.client._exceptions import ErrorDetails, SharedLogitsClosedError, UnavailableError
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    import numpy.typing as npt

SIDE_SOCKET_SUFFIX = ".memory"
FILE_PREFIX = "logitd-"
"""Of named files. The server removes files with this name that nobody holds a lock on when it starts."""

_GREETING = b"\x01"
_TOKEN_BYTES = 16
_FILE_MODE = 0o660
# Linux 5.14: map all pages now, as a write would.
_MADV_POPULATE_WRITE = 23


class HandOverError(UnavailableError):
    """The side socket did not take a memory file."""


class SharedFile(ABC):
    """The file behind shared memory. It is open and has its size."""

    descriptor: int

    def __init__(self, byte_size: int) -> None:
        self.byte_size = byte_size

    @abstractmethod
    def registration(self, seconds: float | None) -> service_pb2.RegisterSharedMemoryRequest:
        """How to register it with a server, which may be another than before; may wait for so many seconds.

        UnavailableError where the server cannot be reached.
        """

    @abstractmethod
    def close(self) -> None:
        """Lets go of it; maps of it stay."""


class MemoryFile(SharedFile):
    """A sealed memory file (memfd)."""

    def __init__(self, byte_size: int, side_socket: str) -> None:
        super().__init__(byte_size)
        self._side_socket = side_socket
        self._connection: socket.socket | None = None
        self.descriptor = os.memfd_create("logitd", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # Memory is taken with the first touch, which comes after the server has agreed to so much.
            os.ftruncate(self.descriptor, byte_size)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        except BaseException:
            self.close()
            raise

    def registration(self, seconds: float | None) -> service_pb2.RegisterSharedMemoryRequest:
        connection, token = self._hand_over(seconds)
        self._hang_up()
        self._connection = connection
        return service_pb2.RegisterSharedMemoryRequest(memory_file_token=token, byte_size=self.byte_size)

    def close(self) -> None:
        self._hang_up()
        os.close(self.descriptor)

    def _hand_over(self, seconds: float | None) -> tuple[socket.socket, bytes]:
        with contextlib.ExitStack() as resources:
            connection = resources.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.settimeout(seconds)
            try:
                connection.connect(self._side_socket)
                socket.send_fds(connection, [_GREETING], [self.descriptor])
                token = connection.recv(_TOKEN_BYTES, socket.MSG_WAITALL)
                if len(token) < _TOKEN_BYTES:
                    raise ConnectionError("the server hung up")
            except OSError as error:
                message = f"the memory file could not be handed over at {self._side_socket}: {error}"
                raise HandOverError(message, ErrorDetails(grpc.StatusCode.UNAVAILABLE)) from error
            resources.pop_all()
        return connection, token

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()


class NamedFile(SharedFile):
    """A new file in a directory, with a lock on it that says that it is in use."""

    def __init__(self, byte_size: int, directory: str, name: str | None) -> None:
        super().__init__(byte_size)
        self._name = name if name is not None else f"{FILE_PREFIX}{secrets.token_hex(16)}"
        if not self._name.startswith(FILE_PREFIX) or "/" in self._name:
            raise ValueError(f"file_name must start with {FILE_PREFIX!r} and have no separator, got {self._name!r}")
        self._path = os.path.join(directory, self._name)
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        self.descriptor = os.open(self._path, flags, _FILE_MODE)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH)
            os.fchmod(self.descriptor, _FILE_MODE)
            os.posix_fallocate(self.descriptor, 0, byte_size)
        except BaseException:
            self.close()
            raise

    def registration(self, seconds: float | None) -> service_pb2.RegisterSharedMemoryRequest:
        return service_pb2.RegisterSharedMemoryRequest(file_name=self._name, byte_size=self.byte_size)

    def close(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self.descriptor)


class SharedMemory:
    """Logits [rows, columns] in memory that the server has as well, under the name `region_id`."""

    def __init__(self, shape: tuple[int, int], dtype: npt.DTypeLike, file: SharedFile) -> None:
        self._shape = shape
        self._file = file
        self._region_id = ""
        self._tensors: dict[tuple[int, int], bytes] = {}
        memory = _map(file)
        items = np.frombuffer(memory, np.dtype(dtype).newbyteorder("<"))
        self._array: npt.NDArray[Any] | None = items.reshape(shape)
        self._untouched: mmap.mmap | None = memory

    @property
    def array(self) -> npt.NDArray[Any]:
        """[rows, columns]: fill it, call, and read what became of it."""
        if self._array is None:
            raise SharedLogitsClosedError("the shared logits are closed")
        return self._array

    @property
    def is_closed(self) -> bool:
        """Whether the sharing has ended."""
        return self._array is None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32, float16, or uint16 for the bits of bfloat16."""
        return self.array.dtype

    @property
    def region_id(self) -> str:
        """The server's name of the memory; another one after the server restarted."""
        return self._region_id

    def tensor(self, first_row: int, num_rows: int) -> bytes:
        """The serialised Tensor that names these rows."""
        tensor = self._tensors.get((first_row, num_rows))
        if tensor is None:
            tensor = self._tensors[first_row, num_rows] = self._make_tensor(first_row, num_rows)
        return tensor

    def registration(self, seconds: float | None) -> service_pb2.RegisterSharedMemoryRequest:
        """How to register it, anew where it was registered; see `SharedFile.registration`."""
        if self._array is None:
            raise SharedLogitsClosedError("the shared logits are closed")
        return self._file.registration(seconds)

    def rename(self, region_id: str) -> None:
        """Takes the name under which the server has it from now on."""
        if self._untouched is not None:
            _touch_pages(self._untouched)
            self._untouched = None
        self._region_id = region_id
        self._tensors.clear()

    def release(self) -> None:
        """Lets go of the file. Arrays that were taken keep their memory, which nobody shares any more."""
        if self._array is not None:
            self._array = self._untouched = None
            self._tensors.clear()
            self._file.close()

    def _make_tensor(self, first_row: int, num_rows: int) -> bytes:
        array = self.array
        reference = types_pb2.SharedMemoryRef(region_id=self._region_id, offset=first_row * array.strides[0])
        shape = (num_rows, self._shape[1])
        tensor = types_pb2.Tensor(data_type=data_type_of(array.dtype), shape=shape, shared_memory=reference)
        return tensor.SerializeToString()


def open_shared_file(
    shape: tuple[int, int],
    dtype: npt.DTypeLike,
    target: str,
    *,
    side_socket: str | None,
    directory: str | None,
    file_name: str | None,
) -> SharedFile:
    """The file for logits of this shape; in `directory` where one is given."""
    data_type_of(np.dtype(dtype))
    if min(shape) < 1:
        raise ValueError(f"rows and columns must be at least 1, got {list(shape)}")
    byte_size = math.prod(shape) * np.dtype(dtype).itemsize
    if directory is not None:
        return NamedFile(byte_size, directory, file_name)
    if file_name is not None:
        raise ValueError("file_name must come with shared_memory_dir, got it alone")
    return MemoryFile(byte_size, side_socket if side_socket is not None else side_socket_of(target))


def side_socket_of(target: str) -> str:
    """Where the server at a target of gRPC takes descriptors; ValueError where it is no Unix socket."""
    scheme, _, path = target.partition(":")
    if scheme != "unix" or not path:
        rule = "shared logits need a server at a Unix socket, or side_socket or shared_memory_dir"
        raise ValueError(f"{rule}, got {target!r}")
    # As a URI it may have an empty authority.
    return path.removeprefix("//") + SIDE_SOCKET_SUFFIX


def _map(file: SharedFile) -> mmap.mmap:
    try:
        return mmap.mmap(file.descriptor, file.byte_size)
    except BaseException:
        file.close()
        raise


def _touch_pages(memory: mmap.mmap) -> None:
    # The first touch of 32 MiB takes tens of milliseconds: now, and not in a step. Nothing is in it yet.
    try:
        memory.madvise(_MADV_POPULATE_WRITE)
    except (OSError, ValueError):
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 0
