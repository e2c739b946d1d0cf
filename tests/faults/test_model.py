"""Thousands of random operations by several clients, against models that keep only token lists."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING

import pytest

from helpers.faults import scaled
from helpers.faults_beams import MAX_SEARCHES, RULES, BeamModel
from helpers.faults_caller import Caller
from helpers.faults_penalties import MAX_ROWS, PenaltyModel
from helpers.faults_random import LARGE_VOCABULARY, SMALL_VOCABULARY
from helpers.penalty_strategies import PROFILES

if TYPE_CHECKING:
    from helpers.faults import FaultyServer
    from helpers.wire import OpenBatch

CALLERS = 3
OPERATIONS = scaled(600, 6_000)
_MOST_BATCHES = 6
# How often each operation comes; those of one kind of batch are skipped on the other.
_WEIGHTS = {
    "accumulate": 6,
    "apply": 10,
    "apply_edits": 6,
    "send_out_of_order": 3,
    "step": 12,
    "leave_a_step_unfinished": 2,
    "filter": 5,
    "merge": 4,
    "retry": 8,
    "resend_old": 3,
    "be_refused": 4,
    "check_state": 3,
    "create_again": 2,
    "rebuild": 3,
    "delete": 1,
}


class Player:
    """One client that does what comes to its mind; `everyone` are the batches of all of them, dead or alive."""

    def __init__(self, address: str, seed: int, everyone: list[OpenBatch]) -> None:
        self._random = Random(seed)
        self._caller = Caller(address, self._random)
        self._models: list[PenaltyModel | BeamModel] = []
        self._everyone = everyone
        self._number = 0
        self.done: Counter[str] = Counter()

    def play(self, operations: int) -> Counter[str]:
        try:
            for _ in range(operations):
                self._play_once()
            for model in self._models:
                self._let_go(model)
            self._caller.finish()
        except BaseException as error:
            error.add_note(f"after {dict(self.done)}")
            raise
        finally:
            self._caller.close()
        return self.done

    def _play_once(self) -> None:
        if len(self._models) < self._random.randint(1, _MOST_BATCHES):
            self._create()
        model = self._random.choice(self._models)
        [name] = self._random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        if self._act(model, name):
            self.done[name] += 1
        for ended in [each for each in self._models if not each.names]:
            self._let_go(ended)
            self._models.remove(ended)

    def _create(self) -> None:
        self._number += 1
        name = f"s{self._number}"  # the same in all clients
        if self._random.random() < 0.4:
            model: PenaltyModel | BeamModel = BeamModel(self._caller, self._random.choice(list(RULES)), name)
        else:
            vocab_size = self._random.choice((SMALL_VOCABULARY, SMALL_VOCABULARY, LARGE_VOCABULARY))
            model = PenaltyModel(self._caller, self._random.choice(PROFILES), vocab_size, name)
        self._models.append(model)
        self._everyone.append(model.live)
        self.done["create"] += 1

    def _act(self, model: PenaltyModel | BeamModel, name: str) -> bool:
        """Whether the operation fits the batch, and was done."""
        if name == "merge":
            return self._merge(model)
        if name == "resend_old":
            model.sent.resend_old()
        elif name == "be_refused":
            model.be_refused(self._everyone[-50:])
        elif name == "filter":
            self._number += 1
            model.filter(f"f{self._number}")
        elif name == "delete":
            model.delete()
            self._models.remove(model)
        elif hasattr(model, name):
            getattr(model, name)()
        else:
            return False
        return True

    def _merge(self, model: PenaltyModel | BeamModel) -> bool:
        most = MAX_ROWS if model.kind == "PENALTY" else MAX_SEARCHES
        for other in self._random.sample(self._models, len(self._models)):
            if other is not model and type(other) is type(model) and len(other.names) + len(model.names) <= most:
                model.merge(other)
                if not other.names:
                    self._models.remove(other)
                return True
        return False

    def _let_go(self, model: PenaltyModel | BeamModel) -> None:
        model.check_state()
        model.delete()


@pytest.mark.timeout(scaled(120, 900))
def test_every_reply_is_what_the_token_lists_say(server: FaultyServer) -> None:
    everyone: list[OpenBatch] = []
    players = [Player(server.address, seed, everyone) for seed in range(CALLERS)]
    with ThreadPoolExecutor(CALLERS) as threads:
        counts = list(threads.map(lambda player: player.play(OPERATIONS), players))
    done: Counter[str] = sum(counts, Counter())
    assert done.keys() == {*_WEIGHTS, "create"}
    assert sum(done.values()) > CALLERS * OPERATIONS * 0.6
