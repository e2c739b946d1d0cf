"""Connections that break, hang, dawdle or come again, and callers that do not wait: nothing is lost or kept."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import os
import signal
import subprocess
import sys
import time
from random import Random
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
import torch

from helpers.faults import FaultyServer, scaled, settled, steady, wait_until
from helpers.faults_decoders import KINDS, Load
from helpers.faults_proxy import proxying
from helpers.right_requests import open_penalty_batch
from helpers.wire import OpenBatch, Wire, creation, read_ints, read_tensor, tensor, token_update
from logitd.client import Client, Sequence, StepTimeoutError
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WIDE = 60_000
_REPLY_SECONDS = 2
_QUIET = 0.3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    """One that soon notices who is gone or does not read."""
    flags = ("--linger-seconds", "0", "--reply-timeout-seconds", str(_REPLY_SECONDS), "--max-queued-bytes", "4194304")
    keepalive = ("--keepalive-seconds", "1", "--keepalive-timeout-seconds", "2")
    with FaultyServer(tmp_path_factory.mktemp("connections"), *flags, *keepalive) as server:
        yield server


@pytest.mark.timeout(scaled(120, 300))
def test_decoders_do_not_notice_cuts_and_delays(server: FaultyServer, tmp_path: Path) -> None:
    path = server.address.removeprefix("unix:")
    with proxying(str(tmp_path / "p"), path) as proxy:
        load = Load(server.address, proxy.address, server.side_socket, lambda: None)
        cuts = scaled(12, 400)

        def cut_and_delay() -> None:
            proxy.cut_one_in, proxy.longest_delay = 40, 0.002
            assert wait_until(lambda: proxy.num_cuts >= cuts, scaled(60, 240))
            proxy.cut_one_in = 0

        load.run(cut_and_delay)
    assert load.rounds >= len(KINDS)


def test_a_connection_that_comes_again_changes_nothing(server: FaultyServer, tmp_path: Path) -> None:
    """Every byte of a client arrives a second time, as a network may hold it back and play it again."""
    path = server.address.removeprefix("unix:")
    sequences, old = [Sequence(sequence_id=name) for name in "ab"], len(server.calls())

    def are_refused() -> bool:
        return {"REVISION_MISMATCH", "BATCH_EXISTS"} <= {call.get("reason") for call in server.calls()[old:]}

    with proxying(str(tmp_path / "p"), path) as proxy, Client(server.address) as direct:
        proxy.is_recording = True
        with Client(proxy.address) as client:
            batch = client.create_batch(sequences, vocab_size=50, batch_id="again")
            for step in range(scaled(10, 40)):
                batch.apply(np.zeros((2, 50), np.float32), [step, step + 1])
            proxy.is_recording = False
            before = direct.get_batch("again", full=True)
            recordings = [recording for recording in proxy.recordings if recording]
            assert sum(asyncio.run(proxy.replay(recording, are_refused)) for recording in recordings) > 0
            after = direct.get_batch("again", full=True)
            assert (after.uid, after.revision) == (before.uid, before.revision)
            assert [list(s.output_token_ids) for s in after.sequences] == [
                list(range(row, row + before.revision)) for row in range(2)
            ]
            batch.delete()
    assert wait_until(are_refused)


def test_a_connection_that_falls_silent_is_let_go(server: FaultyServer, tmp_path: Path) -> None:
    """Half open: the other side is gone without a word. Whoever is there goes on meanwhile."""
    with (
        proxying(str(tmp_path / "p"), server.address.removeprefix("unix:")) as proxy,
        Client(server.address) as other,
        other.create_batch([Sequence()], vocab_size=9) as watched,
    ):
        watched.accumulate([1])
        steady(lambda: server.vitals.descriptors)  # earlier tests' connections are gone
        before = server.vitals
        with Client(proxy.address, step_timeout=3, recover=False) as client:
            batch = client.create_batch([Sequence()], vocab_size=9)
            batch.accumulate([2])
            assert server.vitals.descriptors > before.descriptors
            time.sleep(_QUIET)  # nothing is under way any more, so that only the server's own pings can tell
            proxy.is_silent = True
            assert settled(lambda: server.vitals, before, 20).descriptors <= before.descriptors
            with pytest.raises(StepTimeoutError):
                batch.accumulate([3])
            watched.accumulate([4])
            proxy.is_silent = False
        info = other.get_batch(batch.batch_id, full=True)
        assert list(info.sequences[0].output_token_ids) == [2, 3][: info.revision]


STOPPED = """
import sys
import numpy as np
from logitd.client import Client, Sequence

