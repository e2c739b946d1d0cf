"""Mixed load for a while: memory, descriptors and threads of the server stay flat."""

from __future__ import annotations

import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING

import pytest

from helpers.faults import IS_LONG, FaultyServer, Vitals, scaled, wait_until
from helpers.faults_decoders import KINDS, Load
from helpers.right_requests import follow, open_beam_batch, open_penalty_batch
from helpers.wire import Failed, Wire
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECONDS = scaled(6.0, 600.0)
_SAMPLES = 60
# The sixths of the run that are compared: the second, by which everything has been used, with the last.
_PARTS = 6


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultyServer]:
    """What its visitors leave behind expires within seconds."""
    with FaultyServer(tmp_path, "--linger-seconds", "0", "--idle-timeout-seconds", scaled("4", "20")) as server:
        yield server


def visit(server: FaultyServer, over: Callable[[], bool]) -> int:
    """Callers that come, take a few right and wrong steps, and leave their batches behind or delete them."""
    random, visits = Random(1), 0
    while not over():
        visits += 1
        wire = Wire(server.address)
        batch = random.choice((open_penalty_batch, open_beam_batch))(wire)
        follow(batch)
        batch.revision = 1000
        with pytest.raises(Failed):
            batch.accumulate(1, 1)
        if random.random() < 0.5:
            delete = service_pb2.DeleteBatchRequest(batch_id=batch.batch_id, allow_missing=True)
            wire.call("DeleteBatch", delete)
        wire.close()
    return visits


@pytest.mark.timeout(scaled(120, 900))
def test_the_server_stays_as_large_as_it_was(server: FaultyServer) -> None:
    load = Load(server.address, server.address, server.side_socket, lambda: None)
    samples: list[Vitals] = []
    over = threading.Event()

    def watch() -> None:
        assert wait_until(lambda: load.has_seen_all, scaled(60, 100))
        for _ in range(_SAMPLES):
            time.sleep(SECONDS / _SAMPLES)
            samples.append(server.vitals)

    with ThreadPoolExecutor(1) as threads:
        visits = threads.submit(visit, server, over.is_set)
        try:
            load.run(watch)
        finally:
            over.set()
        assert visits.result() > SECONDS
    assert load.rounds >= len(KINDS) * SECONDS / 6
    assert_level(samples)


def assert_level(samples: list[Vitals]) -> None:
    part = len(samples) // _PARTS
    early, late = samples[part : 2 * part], samples[-part:]
    for name, slack in (("rss_mib", scaled(6, 12)), ("descriptors", 8), ("threads", 3), ("mappings", 64)):
        then, now = (statistics.median(getattr(each, name) for each in some) for some in (early, late))
        assert now <= then + slack, (name, then, now, IS_LONG)
