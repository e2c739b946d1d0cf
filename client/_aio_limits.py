"""Time limits for the steps of asyncio: a single timer cancels the tasks that are overdue."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class TaskLimits:
    """Cancels tasks whose time limit passes.

    All limits are of one length, so the oldest is the next to pass, and the timer is for it. Setting and lifting a
    limit is a dictionary entry; the timer fires about once in that length, and is set again when it did.
    """

    def __init__(self, seconds: float | None) -> None:
        """`seconds` is the length of all limits; None: there are none."""
        self.seconds = seconds
        self.standing: dict[TaskLimit, None] = {}
        """The limits that may pass, the oldest first."""
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Ends the timer when no limit stands: a write of grpc.aio may never return from a channel that was closed."""
        if self._timer is not None and not self.standing:
            self._timer.cancel()
            self._timer = None

    def set(self, limit: TaskLimit) -> None:
        """From now on `limit` may pass, until it is taken out of `standing`."""
        self.standing[limit] = None
        if self._timer is None:
            self._start_timer(limit.due)

    def _start_timer(self, due: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(due - time.monotonic(), self._cancel_overdue)

    def _cancel_overdue(self) -> None:
        self._timer = None
        now = time.monotonic()
        for limit in list(self.standing):
            if limit.due > now:
                self._start_timer(limit.due)
                return
            del self.standing[limit]
            limit.cancel()


class TaskLimit:
    """The time limit of what the current task does in the block; TimeoutError when it passes."""

    __slots__ = ("_limits", "_num_cancels", "_task", "due", "has_passed")

    def __init__(self, limits: TaskLimits) -> None:
        self._limits = limits
        self.has_passed = False

    def __enter__(self) -> Self:
        if self._limits.seconds is not None:
            task = asyncio.current_task()
            assert task is not None
            self._task, self._num_cancels = task, task.cancelling()
            self.due = time.monotonic() + self._limits.seconds
            self._limits.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limits.standing.pop(self, None)
        # As in asyncio.timeout: where others cancel the task as well, it stays cancelled.
        if self.has_passed and self._task.uncancel() <= self._num_cancels and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def cancel(self) -> None:
        """The limit has passed."""
        self.has_passed = True
        self._task.cancel()