client = Client(sys.argv[1])
batch = client.create_batch([Sequence()], vocab_size=20_000, batch_id="stopped")
print("decoding", flush=True)
for step in range(int(sys.argv[2])):
    batch.apply(np.zeros((1, 20_000), np.float32), [step])
print(batch.revision, flush=True)
"""


def test_a_client_that_is_stopped_for_a_while_goes_on(server: FaultyServer, wire: Wire) -> None:
    """The kernel keeps its connection; nobody else waits for it."""
    command = [sys.executable, "-c", STOPPED, server.address, "400"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "decoding\n"
        os.kill(process.pid, signal.SIGSTOP)
        batch = open_penalty_batch(wire)
        began = time.monotonic()
        while time.monotonic() - began < 0.5:
            batch.accumulate(1, 1, splits=(0, 1, 2), rollback=(1, 1))
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.readline() == "400\n"
    request = service_pb2.GetBatchRequest(batch_id="stopped", view=types_pb2.BATCH_VIEW_FULL)
    [sequence] = wire.call("GetBatch", request).batch.sequences
    assert read_ints(sequence.output_token_ids) == list(range(400))


def wide_batch(wire: Wire) -> OpenBatch:
    return wire.open(creation(types_pb2.Sequence(sequence_id="s", max_new_tokens=9), vocab_size=_WIDE))


def wide_request(batch: OpenBatch) -> service_pb2.ApplyRequest:
    target = batch.target(request_id=b"")
    return service_pb2.ApplyRequest(target=target, logits=tensor(torch.zeros(1, _WIDE)))


def test_callers_that_never_read_are_hung_up_on_and_cost_little(server: FaultyServer) -> None:
    """Each has 48 MB of replies coming; the server keeps at most what is queued, and others do not wait."""
    reader = Wire(server.address)
    before = server.vitals
    wires = [Wire(server.address) for _ in range(3)]
    batches = [wide_batch(wire) for wire in wires]
    unsent = [iter([wide_request(batch)] * 200) for batch in batches]
    calls = [batch.wire.stub.Apply(requests, timeout=60) for batch, requests in zip(batches, unsent, strict=True)]
    watched, left, since = open_penalty_batch(reader), [0], time.monotonic()
    while time.monotonic() < since + _REPLY_SECONDS + 1:  # for so long nothing moves: their replies wait
        watched.accumulate(1, 1, splits=(0, 1, 2), rollback=(1, 1))
        before_this, left = left, [operator.length_hint(requests) for requests in unsent]
        since = since if left == before_this else time.monotonic()
    assert all(left)
    assert server.vitals.rss_mib < before.rss_mib + 100
    for call in calls:
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for wire in (reader, *wires):
        wire.close()
    assert settled(lambda: server.vitals, before).descriptors <= before.descriptors


def test_a_slow_reader_gets_all_of_its_replies(server: FaultyServer, wire: Wire) -> None:
    batch = wide_batch(wire)
    expected = batch.apply(torch.zeros(1, _WIDE))
    call = wire.stub.Apply(iter([wide_request(batch)] * 30), timeout=30)
    for number, reply in enumerate(call):
        if number % 3 == 0:
            time.sleep(0.05)
        assert torch.equal(read_tensor(reply.dense.logits), expected)
    assert number == 29


def test_a_deadline_shorter_than_the_work_leaves_a_whole_revision(server: FaultyServer, wire: Wire) -> None:
    """Whether the caller saw the end of it or not: the retry makes it happen once."""
    random = Random(9)
    rows = [types_pb2.Sequence(sequence_id=str(row), max_new_tokens=400) for row in range(8)]
    batch, codes = wire.open(creation(*rows, vocab_size=_WIDE)), set()
    for step in range(scaled(40, 300)):
        request = service_pb2.ApplyRequest(target=batch.target(), logits=tensor(torch.zeros(8, _WIDE)))
        request.tokens.CopyFrom(token_update(*[step] * 8))
        codes.add(code_within(wire, request, 10 ** random.uniform(-4, 0.5)))
        assert batch.describe().revision in (batch.revision, batch.revision + 1)
        reply = wire.call("Apply", request)
        assert reply.revision == batch.revision + 1
        batch.revision = reply.revision
    assert batch.outputs() == [[*range(batch.revision)]] * 8
    assert codes == {"OK", "DEADLINE_EXCEEDED"}


def code_within(wire: Wire, request: Any, seconds: float) -> str:
    call = wire.stub.Apply(iter([request]), timeout=seconds)
    with contextlib.suppress(grpc.RpcError):
        list(call)
    return call.code().name
