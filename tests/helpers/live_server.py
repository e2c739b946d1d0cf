"""Real servers in this process: their event loop runs in a thread of its own, beside a caller that blocks."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from logitd.service.registry import BatchRegistry
from logitd.service.server import LogitServer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from logitd.service.config import ServerConfig

_SECONDS = 30


class _SharedLoop:
    """One event loop for all servers, there as long as any of them: gRPC's poller is loud about a second one."""

    def __init__(self) -> None:
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def used(self) -> Iterator[asyncio.AbstractEventLoop]:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="server-loop")
            self._thread.start()
        self._users += 1
        try:
            yield self._loop
        finally:
            self._users -= 1
            if self._users == 0:
                self._close(self._loop)

    def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(loop.stop)
        assert self._thread is not None
        self._thread.join()
        loop.close()
        self._loop = self._thread = None


_LOOP = _SharedLoop()


class LiveServer:
    """`server` serves until the end of the `with` block that made this; its address is for `grpc.insecure_channel`."""

    def __init__(self, server: LogitServer, loop: asyncio.AbstractEventLoop, hurry: asyncio.Event) -> None:
        self.server = server
        self._loop = loop
        self._hurry = hurry

    @property
    def address(self) -> str:
        return f"unix:{self.server.endpoints.unix_socket}"

    @property
    def registry(self) -> BatchRegistry:
        return self.server.context.registry

    def hurry(self) -> None:
        """End a stop that lingers."""
        self._loop.call_soon_threadsafe(self._hurry.set)

    def run(self, work: Coroutine[object, object, None]) -> None:
        """Run something in the server's own loop."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_SECONDS)


@contextmanager
def serving(config: ServerConfig, clock: Callable[[], float] | None = None) -> Iterator[LiveServer]:
    """A server that has started, and is stopped unless it was; with a `clock`, its batches age by that."""
    with _LOOP.used() as loop:
        live = asyncio.run_coroutine_threadsafe(_start(config, clock, loop), loop).result(_SECONDS)
        try:
            yield live
        finally:
            if not live.server.context.is_draining:
                live.run(live.server.stop())


async def _start(
    config: ServerConfig, clock: Callable[[], float] | None, loop: asyncio.AbstractEventLoop
) -> LiveServer:
    hurry = asyncio.Event()
    server = LogitServer(config, hurry)  # gRPC binds a server to the loop that it is made in
    if clock is not None:
        server.context.registry = BatchRegistry(config, clock)
    await server.start()
    return LiveServer(server, loop, hurry)
