"""What a batch has been through, as its caller knows it from the replies: all that a rebuild needs. No I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections import abc

    from logitd.client import _types as types


class KeptSequence(ABC):
    """A sequence and what it has output."""

    @property
    @abstractmethod
    def sequence_id(self) -> str:
        """Its name in the batch."""

    @abstractmethod
    def fork(self, sequence_id: str) -> Self:
        """The same under this name; the two go separate ways from here."""

    @abstractmethod
    def to_proto(self) -> types_pb2.Sequence:
        """The sequence as CreateBatch takes it to go on with it."""


Kept = TypeVar("Kept", bound=KeptSequence)


class History(Generic[Kept]):
    """The sequences of a batch in batch order, and how it was created."""

    def __init__(self, request: service_pb2.CreateBatchRequest, sequences: abc.Sequence[Kept]) -> None:
        self._request = service_pb2.CreateBatchRequest()
        self._request.CopyFrom(request)
        del self._request.sequences[:]
        self._sequences = list(sequences)

    @property
    def sequences(self) -> list[Kept]:
        """The sequences as they stand."""
        self._settle()
        return self._sequences

    def creation(self, create_key: bytes) -> service_pb2.CreateBatchRequest:
        """The request that creates the batch as it stands."""
        request = service_pb2.CreateBatchRequest()
        request.CopyFrom(self._request)
        request.create_key = create_key
        request.sequences.extend(sequence.to_proto() for sequence in self.sequences)
        return request

    def filter(self, selections: abc.Iterable[tuple[str, str]]) -> None:
        """Keeps sequences by their ids, in this order, each under its new id."""
        known = {sequence.sequence_id: sequence for sequence in self.sequences}
        self._sequences = [known[old].fork(new) for old, new in selections]

    def merge(self, other: History[Kept]) -> None:
        """Appends the sequences of another batch."""
        self._sequences = self.sequences + other.sequences

    def _settle(self) -> None:
        """Takes in what was only noted."""


def renamed(message: types_pb2.Sequence, sequence_id: str) -> types_pb2.Sequence:
    """A copy under another id."""
    copy = types_pb2.Sequence()
    copy.CopyFrom(message)
    copy.sequence_id = sequence_id
    return copy


def effective_sequences(
    request: service_pb2.CreateBatchRequest, info: types.BatchInfo
) -> abc.Iterator[types_pb2.Sequence]:
    """The sequences of a creation with their effective max_new_tokens.

    After a restart the server's default may be another one, and less than what was output already.
    """
    limits = {sequence.sequence_id: sequence.max_new_tokens for sequence in info.sequences}
    for given in request.sequences:
        message = renamed(given, given.sequence_id)
        limit = limits.get(given.sequence_id)
        if limit is not None:
            message.max_new_tokens = limit
        yield message
