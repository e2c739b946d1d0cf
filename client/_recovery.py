"""What to do about a step that failed: wait, rebuild, register again, repeat. No I/O.

A recovery gives orders, one after the other. Whoever moves the bytes, sync or asyncio, carries each out and sends its
result back, or throws the LogitdError it ended with.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from logitd.client import _messages as messages
from logitd.client._exceptions import (
    BatchNotFoundError,
    DeadlineExceededError,
    LogitdError,
    RefillNeededError,
    RegionNotFoundError,
    ResourceExhaustedError,
    UidMismatchError,
    UnavailableError,
)
from logitd.client._shared import HandOverError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from logitd.client._config import ClientConfig
    from logitd.client._session import BatchSession
    from logitd.client._shared import SharedMemory
    from logitd.client._steps import Step

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
"""Seconds between tries: they double each time, so that what cannot be helped does not keep both sides busy."""
_MOST_HAND_OVERS = 3
"""A server that serves has its side socket: what fails there so often in a row, while it does, is somewhere else."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Send the step's unanswered messages, and take the replies."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Do nothing for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class AwaitServer:
    """Wait until a server answers, so many seconds at most."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Ask:
    """Make a unary call; its result is wanted."""

    call: messages.Call[Any]


@dataclass(frozen=True, slots=True)
class Register:
    """Hand shared memory over again."""

    memory: SharedMemory


@dataclass(frozen=True, slots=True)
class Refill:
    """Let the caller fill its shared logits again."""

    fill: Callable[[], object]


Order: TypeAlias = Attempt | Pause | AwaitServer | Ask | Register | Refill
Orders: TypeAlias = "Generator[Order, Any, None]"


class Patience:
    """How long something is tried again: the pauses in between double."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._pause = _FIRST_PAUSE
        self._hand_overs_left = _MOST_HAND_OVERS
        self._is_at_side_socket = False

    def note_failure(self, error: LogitdError) -> None:
        """How the last try ended."""
        self._is_at_side_socket = isinstance(error, HandOverError)
        if isinstance(error, UnavailableError) and not self._is_at_side_socket:
            self._hand_overs_left = _MOST_HAND_OVERS  # the server was away in between

    def note_ready(self) -> None:
        """The server is ready before the next try."""
        self._hand_overs_left -= self._is_at_side_socket

    @property
    def remaining(self) -> float:
        """Seconds; 0 at the end."""
        if self._hand_overs_left <= 0:
            return 0.0
        return max(0.0, self._deadline - time.monotonic())

    def next_pause(self) -> float:
        """Seconds before the next try."""
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return min(pause, self.remaining)


class Recovery:
    """Brings a failed step of a batch to its end, whatever it takes, within the time that the configuration grants."""

    def __init__(self, session: BatchSession, step: Step[Any], config: ClientConfig) -> None:
        self._session = session
        self._step = step
        self._is_on = config.recover
        self._patience = Patience(config.recover_timeout)
        self._has_just_registered = False

    def orders(self, error: LogitdError) -> Orders:
        """What to do, `error` being how the first attempt ended. Raises what cannot be helped."""
        self._step.note_failure(error)
        # What differs from all that was met since the last pause is the next stage of one recovery, and does not wait:
        # a server that is back may not stay for long.
        seen = {type(error)}
        while (remedy := self._find_remedy(error)) is not None:
            self._has_just_registered = isinstance(error, RegionNotFoundError)
            try:
                yield from remedy
                yield from self._refill(error)
                yield from self._attempt()
                return
            except RefillNeededError:
                raise
            except LogitdError as another:
                error = another
                self._patience.note_failure(error)
            if type(error) in seen:
                yield Pause(self._patience.next_pause())
                seen.clear()
            seen.add(type(error))
        raise error

    def _find_remedy(self, error: LogitdError) -> Orders | None:
        if isinstance(error, RegionNotFoundError) and self._step.memory is not None:
            return None if self._has_just_registered else self._register(self._step.memory)
        if not self._is_on or not self._patience.remaining:
            return None
        if isinstance(error, UnavailableError):
            return self._await_server(error)
        if isinstance(error, BatchNotFoundError) and all(session.history.sequences for session in self._sessions):
            return self._rebuild_lost()
        if isinstance(error, UidMismatchError) and self._is_rebuilding:
            # A creation of ours has happened, and its reply is lost.
            return self._rebuild_lost()
        if isinstance(error, ResourceExhaustedError) and self._is_rebuilding and error.retry_after is not None:
            return self._wait(error.retry_after)
        return None

    @property
    def _sessions(self) -> tuple[BatchSession, ...]:
        return (self._session, *self._step.others)

    @property
    def _is_rebuilding(self) -> bool:
        return any(session.is_rebuilding for session in self._sessions)

    def _attempt(self) -> Orders:
        try:
            yield Attempt()
        except LogitdError as error:
            self._step.note_failure(error)
            raise

    def _refill(self, error: LogitdError) -> Orders:
        if not self._step.needs_refill:
            return
        if self._step.refill is None:
            raise refill_needed() from error
        yield Refill(self._step.refill)
        self._step.needs_refill = False

    def _await_server(self, error: UnavailableError) -> Orders:
        try:
            yield AwaitServer(self._patience.remaining)
        except (DeadlineExceededError, UnavailableError):
            raise error from None
        self._patience.note_ready()

    def _wait(self, seconds: float) -> Orders:
        yield Pause(min(seconds, self._patience.remaining))

    def _register(self, memory: SharedMemory) -> Orders:
        yield Register(memory)

    def _rebuild_lost(self) -> Orders:
        for session in self._sessions:
            if session.is_rebuilding or not self._step.others or (yield from self._is_lost(session)):
                session.take_rebuilt((yield Ask(session.rebuild_call())))
                self._step.aim_again(self._session.place)

    def _is_lost(self, session: BatchSession) -> Generator[Order, Any, bool]:
        try:
            yield Ask(messages.get_batch(session.batch_id, session.uid, full=False))
        except BatchNotFoundError:
            return True
        return False


def refill_needed() -> RefillNeededError:
    """The error for shared logits that nobody knows the contents of."""
    return RefillNeededError(
        "an in-place Apply was not answered, and may have changed the shared logits: fill them again, and then "
        "retry(refilled=True) if it carried token ids, else repeat the call"
    )


def go_on(orders: Orders, answer: object) -> Order | None:
    """Sends the result of an order; the next one, None after the last."""
    try:
        return orders.send(answer)
    except StopIteration:
        return None


def complain(orders: Orders, error: LogitdError) -> Order | None:
    """Throws how an order ended; the next one, None after the last."""
    try:
        return orders.throw(error)
    except StopIteration:
        return None
