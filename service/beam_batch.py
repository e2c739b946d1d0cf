"""A beam batch: a search a sequence, and the searches behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from logitd.sampling import ParameterError, PenaltyOrchestrator, RowStart
from logitd.sampling.beam import BeamSearch
from logitd.sampling.beam.pool import hypotheses_of
from logitd.service.batch import Batch
from logitd.service.beam_messages import locate_error, read_request, write_request
from logitd.service.codec import write_int32
from logitd.service.names import PROFILE_NAMES, RULES_BY_NUMBER
from logitd.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitd.sampling.beam import RequestStart
    from logitd.sampling.beam.rule import RequestState
    from logitd.service.creation import BatchPlan, SequencePlan

# A tuple of four, with its token id and its log-probability.
_LINK_BYTES = 144


class BeamBatch(Batch):
    """Sequences in batch order; `search` has a request for each, whose rows are its live beams."""

    kind = types_pb2.BATCH_KIND_BEAM

    def __init__(self, plan: BatchPlan) -> None:
        super().__init__(plan)
        requests = [
            read_request(f"sequences[{i}].beams", sequence, plan.vocab_size)
            for i, sequence in enumerate(plan.sequences)
        ]
        try:
            _validate_each(plan, requests)
            self.search = BeamSearch.start(
                RULES_BY_NUMBER[plan.beam_rule].name,
                plan.vocab_size,
                requests,
                _start_penalties(plan, requests),
                allow_penalty_extension=plan.allow_penalty_extension,
            )
        except ParameterError as error:
            raise locate_error(error) from error

    @property
    def num_rows(self) -> int:
        return self.search.num_rows

    @property
    def output_bytes(self) -> int:
        penalties = 0 if self.search.penalties is None else self.search.penalties.num_bytes
        return penalties + sum(_count_bytes(request) for request in self.search.requests)

    def advance(self, search: BeamSearch, remaining: Sequence[int]) -> None:
        """Take the next search, and the sequences (by their place before) that go on in it."""
        self.search = search
        if len(remaining) < len(self.sequences):
            self.sequences = tuple(self.sequences[index] for index in remaining)

    def filter(self, places: Sequence[int], sequences: tuple[SequencePlan, ...]) -> None:
        self.search = self.search.filter(places)
        self.sequences = sequences

    def merge(self, other: Self) -> None:
        self.search = self.search.merge(other.search)
        self.sequences += other.sequences

    def row_layouts(self) -> Sequence[types_pb2.RowLayout]:
        return write_layouts(self.sequences, self.search)

    def sequence_messages(self, *, is_full: bool) -> Sequence[types_pb2.Sequence]:
        return [self._sequence_message(index, is_full) for index in range(len(self.sequences))]

    def _sequence_message(self, index: int, is_full: bool) -> types_pb2.Sequence:
        message = types_pb2.Sequence()
        message.CopyFrom(self.sequences[index].message)
        if is_full:
            message.prompt_token_ids = write_int32(self.sequences[index].prompt_token_ids)
            message.beams.CopyFrom(write_request(self.search.snapshot(index)))
        return message


def write_layouts(sequences: Sequence[SequencePlan], search: BeamSearch) -> list[types_pb2.RowLayout]:
    """The rows of each sequence's search."""
    splits = search.row_splits.tolist()
    return [
        types_pb2.RowLayout(
            sequence_id=sequence.message.sequence_id,
            first_row=splits[index],
            row_count=splits[index + 1] - splits[index],
        )
        for index, sequence in enumerate(sequences)
    ]


def _count_bytes(request: RequestState) -> int:
    # Beams that share a prefix count it each: to walk the links would cost what they hold.
    links = request.length * len(request.beams) * _LINK_BYTES
    hypotheses = hypotheses_of(request.pool)
    arrays = (array for h in hypotheses for array in (h.token_ids, h.parent_chain, h.token_log_probs))
    return links + sum(array.nbytes for array in arrays if array is not None)


def _validate_each(plan: BatchPlan, requests: Sequence[RequestStart]) -> None:
    # The search knows only that somebody asks for penalties; here it is known who.
    for index, (sequence, request) in enumerate(zip(plan.sequences, requests, strict=True)):
        try:
            RULES_BY_NUMBER[plan.beam_rule].validate(
                request.parameters,
                plan.vocab_size,
                has_penalties=sequence.row_start.parameters.is_required,
                allow_penalty_extension=plan.allow_penalty_extension,
            )
        except ParameterError as error:
            raise error.within(f"requests[{index}]") from error


def _start_penalties(plan: BatchPlan, requests: Sequence[RequestStart]) -> PenaltyOrchestrator | None:
    # None where nobody asks for any, so that neither the step nor the VLLM rules meet penalties that do nothing.
    starts = [sequence.row_start for sequence in plan.sequences]
    if not any(start.parameters.is_required for start in starts):
        return None
    rows = [
        RowStart(start.parameters, start.prompt_token_ids, beam_tokens)
        for start, request in zip(starts, requests, strict=True)
        for beam_tokens in ([beam.token_ids for beam in request.live_beams] or [np.empty(0, np.int32)])
    ]
    return PenaltyOrchestrator.create(PROFILE_NAMES[plan.profile], plan.vocab_size, rows)
