"""What the client knows about a batch: its revision, and the mutation that was not answered. No I/O."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from logitd.client._exceptions import (
    BatchBusyError,
    BatchClosedError,
    BatchStateError,
    RpcError,
    UnansweredStepError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitd.client._steps import Step
    from logitd.client._types import BatchInfo, RowLayout


class BatchSession:
    """Orders the steps of one batch and keeps what is needed to repeat one.

    The base of the batch objects, sync and asyncio.
    """

    def __init__(self, info: BatchInfo) -> None:
        self._info = info
        self._revision = info.revision
        self._rows = info.rows
        self._draining = False
        self._is_closed = False
        self._unanswered: Step[Any] | None = None
        self._one_at_a_time = threading.Lock()

    @property
    def info(self) -> BatchInfo:
        """The batch as it was created, every default filled in."""
        return self._info

    @property
    def batch_id(self) -> str:
        """The batch's id."""
        return self._info.batch_id

    @property
    def uid(self) -> bytes:
        """The batch's life."""
        return self._info.uid

    @property
    def revision(self) -> int:
        """The revision that the last answered step gave."""
        return self._revision

    @property
    def rows(self) -> tuple[RowLayout, ...]:
        """Where the sequences' rows stand: the rows of logits that the next step takes."""
        return self._rows

    @property
    def draining(self) -> bool:
        """The last reply said that the server drains: go elsewhere soon."""
        return self._draining

    @property
    def has_unanswered_step(self) -> bool:
        """A mutation went out and it is not known whether it happened: `retry()` it."""
        return self._unanswered is not None

    @contextmanager
    def _running(self, step: Step[Any]) -> Iterator[None]:
        """Holds while the step's messages and replies move; judges the failure that leaves it."""
        if not self._one_at_a_time.acquire(blocking=False):
            raise BatchBusyError("a batch does one step at a time, and another one is under way")
        try:
            self._check_may_run(step)
            step.aim(self.batch_id, self.uid, self._revision)
            try:
                yield
            except BaseException as error:
                self._judge(step, error)
                raise
            self._unanswered = None
        finally:
            self._one_at_a_time.release()

    def _receive(self, step: Step[Any], reply: bytes) -> None:
        receipt = step.receive(reply)
        self._revision = receipt.revision
        self._draining = receipt.draining
        if receipt.rows is not None:
            self._rows = receipt.rows

    def _unanswered_step(self) -> Step[Any]:
        if self._unanswered is None:
            raise BatchStateError("there is nothing to retry: every step of the batch was answered")
        return self._unanswered

    def _check_may_run(self, step: Step[Any]) -> None:
        if self._is_closed:
            raise BatchClosedError(f"the batch {self.batch_id!r} is closed")
        if self._unanswered is None:
            return
        if self._unanswered is not step:
            method = self._unanswered.method
            raise UnansweredStepError(f"the last {method} was not answered and may have happened: retry() it first")
        step.rewind()

    def _judge(self, step: Step[Any], error: BaseException) -> None:
        if isinstance(error, RpcError) and error.nothing_changed:
            self._unanswered = None
        elif step.is_mutation:
            step.keep_unanswered()
            self._unanswered = step
