"""One decoding step of the penalties: accumulate a token a row, then penalise the logits in place."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from harness import Case, Contender, Row, Settings, measure
from peers.bincount import BincountPenalties
from peers.dense import DensePenalties

from logitd.sampling import PenaltyOrchestrator, PenaltyParameters, RowStart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

NUM_ROWS = (1, 8, 64)
VOCAB_SIZES = (32768, 131072, 262144)
NUM_DISTINCT = (100, 1000)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

# Against the dense way, at the point that stands for a busy decoder; everywhere else ours must not be slower.
BUSY_POINT = (64, 131072, 1000)
BUSY_LIMITS = {"fp32": 1 / 150, "bf16": 1 / 50}


class Peer(Protocol):
    """The other side of a comparison."""

    def step_(self, logits: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Accumulate `token_ids` [R], then penalise `logits` [R, V] in their own memory."""


@dataclass(frozen=True, slots=True)
class Histories:
    """What R rows have seen, and their next tokens: every second row's is new to it.

    Attributes
    ----------
    prompts, outputs : int64 [R, P], int64 [R, L]
    next_token_ids : int64 [R]
    """

    prompts: NDArray[np.int64]
    outputs: NDArray[np.int64]
    next_token_ids: NDArray[np.int64]

    @classmethod
    def draw(cls, rng: np.random.Generator, point: Point, prompt_share: float) -> Histories:
        """Rows of `num_distinct` ids. Half of the prompt comes again in the output, which has a third of repeats."""
        prompts, outputs, next_token_ids = [], [], []
        for row in range(point.num_rows):
            *seen, new = rng.choice(point.vocab_size, point.num_distinct + 1, replace=False)
            prompt = seen[: int(point.num_distinct * prompt_share)]
            output = seen[len(prompt) // 2 :]
            prompts.append(prompt)
            outputs.append(rng.permutation([*output, *rng.choice(output, point.num_distinct // 2)]))
            next_token_ids.append(new if row % 2 == 0 else output[0])
        return cls(np.array(prompts, np.int64), np.array(outputs), np.array(next_token_ids))

    def open(self, profile: str, vocab_size: int, parameters: NDArray[np.float32]) -> PenaltyOrchestrator:
        """Our state after them; parameters: [3, R]."""
        rows = zip(parameters.T.tolist(), self.prompts, self.outputs, strict=True)
        starts = [RowStart(PenaltyParameters(*values), prompt, output) for values, prompt, output in rows]
        return PenaltyOrchestrator.create(profile, vocab_size, starts)


class OurStep(Contender):
    """A step from the same state each time, so that the number of distinct ids stays."""

    def __init__(self, state: PenaltyOrchestrator, token_ids: NDArray[np.int64], logits: torch.Tensor) -> None:
        self._state, self._token_ids = state, token_ids
        self._logits, self.work = logits, logits.clone()

    def prepare(self) -> None:
        # A state that was continued before would have to fork its histories, which a decoder's step does not.
        self._fresh = copy.deepcopy(self._state)
        self.work.copy_(self._logits)

    def run(self) -> None:
        self._fresh.accumulate(self._token_ids).apply_inplace(self.work)


class PeerStep(Contender):
    """A step that adds to what the last one left; its work is the same whatever the numbers are."""

    def __init__(self, peer: Peer, token_ids: torch.Tensor, logits: torch.Tensor) -> None:
        self._peer, self._token_ids = peer, token_ids
        self._logits, self.work = logits, logits.clone()

    def prepare(self) -> None:
        self.work.copy_(self._logits)

    def run(self) -> None:
        self._peer.step_(self.work, self._token_ids)


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the grid. Every row has seen `num_distinct` token ids, and each has its own parameters."""

    num_rows: int
    vocab_size: int
    num_distinct: int
    dtype: str

    @property
    def name(self) -> str:
        return f"sampling/{self.num_rows}x{self.vocab_size}x{self.num_distinct}/{self.dtype}"

    def measure(self, settings: Settings) -> Iterator[Row]:
        """Against both peers."""
        rng = np.random.default_rng(0)
        logits = rng.normal(0, 5, (self.num_rows, self.vocab_size))
        on_device = torch.from_numpy(logits).to(settings.device, DTYPES[self.dtype])
        parameters = _draw_parameters(rng, self.num_rows)
        against_dense = self._pair_with_dense(rng, parameters, on_device)
        against_bincount = self._pair_with_bincount(rng, parameters, on_device)
        times = measure(against_dense | against_bincount, settings)
        is_busy = (self.num_rows, self.vocab_size, self.num_distinct) == BUSY_POINT
        limits = (BUSY_LIMITS[self.dtype] if is_busy else 1.0, 1.0)
        for (ours, peer), limit in zip((against_dense, against_bincount), limits, strict=True):
            yield Row.of(self.name, times[ours], peer, times[peer], limit)

    def _pair_with_dense(
        self, rng: np.random.Generator, parameters: NDArray[np.float32], logits: torch.Tensor
    ) -> dict[str, Contender]:
        # SGLang's penalties never see the prompt.
        histories = Histories.draw(rng, self, prompt_share=0.0)
        peer = DensePenalties(_to(logits, parameters), _to(logits, histories.outputs), self.vocab_size)
        state = histories.open("SGLANG", self.vocab_size, parameters)
        return _pair(state, "dense, SGLang's way", peer, histories, logits)

    def _pair_with_bincount(
        self, rng: np.random.Generator, parameters: NDArray[np.float32], logits: torch.Tensor
    ) -> dict[str, Contender]:
        histories = Histories.draw(rng, self, prompt_share=0.5)
        prompts, outputs = _to(logits, histories.prompts), _to(logits, histories.outputs)
        peer = BincountPenalties(_to(logits, parameters), prompts, outputs, self.vocab_size)
        state = histories.open("VLLM", self.vocab_size, parameters)
        return _pair(state, "bincount, vLLM's way", peer, histories, logits)


def cases() -> Iterator[Case]:
    """The whole grid."""
    for values in product(NUM_ROWS, VOCAB_SIZES, NUM_DISTINCT, DTYPES):
        point = Point(*values)
        yield Case(point.name, point.measure)


def _draw_parameters(rng: np.random.Generator, num_rows: int) -> NDArray[np.float32]:
    # [3, R], none neutral: repetition, frequency, presence
    low, high = np.array([[1.05], [0.1], [0.1]]), np.array([[1.5], [1.0], [1.0]])
    return rng.uniform(low, high, (3, num_rows)).astype(np.float32)


def _pair(
    state: PenaltyOrchestrator, name: str, peer: Peer, histories: Histories, logits: torch.Tensor
) -> dict[str, Contender]:
    ours = OurStep(state, histories.next_token_ids, logits)
    theirs = PeerStep(peer, _to(logits, histories.next_token_ids), logits)
    for contender in (ours, theirs):
        contender.prepare()
        contender.run()
    # By value: dense addition turns -0 into +0 in columns that nobody touched.
    torch.testing.assert_close(ours.work, theirs.work, rtol=0, atol=0)
    return {f"ours beside {name}": ours, name: theirs}


def _to(logits: torch.Tensor, array: NDArray[np.int64] | NDArray[np.float32]) -> torch.Tensor:
    return torch.from_numpy(array).to(logits.device)
