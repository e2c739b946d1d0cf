"""The side socket, over which descriptors of memory files come, since gRPC cannot pass them.

A Unix stream socket at ``<unix_socket>.memory``. A client sends one byte, 1, with one descriptor as ancillary data
(SCM_RIGHTS), and reads the 16 bytes of a token for RegisterSharedMemory; as often as it likes. What it handed over
lives until it closes the connection, or dies. A client that breaks the protocol or a limit is hung up on.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
from typing import TYPE_CHECKING

from logitd.service.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Executor

    from logitd.service.regions.registry import RegionRegistry

SUFFIX = ".memory"
_GREETING = b"\x01"
_MAX_DESCRIPTORS = 1
_ACCEPT_PAUSE = 0.1
# A client needs one, whatever the number of its regions.
_MAX_CONNECTIONS = 1024
_LOG = logging.getLogger(__name__)


class SideSocket:
    """Accepts connections and hands their descriptors to the registry, on the worker thread."""

    def __init__(self, listener: socket.socket, registry: RegionRegistry, worker: Executor) -> None:
        self._listener = listener
        self._registry = registry
        self._worker = worker
        self._owners = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Take connections up."""
        self._spawn(self._accept(self._listener))

    async def stop(self) -> None:
        """Hang up on everybody and remove the socket."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        path = self._listener.getsockname()
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as error:  # out of descriptors: later there may be some again
                _LOG.warning("the side socket cannot accept: %s", error.strerror)
                await asyncio.sleep(_ACCEPT_PAUSE)
                continue
            if len(self._tasks) > _MAX_CONNECTIONS:
                connection.close()
                continue
            self._spawn(self._serve(connection, next(self._owners)))

    async def _serve(self, connection: socket.socket, owner: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            with connection, contextlib.suppress(OSError, ServiceError):
                while (descriptor := await _receive_descriptor(connection)) is not None:
                    token = await loop.run_in_executor(self._worker, self._registry.hand_over, owner, descriptor)
                    await loop.sock_sendall(connection, token)
        finally:
            await asyncio.shield(loop.run_in_executor(self._worker, self._registry.release_owner, owner))


async def _receive_descriptor(connection: socket.socket) -> int | None:
    # None when the client is gone or says something else.
    await _wait_readable(connection)
    data, descriptors, _, _ = socket.recv_fds(connection, len(_GREETING), _MAX_DESCRIPTORS)
    if data == _GREETING and len(descriptors) == 1:
        return descriptors[0]
    for descriptor in descriptors:
        os.close(descriptor)
    return None


async def _wait_readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(connection, wake)
    try:
        await readable
    finally:
        loop.remove_reader(connection)
