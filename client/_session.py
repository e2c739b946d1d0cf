"""What the client knows about a batch: where it stands, its history, and the mutation that was not answered. No I/O."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

from logitd.client import _convert as convert
from logitd.client import _messages as messages
from logitd.client._exceptions import (
    BatchBusyError,
    BatchClosedError,
    BatchStateError,
    LogitdError,
    ProtocolError,
    RpcError,
    UnansweredStepError,
)
from logitd.client._recovery import refill_needed
from logitd.client._steps import Aim

if TYPE_CHECKING:
    from types import TracebackType

    from logitd.client._history import History
    from logitd.client._steps import Step
    from logitd.client._types import BatchInfo, RowLayout, Sequence


class BatchSession:
    """Orders the steps of one batch, and keeps what is needed to repeat one and to rebuild the batch.

    The base of the batch objects, sync and asyncio.
    """

    def __init__(self, info: BatchInfo, history: History[Any]) -> None:
        self._info = info
        self.history = history
        self._revision = info.revision
        # From the server's revision to ours, which counts on when the batch is rebuilt.
        self._offset = 0
        self._rows = info.rows
        self._draining = False
        self._is_closed = False
        self._unanswered: Step[Any] | None = None
        self._rebuild: messages.Call[BatchInfo] | None = None
        self._one_at_a_time = threading.Lock()

    @property
    def info(self) -> BatchInfo:
        """The batch as it was created, or rebuilt, every default filled in."""
        return self._info

    @property
    def batch_id(self) -> str:
        """The batch's id."""
        return self._info.batch_id

    @property
    def uid(self) -> bytes:
        """The batch's life; another one after a rebuild."""
        return self._info.uid

    @property
    def revision(self) -> int:
        """How many mutations were answered. It counts on when the batch is rebuilt; the server then starts at 0."""
        return self._revision

    @property
    def rows(self) -> tuple[RowLayout, ...]:
        """Where the sequences' rows stand: the rows of logits that the next step takes."""
        return self._rows

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """The sequences in batch order with what they have output, or their beams: what creates the batch anew."""
        return tuple(convert.sequence_from_proto(sequence.to_proto()) for sequence in self.history.sequences)

    @property
    def draining(self) -> bool:
        """The last reply said that the server drains: go elsewhere soon."""
        return self._draining

    @property
    def has_unanswered_step(self) -> bool:
        """A mutation went out and it is not known whether it happened: `retry()` it."""
        return self._unanswered is not None

    @property
    def place(self) -> Aim:
        """Where the batch stands, as its server has it."""
        return Aim(self._info.batch_id, self._info.uid, self._revision - self._offset, self._offset)

    @property
    def is_rebuilding(self) -> bool:
        """Whether `rebuild_call` was made and has not succeeded."""
        return self._rebuild is not None

    def rebuild_call(self) -> messages.Call[BatchInfo]:
        """The call that creates the batch as it stands; the same one until it succeeds."""
        if self._rebuild is None:
            self._rebuild = messages.create_batch(self.history.creation(messages.random_id()))
        return self._rebuild

    def take_rebuilt(self, info: BatchInfo) -> None:
        """Goes on with the batch that `rebuild_call` created."""
        if info.rows != self._rows:
            raise ProtocolError(f"the batch {self.batch_id!r} was rebuilt with other rows than it had")
        self._info = info
        self._offset = self._revision - info.revision
        self._rebuild = None

    @property
    def _num_rows(self) -> int:
        return self._rows[-1].first_row + self._rows[-1].row_count if self._rows else 0

    def _deletion(self) -> messages.Call[None]:
        return messages.delete_batch(self.batch_id, self.uid, allow_missing=True)

    def _mergeable(self, other: Self) -> Self:
        if other is self:
            raise ValueError("a batch must be merged with another one, got itself")
        if type(other) is not type(self):
            raise TypeError(f"a {type(self).__name__} must be merged with another one, got a {type(other).__name__}")
        return other

    def _receive(self, step: Step[Any], reply: bytes) -> None:
        receipt = step.receive(reply)
        self._draining = receipt.draining
        if not receipt.is_commit:
            return
        step.record(self.history)
        self._revision += 1
        if receipt.rows is not None:
            self._rows = receipt.rows

    def _unanswered_step(self, refilled: bool = False) -> Step[Any]:
        step = self._unanswered
        if step is None:
            raise BatchStateError("there is nothing to retry: every step of the batch was answered")
        if self in step.others:
            raise BatchStateError(f"the {step.method} is to be retried from the batch that it was called on")
        if refilled:
            step.needs_refill = False
        if step.needs_refill:
            raise refill_needed()
        return step

    def _acquire(self, step: Step[Any]) -> None:
        if not self._one_at_a_time.acquire(blocking=False):
            raise BatchBusyError("a batch does one step at a time, and another one is under way")
        unanswered = self._unanswered
        error: LogitdError
        if self._is_closed:
            error = BatchClosedError(f"the batch {self.batch_id!r} is closed")
        elif unanswered is not None and unanswered is not step:
            rule = "was not answered and may have happened: retry() it first"
            error = UnansweredStepError(f"the last {unanswered.method} {rule}")
        else:
            return
        self._one_at_a_time.release()
        raise error

    def _judge(self, step: Step[Any], error: BaseException) -> None:
        if isinstance(error, RpcError) and error.nothing_changed:
            self._settle(step, None)
        elif step.is_mutation and step.is_sent:
            if not isinstance(error, LogitdError):  # of those the recovery has told
                step.note_failure(error)
            step.keep()
            self._settle(step, step)

    def _settle(self, step: Step[Any], unanswered: Step[Any] | None) -> None:
        for session in (self, *step.others):
            session._unanswered = unanswered


class Running:
    """Holds a step's batches while its messages and replies move; judges the failure that leaves it."""

    __slots__ = ("_session", "_step")

    def __init__(self, session: BatchSession, step: Step[Any]) -> None:
        self._session = session
        self._step = step

    def __enter__(self) -> None:
        session, step = self._session, self._step
        held: list[BatchSession] = []
        try:
            for each in (session, *step.others):
                each._acquire(step)
                held.append(each)
            step.rewind()
            step.aim(session.place)
        except BaseException:
            for each in held:
                each._one_at_a_time.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session, step = self._session, self._step
        try:
            if error is None:
                session._settle(step, None)
            else:
                session._judge(step, error)
        finally:
            for each in (session, *step.others):
                each._one_at_a_time.release()
