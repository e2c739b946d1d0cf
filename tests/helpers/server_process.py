"""A server as an operator runs it: a process, its signals, and the log that it writes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 60


class ServerProcess:
    """`process` runs until the end of the `with` block that made this."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def events(self) -> list[dict[str, Any]]:
        """The complete lines of the log so far, each of which is JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(self, event: str) -> dict[str, Any]:
        """The first event of that name."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for found in self.events():
                if found["event"] == event:
                    return found
            time.sleep(0.02)
        raise AssertionError(self.log.read_text())


@contextmanager
def running_process(log: Path, *flags: str) -> Iterator[ServerProcess]:
    """``logitd serve`` with these flags."""
    command = [sys.executable, "-m", "logitd.service", "serve", *flags]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        yield ServerProcess(process, log)
    finally:
        process.kill()
        process.wait()
