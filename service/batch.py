"""What every batch has: an identity, a configuration, a revision, and the record that makes a retry safe."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from logitd.service.errors import RevisionMismatch, UidMismatch
from logitd.service.identity import UID_BYTES, Mutation, Standing, Target
from logitd.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitd.service.creation import BatchPlan, SequencePlan


class _Totals(NamedTuple):
    """Sums over sequences, which every creation and every scrape asks of all batches."""

    sequences: tuple[SequencePlan, ...]
    reserved_bytes: int
    prompt_bytes: int

    @classmethod
    def of(cls, sequences: tuple[SequencePlan, ...]) -> _Totals:
        return cls(
            sequences,
            sum(sequence.reserved_bytes for sequence in sequences),
            sum(sequence.prompt_token_ids.nbytes for sequence in sequences),
        )


class Batch(ABC):
    """One batch; the subclasses add the state and its steps.

    A step computes the next state aside and then calls `commit`, so that a failure leaves the batch as it was. All
    methods run in the worker's turn, which puts the messages of a batch in order.
    """

    kind: ClassVar[types_pb2.BatchKind]

    def __init__(self, plan: BatchPlan) -> None:
        # What a rebuild brings along is in the state by now: the batch keeps it only once.
        self.plan = replace(plan, sequences=())
        self.sequences = tuple(sequence.without_history() for sequence in plan.sequences)
        self.uid = secrets.token_bytes(UID_BYTES)
        self.revision = 0
        self.last_mutation: Mutation | None = None
        self._totals = _Totals.of(self.sequences)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of state when every sequence has output all that it may."""
        return self._current_totals().reserved_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of state now: the prompts, what was output, and the reply kept for a retry."""
        reply = 0 if self.last_mutation is None else len(self.last_mutation.reply)
        return self._current_totals().prompt_bytes + reply + self.output_bytes

    @property
    def max_rows(self) -> int:
        """Rows at most."""
        return sum(sequence.max_rows for sequence in self.sequences)

    def check_uid(self, uid: bytes) -> None:
        """Raise `UidMismatch` unless `uid` names this life of the id."""
        if uid != self.uid:
            raise UidMismatch

    def check_reading(self, target: Target) -> None:
        """Raise `RevisionMismatch` unless the batch stands at the revision that `target` reads."""
        if target.expected_revision != self.revision:
            raise RevisionMismatch(target.expected_revision, self.revision)

    def check_mutation(self, target: Target, method: str) -> Standing:
        """How a mutation stands to the batch; raises `RevisionMismatch` if it is neither current nor a retry."""
        if target.expected_revision == self.revision:
            return Standing.CURRENT
        last = self.last_mutation
        was_next = target.expected_revision == self.revision - 1
        if was_next and last is not None and (last.method, last.request_id) == (method, target.request_id):
            return Standing.RETRY
        raise RevisionMismatch(target.expected_revision, self.revision)

    @property
    def stored_reply(self) -> bytes:
        """The reply of the last mutation, for its retry."""
        return self.last_mutation.reply if self.last_mutation is not None else b""

    def commit(self, target: Target, method: str, reply: bytes = b"") -> None:
        """Count the revision up and remember the mutation; the state is swapped in the same job."""
        self.revision += 1
        self.last_mutation = Mutation(method, target.request_id, reply)

    def describe(self, view: int, idle_timeout_seconds: float) -> types_pb2.Batch:
        """The batch as a message, in a BatchView."""
        message = self.summarise(idle_timeout_seconds)
        message.rows.extend(self.row_layouts())
        message.sequences.extend(self.sequence_messages(is_full=view == types_pb2.BATCH_VIEW_FULL))
        return message

    def summarise(self, idle_timeout_seconds: float) -> types_pb2.Batch:
        """The batch as a message without rows and sequences."""
        return types_pb2.Batch(
            batch_id=self.plan.batch_id,
            uid=self.uid,
            revision=self.revision,
            kind=self.kind,
            vocab_size=self.plan.vocab_size,
            profile=self.plan.profile,
            beam_rule=self.plan.beam_rule,
            allow_penalty_extension=self.plan.allow_penalty_extension,
            idle_timeout_seconds=idle_timeout_seconds,
        )

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """The live rows."""

    @property
    @abstractmethod
    def output_bytes(self) -> int:
        """Bytes of what the steps have left behind."""

    @abstractmethod
    def row_layouts(self) -> Sequence[types_pb2.RowLayout]:
        """The rows of every sequence, in batch order."""

    @abstractmethod
    def filter(self, places: Sequence[int], sequences: tuple[SequencePlan, ...]) -> None:
        """Keep the sequences at these places, in this order, under these plans."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Append the sequences of a batch that does not differ in what its plan says of all sequences."""

    @abstractmethod
    def sequence_messages(self, *, is_full: bool) -> Sequence[types_pb2.Sequence]:
        """The sequences in batch order, with all that a rebuild needs if `is_full`."""

    def _current_totals(self) -> _Totals:
        if self._totals.sequences is not self.sequences:
            self._totals = _Totals.of(self.sequences)
        return self._totals
