"""Right requests of every kind, which the tests of wrong input spoil, and the batches that they are for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from helpers.wire import OpenBatch, Wire, creation, ints, tensor, token_update
from logitd.v1 import service_pb2, types_pb2
from logitd.v1.types_pb2 import BeamParameters, PenaltyParameters, Sequence

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

VOCAB_SIZE = 6
PENALTY_LOGITS = torch.tensor([[2.0, -1.0, 0.5, 0.25, -0.75, 1.0], [0.0, 1.0, -2.0, 3.0, -4.0, 5.0]])
# EOS (5) comes second: one of the first two candidates, so that it is finalised at once.
BEAM_LOGITS = torch.tensor([[1.0, 3.0, -1.0, 0.5, -2.0, 2.0]])
LAST_REQUEST_ID = b"the last request"


def penalty_creation(**fields: Any) -> service_pb2.CreateBatchRequest:
    """Two sequences, one with every penalty and a history, one with nothing."""
    asked = PenaltyParameters(repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.25, min_new_tokens=6)
    full = Sequence(
        sequence_id="a",
        prompt_token_ids=ints(0, 1),
        output_token_ids=ints(2, 2, 3),
        penalties=asked,
        max_new_tokens=10,
        eos_token_ids=[5],
        stop_token_ids=[4],
    )
    return creation(full, Sequence(sequence_id="b"), **fields)


def beam_creation(**fields: Any) -> service_pb2.CreateBatchRequest:
    """Two searches by the HF rule, of widths 2 and 3, the first with a penalty."""
    first = Sequence(
        sequence_id="a",
        prompt_token_ids=ints(0, 1),
        penalties=PenaltyParameters(repetition_penalty=1.25),
        max_new_tokens=6,
        eos_token_ids=[5],
        beam=BeamParameters(width=2, return_token_log_probs=True),
    )
    second = Sequence(sequence_id="b", max_new_tokens=6, eos_token_ids=[5], beam=BeamParameters(width=3))
    return creation(first, second, **({"beam_rule": types_pb2.BEAM_RULE_HF} | fields))


def vllm_creation(wire: Wire) -> service_pb2.CreateBatchRequest:
    """The same by the VLLM rule, without penalties."""
    request = beam_creation(beam_rule=types_pb2.BEAM_RULE_VLLM)
    request.sequences[0].ClearField("penalties")
    return request


def rebuild_creation(wire: Wire) -> service_pb2.CreateBatchRequest:
    """The first search after two steps, with one hypothesis in its pool."""
    with wire.opened(beam_creation()) as batch:
        for rows in (2, 5):
            batch.beam_step(BEAM_LOGITS.repeat(rows, 1))
        state = batch.describe()
    return creation(state.sequences[0], beam_rule=state.beam_rule, profile=state.profile)


def plain_rebuild_creation(wire: Wire) -> service_pb2.CreateBatchRequest:
    """The same without penalties and without what a pool has."""
    request = rebuild_creation(wire)
    request.sequences[0].ClearField("penalties")
    request.sequences[0].beams.ClearField("pool")
    request.sequences[0].beams.ClearField("checkpoint")
    return request


CREATIONS: dict[str, Callable[[Wire], service_pb2.CreateBatchRequest]] = {
    "penalty": lambda wire: penalty_creation(),
    "beam": lambda wire: beam_creation(),
    "vllm": vllm_creation,
    "rebuild": rebuild_creation,
    "plain rebuild": plain_rebuild_creation,
}


def open_penalty_batch(wire: Wire) -> OpenBatch:
    """A batch at revision 1, whose last mutation was an Accumulate of LAST_REQUEST_ID."""
    batch = wire.open(penalty_creation())
    target = batch.target(request_id=LAST_REQUEST_ID)
    request = service_pb2.AccumulateRequest(target=target, tokens=token_update(2, 3))
    batch.revision = wire.call("Accumulate", request).revision
    return batch


def open_beam_batch(wire: Wire) -> OpenBatch:
    """A batch at revision 1 with five live rows, whose last mutation was a BeamStep of LAST_REQUEST_ID."""
    batch = wire.open(beam_creation())
    target = batch.target(request_id=LAST_REQUEST_ID)
    request = service_pb2.BeamStepRequest(target=target, logits=tensor(BEAM_LOGITS.repeat(2, 1)))
    batch.revision = wire.call("BeamStep", request).revision
    return batch


def accumulate_request(batch: OpenBatch) -> service_pb2.AccumulateRequest:
    tokens = token_update(0, 1, 2, splits=(0, 2, 3), rollback=(1, 0))
    return service_pb2.AccumulateRequest(target=batch.target(), tokens=tokens)


def apply_request(batch: OpenBatch) -> service_pb2.ApplyRequest:
    request = service_pb2.ApplyRequest(target=batch.target(), logits=tensor(PENALTY_LOGITS))
    request.tokens.CopyFrom(accumulate_request(batch).tokens)
    return request


def reading_request(batch: OpenBatch) -> service_pb2.ApplyRequest:
    target = batch.target(request_id=b"")
    return service_pb2.ApplyRequest(target=target, logits=tensor(PENALTY_LOGITS), form=types_pb2.APPLY_FORM_SPARSE)


def edits_request(batch: OpenBatch) -> service_pb2.ApplyRequest:
    request = apply_request(batch)
    request.ClearField("logits")
    request.form = types_pb2.APPLY_FORM_EDITS
    return request


def drafts_request(batch: OpenBatch) -> service_pb2.ApplyRequest:
    """Three drafts of the first sequence, two of which follow the first; five positions."""
    drafts = service_pb2.DraftTokens(
        token_ids=ints(2, 3, 5), row_splits=ints(0, 3, 3), parents=ints(-1, 0, 0), mode=types_pb2.DRAFT_MODE_EXACT
    )
    request = apply_request(batch)
    request.drafts.CopyFrom(drafts)
    request.logits.CopyFrom(tensor(PENALTY_LOGITS[[0, 0, 0, 0, 1]]))
    return request


def drafted_edits_request(batch: OpenBatch) -> service_pb2.ApplyRequest:
    request = drafts_request(batch)
    request.ClearField("logits")
    request.form = types_pb2.APPLY_FORM_EDITS
    return request


def beam_request(batch: OpenBatch) -> service_pb2.BeamStepRequest:
    return service_pb2.BeamStepRequest(target=batch.target(), logits=tensor(BEAM_LOGITS.repeat(5, 1)))


def filter_request(batch: OpenBatch) -> service_pb2.FilterBatchRequest:
    """The sequences turned round, and the first one forked."""
    chosen = [service_pb2.SequenceSelection(sequence_id=name) for name in ("b", "a")]
    fork = service_pb2.SequenceSelection(sequence_id="a", new_sequence_id="c")
    return service_pb2.FilterBatchRequest(target=batch.target(), sequences=[*chosen, fork])


def merge_request(batch: OpenBatch) -> service_pb2.MergeBatchesRequest:
    """A batch of the same two sequences under other names is appended."""
    request = penalty_creation()
    for sequence in request.sequences:
        sequence.sequence_id += "'"
    source = batch.wire.open(request)
    return service_pb2.MergeBatchesRequest(target=batch.target(), source=source.target(request_id=b""))


def in_region(make: Callable[[OpenBatch], Any]) -> Callable[[OpenBatch], Message]:
    """The same request with logits that lie in shared memory."""

    def request(batch: OpenBatch) -> Message:
        message = make(batch)
        message.logits.shared_memory.region_id = batch.wire.share(message.logits.data)
        return message

    return request


# Which RPC, a batch for it, and a right request to that batch.
STEPS: dict[str, tuple[str, Callable[[Wire], OpenBatch], Callable[[OpenBatch], Message]]] = {
    "Accumulate": ("Accumulate", open_penalty_batch, accumulate_request),
    "Apply": ("Apply", open_penalty_batch, apply_request),
    "Apply without tokens": ("Apply", open_penalty_batch, reading_request),
    "BeamStep": ("BeamStep", open_beam_batch, beam_request),
    "Apply of edits": ("Apply", open_penalty_batch, edits_request),
    "Apply with drafts": ("Apply", open_penalty_batch, drafts_request),
    "Apply of edits with drafts": ("Apply", open_penalty_batch, drafted_edits_request),
    "Apply in a region": ("Apply", open_penalty_batch, in_region(apply_request)),
    "BeamStep in a region": ("BeamStep", open_beam_batch, in_region(beam_request)),
    "FilterBatch": ("FilterBatch", open_penalty_batch, filter_request),
    "MergeBatches": ("MergeBatches", open_penalty_batch, merge_request),
    # The wrong kind of batch for each.
    "Accumulate on beams": ("Accumulate", open_beam_batch, accumulate_request),
    "Apply on beams": ("Apply", open_beam_batch, apply_request),
    "BeamStep on penalties": ("BeamStep", open_penalty_batch, beam_request),
}


def peek(batch: OpenBatch) -> bytes:
    """The bytes of an Apply that changes nothing, which tell what state a penalty batch is in."""
    reply: bytes = batch.wire.call("Apply", reading_request(batch)).SerializeToString()
    return reply


def follow(batch: OpenBatch) -> bytes:
    """The bytes of a right next step, which tell what state the batch is in."""
    is_beam = batch.describe().kind == types_pb2.BATCH_KIND_BEAM
    method, make = ("BeamStep", beam_request) if is_beam else ("Apply", apply_request)
    reply: bytes = batch.wire.call(method, make(batch)).SerializeToString()
    return reply
