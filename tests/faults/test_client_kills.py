"""Clients are killed in the middle of a step: the batch is at a whole revision, and what they held is let go."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from helpers import faults_http2 as http2
from helpers import faults_victim
from helpers.faults import Vitals, assert_flat, scaled, settled
from helpers.faults_victim import REGION, TOKEN
from helpers.wire import SERVICE, OpenBatch, Wire, creation, read_ints, tensor, token_update
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers.faults import FaultyServer

KILLS = scaled(60, 1000)
REAL_KILLS = scaled(2, 30)
_WARM_UP = 0.3
_BATCHES = 8
_ROWS, _VOCAB = 4, 2000
_LOGITS = torch.arange(_ROWS * _VOCAB, dtype=torch.float32).remainder(11).view(_ROWS, _VOCAB)
_LONGEST_LIFE = 0.01


class Victims:
    """Clients that live until `kill`; `bear` starts one."""

    def __init__(self, process: subprocess.Popen[str], server: FaultyServer) -> None:
        self._process, self._server = process, server

    def bear(self, *parts: bytes, shares_memory: bool) -> int:
        """The process id of a client that sends the parts, waiting for a reply between two of them."""
        plan = {
            "socket": self._server.address.removeprefix("unix:"),
            "side_socket": self._server.side_socket if shares_memory else None,
            "parts": [base64.b64encode(part).decode() for part in parts],
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(plan) + "\n")
        self._process.stdin.flush()
        return self._read("born")

    def kill(self, pid: int, *, is_ready: bool) -> None:
        """Once it has sent everything if `is_ready`, else now."""
        while is_ready and self._read("ready") != pid:
            pass  # that was one which had been killed just then
        os.kill(pid, signal.SIGKILL)

    def _read(self, word: str) -> int:
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline().split())[0] != word:
            pass
        return int(line[1])


@pytest.fixture
def victims(server: FaultyServer) -> Iterator[Victims]:
    command = [sys.executable, "-S", "-E", "-m", faults_victim.__name__]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=Path(faults_victim.__file__).parents[1], **pipes) as process:
        yield Victims(process, server)
        assert process.stdin is not None
        process.stdin.close()


class Prey:
    """A batch whose clients die; `outputs` is what it must hold."""

    def __init__(self, wire: Wire) -> None:
        sequences = [types_pb2.Sequence(sequence_id=str(row), max_new_tokens=2000) for row in range(_ROWS)]
        for sequence in sequences:
            sequence.penalties.frequency_penalty = 0.25
        self.live: OpenBatch = wire.open(creation(*sequences, vocab_size=_VOCAB))
        self.outputs: list[list[int]] = [[] for _ in range(_ROWS)]

    def half_a_step(self, token_ids: list[int]) -> tuple[service_pb2.ApplyRequest, list[bytes]]:
        """A step in two chunks: its first one, and the bytes up to the middle of the second."""
        first = service_pb2.ApplyRequest(target=self.live.target(), logits=tensor(_LOGITS[:2]))
        first.tokens.CopyFrom(token_update(*token_ids))
        target = self.live.target(expected_revision=self.live.revision + 1, request_id=b"")
        second = service_pb2.ApplyRequest(target=target, first_row=2, logits=tensor(_LOGITS[2:]))
        start = http2.opening() + http2.call(1, f"/{SERVICE}/Apply")
        rest = http2.message(1, second.SerializeToString())
        return first, [start + http2.message(1, first.SerializeToString()), rest[: len(rest) // 2]]

    def half_a_step_in_memory(self, token_ids: list[int]) -> tuple[service_pb2.ApplyRequest, list[bytes]]:
        """The same in place, in a region that is registered first."""
        register = service_pb2.RegisterSharedMemoryRequest(memory_file_token=TOKEN, byte_size=1 << 16)
        place = types_pb2.SharedMemoryRef(region_id=REGION.decode())
        logits = types_pb2.Tensor(data_type=types_pb2.DATA_TYPE_FP32, shape=(2, _VOCAB), shared_memory=place)
        form = types_pb2.APPLY_FORM_IN_PLACE
        first = service_pb2.ApplyRequest(target=self.live.target(), form=form, logits=logits)
        first.tokens.CopyFrom(token_update(*token_ids))
        start = http2.opening() + http2.call(1, f"/{SERVICE}/RegisterSharedMemory")
        step = http2.call(3, f"/{SERVICE}/Apply") + http2.message(3, first.SerializeToString())
        retry = service_pb2.ApplyRequest(target=first.target, tokens=first.tokens, logits=tensor(_LOGITS[:2]))
        return retry, [start + http2.message(1, register.SerializeToString(), is_last=True), step, b"\0\0"]

    def check_and_repeat(self, first: service_pb2.ApplyRequest, token_ids: list[int], *, is_ready: bool) -> None:
        """The step happened or not, as a whole; repeated, it has happened once."""
        after = [[*output, token_id] for output, token_id in zip(self.outputs, token_ids, strict=True)]
        now = self.live.describe()
        states = {self.live.revision: self.outputs, self.live.revision + 1: after}
        assert [read_ints(sequence.output_token_ids) for sequence in now.sequences] == states[now.revision]
        assert not is_ready or now.revision == self.live.revision + 1
        reply = self.live.wire.call("Apply", first)
        assert reply.revision == self.live.revision + 1
        self.live.revision, self.outputs = reply.revision, after
        assert self.live.outputs() == after


def murder(server: FaultyServer, victims: Victims, prey: list[Prey], kills: int, random: Random) -> None:
    for number in range(kills):
        one = random.choice(prey)
        token_ids = [random.randrange(_VOCAB) for _ in range(_ROWS)]
        shares_memory = number % 3 == 0
        make = one.half_a_step_in_memory if shares_memory else one.half_a_step
        first, parts = make(token_ids)
        pid = victims.bear(*parts, shares_memory=shares_memory)
        is_ready = number % 2 == 0
        if not is_ready:
            time.sleep(random.uniform(0, _LONGEST_LIFE))
        victims.kill(pid, is_ready=is_ready)
        one.check_and_repeat(first, token_ids, is_ready=is_ready)


@pytest.mark.timeout(scaled(120, 600))
def test_a_step_is_whole_or_not_at_all_and_the_dead_leave_nothing(
    server: FaultyServer, wire: Wire, victims: Victims
) -> None:
    random = Random(6)
    prey = [Prey(wire) for _ in range(_BATCHES)]
    nobody = server.vitals
    murder(server, victims, prey, int(KILLS * _WARM_UP), random)
    before = settled(lambda: server.vitals, nobody)
    murder(server, victims, prey, KILLS, random)
    after = settled(lambda: server.vitals, before)
    assert after.memory_files == 0
    assert after.descriptors <= nobody.descriptors
    assert_flat(before, after, mib=8)


def test_chunks_of_a_beam_step_die_with_their_client(wire: Wire, victims: Victims, server: FaultyServer) -> None:
    search = types_pb2.Sequence(sequence_id="s", max_new_tokens=50)
    search.beam.width = 4
    batch, twin = (wire.open(creation(search, vocab_size=_VOCAB)) for _ in range(2))
    for _ in range(scaled(5, 50)):
        rows = sum(row.row_count for row in batch.describe().rows)
        logits = _LOGITS[:rows]
        chunk = service_pb2.BeamStepRequest(target=batch.target(), logits=tensor(logits), has_more_chunks=True)
        start = http2.opening() + http2.call(1, f"/{SERVICE}/BeamStep")
        pid = victims.bear(start + http2.message(1, chunk.SerializeToString()), b"\0", shares_memory=False)
        victims.kill(pid, is_ready=True)
        assert batch.describe().revision == batch.revision
        assert batch.beam_step(logits) == twin.beam_step(logits)


def test_callers_that_hang_up_at_any_moment_are_no_fault_of_the_server(server: FaultyServer, wire: Wire) -> None:
    """Before a refusal has reached them, or with replies to right messages still to come."""
    batch = wire.open(creation(types_pb2.Sequence(sequence_id="s"), vocab_size=_VOCAB))
    random, before = Random(10), server.vitals
    target = batch.target(request_id=b"")
    reading = service_pb2.ApplyRequest(target=target, logits=tensor(_LOGITS[:1])).SerializeToString()
    wrong = b"\xff\xff"
    for number in range(scaled(400, 5000)):
        method = ("Apply", "GetBatch", "Accumulate")[number % 3]
        messages = [reading] * 20 if number % 6 == 0 else [wrong]
        data = b"".join(http2.message(1, each, is_last=method == "GetBatch") for each in messages)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(server.address.removeprefix("unix:"))
            connection.sendall(http2.opening() + http2.call(1, f"/{SERVICE}/{method}") + data)
            time.sleep(random.uniform(0, 0.004))
    assert settled(lambda: server.vitals, before).descriptors <= before.descriptors
    server.check_logs()


DECODER = """
import sys
import numpy as np
from logitd.client import Client, Penalties, Sequence

