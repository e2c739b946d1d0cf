"""Notices replies that their caller leaves unread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from logitd.service.errors import RepliesNotRead
from logitd.service.interruption import Interrupted, Interruption

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# A write that takes longer waits for the caller to read.
_USUAL_SECONDS = 0.05


class ReplyWatch:
    """Bounds how long each write of a stream may take, with one timer for many of them.

    A timer for every write takes a fifth of the time of a small step.
    """

    def __init__(self, limit_seconds: float, on_waiting: Callable[[], None]) -> None:
        """`on_waiting` is called, perhaps more than once, when a write seems to wait for the caller to read."""
        self._limit_seconds = limit_seconds
        self._on_waiting = on_waiting
        self._loop = asyncio.get_running_loop()
        self._wait = Interruption()
        self._began: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def write(self, writing: Awaitable[None]) -> None:
        """Wait for a write; raises `RepliesNotRead`."""
        self._began = self._loop.time()
        if self._timer is None:
            self._look_again_in(min(_USUAL_SECONDS, self._limit_seconds))
        try:
            await self._wait.wait(writing)
        except Interrupted:
            raise RepliesNotRead(self._limit_seconds) from None
        finally:
            self._began = None

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._began is None:
            return
        left = self._began + self._limit_seconds - self._loop.time()
        if left <= 0:
            self._wait.interrupt()
            return
        if self._limit_seconds - left >= _USUAL_SECONDS:
            self._on_waiting()
        self._look_again_in(min(_USUAL_SECONDS, left))

    def _look_again_in(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look)
