"""The server is killed again and again under load: decoders that rebuild find what an undisturbed run finds."""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING

import pytest

from helpers.faults import scaled
from helpers.faults_decoders import KINDS, Load

if TYPE_CHECKING:
    from helpers.faults import FaultyServer

KILLS = scaled(3, 100)
_LONGEST_LIFE = 0.6
_PATIENCE = 300.0


@pytest.mark.timeout(scaled(120, 1200))
def test_nothing_is_lost_when_the_server_is_killed(own_server: FaultyServer) -> None:
    random = Random(3)
    # A life is short, and a step may see several before it is done.
    options = {"recover_timeout": _PATIENCE}
    load = Load(own_server.address, own_server.address, own_server.side_socket, lambda: time.sleep(0.002), **options)

    def kill_again_and_again() -> None:
        for _ in range(KILLS):
            own_server.wait_for_load()
            time.sleep(random.uniform(0, _LONGEST_LIFE))
            own_server.kill()
            own_server.start()

    load.run(kill_again_and_again)
    assert load.rounds >= len(KINDS)