sequences = [Sequence(penalties=Penalties(frequency_penalty=0.5), sequence_id=name) for name in "ab"]
client = Client(sys.argv[1], chunk_bytes=40_000)  # a row a chunk
batch = client.create_batch(sequences, vocab_size=10_000, batch_id=sys.argv[2])
shared = client.shared_logits(2, 10_000)
print("decoding", flush=True)
for step in range(4000):
    logits = np.full((2, 10_000), step, np.float32)
    if step % 3:
        batch.apply(logits, [step, step + 1])
    else:
        shared.array[...] = logits
        batch.apply_inplace(shared, [step, step + 1])
"""


def test_real_clients_are_killed_and_their_batches_stand_between_two_steps(server: FaultyServer, wire: Wire) -> None:
    random = Random(8)
    for number in range(REAL_KILLS):
        batch_id = f"real-{number}"
        with decoding(server.address, batch_id) as process:
            time.sleep(random.uniform(0, 0.3))
            process.kill()
        request = service_pb2.GetBatchRequest(batch_id=batch_id, view=types_pb2.BATCH_VIEW_FULL)
        batch = wire.call("GetBatch", request).batch
        for row, sequence in enumerate(batch.sequences):
            tokens = torch.arange(row, row + batch.revision, dtype=torch.int32)
            assert sequence.output_token_ids == tokens.numpy().tobytes()
        wire.call("DeleteBatch", service_pb2.DeleteBatchRequest(batch_id=batch_id))
    no_files = Vitals(0, 1 << 20, 1 << 20, 0, 0)
    assert settled(lambda: server.vitals, no_files).memory_files == 0


@contextmanager
def decoding(address: str, batch_id: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", DECODER, address, batch_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "decoding\n"
            yield process
        finally:
            process.kill()
