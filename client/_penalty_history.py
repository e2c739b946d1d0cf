"""What a penalty batch has been through. No I/O."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

from logitd.client._arrays import ids_from_bytes, ids_to_bytes
from logitd.client._history import History, KeptSequence, effective_sequences, renamed

if TYPE_CHECKING:
    from collections import abc

    from logitd.client import _types as types
    from logitd.v1 import service_pb2, types_pb2

_MOST_NOTED = 64
"""Steps whose tokens are noted and not dealt out."""
_PROFILES_THAT_COUNT_PROMPTS = ("VLLM", "HF")


@dataclass(frozen=True, slots=True)
class PenaltySequence(KeptSequence):
    """A sequence of a penalty batch."""

    message: types_pb2.Sequence
    """As it was created, without its output."""
    output: array[int]
    num_fixed: int
    """Ids beside the output that may have an edit: the prompt's where it counts, EOS and stop ids."""

    @property
    def sequence_id(self) -> str:
        return self.message.sequence_id

    def fork(self, sequence_id: str) -> PenaltySequence:
        return PenaltySequence(renamed(self.message, sequence_id), self.output[:], self.num_fixed)

    def to_proto(self) -> types_pb2.Sequence:
        message = renamed(self.message, self.sequence_id)
        message.output_token_ids = ids_to_bytes(self.output)
        return message


class _Counts(NamedTuple):
    each: list[int]
    greatest: int
    total: int


class PenaltyHistory(History[PenaltySequence]):
    """Of a penalty batch."""

    def __init__(self, request: service_pb2.CreateBatchRequest, sequences: abc.Sequence[PenaltySequence]) -> None:
        super().__init__(request, sequences)
        # A step only notes its tokens, in microseconds; they are dealt out to the sequences by the dozen.
        self._noted: list[service_pb2.TokenUpdate] = []
        self._most_noted = 0
        # The edits that each row can have at most but for the noted steps, once they were asked for.
        self._settled_counts: _Counts | None = None

    @classmethod
    def of(cls, request: service_pb2.CreateBatchRequest, info: types.BatchInfo) -> PenaltyHistory:
        """Of a batch that was just created."""
        sequences = []
        for message in effective_sequences(request, info):
            output = array("i", ids_from_bytes(message.output_token_ids).tolist())
            message.output_token_ids = b""
            sequences.append(PenaltySequence(message, output, _count_fixed(message, info.profile)))
        return cls(request, sequences)

    def count(self, tokens: service_pb2.TokenUpdate) -> None:
        """Each sequence drops its last tokens and outputs others."""
        self._noted.append(tokens)
        self._most_noted += len(tokens.token_ids) if tokens.row_splits else 1
        if len(self._noted) >= _MOST_NOTED:
            self._settle()

    def most_edits(self, added: int) -> list[int]:
        """How many edits each row can have at most when it outputs `added` tokens more."""
        added += self._most_noted
        return [count + added for count in self._settled.each]

    def most_edits_of_a_row(self, added: int) -> int:
        """The greatest of `most_edits`."""
        return self._settled.greatest + self._most_noted + added

    def most_edits_in_all(self, added: int) -> int:
        """The sum of `most_edits`."""
        return self._settled.total + len(self._sequences) * (self._most_noted + added)

    @property
    def _settled(self) -> _Counts:
        if self._settled_counts is None:
            each = [sequence.num_fixed + len(sequence.output) for sequence in self._sequences]
            self._settled_counts = _Counts(each, max(each, default=0), sum(each))
        return self._settled_counts

    def _settle(self) -> None:
        noted, self._noted, self._most_noted, self._settled_counts = self._noted, [], 0, None
        outputs = [sequence.output for sequence in self._sequences]
        for is_plain, updates in groupby(noted, _is_plain):
            if is_plain:
                _append_columns(outputs, [tokens.token_ids for tokens in updates])
            else:
                for tokens in updates:
                    _update(outputs, tokens)


def _is_plain(tokens: service_pb2.TokenUpdate) -> bool:
    # One token a sequence, and nothing dropped.
    return not tokens.row_splits and not tokens.rollback_counts


def _append_columns(outputs: list[array[int]], steps: list[bytes]) -> None:
    # steps: each int32 [S], for S outputs
    columns = ids_from_bytes(b"".join(steps)).reshape(len(steps), len(outputs)).T
    for output, column in zip(outputs, columns, strict=True):
        output.frombytes(column.tobytes())


def _update(outputs: list[array[int]], tokens: service_pb2.TokenUpdate) -> None:
    if tokens.rollback_counts:
        for output, dropped in zip(outputs, ids_from_bytes(tokens.rollback_counts).tolist(), strict=True):
            del output[len(output) - dropped :]
    ids = ids_from_bytes(tokens.token_ids).tolist()
    splits = ids_from_bytes(tokens.row_splits).tolist() or range(len(ids) + 1)
    for output, (start, end) in zip(outputs, pairwise(splits), strict=True):
        output.extend(ids[start:end])


def _count_fixed(message: types_pb2.Sequence, profile: str | None) -> int:
    prompt = len(ids_from_bytes(message.prompt_token_ids)) if profile in _PROFILES_THAT_COUNT_PROMPTS else 0
    return prompt + len(message.eos_token_ids) + len(message.stop_token_ids)
