"""A penalty batch: one row a sequence, and the penalty state behind it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from logitd.sampling import ParameterError, PenaltyOrchestrator
from logitd.service.batch import Batch
from logitd.service.codec import read_int32, write_int32
from logitd.service.errors import InvalidField
from logitd.service.names import PROFILE_NAMES
from logitd.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from logitd.service.creation import BatchPlan, SequencePlan
    from logitd.v1 import service_pb2

# Steps back to which a difference of edits can be asked for, and the keys that all of them may have touched.
_MAX_CHANGES = 64
_MAX_CHANGED_KEYS = 65_536
# Where the library's names of arguments stand in a TokenUpdate.
_FIELD_OF_ARGUMENT = {"rollback": "rollback_counts"}


class _Change(NamedTuple):
    """What a token update changed: the keys it touched, and the output lengths before it."""

    touched: NDArray[np.int64]
    output_lengths: NDArray[np.int64]


class _LengthLimits(NamedTuple):
    """What every step asks of the sequences: max_new_tokens of each, int64 [R], and of all together."""

    sequences: tuple[SequencePlan, ...]
    most: NDArray[np.int64]
    total: int

    @classmethod
    def of(cls, sequences: tuple[SequencePlan, ...]) -> _LengthLimits:
        most = [sequence.message.max_new_tokens for sequence in sequences]
        return cls(sequences, np.array(most, np.int64), sum(most))


class NextState(NamedTuple):
    """A state that is not committed yet, and what it changes."""

    state: PenaltyOrchestrator
    change: _Change


class PenaltyBatch(Batch):
    """Sequences in batch order; `state` has a row for each."""

    kind = types_pb2.BATCH_KIND_PENALTY

    def __init__(self, plan: BatchPlan) -> None:
        super().__init__(plan)
        rows = [sequence.row_start for sequence in plan.sequences]
        self.state = PenaltyOrchestrator.create(PROFILE_NAMES[plan.profile], plan.vocab_size, rows)
        self._limits = _LengthLimits.of(self.sequences)
        # The last is that of the present revision; none reaches back over a filter or a merge.
        self._changes: deque[_Change] = deque()
        self._num_changed_keys = 0

    @property
    def num_rows(self) -> int:
        return len(self.sequences)

    @property
    def output_bytes(self) -> int:
        return self.state.num_bytes + sum(array.nbytes for change in self._changes for array in change)

    def compute_next(self, path: str, tokens: service_pb2.TokenUpdate) -> NextState:
        """The state after a token update, aside; raises `InvalidField`."""
        token_ids = read_int32(f"{path}.token_ids", tokens.token_ids)
        self._check_total(path, len(token_ids))
        row_splits = read_int32(f"{path}.row_splits", tokens.row_splits) if tokens.row_splits else None
        rollback = read_int32(f"{path}.rollback_counts", tokens.rollback_counts) if tokens.rollback_counts else None
        try:
            state = self.state.accumulate(token_ids, row_splits, rollback=rollback)
        except ParameterError as error:
            name, bracket, index = error.field.partition("[")
            field = f"{path}.{_FIELD_OF_ARGUMENT.get(name, name)}{bracket}{index}"
            raise InvalidField(field, error.rule, error.got) from error
        self._check_lengths(path, state.output_lengths)
        return NextState(state, _Change(state.touched, self.state.output_lengths))

    def advance(self, following: NextState) -> None:
        """Take the next state; the caller commits."""
        self.state = following.state
        self._changes.append(following.change)
        self._num_changed_keys += len(following.change.touched)
        while len(self._changes) > _MAX_CHANGES or self._num_changed_keys > _MAX_CHANGED_KEYS:
            self._num_changed_keys -= len(self._changes.popleft().touched)

    def changes_since(
        self, revision: int, following: NextState | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """What changed since a revision, up to `following`: the keys touched, and the output lengths then.

        None if it is not remembered.
        """
        changes = [*self._changes] if following is None else [*self._changes, following.change]
        steps = self.revision + (following is not None) - revision
        if steps == 0:
            state = self.state if following is None else following.state
            return np.empty(0, np.int64), state.output_lengths
        if not 0 < steps <= len(changes):
            return None
        first, *others = changes[-steps:]
        if not others:
            return first
        return np.unique(np.concatenate([first.touched, *(c.touched for c in others)])), first.output_lengths

    def filter(self, places: Sequence[int], sequences: tuple[SequencePlan, ...]) -> None:
        self.state = self.state.filter(places)
        self._forget_changes()
        self.sequences = sequences

    def merge(self, other: Self) -> None:
        self.state = self.state.merge(other.state)
        self._forget_changes()
        self.sequences += other.sequences

    def row_layouts(self) -> Sequence[types_pb2.RowLayout]:
        return [
            types_pb2.RowLayout(sequence_id=sequence.message.sequence_id, first_row=row, row_count=1)
            for row, sequence in enumerate(self.sequences)
        ]

    def sequence_messages(self, *, is_full: bool) -> Sequence[types_pb2.Sequence]:
        return [self._sequence_message(row, is_full) for row in range(self.num_rows)]

    def _sequence_message(self, row: int, is_full: bool) -> types_pb2.Sequence:
        message = types_pb2.Sequence()
        message.CopyFrom(self.sequences[row].message)
        if is_full:
            message.prompt_token_ids = write_int32(self.sequences[row].prompt_token_ids)
            message.output_token_ids = write_int32(self.state.output_token_ids(row))
        return message

    def _forget_changes(self) -> None:
        self._changes.clear()
        self._num_changed_keys = 0

    def _check_total(self, path: str, num_tokens: int) -> None:
        # Before any work, which grows with the tokens: more than all sequences may have is too many for some.
        most = self._length_limits.total
        if num_tokens > most:
            rule = f"must keep every sequence within its max_new_tokens, {most} in all"
            raise InvalidField(f"{path}.token_ids", rule, f"{num_tokens} token ids")

    def _check_lengths(self, path: str, lengths: NDArray[np.int64]) -> None:
        most = self._length_limits.most
        is_over = lengths > most
        if is_over.any():
            row = int(is_over.argmax())
            rule = f"must keep sequence {row} within its max_new_tokens, {most[row]}"
            raise InvalidField(f"{path}.token_ids", rule, f"{lengths[row]} output tokens")

    @property
    def _length_limits(self) -> _LengthLimits:
        if self._limits.sequences is not self.sequences:
            self._limits = _LengthLimits.of(self.sequences)
        return self._limits
