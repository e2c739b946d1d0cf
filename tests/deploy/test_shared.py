"""The shared overlay with a real Envoy: batches keep to their server, and decodes outlive the loss of servers."""

from __future__ import annotations

import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest

from helpers.deploy_cluster import SharedCluster
from helpers.deploy_decoder import decode, search
from helpers.deploy_tools import need_namespaces, need_tool
from logitd.client import Client, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

need_namespaces()
need_tool("envoy")

_MOST_DECODES = 40
_FEW = 2
_SPARE_SECONDS = 2


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    with ExitStack() as resources:
        yield SharedCluster(tmp_path_factory.mktemp("shared"), resources)


@pytest.fixture
def cluster(processes: SharedCluster) -> SharedCluster:
    """All servers and Envoy, whatever the test before did to them."""
    processes.restore()
    return processes


class Decodes:
    """Texts that are decoded at once, slowly until `hurry`."""

    def __init__(self, address: str, steps: int) -> None:
        self._address = address
        self._steps = steps
        self._pool = ThreadPoolExecutor(_MOST_DECODES)
        self._is_hurried = threading.Event()
        self._started: list[threading.Event] = []
        self._results: list[Future[list[list[int]]]] = []

    def start(self, count: int) -> None:
        """So many more, each of which has taken its first steps on return."""
        for seed in range(len(self._results), len(self._results) + count):
            self._started.append(threading.Event())
            self._results.append(self._pool.submit(self._decode, seed))
        for started, result in zip(self._started, self._results, strict=True):
            assert started.wait(30) or result.exception() is None

    def hurry(self) -> None:
        self._is_hurried.set()

    @property
    def ended(self) -> list[BaseException | None]:
        """How those ended that did."""
        return [result.exception() for result in self._results if result.done()]

    def check(self, undisturbed: Client) -> None:
        """All of them end, with what a server that nobody disturbs gives."""
        for seed, result in enumerate(self._results):
            run = decode if seed % 2 else search
            assert result.result(60) == run(undisturbed, seed=seed, steps=self._steps)

    def close(self) -> None:
        self.hurry()
        self._pool.shutdown()

    def _decode(self, seed: int) -> list[list[int]]:
        def before(step: int) -> None:
            if step == _FEW:
                self._started[seed].set()
            self._is_hurried.wait(0.3 if step < self._steps - _FEW else 60)  # none ends before that

        run = decode if seed % 2 else search
        with Client(self._address) as client:
            return run(client, seed=seed, steps=self._steps, before=before)


@pytest.fixture
def decodes(cluster: SharedCluster) -> Iterator[Decodes]:
    running = Decodes(cluster.address, steps=60)
    yield running
    running.close()


def start_on_every_server(cluster: SharedCluster, decodes: Decodes) -> None:
    decodes.start(4)
    for _ in range(4, _MOST_DECODES, 4):
        owners = [number for _, number in cluster.locate()]
        if all(owners.count(number) >= _FEW for number in range(cluster.num_servers)):
            return
        decodes.start(4)
    pytest.fail(f"batches must come to every server, got {cluster.locate()}")


def test_batches_keep_to_their_server(cluster: SharedCluster, undisturbed: Client) -> None:
    with ExitStack() as resources:
        clients = [resources.enter_context(Client(address)) for address in cluster.addresses]
        sequences = [Sequence() for _ in range(2)]
        batches = [clients[number % len(clients)].create_batch(sequences, vocab_size=8) for number in range(30)]
        before = cluster.locate()
        assert len(before) == len(batches)
        assert {number for _, number in before} == set(range(cluster.num_servers))
        for step in range(3):
            for batch in batches:
                batch.accumulate([step, step])
                assert batch.apply(np.zeros((2, 8), np.float32)).shape == (2, 8)
        assert cluster.locate() == before
        assert {batch.revision for batch in batches} == {3}
        # The other Envoy comes to the same choice.
        others = clients[1:] + clients[:1]
        for number, batch in enumerate(batches):
            assert others[number % len(others)].get_batch(batch.batch_id, uid=batch.uid).revision == 3
        assert clients[0].capabilities().limits.max_batches == cluster.server_container.config().max_batches
        for batch in batches:
            batch.delete()
        assert cluster.locate() == []
        assert decode(clients[0], seed=1, steps=20) == decode(undisturbed, seed=1, steps=20)
        assert search(clients[0], seed=1, steps=20) == search(undisturbed, seed=1, steps=20)


def test_a_route_comes_back_to_a_server_that_restarts(cluster: SharedCluster) -> None:
    ids = [f"batch-{number}" for number in range(30)]

    def place() -> list[tuple[str, int]]:
        with Client(cluster.address) as client:
            batches = [client.create_batch([Sequence()], vocab_size=8, batch_id=each) for each in ids]
            found = cluster.locate()
            for batch in batches:
                batch.delete()
        return found

    before = place()
    cluster.servers[0].kill()
    cluster.wait_for_healthy(cluster.num_servers - 1)
    assert {number for _, number in place()} == set(range(1, cluster.num_servers))
    cluster.restore()
    assert place() == before


def test_decodes_outlive_a_drain_and_a_death(cluster: SharedCluster, decodes: Decodes, undisturbed: Client) -> None:
    start_on_every_server(cluster, decodes)
    config = cluster.server_container.config()
    drained, killed, _ = cluster.servers
    drained.stop()
    cluster.wait_for_known(cluster.num_servers - 1)
    assert drained.is_running  # it lingers: Envoy knows before a stream is ended
    cluster.wait_for_healthy(cluster.num_servers - 1)
    decodes.start(2)
    assert drained.wait(config.linger_seconds + config.grace_seconds + _SPARE_SECONDS) == 0
    killed.kill()
    assert decodes.ended == []
    decodes.hurry()
    decodes.check(undisturbed)
    assert cluster.locate() == []


def test_decodes_outlive_an_envoy_and_keep_their_batches(
    cluster: SharedCluster, decodes: Decodes, undisturbed: Client
) -> None:
    start_on_every_server(cluster, decodes)
    before = cluster.locate()
    cluster.envoys[0].stop()
    assert cluster.envoys[0].wait() == 0
    decodes.start(2)
    after = cluster.locate()
    assert set(before) < set(after)
    assert len(after) == len(before) + 2
    decodes.hurry()
    decodes.check(undisturbed)


def test_envoy_answers_probes_and_prometheus_and_keeps_the_rest_to_itself(cluster: SharedCluster) -> None:
    with Client(cluster.address) as client:
        client.wait_until_ready()
    assert cluster.fetch("operations", "/ready") == ""
    assert re.search(
        r"^envoy_cluster_membership_healthy\S*logitd\S* 3$", cluster.fetch("operations", "/stats/prometheus"), re.M
    )
    with pytest.raises(OSError, match="404"):
        cluster.fetch("operations", "/quitquitquit")
