"""A server on its way out says so and finishes what it has; callers that never read are hung up on."""

from __future__ import annotations

import operator
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from helpers.live_server import LiveServer, serving
from helpers.right_requests import STEPS, open_beam_batch, open_penalty_batch, penalty_creation
from helpers.wire import SERVICE, TIMEOUT, Failed, Wire, creation, ints, read_failure, tensor
from logitd.service.config import ServerConfig
from logitd.v1 import service_pb2
from logitd.v1.types_pb2 import PenaltyParameters, Sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextmanager
def small_server(path: Path, **settings: Any) -> Iterator[tuple[LiveServer, Wire]]:
    with serving(ServerConfig(listen="", unix_socket=str(path / "s"), **({"linger_seconds": 0} | settings))) as live:
        wire = Wire(live.address)
        yield live, wire
        wire.close()


def test_draining_server_says_so_and_finishes_what_it_has(tmp_path: Path) -> None:
    with small_server(tmp_path, linger_seconds=60, grace_seconds=0) as (live, wire):
        request = penalty_creation()
        penalty, beams, created = open_penalty_batch(wire), open_beam_batch(wire), wire.open(request)
        streams = {name: wire.converse(STEPS[name][0]) for name in ("Accumulate", "Apply", "BeamStep")}
        stopping = threading.Thread(target=live.run, args=(live.server.stop(),))
        stopping.start()
        wait_until_draining(wire)
        for name, stream in streams.items():
            batch = beams if name == "BeamStep" else penalty
            reply = stream.ask(STEPS[name][2](batch))
            assert reply.draining
            batch.revision = reply.revision
        with pytest.raises(Failed) as caught:
            wire.open(penalty_creation())
        assert (caught.value.failure.code, caught.value.failure.reason) == ("UNAVAILABLE", "DRAINING")
        assert caught.value.failure.retry_seconds > 0
        assert wire.open(request).uid == created.uid
        live.hurry()
        for stream in streams.values():
            with pytest.raises(grpc.RpcError) as ended:
                next(stream.call)
            assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
        stopping.join()
    assert list(tmp_path.iterdir()) == []


def wait_until_draining(wire: Wire) -> None:
    """Health is watched, as a load balancer does."""
    stub = health_pb2_grpc.HealthStub(wire.channel)
    for update in stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=TIMEOUT):
        if update.status == health_pb2.HealthCheckResponse.NOT_SERVING:
            return
    pytest.fail("the watch ended")


def wait_until_queued(live: LiveServer, compare: Callable[[int, int], bool], *, once: int) -> None:
    """Until the bytes that are queued compare so with none, in so many looks at once."""
    deadline, count = time.monotonic() + TIMEOUT, 0
    while count < once:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        count = count + 1 if compare(live.server._handlers.queued_bytes, 0) else 0


def test_caller_that_never_reads_is_hung_up_on(tmp_path: Path) -> None:
    """Its replies fill the windows of the connection; the server neither waits for ever nor keeps them all."""
    with small_server(tmp_path, reply_timeout_seconds=1, max_queued_bytes=1 << 20) as (live, wire):
        batch = wire.open(creation(Sequence(sequence_id="s"), vocab_size=200_000))
        request = service_pb2.ApplyRequest(target=batch.target(request_id=b""), logits=tensor(torch.zeros(1, 200_000)))
        call = wire.stub.Apply(iter([request] * 200), timeout=TIMEOUT)
        wait_until_queued(live, operator.gt, once=1)
        wait_until_queued(live, operator.eq, once=20)  # let go of, though the caller has not been told yet
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        failure = read_failure(caught.value)
        assert (failure.code, failure.reason) == ("RESOURCE_EXHAUSTED", "REPLIES_NOT_READ")
        assert batch.apply(torch.zeros(1, 200_000)).shape == (1, 200_000)


def test_caller_may_write_a_whole_step_before_it_reads(tmp_path: Path) -> None:
    rows, columns = 32, 65_536
    with small_server(tmp_path) as (_, wire):
        sequences = [Sequence(sequence_id=str(row)) for row in range(rows)]
        batch = wire.open(creation(*sequences, vocab_size=columns))
        logits = torch.arange(rows, dtype=torch.float32).repeat_interleave(columns).view(rows, columns)
        requests = [
            service_pb2.ApplyRequest(
                target=batch.target(request_id=b""), first_row=row, logits=tensor(logits[row : row + 4])
            )
            for row in range(0, rows, 4)
        ]
        stream = wire.converse("Apply")
        stream.send(*requests)
        first = [reply.first_row for reply in stream.finish()]
        assert first == [*range(0, rows, 4)]


def test_caller_may_write_many_small_messages_before_it_reads(tmp_path: Path) -> None:
    """Their replies fill the windows of the connection; what comes meanwhile is read all the same."""
    count, vocab_size = 1500, 4000
    with small_server(tmp_path) as (_, wire):
        penalties = PenaltyParameters(presence_penalty=1.0)
        sequence = Sequence(sequence_id="s", penalties=penalties, output_token_ids=ints(*range(vocab_size)))
        batch = wire.open(creation(sequence, vocab_size=vocab_size))
        request = service_pb2.ApplyRequest(
            target=batch.target(request_id=b""), form="APPLY_FORM_SPARSE", logits=tensor(torch.zeros(1, vocab_size))
        )
        unsent = iter([request] * count)
        call = wire.stub.Apply(unsent, timeout=TIMEOUT)
        deadline = time.monotonic() + TIMEOUT / 2
        while operator.length_hint(unsent) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert operator.length_hint(unsent) == 0
        assert [len(reply.sparse.values) for reply in call] == [4 * vocab_size] * count
