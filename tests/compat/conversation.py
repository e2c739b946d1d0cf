"""Runs a caller under some Python against a server that the caller may have killed, and compares what callers found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from helpers.faults import FaultyServer

TESTS = Path(__file__).parents[1]
FLAGS = ("--linger-seconds", "0", "--max-rows-per-batch", "64")


def converse(python: str, server: FaultyServer, memory_dir: Path, surface: str) -> dict[str, Any]:
    """What the caller says last: its answers, and which client it used."""
    actions: dict[str, Callable[[], None]] = {
        "kill": server.kill,
        "start": server.start,
        "pause": lambda: os.kill(server.pid, signal.SIGSTOP),
        "go_on": lambda: os.kill(server.pid, signal.SIGCONT),
    }
    command = [python, "-m", "compat.caller", server.address, str(memory_dir), surface]
    # Its client is the one of its own Python.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=TESTS, env=environment, stdin=pipe, stdout=pipe, text=True) as caller:
        try:
            return _serve(caller, actions)
        finally:
            caller.kill()


def _serve(caller: subprocess.Popen[str], actions: dict[str, Callable[[], None]]) -> dict[str, Any]:
    assert caller.stdin is not None
    assert caller.stdout is not None
    last: dict[str, Any] = {}
    for line in caller.stdout:
        last = json.loads(line)
        if "do" not in last:
            continue
        action = last["do"]
        actions["kill" if action == "restart" else action]()
        caller.stdin.write("done\n")
        caller.stdin.flush()
        if action == "restart":  # the caller goes on meanwhile, and meets no server
            actions["start"]()
    assert caller.wait(10) == 0, "the caller failed; its error is above"
    return last


def assert_same(
    got: Any, wanted: Any, place: str = "", *, tolerance: float = 0.0, ignored: frozenset[str] = frozenset()
) -> None:
    """Fails at the first place where the answers differ, floats by their bits or beyond the relative `tolerance`.

    A name that only `got` has is new and no difference; `ignored` names are not compared.
    """
    options: dict[str, Any] = {"tolerance": tolerance, "ignored": ignored}
    if isinstance(wanted, dict) and "dtype" in wanted:
        assert (got["dtype"], got["shape"]) == (wanted["dtype"], wanted["shape"]), place
        _assert_same_items(_items(got), _items(wanted), place, tolerance)
    elif isinstance(wanted, dict):
        assert got.keys() >= wanted.keys(), f"{place}: {sorted(wanted.keys() - got.keys())} are missing"
        for name in wanted.keys() - ignored:
            assert_same(got[name], wanted[name], f"{place}/{name}", **options)
    elif isinstance(wanted, list):
        assert len(got) == len(wanted), f"{place}: {got} != {wanted}"
        for index, pair in enumerate(zip(got, wanted, strict=True)):
            assert_same(*pair, f"{place}/{index}", **options)
    elif isinstance(wanted, float):
        _assert_same_items(np.array([got]), np.array([wanted]), place, tolerance)
    else:
        assert (type(got), got) == (type(wanted), wanted), place


def _items(array: dict[str, Any]) -> Any:
    return np.frombuffer(bytes.fromhex(array["bytes"]), array["dtype"])


def _assert_same_items(got: Any, wanted: Any, place: str, tolerance: float) -> None:
    is_exact = tolerance == 0 or wanted.dtype.kind != "f"
    if got.tobytes() != wanted.tobytes() and (is_exact or got != pytest.approx(wanted, rel=tolerance, nan_ok=True)):
        raise AssertionError(f"{place}: {got} != {wanted}")
