"""Server processes for the tests of faults, each of which looks through the logs at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helpers.faults import FaultyServer
from helpers.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

# Small enough that a wrong message cannot ask for much, large enough for every step of these tests.
FLAGS = ("--linger-seconds", "0", "--max-rows-per-batch", "64", "--max-vocab-size", "65536")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    """One for all tests of a module."""
    with FaultyServer(tmp_path_factory.mktemp("faults"), *FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    """One that a test may kill or stop, if it starts it again."""
    with FaultyServer(tmp_path_factory.mktemp("own"), *FLAGS) as server:
        yield server


@pytest.fixture
def wire(server: FaultyServer) -> Iterator[Wire]:
    wire = Wire(server.address)
    yield wire
    wire.close()
