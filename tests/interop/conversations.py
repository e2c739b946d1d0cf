"""What a sample said and got, held against the golden vectors."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from interop.make_vectors import Exchange, read_vectors
from interop.toy import read_ints

from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

GOLDEN = {name: list(group) for name, group in groupby(read_vectors(), lambda exchange: exchange.scenario)}
_BATCH_RPCS = ("CreateBatch", "Apply", "BeamStep", "DeleteBatch")


def assert_golden(spoken: list[Exchange], scenario: str) -> None:
    """The exchanges of a batch equal a scenario's, but for what each side chose by chance."""
    golden = [exchange for exchange in GOLDEN[scenario] if exchange.rpc in _BATCH_RPCS]
    assert [exchange.rpc for exchange in spoken] == [exchange.rpc for exchange in golden]
    _check_request_ids(spoken)
    assert {_batch_id(request_of(exchange)) for exchange in spoken} == {spoken[0].scenario}  # the route that was sent
    for mine, theirs in zip(spoken, golden, strict=True):
        assert _plain(request_of(mine)) == _plain(request_of(theirs))
        assert _plain(reply_of(mine)) == _plain(reply_of(theirs))


def greedy_lines(title: str) -> list[str]:
    """What a sample prints of a greedy decode."""
    replies = [reply_of(exchange) for exchange in GOLDEN["dense"] if exchange.rpc == "Apply"]
    steps = [np.frombuffer(r.dense.logits.data, "<f4").reshape(r.dense.logits.shape).argmax(axis=1) for r in replies]
    return [f"{title} {' '.join(map(str, row))}" for row in np.array(steps).T.tolist()]


def beam_lines() -> list[str]:
    """What a sample prints of its searches, best first."""
    searches = [s for e in GOLDEN["beams"] if e.rpc == "BeamStep" for s in reply_of(e).searches]
    found = [hypothesis for search in searches for hypothesis in search.hypotheses]
    return [f"beams {' '.join(map(str, read_ints(h.token_ids)))} ({h.score:.6g})" for h in found]


def request_of(exchange: Exchange) -> Any:
    """The request, parsed."""
    return getattr(service_pb2, f"{exchange.rpc}Request").FromString(exchange.request)


def reply_of(exchange: Exchange) -> Any:
    """The reply, parsed."""
    return getattr(service_pb2, f"{exchange.rpc}Response").FromString(exchange.reply)


def _batch_id(request: Any) -> str:
    named = request.target if "target" in request.DESCRIPTOR.fields_by_name else request
    return str(named.batch_id)


def _check_request_ids(spoken: list[Exchange]) -> None:
    """Random, 16 bytes, one a mutation."""
    steps = [request_of(exchange) for exchange in spoken if exchange.rpc in ("Apply", "BeamStep")]
    ids = [step.target.request_id for step in steps if step.target.request_id]
    assert {len(request_id) for request_id in ids} == {16}
    assert len(set(ids)) == len(ids)


def _plain(message: Message) -> Message:
    """The message without ids that are chosen by chance, and without what a writer may put in or leave out."""
    for name, value in (("batch_id", ""), ("uid", b""), ("create_key", b"")):
        if name in message.DESCRIPTOR.fields_by_name:
            setattr(message, name, value)
    if "target" in message.DESCRIPTOR.fields_by_name:
        target: Any = message
        target.target.batch_id, target.target.uid, target.target.request_id = (
            "",
            b"",
            b"" if not target.target.request_id else b"x",
        )
    if isinstance(message, service_pb2.CreateBatchResponse):
        message.batch.batch_id, message.batch.uid = "", b""
    if isinstance(message, service_pb2.ApplyRequest | service_pb2.BeamStepRequest):
        _plain_tensor(message.logits)
    if isinstance(message, service_pb2.ApplyResponse) and message.HasField("dense"):
        _plain_tensor(message.dense.logits)
    return message


def _plain_target(message: Any) -> None:
    target = message.target
    target.batch_id, target.uid, target.request_id = "", b"", target.request_id and b"set"


def _plain_tensor(tensor: types_pb2.Tensor) -> None:
    tensor.padding = b""
    if tensor.HasField("shared_memory"):
        tensor.shared_memory.region_id = ""
