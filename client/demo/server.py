"""A server of the demo's own, in a process that never outlives it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from logitd.client import Capabilities, Client, DeadlineExceededError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DemoServer", "running_server"]

_START_SECONDS = 60.0
_STOP_SECONDS = 15.0
_LOG_LINES = 15


class DemoServer:
    """`python -m logitd.service serve` on a Unix socket in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.target = f"unix:{folder / 'socket'}"
        self._log_path = folder / "log"
        command = [sys.executable, "-m", "logitd.service", "serve"]
        addresses = ["--listen", "", "--unix-socket", str(folder / "socket"), "--linger-seconds", "0"]
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *addresses], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, client: Client) -> Capabilities:
        """Returns as soon as the server answers.

        Raises:
            RuntimeError: it ended, or did not answer in time.
        """
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(DeadlineExceededError, UnavailableError):
                return client.wait_until_ready(0.5)
        raise RuntimeError(f"the server must start within {_START_SECONDS:g} s, got status {self._process.poll()}")

    def stop(self) -> None:
        """Ends the process and waits until it is gone.

        Raises:
            RuntimeError: it did not end well.
        """
        self._process.terminate()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        if self._process.returncode != 0:
            raise RuntimeError(f"the server must end with status 0, got {self._process.returncode}")

    def log_tail(self) -> str:
        """The last lines that it wrote."""
        lines = self._log_path.read_text(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])


@contextlib.contextmanager
def running_server() -> Iterator[DemoServer]:
    """A server that starts at once and is gone at the end, whatever happens in between.

    An error of the block, or of the server's end, gets the end of the server's log as a note.
    """
    with tempfile.TemporaryDirectory(prefix="logitd-demo-") as folder:
        server = DemoServer(Path(folder))
        try:
            try:
                yield server
            except BaseException:
                # What went wrong in the block is the news, not how the server ended.
                with contextlib.suppress(RuntimeError):
                    server.stop()
                raise
            server.stop()
        except Exception as error:
            error.add_note(f"The server's log ends with:\n{server.log_tail()}")
            raise
