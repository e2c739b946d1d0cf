"""Fixtures of the comparisons with the engines themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from helpers.engine_files import find_sources
from helpers.vllm_offline import VllmSearch
from logitd.client import Client
from logitd.client.demo.server import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

VLLM = find_sources("vllm")


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    # Waking a second thread costs more than small tensors do, and a real model crawls where two threads wait for each
    # other on a busy machine.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    """A client of a server in a process of its own."""
    with running_server() as server, Client(server.target) as client:
        server.wait_until_ready(client)
        yield client


@pytest.fixture(scope="session", params=VLLM, ids=[source.name for source in VLLM])
def vllm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VllmSearch:
    """Each version's own search."""
    return VllmSearch(request.param, tmp_path_factory.mktemp("vllm"))
