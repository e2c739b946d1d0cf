"""The demo from outside: what it says, and that it leaves nothing running however it ends."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from logitd.client import Penalties
from logitd.client.demo.decoding import CheckError, decode_greedily
from logitd.client.demo.models import repeated_fraction
from logitd.client.demo.ngram import load_ngram

needs_server = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="the demo's server runs in the same Python and needs torch"
)


@contextlib.contextmanager
def demo(environment=None, stdout=subprocess.PIPE):
    command = [sys.executable, "-m", "logitd.client.demo"]
    everything = os.environ | (environment or {})
    # What this process ignores, as one in the background does, its children would ignore too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, env=everything, text=True, stdout=stdout, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def server_pid(line):
    return int(re.search(r"process (\d+)", line)[1])


def is_running(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@needs_server
def test_the_demo_shows_what_happens_and_leaves_nothing_running():
    with demo() as process:
        output, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == (0, "")
    assert not is_running(server_pid(output))
    plain, repetition = re.findall(r"tokens, repeated 3-grams +(\d+)%", output)[:2]
    assert int(plain) > 50 > int(repetition)
    scores = [float(score) for score in re.findall(r"^\d\. score (\S+)", output, re.M)]
    assert len(scores) == 4
    assert scores == sorted(scores, reverse=True)
    assert output.count("✓") == 4
    assert re.search(r"min_new_tokens 15 +\d\d tokens", output)
    accepted = [float(mean) for mean in re.findall(r"tokens in +\d+ steps +(\S+) drafts accepted a step", output)]
    assert len(accepted) == 4
    assert min(accepted) > 0.5
    assert "every text is, token for token, the one that plain decoding gave" in output


@needs_server
@pytest.mark.parametrize("last_line", ["Server ", "Model "])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_demo_that_is_stopped_takes_its_server_along(number, status, last_line):
    ours, its = socket.socketpair()
    # The buffer is too small for all that it has to say, so it cannot end before it is stopped.
    its.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    with demo(stdout=its) as process, its, ours, ours.makefile("r", encoding="utf-8", newline="\n") as output:
        its.close()
        lines = iter(output.readline, "")
        pid = server_pid(line := next(lines))
        assert is_running(pid)
        while not line.startswith(last_line):
            line = next(lines)
        process.send_signal(number)
        assert "nothing is left running" not in output.read()
        process.communicate(timeout=60)
    assert process.returncode == status
    assert not is_running(pid)


@needs_server
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"LOGITD_MAX_BATCHES": "many"}, "the server must start within 60 s, got status 2"),
        ({"LOGITD_MAX_VOCAB_SIZE": "100"}, "vocab_size"),
    ],
)
def test_a_demo_that_fails_tells_the_reason(environment, reason):
    with demo(environment) as process:
        output, errors = process.communicate(timeout=100)
    assert process.returncode == 1
    assert reason in errors
    assert "The server's log ends with:" in errors
    assert "Traceback" not in errors
    assert not is_running(server_pid(output))


class Service:
    """A client whose batches answer with `change` of the logits."""

    def __init__(self, change):
        self.apply = lambda logits, token_ids: change(logits)

    @contextlib.contextmanager
    def create_batch(self, sequences, *, vocab_size):
        yield self


def test_a_service_that_touches_rows_without_penalties_is_caught():
    model = load_ngram()
    with pytest.raises(CheckError, match="bit by bit"):
        decode_greedily(Service(lambda logits: np.nextafter(logits, 0)), model, "The Gryphon", [Penalties()], 2)
    result = decode_greedily(Service(np.copy), model, "Alice looked at the", [Penalties()], 40)
    assert result.num_unchanged_rows == 40
    assert repeated_fraction(result.outputs[0].token_ids) > 0.5
