"""A small proxy between Unix sockets that cuts, delays, falls silent and plays old connections again."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager, suppress
from random import Random
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_Way: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter, list[bytes] | None]

_PIECE = 1024
_CALM = 0.05
_SECONDS = 30


class Proxy:
    """`cut_one_in` pieces end their connection; each piece waits up to `longest_delay` seconds; silent, none moves.

    The bytes of clients are kept, a list a connection, while `is_recording`.
    """

    def __init__(self, path: str, upstream: str, random: Random) -> None:
        self._path, self._upstream, self._random = path, upstream, random
        self.address = f"unix:{path}"
        self.cut_one_in = 0
        self.longest_delay = 0.0
        self.is_silent = False
        self.is_recording = False
        self.recordings: list[list[bytes]] = []
        self.num_cuts = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, ready: threading.Event, over: asyncio.Event) -> None:
        async with await asyncio.start_unix_server(self._accept, self._path):
            ready.set()
            await over.wait()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def replay(self, recording: list[bytes], is_answered: Callable[[], bool]) -> int:
        """Send a client's bytes again over a connection of its own; how many bytes came back for them.

        The connection lasts until `is_answered`: the server drops what it has not yet begun when it ends.
        """
        reader, writer = await asyncio.open_unix_connection(self._upstream)
        received = 0
        with suppress(OSError):
            for piece in recording:
                writer.write(piece)
                await writer.drain()
                received += len(await _read_for_a_while(reader))
            async with asyncio.timeout(_SECONDS):
                while not is_answered() and not reader.at_eof():
                    received += len(await _read_for_a_while(reader))
        writer.close()
        return received

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            upstream_reader, upstream_writer = await asyncio.open_unix_connection(self._upstream)
            ends.append(upstream_writer)
            recording: list[bytes] = []
            self.recordings += [recording] if self.is_recording else []
            await self._forward((reader, upstream_writer, recording), (upstream_reader, writer, None))
        except OSError:
            pass  # the server is not there; the client finds out
        finally:
            for end in ends:
                end.transport.abort()

    async def _forward(self, *ways: _Way) -> None:
        # Both ways end with the first.
        pumps = [asyncio.create_task(self._pump(*way)) for way in ways]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, recording: list[bytes] | None
    ) -> None:
        while piece := await reader.read(_PIECE):
            while self.is_silent:  # noqa: ASYNC110  # told from another thread
                await asyncio.sleep(_CALM)
            if self.longest_delay:
                await asyncio.sleep(self._random.uniform(0, self.longest_delay))
            if self.cut_one_in and self._random.randrange(self.cut_one_in) == 0:
                self.num_cuts += 1
                return
            if recording is not None and self.is_recording:
                recording.append(piece)
            writer.write(piece)
            await writer.drain()


async def _read_for_a_while(reader: asyncio.StreamReader) -> bytes:
    with suppress(TimeoutError):
        return await asyncio.wait_for(reader.read(1 << 16), _CALM)
    return b""


@contextmanager
def proxying(path: str, upstream: str, seed: int = 0) -> Iterator[Proxy]:
    """A proxy in a thread of its own until the end of the block."""
    proxy = Proxy(path, upstream, Random(seed))
    with running(proxy):
        yield proxy


@contextmanager
def running(proxy: Proxy) -> Iterator[None]:
    loop = asyncio.new_event_loop()
    ready, over = threading.Event(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(proxy.serve(ready, over),))
    thread.start()
    try:
        assert ready.wait(_SECONDS)
        yield
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
