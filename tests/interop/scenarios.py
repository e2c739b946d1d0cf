"""The conversations of the golden vectors, each with a fresh batch.

The first five are the toy decode that the samples run; the rest covers what a decoder meets beside it.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
from typing import TYPE_CHECKING, Any

import numpy as np
from interop.toy import (
    BEAM_SCALE,
    PENALTY_SCALE,
    PROMPTS,
    STEPS,
    VOCAB_SIZE,
    advance,
    beam_batch,
    ints,
    logits_of,
    penalty_batch,
    prompt_states,
    read_ints,
    tensor,
)

from logitd.client import to_bfloat16
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.message import Message
    from interop.make_vectors import Recorder
    from numpy.typing import NDArray

_ROWS = len(PROMPTS)
_CREATE_KEY = bytes(range(16))
_REGION_NAME = b"golden-region-id".ljust(32, b"-")
_FILE_NAME = "logitd-golden"


class _Batch:
    """An open batch: fixed ids, and the revision that its caller believes in."""

    def __init__(self, recorder: Recorder, batch_id: str, creation: service_pb2.CreateBatchRequest, uid: int) -> None:
        self._recorder = recorder
        self._mutations = itertools.count(1)
        creation.batch_id, creation.create_key = batch_id, _CREATE_KEY
        batch = recorder.ask("CreateBatch", creation).batch
        recorder.name(batch.uid, bytes([uid] * 16))
        self.batch_id, self.uid, self.revision = batch_id, batch.uid, batch.revision

    def target(self, is_mutation: bool, **changes: Any) -> service_pb2.StepTarget:
        request_id = next(self._mutations).to_bytes(16, "big") if is_mutation else b""
        fields = {"batch_id": self.batch_id, "uid": self.uid, "expected_revision": self.revision}
        return service_pb2.StepTarget(**(fields | {"request_id": request_id} | changes))

    def ask(self, rpc: str, request: Message) -> Any:
        """The reply to a message of this batch; its revision is taken over."""
        reply = self._recorder.ask(rpc, request)
        self.revision = reply.revision
        return reply

    def apply(self, tokens: list[int], **fields: Any) -> Any:
        request = service_pb2.ApplyRequest(target=self.target(bool(tokens)), **fields)
        if tokens:
            request.tokens.token_ids = ints(*tokens)
        return self.ask("Apply", request)

    def delete(self) -> None:
        self._recorder.ask("DeleteBatch", service_pb2.DeleteBatchRequest(batch_id=self.batch_id, uid=self.uid))


def _capabilities(recorder: Recorder) -> None:
    reply = recorder.ask("GetCapabilities", service_pb2.GetCapabilitiesRequest())
    reply.version, reply.instance_id = "1.2.3", "0" * len(reply.instance_id)
    recorder.replace_last_reply(reply)


def _dense(recorder: Recorder) -> None:
    batch = _Batch(recorder, "golden-dense", penalty_batch(), 0xA0)
    recorder.toy_tokens, recorder.toy_processed = [[]], []
    states = prompt_states()
    for _ in range(STEPS):
        logits = tensor(logits_of(states, PENALTY_SCALE))
        reply = batch.apply(recorder.toy_tokens[-1], form=types_pb2.APPLY_FORM_DENSE, logits=logits)
        recorder.toy_processed.append(reply.dense.logits.data)
        processed = np.frombuffer(reply.dense.logits.data, "<f4").reshape(_ROWS, VOCAB_SIZE)
        recorder.toy_tokens.append(processed.argmax(axis=1).tolist())
        states = advance(states, recorder.toy_tokens[-1])
    batch.delete()


def _toy_steps(recorder: Recorder) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
    """The same decode again: the token ids to commit and the logits that follow them."""
    states = prompt_states()
    for tokens in recorder.toy_tokens[:STEPS]:
        states = advance(states, tokens) if tokens else states
        yield tokens, logits_of(states, PENALTY_SCALE)


def _sparse(recorder: Recorder) -> None:
    batch = _Batch(recorder, "golden-sparse", penalty_batch(), 0xA0)
    for tokens, logits in _toy_steps(recorder):
        batch.apply(tokens, form=types_pb2.APPLY_FORM_SPARSE, logits=tensor(logits))
    batch.delete()


def _in_place(recorder: Recorder) -> None:
    """The region holds the result of the scenario `dense` after each step, which is checked here."""
    batch = _Batch(recorder, "golden-in-place", penalty_batch(), 0xA0)
    path = recorder.memory_dir / _FILE_NAME
    path.write_bytes(bytes(4 * _ROWS * VOCAB_SIZE))
    register = service_pb2.RegisterSharedMemoryRequest(file_name=_FILE_NAME, byte_size=path.stat().st_size)
    region_id = recorder.ask("RegisterSharedMemory", register).region_id
    recorder.name(region_id.encode(), _REGION_NAME)
    place = types_pb2.Tensor(
        data_type=types_pb2.DATA_TYPE_FP32,
        shape=(_ROWS, VOCAB_SIZE),
        shared_memory=types_pb2.SharedMemoryRef(region_id=region_id),
    )
    for step, (tokens, logits) in enumerate(_toy_steps(recorder)):
        with path.open("r+b") as file:
            file.write(logits.tobytes())
        batch.apply(tokens, form=types_pb2.APPLY_FORM_IN_PLACE, logits=place)
        assert path.read_bytes() == recorder.toy_processed[step]
    recorder.ask("UnregisterSharedMemory", service_pb2.UnregisterSharedMemoryRequest(region_id=region_id))
    batch.delete()


def _memory_file(recorder: Recorder) -> None:
    """Registers a sealed memory file; what crosses the side socket is in the README."""
    descriptor = os.memfd_create("golden", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 4096)
    with socket.socket(socket.AF_UNIX) as side:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        side.connect(str(recorder.side_socket))
        socket.send_fds(side, [b"\1"], [descriptor])
        token = side.recv(16, socket.MSG_WAITALL)
        register = service_pb2.RegisterSharedMemoryRequest(memory_file_token=token, byte_size=4096)
        region_id = recorder.ask("RegisterSharedMemory", register).region_id
        recorder.name(token, bytes([0xB0] * 16))
        recorder.name(region_id.encode(), _REGION_NAME)
        recorder.ask("UnregisterSharedMemory", service_pb2.UnregisterSharedMemoryRequest(region_id=region_id))
    os.close(descriptor)


def _edits(recorder: Recorder) -> None:
    batch = _Batch(recorder, "golden-edits", penalty_batch(), 0xA0)
    for tokens, _ in _toy_steps(recorder):
        batch.apply(tokens, form=types_pb2.APPLY_FORM_EDITS)
    batch.delete()


def _edits_since(recorder: Recorder) -> None:
    """Only what changed since the revision before; entry by entry it replaces what the caller has."""
    batch = _Batch(recorder, "golden-edits-since", penalty_batch(), 0xA0)
    for tokens, _ in _toy_steps(recorder):
        since = {"edits_since_revision": batch.revision} if tokens else {}
        batch.apply(tokens, form=types_pb2.APPLY_FORM_EDITS, **since)
    batch.delete()


def _beams(recorder: Recorder) -> None:
    batch = _Batch(recorder, "golden-beams", beam_batch(), 0xA0)
    states = prompt_states()
    while states:
        logits = tensor(logits_of(states, BEAM_SCALE))
        reply = batch.ask("BeamStep", service_pb2.BeamStepRequest(target=batch.target(True), logits=logits))
        states = _next_states(states, reply)
    batch.delete()


def _next_states(states: list[int], reply: service_pb2.BeamStepResponse) -> list[int]:
    return advance([states[row] for row in read_ints(reply.parent_rows)], read_ints(reply.token_ids))


def _beam_chunks(recorder: Recorder) -> None:
    """The second step in two chunks, all that a rebuild needs, and the early end of both searches."""
    batch = _Batch(recorder, "golden-beam-chunks", beam_batch(), 0xA0)
    states = prompt_states()
    first = service_pb2.BeamStepRequest(target=batch.target(True), logits=tensor(logits_of(states, BEAM_SCALE)))
    logits = logits_of(_next_states(states, batch.ask("BeamStep", first)), BEAM_SCALE)
    target = batch.target(True)
    chunk = service_pb2.BeamStepRequest(target=target, logits=tensor(logits[:4]), has_more_chunks=True)
    batch.ask("BeamStep", chunk)
    batch.ask("BeamStep", service_pb2.BeamStepRequest(target=target, first_row=4, logits=tensor(logits[4:])))
    everything = service_pb2.GetBatchRequest(batch_id=batch.batch_id, view=types_pb2.BATCH_VIEW_FULL)
    recorder.ask("GetBatch", everything)
    batch.ask("BeamStep", service_pb2.BeamStepRequest(target=batch.target(True), finish_sequence_ids=["0", "1"]))
    batch.delete()


def _chunks(recorder: Recorder) -> None:
    """Token ids of all rows travel with the first chunk; the second names the revision that this gave."""
    batch = _Batch(recorder, "golden-chunks", penalty_batch(), 0xA0)
    logits = logits_of([3, 4], PENALTY_SCALE)
    batch.apply([3, 4], logits=tensor(logits[:1]))
    batch.apply([], first_row=1, logits=tensor(logits[1:]))
    batch.delete()


def _profile(recorder: Recorder, number: int, name: str) -> None:
    """Dense and edits on the same logits, one of which is -0 and one of which is -inf."""
    creation = penalty_batch()
    creation.profile = number
    batch = _Batch(recorder, f"golden-{name}", creation, 0xA0)
    update = service_pb2.TokenUpdate(token_ids=ints(7, 8, 7, 31, 0, 2), row_splits=ints(0, 4, 6))
    batch.ask("Accumulate", service_pb2.AccumulateRequest(target=batch.target(True), tokens=update))
    logits = logits_of([3, 4], PENALTY_SCALE)
    logits[0, 7:9] = -0.0, -np.inf
    batch.apply([], logits=tensor(logits))
    batch.apply([], form=types_pb2.APPLY_FORM_EDITS)
    batch.delete()


def _data_types(recorder: Recorder) -> None:
    """The same logits in fp32, fp16 and bf16, dense and sparse, with a column of padding."""
    batch = _Batch(recorder, "golden-data-types", penalty_batch(), 0xA0)
    logits = np.pad(logits_of([3, 4], PENALTY_SCALE), ((0, 0), (0, 1)), constant_values=0.1)
    items = {
        types_pb2.DATA_TYPE_FP32: logits,
        types_pb2.DATA_TYPE_FP16: logits.astype(np.float16),
        types_pb2.DATA_TYPE_BF16: to_bfloat16(logits),
    }
    tokens = [7, 7]
    for data_type, array in items.items():
        message = types_pb2.Tensor(data_type=data_type, shape=array.shape, data=array.tobytes())
        batch.apply(tokens, logits=message)
        batch.apply([], form=types_pb2.APPLY_FORM_SPARSE, logits=message)
        tokens = []
    batch.delete()


def _accumulate(recorder: Recorder) -> None:
    """One token each, then several of one sequence, then a rollback; GetBatch tells what came of it."""
    batch = _Batch(recorder, "golden-accumulate", penalty_batch(), 0xA0)
    updates = (
        service_pb2.TokenUpdate(token_ids=ints(7, 8)),
        service_pb2.TokenUpdate(token_ids=ints(3, 4, 5), row_splits=ints(0, 3, 3)),
        service_pb2.TokenUpdate(token_ids=ints(6), row_splits=ints(0, 1, 1), rollback_counts=ints(2, 0)),
    )
    for update in updates:
        batch.ask("Accumulate", service_pb2.AccumulateRequest(target=batch.target(True), tokens=update))
    for view in (types_pb2.BATCH_VIEW_BASIC, types_pb2.BATCH_VIEW_FULL):
        request = service_pb2.GetBatchRequest(batch_id=batch.batch_id, uid=batch.uid, view=view)
        recorder.ask("GetBatch", request)
    batch.delete()


def _membership(recorder: Recorder) -> None:
    """A filter that forks a sequence, a merge, and the list of what is left."""
    batch = _Batch(recorder, "golden-filter", penalty_batch(), 0xA0)
    update = service_pb2.TokenUpdate(token_ids=ints(7, 8))
    batch.ask("Accumulate", service_pb2.AccumulateRequest(target=batch.target(True), tokens=update))
    kept = [("1", ""), ("0", ""), ("0", "fork")]
    selections = [service_pb2.SequenceSelection(sequence_id=old, new_sequence_id=new) for old, new in kept]
    batch.ask("FilterBatch", service_pb2.FilterBatchRequest(target=batch.target(True), sequences=selections))
    creation = penalty_batch()
    for sequence in creation.sequences:
        sequence.sequence_id = f"other {sequence.sequence_id}"
    other = _Batch(recorder, "golden-merged", creation, 0xC0)
    source = other.target(False)
    batch.ask("MergeBatches", service_pb2.MergeBatchesRequest(target=batch.target(True), source=source))
    recorder.ask("ListBatches", service_pb2.ListBatchesRequest(page_size=10))
    batch.delete()


def _rebuild(recorder: Recorder) -> None:
    """The batch of `dense` after three steps, opened from its history, and its next step."""
    creation = penalty_batch()
    for sequence, outputs in zip(creation.sequences, zip(*recorder.toy_tokens[1:4], strict=True), strict=True):
        sequence.output_token_ids = ints(*outputs)
    batch = _Batch(recorder, "golden-rebuilt", creation, 0xA0)
    *_, (_, logits) = itertools.islice(_toy_steps(recorder), 4)
    batch.apply([], logits=tensor(logits))
    batch.delete()


def _refusals(recorder: Recorder) -> None:
    """A field that breaks a rule, a revision that is not the batch's, and a batch that is not there."""
    wrong = penalty_batch()
    wrong.batch_id, wrong.create_key = "golden-refused", _CREATE_KEY
    wrong.sequences[0].penalties.repetition_penalty = 0
    recorder.fail("CreateBatch", wrong)
    batch = _Batch(recorder, "golden-refusals", penalty_batch(), 0xA0)
    logits = tensor(logits_of(prompt_states(), PENALTY_SCALE))
    target = batch.target(False, expected_revision=5)
    recorder.fail("Apply", service_pb2.ApplyRequest(target=target, logits=logits))
    batch.delete()


SCENARIOS: dict[str, Callable[[Recorder], None]] = {
    "dense": _dense,
    "sparse": _sparse,
    "in_place": _in_place,
    "edits": _edits,
    "beams": _beams,
    "edits_since": _edits_since,
    "beam_chunks": _beam_chunks,
    "chunks": _chunks,
    "profile_sglang": lambda recorder: _profile(recorder, types_pb2.PENALTY_PROFILE_SGLANG, "sglang"),
    "profile_sglang_fused": lambda recorder: _profile(recorder, types_pb2.PENALTY_PROFILE_SGLANG_FUSED, "sglang-fused"),
    "profile_vllm": lambda recorder: _profile(recorder, types_pb2.PENALTY_PROFILE_VLLM, "vllm"),
    "profile_hf": lambda recorder: _profile(recorder, types_pb2.PENALTY_PROFILE_HF, "hf"),
    "data_types": _data_types,
    "accumulate": _accumulate,
    "membership": _membership,
    "rebuild": _rebuild,
    "memory_file": _memory_file,
    "refusals": _refusals,
    "capabilities": _capabilities,
}
