"""A server as an operator meets it: probes, signals, sockets, connections that died, and state that nobody wants."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from helpers.live_server import LiveServer, serving
from helpers.right_requests import STEPS, open_penalty_batch, penalty_creation
from helpers.server_process import running_process
from helpers.wire import SERVICE, TIMEOUT, Failed, Wire, read_failure
from logitd.service.config import ConfigError, ServerConfig
from logitd.service.regions.side_socket import SUFFIX
from logitd.service.sockets import claiming, listen_unix
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECONDS = 10
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def make_config(folder: Path, **settings: Any) -> ServerConfig:
    return ServerConfig(**({"listen": "", "unix_socket": str(folder / "s"), "linger_seconds": 0} | settings))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def health(address: str, service: str) -> int:
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=SECONDS).status


def test_drain_of_a_process_from_the_signal_to_its_end(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 's'}"
    flags = ("--listen", "", "--unix-socket", str(tmp_path / "s"), "--linger-seconds", "6")
    ports = ("--health-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
    with running_process(tmp_path / "log", *flags, *ports) as server:
        places = server.wait_for("serving")
        wire = Wire(address)
        batch, stream = open_penalty_batch(wire), wire.converse("Accumulate")
        ask = STEPS["Accumulate"][2]
        first = stream.ask(ask(batch))
        assert not first.draining
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        for probed in (address, places["health_address"]):
            assert (health(probed, ""), health(probed, SERVICE)) == (SERVING, NOT_SERVING)
        batch.revision = first.revision
        second = stream.ask(ask(batch))
        assert second.draining
        assert wire.limits().max_batches == ServerConfig().max_batches
        with urllib.request.urlopen(f"http://{places['metrics_address']}/metrics", timeout=SECONDS) as response:
            # The revision counts the same steps.
            assert f'logitd_steps_total{{method="Accumulate"}} {second.revision}.0' in response.read().decode()
        with pytest.raises(grpc.RpcError) as ended:
            next(stream.call)
        failure = read_failure(ended.value)
        assert (failure.code, failure.reason) == ("UNAVAILABLE", "DRAINING")
        assert server.process.wait(SECONDS) == 0
        wire.close()
        assert [event["event"] for event in server.events() if event["event"] != "call"] == [
            *("starting", "serving", "draining", "stopped")
        ]
        assert {event["code"] for event in server.events() if event["event"] == "call"} == {"OK", "UNAVAILABLE"}
    assert not (tmp_path / "s").exists()


def test_second_signal_ends_a_process_that_lingers(tmp_path: Path) -> None:
    flags = ("--listen", "127.0.0.1:0", "--linger-seconds", "60")
    with running_process(tmp_path / "log", *flags) as server:
        server.wait_for("serving")
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(SECONDS) == 0


def test_signal_while_the_server_starts_is_not_lost(tmp_path: Path) -> None:
    flags = ("--listen", "127.0.0.1:0", "--linger-seconds", "0")
    with running_process(tmp_path / "log", *flags) as server:
        server.wait_for("starting")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(6 * SECONDS) == 0
        assert server.events()[-1]["event"] == "stopped"


class Gate:
    """Holds the worker thread up in the midst of an operation."""

    def __init__(self, live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_reached = threading.Event()
        self._is_open = threading.Event()
        self._find = live.registry.find
        monkeypatch.setattr(live.registry, "find", self.find)

    def find(self, batch_id: str, uid: bytes) -> object:
        self._is_reached.set()
        assert self._is_open.wait(SECONDS)
        return self._find(batch_id, uid)

    def wait_until_reached(self) -> None:
        assert self._is_reached.wait(SECONDS)

    def open(self) -> None:
        self._is_open.set()


def stopping(live: LiveServer) -> threading.Thread:
    thread = threading.Thread(target=live.run, args=(live.server.stop(),))
    thread.start()
    return thread


def test_stop_waits_for_what_runs_and_what_is_queued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(make_config(tmp_path, grace_seconds=60)) as live:
        wire = Wire(live.address)
        batch = open_penalty_batch(wire)
        start, requests = batch.revision, [STEPS["Accumulate"][2](batch)]
        batch.revision += 1
        requests.append(STEPS["Accumulate"][2](batch))
        gate = Gate(live, monkeypatch)
        stream = wire.converse("Accumulate")
        stream.send(*requests)
        gate.wait_until_reached()
        wait_for(lambda: live.server._handlers.queued_bytes == requests[1].ByteSize())
        thread = stopping(live)
        wait_for(lambda: live.server.context.is_draining)
        gate.open()
        replies = [next(stream.call), next(stream.call)]
        assert [(reply.revision, reply.draining) for reply in replies] == [(start + 1, True), (start + 2, True)]
        with pytest.raises(grpc.RpcError) as ended:
            next(stream.call)
        assert read_failure(ended.value).reason == "DRAINING"
        thread.join(SECONDS)
        assert not thread.is_alive()
        wire.close()


def test_stream_that_opens_too_late_ends_at_once(tmp_path: Path) -> None:
    """Its call was on the way when the others were ended."""
    with serving(make_config(tmp_path)) as live:
        wire = Wire(live.address)
        batch = open_penalty_batch(wire)
        live.server._handlers.end_streams()
        with pytest.raises(Failed) as caught:
            wire.converse("Accumulate").ask(STEPS["Accumulate"][2](batch))
        assert caught.value.failure.reason == "DRAINING"
        wire.close()


def test_hurry_cuts_the_grace_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(make_config(tmp_path, grace_seconds=60)) as live:
        wire = Wire(live.address)
        batch, gate = open_penalty_batch(wire), Gate(live, monkeypatch)
        stream = wire.converse("Accumulate")
        stream.send(STEPS["Accumulate"][2](batch))
        gate.wait_until_reached()
        thread = stopping(live)
        wait_for(lambda: live.server.context.is_draining)
        live.hurry()
        with pytest.raises(grpc.RpcError) as cut:
            next(stream.call)
        assert cut.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        gate.open()
        thread.join(SECONDS)
        assert not thread.is_alive()
        wire.close()


def test_watches_of_health_are_told_and_do_not_hold_a_stop_up(tmp_path: Path) -> None:
    config = make_config(tmp_path, health_listen="127.0.0.1:0", grace_seconds=60)
    with serving(config) as live:
        channels = [grpc.insecure_channel(a) for a in (live.address, live.server.endpoints.health_address)]
        watches = [
            (service, health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service)))
            for channel in channels
            for service in ("", SERVICE, "another")
        ]
        first = {"": SERVING, SERVICE: SERVING, "another": health_pb2.HealthCheckResponse.SERVICE_UNKNOWN}
        assert [next(watch).status for _, watch in watches] == [first[service] for service, _ in watches]
        thread = stopping(live)
        for service, watch in watches:
            told: list[int] = []
            with pytest.raises(grpc.RpcError) as ended:
                told.extend(update.status for update in watch)
            assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
            assert told == ([NOT_SERVING] if service == SERVICE else [])
        thread.join(SECONDS)
        assert not thread.is_alive()
        for channel in channels:
            channel.close()


def test_health_only_port_serves_health_alone(tmp_path: Path) -> None:
    with serving(make_config(tmp_path, health_listen="127.0.0.1:0")) as live:
        address = live.server.endpoints.health_address
        assert health(address, "") == health(address, SERVICE) == SERVING
        with pytest.raises(grpc.RpcError) as unknown:
            health(address, "another")
        assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(f"/{SERVICE}/GetCapabilities")(b"", timeout=TIMEOUT)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_health_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = make_config(tmp_path, health_listen=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(ConfigError, match="must be free to listen on"), serving(config):
            pytest.fail("it serves")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("mode", ["0600", "0666"])
def test_sockets_have_the_configured_permissions(tmp_path: Path, mode: str) -> None:
    inherited = os.umask(0o077)
    try:
        with serving(make_config(tmp_path, unix_socket_mode=mode)):
            for path in (tmp_path / "s", tmp_path / f"s{SUFFIX}"):
                assert path.stat().st_mode & 0o777 == int(mode, 8)
            assert os.umask(0o077) == 0o077  # as it was
    finally:
        os.umask(inherited)


def test_servers_that_start_at_once_do_not_take_each_others_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    listen_unix(path).close()  # a stale one, which both find
    refusals: list[ConfigError] = []

    def start_another() -> None:
        try:
            with claiming(path, mode=0o660):
                pytest.fail("it was claimed twice")
        except ConfigError as error:
            refusals.append(error)

    with claiming(path, mode=0o660):
        other = threading.Thread(target=start_another)
        other.start()
        other.join(0.2)
        assert other.is_alive()  # it waits for its turn
        listener = listen_unix(path)
    other.join(SECONDS)
    assert [str(error) for error in refusals] == [f"unix_socket must not be served already, got {path!r}"]
    listener.close()


def test_idle_state_goes_without_anybody_asking(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    file = memory / "logits"
    file.write_bytes(bytes(4096))
    file.chmod(0o600)
    with serving(make_config(tmp_path, idle_timeout_seconds=3, shared_memory_dir=str(memory))) as live:
        wire = Wire(live.address)
        wire.open(penalty_creation())
        wire.call("RegisterSharedMemory", service_pb2.RegisterSharedMemoryRequest(file_name=file.name, byte_size=4096))
        assert (len(live.registry), len(live.server.context.regions)) == (1, 1)
        wait_for(lambda: (len(live.registry), len(live.server.context.regions)) == (0, 0))
        assert live.registry.num_expired == 1
        wire.close()


def test_sweep_survives_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(make_config(tmp_path, idle_timeout_seconds=0.5)) as live:
        wire = Wire(live.address)
        wire.open(penalty_creation())
        failed = threading.Event()

        def fail() -> None:
            monkeypatch.undo()
            failed.set()
            raise RuntimeError

        monkeypatch.setattr(live.registry, "expire", fail)
        assert failed.wait(SECONDS)
        wait_for(lambda: len(live.registry) == 0)
        wire.close()


class RawPeer(socket.socket):
    """A client that speaks no more HTTP/2 than it takes to be one."""

    def __init__(self, path: str) -> None:
        super().__init__(socket.AF_UNIX)
        self.settimeout(SECONDS)
        self.connect(path)
        settings = bytes(3) + b"\x04" + bytes(5)
        acknowledged = bytes(3) + b"\x04\x01" + bytes(4)
        self.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + acknowledged)

    def ping(self) -> None:
        self.sendall(b"\0\0\x08\x06" + bytes(5) + bytes(8))

    def read_answer(self) -> None:
        """Read up to the answer to a ping."""
        while (frame := self._read_frame())[3:5] != b"\x06\x01":
            assert b"too_many_pings" not in frame

    def read_until_closed(self) -> bytes:
        received = bytearray()
        while data := self.recv(4096):
            received += data
        return bytes(received)

    def _read_frame(self) -> bytes:
        head = self._read(9)
        return head + self._read(int.from_bytes(head[:3], "big"))

    def _read(self, count: int) -> bytes:
        data = self.recv(count, socket.MSG_WAITALL)
        assert len(data) == count, "the connection is closed"
        return data


def test_clients_may_ping_as_often_as_configured(tmp_path: Path) -> None:
    with serving(make_config(tmp_path, min_ping_interval_seconds=0.01)), RawPeer(str(tmp_path / "s")) as peer:
        for _ in range(10):
            peer.ping()
            peer.read_answer()  # else the server might read some at once
            time.sleep(0.03)
        peer.shutdown(socket.SHUT_WR)
        assert b"too_many_pings" not in peer.read_until_closed()


def test_clients_that_ping_more_often_are_closed(tmp_path: Path) -> None:
    with serving(make_config(tmp_path, min_ping_interval_seconds=30)), RawPeer(str(tmp_path / "s")) as peer:
        for _ in range(4):  # the first is free, then two strikes
            peer.ping()
        assert b"too_many_pings" in peer.read_until_closed()


def test_connection_whose_peer_is_gone_is_closed(tmp_path: Path) -> None:
    """It never answers a ping, as a machine that lost its power."""
    config = make_config(tmp_path, keepalive_seconds=0.2, keepalive_timeout_seconds=0.2)
    with serving(config), RawPeer(str(tmp_path / "s")) as peer:
        began = time.monotonic()
        peer.read_until_closed()
        assert time.monotonic() - began < SECONDS
