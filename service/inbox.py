"""What a stream has received and not yet worked on, bounded in bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc

from logitd.service.interruption import Interrupted, Interruption

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Inbox:
    """One stream's messages in order.

    A message is read when it is asked for. Those that come while the stream has work under way, or waits for its
    caller to read, are read ahead where that is wanted, until `max_bytes` are queued: so transport and work overlap,
    and a caller may write a whole step before it reads its first reply. `queued_bytes` are read and not yet taken.
    """

    def __init__(self, read: Callable[[], Awaitable[Any]], max_bytes: int) -> None:
        """`read` gives the next message, or `grpc.aio.EOF`."""
        self._read = read
        self._max_bytes = max_bytes
        self._queue: deque[bytes] = deque()
        self.queued_bytes = 0
        self._is_ended = False
        self._error: Exception | None = None
        self._wait = Interruption()
        self._reader: asyncio.Task[None] | None = None
        self._is_ahead = False
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()

    async def get(self) -> bytes | None:
        """The next message; None at the end."""
        while not self._queue:
            if self._is_ended:
                if self._error is not None:
                    raise self._error
                return None
            await self._await_message()
        data = self._queue.popleft()
        self.queued_bytes -= len(data)
        self._drained.set()
        return data

    def read_ahead(self, is_wanted: bool = True) -> None:
        """From now on read what comes before it is asked for, or no longer."""
        self._is_ahead = is_wanted
        if is_wanted and self._reader is None and not self._is_ended:
            self._reader = asyncio.create_task(self._read_on())

    def end(self, error: Exception | None = None) -> None:
        """No more messages come; after those that are queued, `get` returns None or raises `error`."""
        if not self._is_ended:  # what the caller ended is complete as it is
            self._is_ended, self._error = True, error
        self._wait.interrupt()
        self._changed.set()
        self._drained.set()

    def close(self) -> None:
        """Stop reading, and let go of what is queued."""
        if self._reader is not None:
            self._reader.cancel()
        self._queue.clear()
        self.queued_bytes = 0

    async def _await_message(self) -> None:
        if self._reader is None:
            with suppress(Interrupted):
                await self._wait.wait(self._take_in())
        else:
            self._changed.clear()
            await self._changed.wait()

    async def _read_on(self) -> None:
        try:
            while self._is_ahead and not self._is_ended:
                await self._take_in()
                self._changed.set()
                while self.queued_bytes >= self._max_bytes and not self._is_ended:
                    self._drained.clear()
                    await self._drained.wait()
        finally:
            self._reader = None
            self._changed.set()

    async def _take_in(self) -> None:
        try:
            data = await self._read()
        except grpc.aio.BaseError as error:  # the caller is gone, and the handler about to be cancelled
            raise asyncio.CancelledError from error
        if data is grpc.aio.EOF:
            self._is_ended = True
        else:
            self._queue.append(data)
            self.queued_bytes += len(data)
