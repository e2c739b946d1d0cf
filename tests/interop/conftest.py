"""A real server for the samples, seen through a recorder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from interop.recorder import Recording, recording

from helpers.live_server import LiveServer, serving
from logitd.service.config import ServerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def memory_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's directory of named shared-memory files."""
    return tmp_path_factory.mktemp("memory")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, memory_dir: Path) -> Iterator[LiveServer]:
    socket = tmp_path_factory.mktemp("server") / "socket"
    config = ServerConfig(listen="", unix_socket=str(socket), shared_memory_dir=str(memory_dir), linger_seconds=0)
    with serving(config) as live:
        yield live


@pytest.fixture
def recorded(server: LiveServer, tmp_path: Path) -> Iterator[Recording]:
    with recording(server.address, tmp_path) as result:
        yield result
