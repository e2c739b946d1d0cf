"""The command itself: what it prints, what it refuses, how it starts and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from helpers.live_server import serving
from helpers.right_requests import PENALTY_LOGITS, penalty_creation
from helpers.wire import SERVICE, Wire
from logitd.service.config import ConfigError, ServerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND = (sys.executable, "-m", "logitd.service")
SECONDS = 60
NO_SETTINGS = {name: value for name, value in os.environ.items() if not name.startswith("LOGITD_")}


@contextmanager
def running(*flags: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A server process that is gone at the end of the block; its log is read from stderr."""
    process = subprocess.Popen(
        [*COMMAND, "serve", "--linger-seconds", "0", *flags],
        stderr=subprocess.PIPE,
        text=True,
        env=NO_SETTINGS | environment,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=SECONDS)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        env=NO_SETTINGS | environment,
        timeout=SECONDS,
        check=False,
    )


def wait_until_serving(process: subprocess.Popen[str]) -> dict[str, str]:
    """What the log says when it serves: where it listens."""
    assert process.stderr is not None
    killer = threading.Timer(SECONDS, process.kill)
    killer.start()
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("{") and (event := json.loads(line))["event"] == "serving":
            killer.cancel()
            return event
    killer.cancel()
    raise AssertionError("".join(lines))


def health(address: str, service: str) -> int:
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=SECONDS).status


def try_one_batch(wire: Wire) -> None:
    with wire.opened(penalty_creation()) as batch:
        batch.apply(PENALTY_LOGITS, 1, 1)
        assert batch.outputs() == [[2, 2, 3, 1], [1]]


def test_serves_on_tcp_and_on_a_socket_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """Settings come from flags, then from variables, then from defaults."""
    path = tmp_path / "logitd.sock"
    variables = {
        "LOGITD_UNIX_SOCKET": str(path),
        "LOGITD_MAX_BATCHES": "5",
        "LOGITD_IDLE_TIMEOUT_SECONDS": "62.5",
        "LOGITD_REFLECTION": "true",
    }
    with running("--listen", "127.0.0.1:0", "--max-batches", "7", **variables) as process:
        event = wait_until_serving(process)
        assert event["unix_socket"] == str(path)
        assert path.stat().st_mode & 0o777 == 0o660
        for address in (event["tcp_address"], f"unix:{path}"):
            assert health(address, "") == health(address, SERVICE) == health_pb2.HealthCheckResponse.SERVING
            check_settings(address)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert list(tmp_path.iterdir()) == []


def check_settings(address: str) -> None:
    wire = Wire(address)
    try_one_batch(wire)
    limits = wire.limits()
    assert (limits.max_batches, limits.idle_timeout_seconds) == (7, 62.5)
    assert limits.max_vocab_size == ServerConfig().max_vocab_size
    assert SERVICE in wire.reflected_services()
    wire.close()


def test_taken_socket_is_refused_and_that_of_a_killed_server_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "logitd.sock"
    flags = ("--listen", "", "--unix-socket", str(path))
    with running(*flags) as first:
        wait_until_serving(first)
        second = run("serve", *flags)
        assert second.returncode == 2
        last_line = second.stderr.splitlines()[-1]
        assert last_line == f"logitd: unix_socket must not be served already, got '{path}'"
        assert "Traceback" not in second.stderr
        wire = Wire(f"unix:{path}")
        try_one_batch(wire)
        wire.close()
        first.kill()
        first.wait(SECONDS)
    assert path.is_socket()
    with running(*flags) as third:
        wait_until_serving(third)
        wire = Wire(f"unix:{path}")
        try_one_batch(wire)
        wire.close()
        third.send_signal(signal.SIGINT)
        assert third.wait(SECONDS) == 0
    assert list(tmp_path.iterdir()) == []


def test_taken_port_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert_refused(f"must be free to listen on, got '127.0.0.1:{taken.getsockname()[1]}'", listen=address_of(taken))


def test_file_that_is_no_socket_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    assert_refused(f"unix_socket must be free or a stale socket, got another file at '{path}'", unix_socket=str(path))
    assert path.read_text() == "data"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listen": "no-such-host.invalid:1"}, "must be free to listen on, got 'no-such-host.invalid:1'"),
        ({"unix_socket": "/no/such/folder/s"}, "must be in a directory that can be read, got '/no/such/folder'"),
        ({"listen": "127.0.0.1:0", "shared_memory_dir": "/no/such"}, "shared_memory_dir must be a directory to read"),
        ({"unix_socket": "/" + "x" * 107}, "must be at most 107 bytes, with its suffix, got '/xxx"),
    ],
)
def test_address_that_cannot_be_had_is_refused(settings: dict[str, str], message: str) -> None:
    assert_refused(message, **settings)


def address_of(taken: socket.socket) -> str:
    host, port = taken.getsockname()
    return f"{host}:{port}"


def assert_refused(message: str, **settings: str) -> None:
    """A server of these settings does not start, in words."""
    with pytest.raises(ConfigError, match=re.escape(message)), serving(ServerConfig(**({"listen": ""} | settings))):
        pytest.fail("it serves")


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        (["--max-batches", "0"], {}, "logitd: max_batches must be finite and > 0, got 0\n"),
        ([], {"LOGITD_MAX_BATCHES": "many"}, "logitd: LOGITD_MAX_BATCHES must be a int, got 'many'\n"),
        ([], {"LOGITD_REFLECTION": "maybe"}, "logitd: LOGITD_REFLECTION must be 1, 0, true or false, got 'maybe'\n"),
        (["--listen", ""], {}, "logitd: listen or unix_socket must be set, got neither\n"),
        (["--max-batches", "few"], {}, "argument --max-batches: invalid int value: 'few'\n"),
        (["--no-such-flag"], {}, "unrecognized arguments: --no-such-flag\n"),
    ],
)
def test_bad_settings_end_with_2_and_one_clear_message(
    flags: list[str], environment: dict[str, str], message: str
) -> None:
    ended = run("serve", *flags, **environment)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_help_names_every_setting_and_its_variable() -> None:
    for arguments in (["--help"], ["serve", "--help"]):
        shown = run(*arguments)
        assert shown.returncode == 0
        assert shown.stderr == ""
    words = shown.stdout.split()
    for setting in fields(ServerConfig):
        assert f"--{setting.name.replace('_', '-')}" in shown.stdout
        assert any(f"LOGITD_{setting.name.upper()}" in word for word in words)
        assert setting.metadata["help"].split()[0] in words


def test_command_without_arguments_says_what_there_is() -> None:
    ended = run()
    assert ended.returncode == 2
    assert "the following arguments are required: COMMAND" in ended.stderr
