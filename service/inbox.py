"""What a stream has received and not yet worked on, bounded in bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Inbox:
    """One stream's messages in order; reads ahead of the work until `max_bytes` are queued.

    Reading ahead lets a caller write a whole step before it reads its first reply, and lets transport and work
    overlap. One reader task and one consumer use it, on one event loop. `queued_bytes` are read and not yet taken.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._queue: deque[bytes] = deque()
        self.queued_bytes = 0
        self._is_ended = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()

    async def fill(self, messages: AsyncIterator[bytes]) -> None:
        """Read until the caller half-closes or `end` was called, pausing while too much is queued."""
        async for data in messages:
            self._queue.append(data)
            self.queued_bytes += len(data)
            self._changed.set()
            while self.queued_bytes >= self._max_bytes and not self._is_ended:
                self._drained.clear()
                await self._drained.wait()
            if self._is_ended:
                return
        self.end()

    def end(self, error: Exception | None = None) -> None:
        """No more messages come; after those that are queued, `get` returns None or raises `error`."""
        self._is_ended, self._error = True, error
        self._changed.set()
        self._drained.set()

    async def get(self) -> bytes | None:
        """The next message; None at the end."""
        while not self._queue:
            if self._is_ended:
                if self._error is not None:
                    raise self._error
                return None
            self._changed.clear()
            await self._changed.wait()
        data = self._queue.popleft()
        self.queued_bytes -= len(data)
        self._drained.set()
        return data
