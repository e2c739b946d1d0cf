"""One server for all tests of a run, small enough that its limits can be met, and a channel to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helpers.live_server import LiveServer, serving
from helpers.wire import Wire
from logitd.service.config import ServerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    config = ServerConfig(
        listen="",
        unix_socket=str(tmp_path_factory.mktemp("server") / "logitd.sock"),
        max_rows_per_batch=64,
        max_vocab_size=65_536,
        max_new_tokens=1000,
        default_max_new_tokens=100,
        max_prompt_tokens=64,
        max_stop_token_ids=8,
        linger_seconds=0,
    )
    with serving(config) as live:
        yield live


@pytest.fixture(scope="session")
def wire(server: LiveServer) -> Iterator[Wire]:
    wire = Wire(server.address)
    yield wire
    wire.close()
