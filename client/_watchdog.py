"""Time limits for calls that cannot be waited for with one: a single thread cancels those that are overdue."""

from __future__ import annotations

import itertools
import math
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Cancellable(Protocol):
    """A call under way."""

    def cancel(self) -> object:
        """Ends it; whoever waits for it is woken with an error."""


@dataclass(slots=True)
class Limit:
    """The time limit of one call."""

    call: Cancellable
    due: float
    """On the monotonic clock, in seconds."""
    has_passed: bool = False


class Watchdog:
    """Cancels calls whose time limit passes.

    Setting and lifting a limit is a dictionary entry. The thread is woken only for a limit that ends before the one
    it sleeps for, so with limits of about one length it wakes about once in that time.
    """

    def __init__(self) -> None:
        self._limits: dict[int, Limit] = {}
        self._keys = itertools.count()
        self._changed = threading.Condition()
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @contextmanager
    def limit(self, call: Cancellable, seconds: float | None) -> Iterator[Limit]:
        """Cancels `call` when the block takes longer; the limit then says that it has passed."""
        limit = Limit(call, math.inf if seconds is None else time.monotonic() + seconds)
        if seconds is None:
            yield limit
            return
        key = self._add(limit)
        try:
            yield limit
        finally:
            with self._changed:
                self._limits.pop(key, None)

    def close(self) -> None:
        """Ends the thread; limits that stand no longer count."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _add(self, limit: Limit) -> int:
        with self._changed:
            key = next(self._keys)
            self._limits[key] = limit
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="logitd-watchdog", daemon=True)
                self._thread.start()
            elif limit.due < self._wakes_at:
                self._wakes_at = limit.due
                self._changed.notify()
            return key

    def _run(self) -> None:
        with self._changed:
            while not self._is_closed:
                self._cancel_overdue()
                self._choose_wakeup()
                pause = None if math.isinf(self._wakes_at) else self._wakes_at - time.monotonic()
                self._changed.wait(pause)

    def _choose_wakeup(self) -> None:
        if self._limits:
            self._wakes_at = min(limit.due for limit in self._limits.values())
        elif self._wakes_at <= time.monotonic():
            self._wakes_at = math.inf
        # Else it was woken for a limit that is lifted already; it sleeps on, so that the next one need not wake it.

    def _cancel_overdue(self) -> None:
        now = time.monotonic()
        for key in [key for key, limit in self._limits.items() if limit.due <= now]:
            limit = self._limits.pop(key)
            limit.has_passed = True
            limit.call.cancel()
