"""Time limits for calls that cannot be waited for with one: a single thread cancels those that are overdue."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType


class Cancellable(Protocol):
    """A call under way."""

    def cancel(self) -> object:
        """Ends it; whoever waits for it is woken with an error."""


class Watchdog:
    """Cancels calls whose time limit passes.

    Setting and lifting a limit is an entry in a set. The thread is woken only for a limit that ends before the one
    it sleeps for, so with limits of about one length it wakes about once in that time.
    """

    def __init__(self) -> None:
        self._limits: set[Limit] = set()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def set(self, limit: Limit) -> None:
        """From now on `limit` may pass."""
        with self._lock:
            self._limits.add(limit)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="logitd-watchdog", daemon=True)
                self._thread.start()
            elif limit.due < self._wakes_at:
                self._wakes_at = limit.due
                self._changed.notify()

    def lift(self, limit: Limit) -> None:
        """From now on `limit` may not pass."""
        with self._lock:
            self._limits.discard(limit)

    def close(self) -> None:
        """Ends the thread; limits that stand no longer count."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._is_closed:
                self._cancel_overdue()
                self._choose_wakeup()
                pause = None if math.isinf(self._wakes_at) else self._wakes_at - time.monotonic()
                self._changed.wait(pause)

    def _choose_wakeup(self) -> None:
        if self._limits:
            self._wakes_at = min(limit.due for limit in self._limits)
        elif self._wakes_at <= time.monotonic():
            self._wakes_at = math.inf
        # Else it was woken for a limit that is lifted already; it sleeps on, so that the next one need not wake it.

    def _cancel_overdue(self) -> None:
        now = time.monotonic()
        for limit in [limit for limit in self._limits if limit.due <= now]:
            self._limits.remove(limit)
            limit.has_passed = True
            limit.call.cancel()


class Limit:
    """The time limit of a call: it is cancelled when the block takes longer."""

    __slots__ = ("_watchdog", "call", "due", "has_passed", "seconds")

    def __init__(self, watchdog: Watchdog, call: Cancellable, seconds: float | None) -> None:
        """`seconds` of None is no limit."""
        self._watchdog = watchdog
        self.call = call
        self.seconds = seconds
        self.has_passed = False

    def __enter__(self) -> Self:
        if self.seconds is not None:
            self.due = time.monotonic() + self.seconds
            self._watchdog.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.seconds is not None:
            self._watchdog.lift(self)
