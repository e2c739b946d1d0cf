"""FilterBatch and MergeBatches: which sequences a batch has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from logitd.service.codec import parse
from logitd.service.errors import BatchesDiffer, InvalidField, TooManyRows
from logitd.service.identity import MAX_NAME_LENGTH, Standing, read_target
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logitd.service.batch import Batch
    from logitd.service.creation import SequencePlan
    from logitd.service.operations.context import OperationContext

_FILTER = "FilterBatch"
_MERGE = "MergeBatches"


def filter_batch(context: OperationContext, data: bytes) -> bytes:
    """Keep the named sequences in the named order; a sequence that is named again is forked."""
    request = parse(service_pb2.FilterBatchRequest, data)
    target = read_target(request.target, is_mutation=True)
    batch = context.registry.find(target.batch_id, target.uid)
    if batch.check_mutation(target, _FILTER) is Standing.RETRY:
        return batch.stored_reply
    _check_rows(context, len(request.sequences))  # before anything is kept of each
    places, sequences = _select(batch, request.sequences)
    _check_room(context, sequences, batch.reserved_bytes)
    batch.filter(places, sequences)
    reply = service_pb2.FilterBatchResponse(
        revision=batch.revision + 1, rows=batch.row_layouts(), draining=context.is_draining
    ).SerializeToString()
    batch.commit(target, _FILTER, reply)
    return reply


def merge_batches(context: OperationContext, data: bytes) -> bytes:
    """Append the sequences of `source` to `target` and let `source` go."""
    request = parse(service_pb2.MergeBatchesRequest, data)
    target = read_target(request.target, is_mutation=True)
    source_target = read_target(request.source, is_mutation=False, path="source")
    batch = context.registry.find(target.batch_id, target.uid)
    if batch.check_mutation(target, _MERGE) is Standing.RETRY:
        return batch.stored_reply
    if source_target.batch_id == target.batch_id:
        raise InvalidField("source.batch_id", "must be another batch than the target", source_target.batch_id)
    source = context.registry.find(source_target.batch_id, source_target.uid)
    source.check_reading(source_target)
    _check_mergeable(batch, source)
    _check_rows(context, batch.max_rows + source.max_rows)
    batch.merge(source)
    context.registry.remove(source_target.batch_id)
    reply = service_pb2.MergeBatchesResponse(
        revision=batch.revision + 1, rows=batch.row_layouts(), draining=context.is_draining
    ).SerializeToString()
    batch.commit(target, _MERGE, reply)
    return reply


def _select(
    batch: Batch, selections: Iterable[service_pb2.SequenceSelection]
) -> tuple[list[int], tuple[SequencePlan, ...]]:
    places_by_id = {sequence.message.sequence_id: place for place, sequence in enumerate(batch.sequences)}
    places: list[int] = []
    sequences: list[SequencePlan] = []
    taken: set[str] = set()
    for index, selection in enumerate(selections):
        path = f"sequences[{index}]"
        if selection.sequence_id not in places_by_id:
            raise InvalidField(f"{path}.sequence_id", "must name a sequence of the batch", selection.sequence_id)
        place = places_by_id[selection.sequence_id]
        name = selection.new_sequence_id or selection.sequence_id
        if len(name) > MAX_NAME_LENGTH:
            raise InvalidField(f"{path}.new_sequence_id", f"must be at most {MAX_NAME_LENGTH} characters", name)
        if name in taken:
            raise InvalidField(f"{path}.new_sequence_id", "must be unique within the batch", name)
        taken.add(name)
        places.append(place)
        sequences.append(_rename(batch.sequences[place], name))
    return places, tuple(sequences)


def _rename(sequence: SequencePlan, name: str) -> SequencePlan:
    if name == sequence.message.sequence_id:
        return sequence
    message = types_pb2.Sequence()
    message.CopyFrom(sequence.message)
    message.sequence_id = name
    return replace(sequence, message=message)


def _check_room(context: OperationContext, sequences: tuple[SequencePlan, ...], reserved_bytes: int) -> None:
    # A fork is a newcomer: it may be refused. Who only stays or leaves never is.
    _check_rows(context, sum(sequence.max_rows for sequence in sequences))
    growth = sum(sequence.reserved_bytes for sequence in sequences) - reserved_bytes
    if growth > 0:
        context.registry.check_growth(growth)


def _check_rows(context: OperationContext, rows: int) -> None:
    most = context.config.max_rows_per_batch
    if rows > most:
        raise TooManyRows(most, rows)


def _check_mergeable(target: Batch, source: Batch) -> None:
    for name in ("kind", "vocab_size", "profile", "beam_rule", "allow_penalty_extension"):
        ours, theirs = getattr(target.plan, name), getattr(source.plan, name)
        if ours != theirs:
            raise BatchesDiffer(f"both batches must have the same {name}, got {ours} and {theirs}")
    shared = {s.message.sequence_id for s in target.sequences} & {s.message.sequence_id for s in source.sequences}
    if shared:
        raise BatchesDiffer(f"the batches must not share a sequence_id, got {min(shared)!r} in both")
