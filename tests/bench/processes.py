"""The processes that benches talk to, most of them servers on a Unix socket."""

from __future__ import annotations

import mmap
import os
import queue
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import numpy as np
from peers import bare_server

from logitd.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_READY_SECONDS = 60
_STOP_SECONDS = 20
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class BareStream:
    """An open stream to the bare server."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._replies = channel.stream_stream(bare_server.METHOD)(iter(self._outbox.get, None))

    def send(self, message: bytes) -> None:
        """Put a message on its way."""
        self._outbox.put(message)

    def receive(self) -> bytes:
        """The next reply."""
        return next(self._replies)

    def exchange(self, message: bytes) -> bytes:
        """A whole round trip."""
        self.send(message)
        return self.receive()

    def close(self) -> None:
        """Half-close, and read to the end."""
        self._outbox.put(None)
        for _ in self._replies:
            pass


class Toucher:
    """A process that reads and writes items of `array`, which is its memory too."""

    def __init__(self, process: subprocess.Popen[bytes], array: NDArray[np.float32]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._orders, self._answers = process.stdin, process.stdout
        self.array = array

    def touch(self) -> None:
        """Have all of its items read and written, once."""
        self._orders.write(b".")
        self._orders.flush()
        self._answers.read(1)


@contextmanager
def toucher(shape: tuple[int, int], num_distinct: int) -> Iterator[Toucher]:
    """A toucher of `num_distinct` items of each row of float32 [rows, columns]."""
    num_bytes = shape[0] * shape[1] * np.dtype(np.float32).itemsize
    descriptor = os.memfd_create("logitd-bench")
    os.ftruncate(descriptor, num_bytes)
    array = np.frombuffer(mmap.mmap(descriptor, num_bytes), np.float32).reshape(shape)
    script = Path(__file__).parent / "peers" / "toucher.py"
    command = [sys.executable, str(script), *map(str, (descriptor, *shape, num_distinct))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(descriptor,))
    os.close(descriptor)
    try:
        yield Toucher(process, array)
    finally:
        process.communicate(timeout=_STOP_SECONDS)  # the end of its input ends it


@contextmanager
def logitd_server() -> Iterator[Client]:
    """A client of a fresh logitd."""
    with logitd_server_address() as address, Client(address) as client:
        yield client


@contextmanager
def logitd_server_address() -> Iterator[str]:
    """The address of a fresh logitd that serves."""
    with tempfile.TemporaryDirectory(prefix="logitd-bench-") as folder:
        path = f"{folder}/socket"
        command = [sys.executable, "-m", "logitd.service", "serve", "--listen", "", "--unix-socket", path]
        with _running([*command, "--linger-seconds", "0", "--log-level", "warning"]):
            with Client(f"unix:{path}") as client:
                client.wait_until_ready(_READY_SECONDS)
            yield f"unix:{path}"


@contextmanager
def bare_stream() -> Iterator[BareStream]:
    """A stream to a fresh bare server."""
    with bare_channel_address() as address, grpc.insecure_channel(address, _UNLIMITED) as channel:
        stream = BareStream(channel)
        yield stream
        stream.close()


@contextmanager
def bare_channel_address() -> Iterator[str]:
    """The address of a fresh bare server that serves."""
    with tempfile.TemporaryDirectory(prefix="logitd-bench-") as folder:
        address = f"unix:{folder}/socket"
        script = Path(__file__).parent / "peers" / "bare_server.py"
        with _running([sys.executable, str(script), address]):
            with grpc.insecure_channel(address) as channel:
                grpc.channel_ready_future(channel).result(_READY_SECONDS)
            yield address


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        process.terminate()
        process.communicate(timeout=_STOP_SECONDS)
