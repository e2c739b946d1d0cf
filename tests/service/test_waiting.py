"""What a stream waits for: its next message, read when asked for or ahead; its caller, who has to read the replies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from logitd.service.errors import Draining, RepliesNotRead
from logitd.service.inbox import Inbox
from logitd.service.interruption import Interrupted, Interruption
from logitd.service.reply_watch import ReplyWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LIMIT = 10.0
LEFT_UNREAD = 3.0


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, LIMIT))


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


class Caller:
    """The transport's side of a stream: what was sent is read one by one."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.num_read = 0

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.sent.put_nowait(message)

    async def read(self) -> Any:
        message = await self.sent.get()
        self.num_read += 1
        if isinstance(message, Exception):
            raise message
        return message


def test_a_message_is_read_when_it_is_asked_for() -> None:
    async def check() -> None:
        caller = Caller()
        inbox = Inbox(caller.read, 100)
        caller.send(b"a", b"b", grpc.aio.EOF)
        await settle()
        assert caller.num_read == 0
        assert await inbox.get() == b"a"
        await settle()
        assert (caller.num_read, inbox.queued_bytes) == (1, 0)
        assert [await inbox.get(), await inbox.get(), await inbox.get()] == [b"b", None, None]
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0

    run(check())


def test_reading_ahead_stops_at_the_bound_and_goes_on_below_it() -> None:
    async def check() -> None:
        caller = Caller()
        inbox = Inbox(caller.read, 5)
        caller.send(b"abc", b"def", b"ghi", b"jkl", grpc.aio.EOF)
        inbox.read_ahead()
        await settle()
        assert (caller.num_read, inbox.queued_bytes) == (2, 6)
        assert await inbox.get() == b"abc"
        await settle()
        assert (caller.num_read, inbox.queued_bytes) == (3, 6)
        assert [await inbox.get() for _ in range(4)] == [b"def", b"ghi", b"jkl", None]

    run(check())


def test_an_end_changes_nothing_where_the_caller_had_ended_it() -> None:
    async def check() -> None:
        caller = Caller()
        inbox = Inbox(caller.read, 100)
        caller.send(b"a", grpc.aio.EOF)
        inbox.read_ahead()
        await settle()
        inbox.end(Draining())
        assert [await inbox.get(), await inbox.get()] == [b"a", None]

    run(check())


def test_reading_ahead_ends_with_the_message_under_way_when_it_is_no_longer_wanted() -> None:
    async def check() -> None:
        caller = Caller()
        inbox = Inbox(caller.read, 100)
        inbox.read_ahead()
        await settle()
        inbox.read_ahead(False)
        caller.send(b"a", b"b", b"c")
        await settle()
        assert caller.num_read == 1
        assert [await inbox.get(), await inbox.get()] == [b"a", b"b"]
        inbox.read_ahead()
        await settle()
        assert caller.num_read == 3
        inbox.close()

    run(check())


@pytest.mark.parametrize("is_ahead", [False, True])
def test_who_waits_for_a_message_hears_of_the_end(is_ahead: bool) -> None:
    async def check() -> None:
        caller = Caller()
        inbox = Inbox(caller.read, 100)
        inbox.read_ahead(is_ahead)
        waiting = asyncio.create_task(inbox.get())
        await settle()
        inbox.end(Draining())
        with pytest.raises(Draining):
            await waiting
        with pytest.raises(Draining):
            await inbox.get()
        inbox.close()

    run(check())


def test_what_is_queued_is_given_out_before_the_end() -> None:
    async def check() -> None:
        caller = Caller()
        inbox = Inbox(caller.read, 100)
        caller.send(b"a", b"b")
        inbox.read_ahead()
        await settle()
        inbox.end(Draining())
        assert [await inbox.get(), await inbox.get()] == [b"a", b"b"]
        with pytest.raises(Draining):
            await inbox.get()

    run(check())


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_read_that_fails_is_a_caller_that_is_gone(is_ahead: bool) -> None:
    async def check() -> None:
        caller = Caller()
        inbox = Inbox(caller.read, 100)
        caller.send(grpc.aio.InternalError("gone"), grpc.aio.InternalError("gone"))
        inbox.read_ahead(is_ahead)
        waiting = asyncio.create_task(inbox.get())
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(check())


def test_an_interruption_ends_the_wait_and_not_the_task() -> None:
    async def wait_twice(interruption: Interruption) -> str:
        with pytest.raises(Interrupted):
            await interruption.wait(asyncio.sleep(LIMIT))
        return await interruption.wait(asyncio.sleep(0, "slept"))

    async def check() -> None:
        interruption = Interruption()
        interruption.interrupt()  # nobody waits
        task = asyncio.create_task(wait_twice(interruption))
        await settle()
        interruption.interrupt()
        interruption.interrupt()
        assert await task == "slept"
        assert task.cancelling() == 0

    run(check())


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_cancellation_from_elsewhere_stays_one(is_interrupted: bool) -> None:
    async def check() -> None:
        interruption = Interruption()
        task = asyncio.create_task(interruption.wait(asyncio.sleep(LIMIT)))
        await settle()
        if is_interrupted:
            interruption.interrupt()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(check())


def test_a_reply_that_is_left_unread_ends_after_the_limit_and_lets_messages_be_read_before() -> None:
    async def check() -> None:
        calls: list[float] = []
        loop = asyncio.get_running_loop()
        watch = ReplyWatch(LEFT_UNREAD, lambda: calls.append(loop.time()))
        began = loop.time()
        with pytest.raises(RepliesNotRead):
            await watch.write(asyncio.sleep(LIMIT))
        assert calls
        assert began < calls[0] < began + LEFT_UNREAD <= loop.time()

    run(check())


def test_many_quick_writes_have_one_timer_and_an_idle_stream_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        calls: list[None] = []
        timers: list[asyncio.TimerHandle] = []
        looks: list[Callable[[], None]] = []
        loop = asyncio.get_running_loop()
        set_timer = loop.call_later

        def call_later(delay: float, callback: Any, *arguments: Any) -> asyncio.TimerHandle:
            if not isinstance(getattr(callback, "__self__", None), ReplyWatch):
                return set_timer(delay, callback, *arguments)
            looks.append(callback)
            timers.append(set_timer(LIMIT, callback, *arguments))  # later than this test, which looks by itself
            return timers[-1]

        monkeypatch.setattr(loop, "call_later", call_later)
        watch = ReplyWatch(60, lambda: calls.append(None))
        for _ in range(100):
            await watch.write(settle())
        assert len(timers) == 1
        looks[0]()
        assert (len(timers), calls) == (1, [])
        await watch.write(settle())
        assert len(timers) == 2
        watch.close()
        assert timers[-1].cancelled()

    run(check())
