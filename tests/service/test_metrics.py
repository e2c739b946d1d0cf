"""What Prometheus scrapes: calls, steps and the state's size, and nothing that a caller has chosen."""

from __future__ import annotations

import logging
import socket
import threading
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from helpers.live_server import LiveServer, serving
from helpers.right_requests import BEAM_LOGITS, PENALTY_LOGITS, STEPS, beam_creation, open_beam_batch, penalty_creation
from helpers.wire import SERVICE, STREAM_METHODS, Failed, OpenBatch, Wire, creation, request_id
from logitd.service.config import ConfigError, ServerConfig
from logitd.v1 import service_pb2
from logitd.v1.types_pb2 import Sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LABELS = {"grpc_type", "grpc_service", "grpc_method", "grpc_code", "le", "method", "name"}
SECONDS = 10


class Scrape(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    """The samples of one scrape by name and labels."""

    def __init__(self, live: LiveServer) -> None:
        url = f"http://{live.server.endpoints.metrics_address}/metrics"
        with urllib.request.urlopen(url, timeout=SECONDS) as response:
            self.text = response.read().decode()
        for family in text_string_to_metric_families(self.text):
            for sample in family.samples:
                self[sample.name, frozenset(sample.labels.items())] = sample.value

    def read(self, name: str, **labels: str) -> float:
        return self[name, frozenset(labels.items())]

    def read_call(self, name: str, method: str, **labels: str) -> float:
        kind = "bidi_stream" if method in STREAM_METHODS else "unary"
        return self.read(name, grpc_type=kind, grpc_service=SERVICE, grpc_method=method, **labels)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveServer]:
    with serving(config(tmp_path)) as live:
        yield live


@pytest.fixture
def wire(live: LiveServer) -> Iterator[Wire]:
    wire = Wire(live.address)
    yield wire
    wire.close()


def config(folder: Path) -> ServerConfig:
    return ServerConfig(listen="", unix_socket=str(folder / "s"), metrics_listen="127.0.0.1:0", linger_seconds=0)


