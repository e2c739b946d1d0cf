"""BeamStep: logits of the live beams in, the next beams out; a step may come in chunks of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from logitd.sampling.beam import LogitsError
from logitd.service.beam_batch import write_layouts
from logitd.service.beam_messages import write_search_step
from logitd.service.codec import parse_step, write_float64, write_int32
from logitd.service.errors import InvalidField, InvalidLogits
from logitd.service.identity import Standing, Target, read_target
from logitd.service.rows import check_rows
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from logitd.sampling.beam import BatchStep, BeamSearch
    from logitd.service.beam_batch import BeamBatch
    from logitd.service.frames import Payload
    from logitd.service.operations.context import OperationContext

_METHOD = "BeamStep"


@dataclass(frozen=True, slots=True)
class _Chunk:
    first_row: int
    logits: torch.Tensor


class BeamStepStream:
    """One stream's messages, each a step or a chunk of one; chunks are dropped with the stream."""

    def __init__(self, context: OperationContext) -> None:
        self._context = context
        self._target: Target | None = None
        self._chunks: list[_Chunk] = []

    def step(self, data: bytes) -> bytes:
        """Commit a complete step and answer it, or acknowledge a chunk; a retry gets the stored reply."""
        logits_field = service_pb2.BeamStepRequest.LOGITS_FIELD_NUMBER
        request, payload = parse_step(service_pb2.BeamStepRequest, data, logits_field)
        target = read_target(request.target, is_mutation=True)
        batch = self._context.find_beam_batch(target, _METHOD)
        if batch.check_mutation(target, _METHOD) is Standing.RETRY:
            return self._acknowledge(batch) if request.has_more_chunks else batch.stored_reply
        chunks = self._gather(batch, target, request, payload)
        if request.has_more_chunks:
            if request.finish_sequence_ids:
                raise InvalidField("finish_sequence_ids", "must come in the last chunk", "some before it")
            self._target, self._chunks = target, chunks
            return self._acknowledge(batch)
        reply = self._commit(batch, target, chunks, _read_finish(batch, request))
        self._target, self._chunks = None, []
        return reply

    def _gather(
        self,
        batch: BeamBatch,
        target: Target,
        request: service_pb2.BeamStepRequest,
        payload: Payload | None,
    ) -> list[_Chunk]:
        # The chunks of this step so far; those of another step that was never completed are let go.
        chunks = self._chunks if target == self._target else []
        if not request.HasField("logits"):
            return chunks
        check_rows("logits", request.first_row, request.logits.shape, batch.num_rows)
        logits = self._context.read_logits(batch, request.logits, payload)
        # The caller may change or truncate its memory once the chunk is acknowledged.
        is_kept = logits.is_shared and request.has_more_chunks
        chunk = _Chunk(request.first_row, logits.view_tensor().clone() if is_kept else logits.view_tensor())
        for other in chunks:
            _check_fits("logits", chunk, other)
        return [*chunks, chunk]

    def _commit(self, batch: BeamBatch, target: Target, chunks: list[_Chunk], finish: list[int]) -> bytes:
        search, step = _advance(batch, chunks, finish)
        sequences = [batch.sequences[index] for index in step.remaining]
        response = service_pb2.BeamStepResponse(
            revision=batch.revision + 1,
            draining=self._context.is_draining,
            parent_rows=write_int32(step.parent_rows),
            token_ids=write_int32(step.token_ids),
            scores=write_float64(step.scores),
            rows=write_layouts(sequences, search),
            searches=[write_search_step(batch.sequences[s.index].message, s) for s in step.requests],
        )
        reply = self._context.check_reply(response.SerializeToString())
        batch.advance(search, step.remaining)
        batch.commit(target, _METHOD, reply)
        return reply

    def _acknowledge(self, batch: BeamBatch) -> bytes:
        response = service_pb2.BeamStepResponse(
            revision=batch.revision, draining=self._context.is_draining, is_chunk_acknowledgement=True
        )
        return response.SerializeToString()


def _advance(batch: BeamBatch, chunks: list[_Chunk], finish: list[int]) -> tuple[BeamSearch, BatchStep]:
    if not chunks and len(finish) == len(batch.sequences):
        return batch.search.finish(finish)
    logits = _join(chunks, batch.num_rows)
    try:
        return batch.search.step(logits, finish)
    except LogitsError as error:
        place = "" if error.row is None else f"[{error.row}, {error.token_id}]"
        raise InvalidLogits(f"logits{place}", error.rule, error.got) from error


def _join(chunks: list[_Chunk], num_rows: int) -> torch.Tensor:
    # -> [num_rows, W]
    covered = sum(len(chunk.logits) for chunk in chunks)
    if covered != num_rows:
        raise InvalidField("logits.shape[0]", f"must cover all {num_rows} live rows once", f"{covered} rows")
    ordered = sorted(chunks, key=lambda chunk: chunk.first_row)
    return ordered[0].logits if len(ordered) == 1 else torch.cat([chunk.logits for chunk in ordered])


def _check_fits(path: str, chunk: _Chunk, other: _Chunk) -> None:
    if (chunk.logits.dtype, chunk.logits.shape[1]) != (other.logits.dtype, other.logits.shape[1]):
        rule = f"must have the type and columns of the chunks before it, {other.logits.dtype} {other.logits.shape[1]}"
        raise InvalidField(path, rule, f"{chunk.logits.dtype} {chunk.logits.shape[1]}")
    is_before = chunk.first_row + len(chunk.logits) <= other.first_row
    is_after = other.first_row + len(other.logits) <= chunk.first_row
    if not (is_before or is_after):
        raise InvalidField("first_row", "must name rows that no chunk before it had", chunk.first_row)


def _read_finish(batch: BeamBatch, request: service_pb2.BeamStepRequest) -> list[int]:
    places = {sequence.message.sequence_id: index for index, sequence in enumerate(batch.sequences)}
    finish: list[int] = []
    for index, sequence_id in enumerate(request.finish_sequence_ids):
        if sequence_id not in places:
            raise InvalidField(f"finish_sequence_ids[{index}]", "must name a search of the batch", sequence_id)
        if places[sequence_id] in finish:
            raise InvalidField(f"finish_sequence_ids[{index}]", "must name each search once", sequence_id)
        finish.append(places[sequence_id])
    return finish
