"""What the state of a row takes, and what a state costs that has been filtered and merged for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from harness import Case, Contender, Row, Settings, measure

from logitd.sampling import PenaltyOrchestrator, PenaltyParameters, RowStart

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCAB_SIZE, NUM_ROWS = 131_072, 16
NUM_ROUNDS = 10_000
PARAMETERS = PenaltyParameters(1.2, 0.5, 0.2)
MEMORY_LIMIT, ROUNDS_LIMIT = 1 / 20, 1.1


class Apply(Contender):
    """The state applied in place; logits that were penalised before cost the same."""

    def __init__(self, state: PenaltyOrchestrator, logits: torch.Tensor) -> None:
        self._state, self._logits = state, logits.clone()

    def run(self) -> None:
        self._state.apply_inplace(self._logits)


def cases() -> Iterator[Case]:
    """Memory, and time after many rounds."""
    yield Case("sampling/state/row", _measure_memory)
    yield Case(f"sampling/state/{NUM_ROUNDS} rounds", _measure_rounds)


def _measure_memory(settings: Settings) -> Iterator[Row]:
    row = RowStart(PARAMETERS, (), np.random.default_rng(0).choice(VOCAB_SIZE, 1000, replace=False))
    state = PenaltyOrchestrator.create("SGLANG", VOCAB_SIZE, [row] * NUM_ROWS)
    dense = VOCAB_SIZE * 4 / 1024
    peer = "one dense fp32 row"
    yield Row.of("sampling/state/row", state.num_bytes / NUM_ROWS / 1024, peer, dense, MEMORY_LIMIT, "KiB")


def _measure_rounds(settings: Settings) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    rows = [RowStart(PARAMETERS, (), rng.choice(VOCAB_SIZE, 300, replace=False)) for _ in range(NUM_ROWS)]
    worn = PenaltyOrchestrator.create("SGLANG", VOCAB_SIZE, rows)
    for _ in range(NUM_ROUNDS):
        order = rng.permutation(NUM_ROWS)
        worn = worn.filter(order[: NUM_ROWS // 2]).merge(worn.filter(order[NUM_ROWS // 2 :]))
        worn = worn.accumulate(rng.choice(300, NUM_ROWS))
    outputs = [worn.output_token_ids(row) for row in range(NUM_ROWS)]
    fresh = PenaltyOrchestrator.create("SGLANG", VOCAB_SIZE, [RowStart(PARAMETERS, (), ids[:-1]) for ids in outputs])
    fresh = fresh.accumulate([ids[-1] for ids in outputs])
    logits = torch.from_numpy(rng.normal(0, 5, (NUM_ROWS, VOCAB_SIZE)).astype(np.float32)).to(settings.device)
    times = measure({"worn": Apply(worn, logits), "fresh": Apply(fresh, logits)}, settings)
    name = f"sampling/state/{NUM_ROUNDS} rounds"
    yield Row.of(name, times["worn"], "a state created with the same tokens", times["fresh"], ROUNDS_LIMIT)