def wait_for(condition: Callable[[], bool]) -> None:
    """What a call leaves behind comes just after its reply."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_handled(live: LiveServer, method: str, code: str, count: int) -> Scrape:
    wait_for(lambda: Scrape(live).get(key(method, code), 0) == count)
    return Scrape(live)


def key(method: str, code: str) -> tuple[str, frozenset[tuple[str, str]]]:
    kind = "bidi_stream" if method in STREAM_METHODS else "unary"
    labels = {"grpc_type": kind, "grpc_service": SERVICE, "grpc_method": method, "grpc_code": code}
    return "grpc_server_handled_total", frozenset(labels.items())


def test_calls_are_counted_by_method_and_code(live: LiveServer, wire: Wire) -> None:
    with wire.opened(penalty_creation()) as batch:
        batch.apply(PENALTY_LOGITS, 1, 2)
        with pytest.raises(Failed):
            batch.apply(PENALTY_LOGITS, 1, 99)
    wait_until_handled(live, "DeleteBatch", "OK", 1)
    scrape = wait_until_handled(live, "Apply", "INVALID_ARGUMENT", 1)
    for method, code, started in (
        ("CreateBatch", "OK", 1),
        ("DeleteBatch", "OK", 1),
        ("Apply", "OK", 2),
        ("Apply", "INVALID_ARGUMENT", 2),
    ):
        assert scrape.read_call("grpc_server_started_total", method) == started
        assert scrape.read_call("grpc_server_handled_total", method, grpc_code=code) == 1
    assert scrape.read_call("grpc_server_handling_seconds_count", "Apply") == 2
    assert scrape.read_call("grpc_server_handling_seconds_bucket", "Apply", le="+Inf") == 2
    assert 0 < scrape.read_call("grpc_server_handling_seconds_sum", "Apply") < SECONDS
    assert scrape.read_call("grpc_server_msg_received_total", "Apply") == 2
    assert scrape.read_call("grpc_server_msg_sent_total", "Apply") == 1


def test_methods_that_nobody_called_are_there_with_zero(live: LiveServer) -> None:
    scrape = Scrape(live)
    methods = {dict(labels)["grpc_method"] for name, labels in scrape if name == "grpc_server_started_total"}
    assert methods == {
        method.name for method in service_pb2.DESCRIPTOR.services_by_name[SERVICE.split(".")[-1]].methods
    }
    assert scrape.read_call("grpc_server_handled_total", "BeamStep", grpc_code="OK") == 0


def test_messages_and_steps_are_counted_while_their_stream_is_open(live: LiveServer, wire: Wire) -> None:
    method, open_batch, make = STEPS["Apply"]
    batch, stream = open_batch(wire), wire.converse(method)
    for count in range(1, 4):
        batch.revision = stream.ask(make(batch)).revision
        wait_for(lambda count=count: Scrape(live).read_call("grpc_server_msg_sent_total", method) == count)
        assert Scrape(live).read("logitd_steps_total", method=method) == count
    scrape = Scrape(live)
    assert scrape.read_call("grpc_server_msg_received_total", method) == 3
    assert scrape.read_call("grpc_server_msg_sent_total", method) == 3
    assert scrape.read_call("grpc_server_started_total", method) == 1
    assert scrape.read_call("grpc_server_handled_total", method, grpc_code="OK") == 0
    assert scrape.read("logitd_step_seconds_count", method=method) == 3
    assert 0 < scrape.read("logitd_step_seconds_sum", method=method) < SECONDS
    buckets = [value for (name, labels), value in scrape.items() if name == "logitd_step_seconds_bucket"]
    assert sorted(buckets)[-1] == 3
    stream.finish()


def test_size_of_the_state_follows_it(live: LiveServer, wire: Wire) -> None:
    empty = Scrape(live)
    names = ("batches", "rows", "state_bytes", "state_reserved_bytes", "regions", "region_bytes", "queued_bytes")
    assert {name: empty.read(f"logitd_{name}") for name in names} == dict.fromkeys(names, 0)
    beams = open_beam_batch(wire)
    asked = Sequence(sequence_id="s", max_new_tokens=1000)
    asked.penalties.repetition_penalty = 2
    batch = wire.open(creation(asked, vocab_size=1000))
    region = wire.share(b"x")
    before = Scrape(live)
    assert before.read("logitd_batches") == 2
    assert before.read("logitd_rows") == 1 + beams_of(beams)
    assert before.read("logitd_state_reserved_bytes") == live.registry.reserved_bytes > 0
    assert (before.read("logitd_regions"), before.read("logitd_region_bytes")) == (1, 4096)
    batch.accumulate(*range(1000), splits=(0, 1000))
    after = Scrape(live)
    assert after.read("logitd_state_bytes") - before.read("logitd_state_bytes") > 12 * 1000  # a key and a count each
    assert after.read("logitd_state_bytes") <= after.read("logitd_state_reserved_bytes")
    beams.beam_step(BEAM_LOGITS.repeat(beams_of(beams), 1))
    assert Scrape(live).read("logitd_state_bytes") > after.read("logitd_state_bytes")
    for name in (batch.batch_id, beams.batch_id):
        wire.call("DeleteBatch", service_pb2.DeleteBatchRequest(batch_id=name))
    wire.call("UnregisterSharedMemory", service_pb2.UnregisterSharedMemoryRequest(region_id=region))
    gone = Scrape(live)
    assert {name: gone.read(f"logitd_{name}") for name in names} == dict.fromkeys(names, 0)


def beams_of(batch: OpenBatch) -> int:
    return sum(layout.row_count for layout in batch.describe().rows)


def test_messages_that_wait_for_the_work_are_counted(
    live: LiveServer, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = wire.open(creation(Sequence(sequence_id="s"), vocab_size=1000))
    request = service_pb2.AccumulateRequest(target=batch.target(request_id=request_id()))
    waiting: list[float] = []
    find = live.registry.find

    def find_and_look(batch_id: str, uid: bytes) -> object:
        handlers = live.server._handlers
        wait_for(lambda: handlers.queued_bytes == 2 * request.ByteSize())
        waiting.append(handlers.queued_bytes)
        monkeypatch.undo()
        return find(batch_id, uid)

    monkeypatch.setattr(live.registry, "find", find_and_look)
    with pytest.raises(Failed):
        wire.stream("Accumulate", [request] * 3)
    assert waiting == [2 * request.ByteSize()]
    wait_for(lambda: Scrape(live).read("logitd_queued_bytes") == 0)


def test_limits_are_those_of_the_configuration(live: LiveServer, tmp_path: Path) -> None:
    scrape = Scrape(live)
    limits = {dict(labels)["name"]: value for (name, labels), value in scrape.items() if name == "logitd_limit"}
    assert limits == {name: getattr(config(tmp_path), name) for name in limits}
    assert {"max_batches", "max_state_bytes", "max_region_bytes", "max_queued_bytes"} <= set(limits)


def test_expired_batches_are_counted(tmp_path: Path) -> None:
    now = [0.0]
    with serving(config(tmp_path), lambda: now[0]) as live:
        wire = Wire(live.address)
        wire.open(penalty_creation())
        wire.open(beam_creation())
        assert Scrape(live).read("logitd_batches_expired_total") == 0
        now[0] = 1e6
        wire.call("ListBatches", service_pb2.ListBatchesRequest())
        scrape = Scrape(live)
        assert scrape.read("logitd_batches_expired_total") == 2
        assert scrape.read("logitd_batches") == 0
        wire.close()


def test_caller_that_leaves_is_counted_as_cancelled(
    live: LiveServer, wire: Wire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, left = threading.Event(), threading.Event()

    def list_slowly(batch_id: str, count: int) -> list[object]:
        begun.set()
        assert left.wait(SECONDS)
        return []

    monkeypatch.setattr(live.registry, "list_after", list_slowly)
    with caplog.at_level(logging.INFO, "logitd.service.call_log"):
        call = wire.stub.ListBatches.future(service_pb2.ListBatchesRequest())
        assert begun.wait(SECONDS)
        call.cancel()
        wait_for(lambda: len(caplog.records) > 0)
    left.set()
    wait_until_handled(live, "ListBatches", "CANCELLED", 1)


def test_no_label_is_chosen_by_a_caller(live: LiveServer, wire: Wire) -> None:
    names = {"batch_id": "a-telling-batch-id", "vocab_size": 60_000}
    with wire.opened(creation(Sequence(sequence_id="a-telling-sequence-id"), **names)) as batch:
        batch.accumulate(54_321)
        batch.apply(torch.zeros(1, 60_000))
        scrape = Scrape(live)
        assert {label for _, labels in scrape for label, _ in labels} <= LABELS
        for telling in ("telling", batch.uid.hex(), "54321"):
            assert telling not in scrape.text


def test_process_is_measured_as_well(live: LiveServer) -> None:
    assert Scrape(live).read("process_resident_memory_bytes") > 1 << 20


def test_taken_port_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        wrong = ServerConfig(listen="", unix_socket=str(tmp_path / "s"), metrics_listen=address)
        rule = f"metrics_listen must be free to listen on, got '{address}'"
        with pytest.raises(ConfigError, match=rule), serving(wrong):
            pytest.fail("it serves")
