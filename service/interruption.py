"""Waits that somebody else may end, told apart from a cancellation of the task that waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

_T = TypeVar("_T")


class Interrupted(Exception):
    """The wait was ended by `Interruption.interrupt`."""


class Interruption:
    """Ends a task's wait, one at a time. As `asyncio.timeout` does it, but whenever it is asked to."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._is_asked = False

    def interrupt(self) -> None:
        """End the wait that is under way; nothing happens if there is none."""
        if self._task is not None and not self._is_asked:
            self._is_asked = True
            self._task.cancel()

    async def wait(self, awaitable: Awaitable[_T]) -> _T:
        """What `awaitable` gives; raises `Interrupted`."""
        self._task = task = asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        try:
            return await awaitable
        except asyncio.CancelledError:
            if self._is_asked and task.uncancel() <= cancellations:
                raise Interrupted from None
            raise
        finally:
            self._task, self._is_asked = None, False
