"""What the tests of faults share: how long they take, a server that may die, its vital signs, and its log's verdict."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from helpers.server_process import ServerProcess, running_process
from helpers.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

IS_LONG = os.environ.get("LOGITD_FAULTS") == "long"
SECONDS = 100
_PAUSE = 0.05
_STEADY_READS = 10
_POOL_THREADS = 3

Value = TypeVar("Value")

# All that an event of the log may say: names, codes, counts and times. Whatever a caller has sent is none of these.
_CALL_FIELDS = {"time", "level", "event", "method", "code", "reason", "ms", "peer"} | {
    f"{unit}_{way}" for unit in ("messages", "bytes") for way in ("received", "sent")
}
_OTHER_FIELDS = {
    "starting": {"version"},
    "serving": {"unix_socket", "tcp_address", "metrics_address", "health_address"},
    "draining": {"linger_seconds"},
    "idle batches expired": {"expired", "live"},
    "stopped": set[str](),
}


def scaled(short: Value, long: Value) -> Value:
    """What is used by default, and what with LOGITD_FAULTS=long."""
    return long if IS_LONG else short


@dataclass(frozen=True)
class Vitals:
    """What a process holds."""

    rss_mib: float
    descriptors: int
    threads: int
    mappings: int
    memory_files: int

    @classmethod
    def of(cls, pid: int) -> Vitals:
        proc = Path(f"/proc/{pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        maps = (proc / "maps").read_text().splitlines()
        return cls(
            rss_mib=int(status["VmRSS"].split()[0]) / 1024,
            descriptors=len(list((proc / "fd").iterdir())),
            threads=int(status["Threads"]),
            mappings=len(maps),
            memory_files=sum("/memfd:" in line for line in maps),
        )


class FaultyServer:
    """A server process at a Unix socket, which may be killed or stopped and started again. A context manager.

    At its end every log that it wrote must be free of faults of the server's own.
    """

    def __init__(self, folder: Path, *flags: str) -> None:
        self._folder = folder
        self._flags = ("--listen", "", "--unix-socket", str(folder / "s"), *flags)
        self._running = ExitStack()
        self._logs: list[Path] = []
        self.current: ServerProcess
        self.address = f"unix:{folder / 's'}"
        self.side_socket = f"{folder / 's'}.memory"

    def __enter__(self) -> FaultyServer:
        try:
            self.start()
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_alive = self.current.process.poll() is None
        self._running.close()
        if kind is None:
            assert is_alive, f"the server ended by itself:\n{self._logs[-1].read_text()[-4000:]}"
            self.check_logs()

    @property
    def pid(self) -> int:
        return self.current.process.pid

    @property
    def vitals(self) -> Vitals:
        return Vitals.of(self.pid)

    def connect(self) -> Wire:
        """A channel of its own, closed with the server."""
        wire = Wire(self.address)
        self._running.callback(wire.close)
        return wire

    def start(self) -> None:
        """Return when it serves."""
        log = self._folder / f"log-{len(self._logs)}"
        self._logs.append(log)
        self.current = self._running.enter_context(running_process(log, *self._flags))
        has_started = wait_until(lambda: any(event["event"] == "serving" for event in self.current.events()))
        assert has_started, log.read_text()

    def kill(self) -> None:
        """As the kernel does it when memory is short."""
        self.current.process.kill()
        self.current.process.wait(SECONDS)

    def terminate(self) -> None:
        """As Kubernetes does it in a roll-out; it must end well."""
        self.current.process.send_signal(signal.SIGTERM)
        assert self.current.process.wait(SECONDS) == 0

    def calls(self) -> list[dict[str, Any]]:
        """What the log of the running server says of the calls that have ended."""
        return [event for event in self.current.events() if event["event"] == "call"]

    def wait_for_load(self) -> None:
        """Return when callers have found the server."""
        assert wait_until(lambda: bool(self.calls())), "no calls came"

    def check_logs(self) -> None:
        """No fault, no code that is never to be seen, nothing but names, codes, counts and times."""
        assert self._logs
        for log in self._logs:
            for line in log.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # the last line of a killed server may be cut
                    check_event(json.loads(line))


def check_event(event: dict[str, Any]) -> None:
    """One event of the log."""
    assert event["level"] == "info", event
    assert event.get("code") not in {"INTERNAL", "UNKNOWN"}, event
    common = {"time", "level", "event"}
    allowed = _CALL_FIELDS if event["event"] == "call" else common | _OTHER_FIELDS[event["event"]]
    assert event.keys() <= allowed, event
    assert all(isinstance(value, str | int | float) for value in event.values()), event


def wait_until(is_so: Callable[[], bool], seconds: float = SECONDS) -> bool:
    """Whether it became so in that time."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)
    return True


def steady(read: Callable[[], Value]) -> Value:
    """What it reads, once that no longer changes: what the server still did for those who left has come to its end."""
    value, unchanged = read(), 0
    while unchanged < _STEADY_READS:
        time.sleep(_PAUSE)
        before, value = value, read()
        unchanged = unchanged + 1 if value == before else 0
    return value


def settled(read: Callable[[], Vitals], wanted: Vitals, seconds: float = 10) -> Vitals:
    """The vital signs once descriptors and regions are down to what is wanted, or the time is over."""

    def is_down() -> bool:
        now = read()
        return all(getattr(now, name) <= getattr(wanted, name) for name in ("descriptors", "memory_files"))

    wait_until(is_down, seconds)
    return read()


def assert_flat(before: Vitals, after: Vitals, *, mib: float, mappings: int = 64) -> None:
    """No more descriptors and regions than before; hardly more memory and threads.

    `mib` and `mappings` are what an allocator may still take after its warm-up, and gRPC's pool may still start
    threads; a leak per fault is many times that.
    """
    assert after.descriptors <= before.descriptors, (before, after)
    assert after.memory_files <= before.memory_files, (before, after)
    assert after.threads <= before.threads + _POOL_THREADS, (before, after)
    assert after.mappings <= before.mappings + mappings, (before, after)
    assert after.rss_mib <= before.rss_mib + mib, (before, after)
