"""The servers that benches talk to, each a process of its own on a Unix socket."""

from __future__ import annotations

import queue
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from peers import bare_server

from logitd.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

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
