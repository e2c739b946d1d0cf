"""What a stream holds while it waits: nothing of a step that is over, nothing for a caller who is hung up on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from logitd.service.config import ServerConfig
from logitd.service.handlers import Handlers
from logitd.service.operations.context import OperationContext
from logitd.service.regions import RegionRegistry
from logitd.service.registry import BatchRegistry
from logitd.service.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT = 20.0


class Held(bytes):
    """Bytes of which one can tell whether somebody still holds any."""

    count = 0

    def __init__(self, *_: object) -> None:
        Held.count += 1

    def __del__(self) -> None:
        Held.count -= 1


class Peer:
    """The call as its handler sees it."""

    def __init__(self, *, does_read: bool) -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.written = asyncio.Semaphore(0)
        self.aborted = asyncio.Event()
        self._can_read = asyncio.Event()
        if does_read:
            self.start_reading()

    def start_reading(self) -> None:
        self._can_read.set()

    def peer(self) -> str:
        return "unix:"

    def time_remaining(self) -> None:
        return None

    async def read(self) -> Any:
        return await self.sent.get()

    async def write(self, reply: bytes) -> None:
        await self._can_read.wait()
        self.written.release()

    async def abort_with_status(self, status: grpc.Status) -> None:
        self.aborted.set()
        await self._can_read.wait()
        raise grpc.aio.AbortError(status.details)


class Echo:
    """A stream whose every reply is a new object."""

    def step(self, data: bytes) -> bytes:
        return Held(data)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nothing tells that the last one let go
        await asyncio.sleep(0.01)


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(lambda: None) as worker:
        yield worker


def make_handlers(worker: Worker, **settings: Any) -> Handlers:
    config = ServerConfig(**settings)
    return Handlers(OperationContext(config, BatchRegistry(config), RegionRegistry(config)), worker)


def serve(handlers: Handlers, peer: Peer) -> asyncio.Task[None]:
    return asyncio.ensure_future(handlers._stream("Apply", lambda _: Echo())(None, peer))


@pytest.mark.parametrize("num_bytes", [100, 1 << 20])
def test_a_stream_that_waits_holds_neither_request_nor_reply(worker: Worker, num_bytes: int) -> None:
    async def check() -> None:
        peer = Peer(does_read=True)
        handling = serve(make_handlers(worker), peer)
        for _ in range(3):
            peer.sent.put_nowait(Held(num_bytes))
            await peer.written.acquire()
            await until(lambda: Held.count == 0)
        peer.sent.put_nowait(grpc.aio.EOF)
        await handling

    asyncio.run(asyncio.wait_for(check(), LIMIT))


def test_a_caller_who_is_hung_up_on_costs_nothing_until_it_reads_why(worker: Worker) -> None:
    async def check() -> None:
        peer = Peer(does_read=False)
        handlers = make_handlers(worker, reply_timeout_seconds=0.1, max_queued_bytes=1000)
        for _ in range(20):
            peer.sent.put_nowait(bytes(100))
        handling = serve(handlers, peer)
        await until(lambda: handlers.queued_bytes > 0)
        await peer.aborted.wait()
        assert handlers.queued_bytes == 0
        await asyncio.sleep(0)
        assert (handling.done(), peer.sent.qsize()) == (False, 20 - 1 - 1000 // 100)
        peer.start_reading()
        with pytest.raises(grpc.aio.AbortError):
            await handling

    asyncio.run(asyncio.wait_for(check(), LIMIT))
