"""SIGTERM under load: every step that was taken up is answered, and decoders go on at the next server."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import grpc
import pytest
import torch
from grpc_status import rpc_status

from helpers.faults import scaled, steady, wait_until
from helpers.faults_decoders import KINDS, Load
from helpers.wire import Wire, creation, read_failure, tensor, token_update
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from helpers.faults import FaultyServer
    from helpers.wire import Conversation, OpenBatch

STOPS = scaled(2, 10)
_STREAMS = 4
_AHEAD = 4
_VOCAB = 5000
_MOST_TOKENS = 100_000


@pytest.mark.timeout(scaled(120, 600))
def test_decoders_go_on_at_the_next_server(own_server: FaultyServer) -> None:
    random = Random(4)
    load = Load(own_server.address, own_server.address, own_server.side_socket, lambda: None)

    def stop_again_and_again() -> None:
        for _ in range(STOPS):
            own_server.wait_for_load()
            time.sleep(random.uniform(0.1, 0.6))
            own_server.terminate()
            own_server.start()

    load.run(stop_again_and_again)
    assert load.rounds >= len(KINDS)


@pytest.mark.timeout(scaled(120, 600))
def test_every_step_that_was_taken_up_is_answered(own_server: FaultyServer) -> None:
    random = Random(5)
    for _ in range(scaled(1, STOPS)):
        before = steady(lambda: len(own_server.calls()))
        batches: list[OpenBatch] = []
        with ThreadPoolExecutor(_STREAMS) as threads:
            running = [threads.submit(step_until_refused, own_server.address, batches) for _ in range(_STREAMS)]
            assert wait_until(lambda: sum(batch.revision > _AHEAD for batch in batches) == _STREAMS)  # noqa: B023
            time.sleep(random.uniform(0, 0.5))
            own_server.terminate()
            ends = [each.result() for each in running]
        calls = [call for call in own_server.calls()[before:] if call["method"] != "CreateBatch"]
        check_counts(ends, [call["messages_sent"] for call in calls])
        for call in calls:
            assert (call["code"], call["reason"]) == ("UNAVAILABLE", "DRAINING")
            assert call["messages_received"] == call["messages_sent"], str(call)
        own_server.start()


class End(NamedTuple):
    """How many replies a caller read, and whether it was told that the server drains."""

    answered: int
    is_told: bool


def check_counts(ends: list[End], sent: list[int]) -> None:
    """Callers have read what the server has sent.

    One whose write meets the closed connection first reads no further: gRPC tells it so, and not what else came.
    """
    answered = sorted(end.answered for end in ends)
    if all(end.is_told for end in ends):
        assert answered == sorted(sent)
    assert all(ours <= theirs for ours, theirs in zip(answered, sorted(sent), strict=True))


def step_until_refused(address: str, batches: list[OpenBatch]) -> End:
    """The end of a caller that writes some steps ahead, until the server sends it away; its batch joins `batches`."""
    wire = Wire(address)
    sequence = types_pb2.Sequence(sequence_id="s", max_new_tokens=_MOST_TOKENS)
    batch = wire.open(creation(sequence, vocab_size=_VOCAB))
    batches.append(batch)
    method = ("Accumulate", "Apply")[len(batches) % 2]
    stream = wire.converse(method)
    stream.send(*(step(batch, method, revision) for revision in range(_AHEAD)))
    with pytest.raises(grpc.RpcError) as caught:
        take_replies(stream, batch, method)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    is_told = rpc_status.from_call(caught.value) is not None
    assert not is_told or read_failure(caught.value).reason == "DRAINING"
    with contextlib.suppress(grpc.RpcError):
        stream.finish()
    wire.close()
    return End(batch.revision, is_told)


def take_replies(stream: Conversation, batch: OpenBatch, method: str) -> None:
    for reply in stream.call:
        batch.revision += 1
        assert reply.revision == batch.revision
        stream.send(step(batch, method, batch.revision + _AHEAD - 1))


def step(batch: OpenBatch, method: str, revision: int) -> service_pb2.AccumulateRequest | service_pb2.ApplyRequest:
    target = batch.target(expected_revision=revision)
    if method == "Accumulate":
        return service_pb2.AccumulateRequest(target=target, tokens=token_update(1))
    logits = tensor(torch.zeros(1, _VOCAB))
    return service_pb2.ApplyRequest(target=target, tokens=token_update(1), logits=logits)
