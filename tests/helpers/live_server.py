"""A real server in this process: its event loop runs in a thread of its own, beside a caller that blocks."""

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


class LiveServer:
    """`server` serves until the end of the `with` block that made this; its address is for `grpc.insecure_channel`."""

    def __init__(self, server: LogitServer, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self._loop = loop

    @property
    def address(self) -> str:
        return f"unix:{self.server.endpoints.unix_socket}"

    @property
    def registry(self) -> BatchRegistry:
        return self.server.context.registry

    def run(self, work: Coroutine[object, object, None]) -> None:
        """Run something in the server's own loop."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_SECONDS)


@contextmanager
def serving(config: ServerConfig, clock: Callable[[], float] | None = None) -> Iterator[LiveServer]:
    """A server that has started; with a `clock`, its batches age by that."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="server-loop")
    thread.start()
    try:
        live = asyncio.run_coroutine_threadsafe(_start(config, clock, loop), loop).result(_SECONDS)
        yield live
        live.run(live.server.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _start(
    config: ServerConfig, clock: Callable[[], float] | None, loop: asyncio.AbstractEventLoop
) -> LiveServer:
    server = LogitServer(config)  # gRPC binds a server to the loop that it is made in
    if clock is not None:
        server.context.registry = BatchRegistry(config, clock)
    await server.start()
    return LiveServer(server, loop)
