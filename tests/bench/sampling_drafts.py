"""Draft positions of the penalties: rows with some drafts each, against as many plain rows as there are positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from harness import Case, Contender, Row, Settings, measure
from peers.inputs import Histories, Parameters
from sampling_step import DTYPES, open_state

from logitd.sampling import Drafts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from logitd.sampling import PenaltyOrchestrator

NUM_ROWS, NUM_DRAFTS, VOCAB_SIZE, NUM_DISTINCT = 64, 7, 131072, 1000
NUM_POSITIONS = NUM_ROWS * (1 + NUM_DRAFTS)
# Of a plain step of as many rows with as many entries.
LIMIT = 1.5
_PLAIN = f"{NUM_POSITIONS} plain rows"


@dataclass(frozen=True, slots=True)
class Point:
    """A dtype of the logits; every row has seen NUM_DISTINCT token ids, and every second draft is new to it."""

    dtype: str

    @property
    def name(self) -> str:
        return f"sampling/drafts {NUM_ROWS}x{1 + NUM_DRAFTS}x{VOCAB_SIZE}/{self.dtype}"

    def measure(self, settings: Settings) -> Iterator[Row]:
        """A step in place: a token a row is accumulated, then the positions are penalised."""
        rng = np.random.default_rng(0)
        logits = 5 * torch.from_numpy(rng.standard_normal((NUM_POSITIONS, VOCAB_SIZE), np.float32))
        logits = logits.to(settings.device, DTYPES[self.dtype])
        parameters = Parameters.draw(rng, NUM_ROWS, VOCAB_SIZE)
        histories = Histories.draw(rng, NUM_ROWS, VOCAB_SIZE, NUM_DISTINCT, has_prompt=False)
        state = open_state("SGLANG", VOCAB_SIZE, parameters, histories)
        seen = rng.choice(histories.outputs, NUM_DRAFTS, axis=1)
        drafts = np.where(np.arange(NUM_DRAFTS) % 2, rng.integers(0, VOCAB_SIZE, seen.shape), seen)
        work = torch.empty_like(logits)
        ours = DraftStep(state, histories.next_token_ids, drafts, logits, work)
        plain = PlainStep(state, histories.next_token_ids, logits, work)
        _check_equal(ours, drafts)
        times = measure({"ours": ours, _PLAIN: plain}, settings)
        yield Row.of(self.name, times["ours"], _PLAIN, times[_PLAIN], LIMIT)


class _Step(Contender):
    # A round's steps follow each other on the same logits, as if each had left them new; both work in one place.
    def __init__(
        self, state: PenaltyOrchestrator, token_ids: NDArray[np.int64], logits: torch.Tensor, work: torch.Tensor
    ) -> None:
        self.state, self.token_ids, self.logits, self.work = state, token_ids, logits, work

    def prepare_round(self) -> None:
        self.work.copy_(self.logits)


class DraftStep(_Step):
    """A token a row, then its committed end and its drafts."""

    def __init__(
        self,
        state: PenaltyOrchestrator,
        token_ids: NDArray[np.int64],
        drafts: NDArray[np.int64],
        logits: torch.Tensor,
        work: torch.Tensor,
    ) -> None:
        super().__init__(state, token_ids, logits, work)
        self._drafts = drafts.ravel()
        self._splits = np.arange(NUM_ROWS + 1) * NUM_DRAFTS

    def run(self) -> None:
        drafts = Drafts.create(self._drafts, self._splits, num_rows=NUM_ROWS, vocab_size=VOCAB_SIZE)
        self.state.accumulate(self.token_ids).with_drafts(drafts).apply_inplace(self.work)


class PlainStep(_Step):
    """The same rows, each as often as it has positions."""

    def __init__(
        self, state: PenaltyOrchestrator, token_ids: NDArray[np.int64], logits: torch.Tensor, work: torch.Tensor
    ) -> None:
        rows = np.repeat(np.arange(NUM_ROWS), 1 + NUM_DRAFTS)
        super().__init__(state.filter(rows), token_ids[rows], logits, work)

    def run(self) -> None:
        self.state.accumulate(self.token_ids).apply_inplace(self.work)


def cases() -> Iterator[Case]:
    """The logits of a busy decoder."""
    for dtype in DTYPES:
        point = Point(dtype)
        yield Case(point.name, point.measure)


def _check_equal(ours: DraftStep, drafts: NDArray[np.int64]) -> None:
    # Each position against a plain step of its row that comes after the drafts before it.
    ours.prepare_round()
    ours.run()
    state = ours.state.accumulate(ours.token_ids)
    for depth in range(1 + NUM_DRAFTS):
        expected = ours.logits[depth :: 1 + NUM_DRAFTS].clone()
        state.apply_inplace(expected)
        torch.testing.assert_close(ours.work[depth :: 1 + NUM_DRAFTS], expected, rtol=0, atol=0)
        if depth < NUM_DRAFTS:
            state = state.accumulate(drafts[:, depth])
