"""What all steps have in common, and the one that only counts tokens. No I/O.

A step has one message, or several that each carry some consecutive rows of its logits. Whoever moves the bytes asks
for `outgoing(index)` in order, hands every reply to `receive`, and takes `result()` when all are answered. A message is
a function of what the step was made of and where it is aimed, so that the very same bytes can be sent again.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeAlias

import numpy as np

from logitd.client._arrays import ids_to_bytes
from logitd.client._exceptions import ProtocolError
from logitd.client._messages import Result, parse, random_id
from logitd.client._penalty_history import PenaltyHistory
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from collections import abc

    from logitd.client import _types as types
    from logitd.client._arrays import TokenIds
    from logitd.client._history import History
    from logitd.client._session import BatchSession
    from logitd.client._shared import SharedMemory

    StepTokens: TypeAlias = TokenIds | abc.Sequence[TokenIds]


class Aim(NamedTuple):
    """Where a batch stands, as its server has it."""

    batch_id: str
    uid: bytes
    revision: int
    offset: int = 0
    """What is added to the server's revisions for the caller, to whom they count on over rebuilds."""


class Receipt(NamedTuple):
    """What a reply says about the batch."""

    revision: int
    draining: bool
    is_commit: bool = False
    """The reply tells that the step's mutation has happened."""
    rows: tuple[types.RowLayout, ...] | None = None
    """The rows of the next step, where they change."""


class Step(ABC, Generic[Result]):
    """One step of a batch."""

    method: ClassVar[str]
    is_unary: ClassVar[bool] = False
    """Whether its one message is a call of its own, and none of a stream."""
    answers_stand: ClassVar[bool] = True
    """Whether the messages that were answered need not be sent again when the rest is."""
    others: tuple[BatchSession, ...] = ()
    """Batches beside its own that it needs."""
    memory: SharedMemory | None = None
    """The shared memory that it names."""
    needs_refill = False
    """Whether that may hold something else by now than what the step is about."""
    refill: abc.Callable[[], object] | None = None
    """Fills it again."""
    is_aimed = False
    is_sent = False
    """Whether a message of it has gone out; before, nothing can have happened."""
    revision_after: int
    """The batch's revision when the step is done, once it is aimed."""

    def __init__(self, num_messages: int, is_mutation: bool, target: service_pb2.StepTarget) -> None:
        """`target` is empty, perhaps a part of the first message; aiming fills it."""
        self.num_messages = num_messages
        self.is_mutation = is_mutation
        self.target = target
        self.num_answered = 0
        self._is_committed = False
        self._offset = 0

    def aim(self, aim: Aim) -> None:
        """Names the batch and the revision it is meant for; a step that is aimed already stays as it is."""
        if self.is_aimed:
            return
        self.is_aimed = True
        self._offset = aim.offset
        self.revision_after = aim.revision + self.is_mutation
        target = self.target
        target.batch_id, target.uid, target.expected_revision = aim.batch_id, aim.uid, aim.revision
        if self.is_mutation:
            target.request_id = random_id()

    def aim_again(self, aim: Aim) -> None:
        """Names the batch as it was rebuilt: with the step's mutation if its answer had come."""
        self._offset = aim.offset
        self.target.uid = aim.uid
        self.target.expected_revision = aim.revision - self._is_committed
        self.revision_after = self.target.expected_revision + self.is_mutation
        self.rewind()

    @property
    def reading_target(self) -> service_pb2.StepTarget:
        """The batch as it is after the step's mutation, for the messages that carry none."""
        return service_pb2.StepTarget(
            batch_id=self.target.batch_id, uid=self.target.uid, expected_revision=self.revision_after
        )

    @abstractmethod
    def message(self, index: int) -> bytes:
        """The bytes of a message; the same ones each time."""

    def outgoing(self, index: int) -> bytes:
        """The bytes of a message that is sent now."""
        message = self.message(index)
        self.is_sent = True
        return message

    def receive(self, reply: bytes) -> Receipt:
        """Takes the reply to the first message that is not answered; ProtocolError where it breaks the contract."""
        receipt = self._read(self.num_answered, reply)
        self._is_committed |= receipt.is_commit
        self.num_answered += 1
        return receipt

    def rewind(self) -> None:
        """Prepares to be sent again on a new stream."""
        if not self.answers_stand:
            self.num_answered = 0

    def keep(self) -> None:
        """Copies what the messages are made of, before the caller may change it."""

    def note_failure(self, error: BaseException) -> None:
        """Hears how an attempt ended that was not answered in full."""

    def record(self, history: History[Any]) -> None:
        """Writes what the step did to the batch into its history."""

    @abstractmethod
    def _read(self, index: int, reply: bytes) -> Receipt: ...

    @abstractmethod
    def result(self) -> Result:
        """What the step gives its caller."""

    def _check_revision(self, revision: int, expected: int) -> None:
        if revision != expected:
            raise ProtocolError(f"{self.method} at revision {expected} was answered at revision {revision}")


class AccumulateStep(Step[None]):
    """Token ids are counted."""

    method = "Accumulate"

    def __init__(self, token_ids: StepTokens, rollback: TokenIds | None) -> None:
        self._request = service_pb2.AccumulateRequest()
        super().__init__(1, is_mutation=True, target=self._request.target)
        write_tokens(self._request.tokens, token_ids, rollback)

    def message(self, index: int) -> bytes:
        return self._request.SerializeToString()

    def record(self, history: History[Any]) -> None:
        assert isinstance(history, PenaltyHistory)
        history.count(self._request.tokens)

    def _read(self, index: int, reply: bytes) -> Receipt:
        response = parse(service_pb2.AccumulateResponse, reply)
        self._check_revision(response.revision, self.revision_after)
        return Receipt(response.revision, response.draining, is_commit=True)

    def result(self) -> None:
        return None


def write_tokens(update: service_pb2.TokenUpdate, token_ids: StepTokens, rollback: TokenIds | None) -> None:
    """One id a sequence from a flat list, any number a sequence from a list of lists."""
    if rollback is not None:
        update.rollback_counts = ids_to_bytes(rollback, "rollback")
    if _is_flat(token_ids):
        flat: Any = token_ids
        update.token_ids = ids_to_bytes(flat)
        return
    ragged: Any = token_ids
    update.token_ids = b"".join(ids_to_bytes(ids) for ids in ragged)
    update.row_splits = ids_to_bytes(list(itertools.accumulate((len(ids) for ids in ragged), initial=0)))


def most_tokens(token_ids: StepTokens | None) -> int:
    """How many of them one sequence gets at most."""
    if token_ids is None:
        return 0
    ragged: Any = token_ids
    return 1 if _is_flat(token_ids) else max(map(np.size, ragged))


def _is_flat(token_ids: StepTokens) -> bool:
    if not hasattr(token_ids, "__len__"):
        rule = "token ids must be a flat list of integers, or a list of them for each sequence"
        raise TypeError(f"{rule}, got {type(token_ids).__name__}")
    return not len(token_ids) or isinstance(token_ids[0], (int, np.integer)) or np.ndim(token_ids[0]) == 0
