"""Fixtures of the deployment's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helpers.live_server import serving
from logitd.client import Client
from logitd.service.config import ServerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a server of its own, for what a decoder ought to get."""
    path = tmp_path_factory.mktemp("undisturbed") / "s"
    config = ServerConfig(listen="", unix_socket=str(path), linger_seconds=0)
    with serving(config) as live, Client(live.address) as client:
        yield client
