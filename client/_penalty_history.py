"""What a penalty batch has been through. No I/O."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from logitd.client._arrays import ids_from_bytes, ids_to_bytes
from logitd.client._history import History, KeptSequence, effective_sequences, renamed

if TYPE_CHECKING:
    from logitd.client import _types as types
    from logitd.v1 import service_pb2, types_pb2

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


class PenaltyHistory(History[PenaltySequence]):
    """Of a penalty batch."""

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
        if tokens.rollback_counts:
            for sequence, dropped in zip(self.sequences, ids_from_bytes(tokens.rollback_counts).tolist(), strict=True):
                del sequence.output[len(sequence.output) - dropped :]
        ids = ids_from_bytes(tokens.token_ids).tolist()
        if not tokens.row_splits:
            for sequence, token_id in zip(self.sequences, ids, strict=True):
                sequence.output.append(token_id)
            return
        splits = ids_from_bytes(tokens.row_splits).tolist()
        for sequence, (start, end) in zip(self.sequences, pairwise(splits), strict=True):
            sequence.output.extend(ids[start:end])

    def most_edits(self) -> list[int]:
        """How many edits each row can have at most."""
        return [sequence.num_fixed + len(sequence.output) for sequence in self.sequences]


def _count_fixed(message: types_pb2.Sequence, profile: str | None) -> int:
    prompt = len(ids_from_bytes(message.prompt_token_ids)) if profile in _PROFILES_THAT_COUNT_PROMPTS else 0
    return prompt + len(message.eos_token_ids) + len(message.stop_token_ids)
