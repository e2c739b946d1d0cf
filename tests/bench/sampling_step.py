"""One decoding step of the penalties: accumulate a token a row, then penalise the logits in place."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from harness import Case, Contender, Row, Settings, measure
from logitd.sampling import PenaltyOrchestrator, PenaltyParameters, RowStart
from peers.bincount import BincountPenalties
from peers.dense import DensePenalties

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
DENSE, BINCOUNT = "dense, SGLang's way", "bincount, vLLM's way"


class Peer(Protocol):
    """The other side of a comparison."""

    def step_(self, logits: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Accumulate `token_ids` [R], then penalise `logits` [R, V] in their own memory."""


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

    @property
    def dense_limit(self) -> float:
        is_busy = (self.num_rows, self.vocab_size, self.num_distinct) == BUSY_POINT
        return BUSY_LIMITS[self.dtype] if is_busy else 1.0

    def measure(self, settings: Settings) -> Iterator[Row]:
        rng = np.random.default_rng(0)
        logits = torch.from_numpy(rng.normal(0, 5, (self.num_rows, self.vocab_size)).astype(np.float32))
        logits = logits.to(settings.device, DTYPES[self.dtype])
        parameters = _draw_parameters(rng, self.num_rows)
        # SGLang's penalties never see the prompt.
        outputs_only = _draw_histories(rng, self, prompt_share=0.0)
        with_prompts = _draw_histories(rng, self, prompt_share=0.5)
        on_device = torch.from_numpy(parameters).to(settings.device)
        dense = DensePenalties(on_device, _to(outputs_only.outputs, settings), self.vocab_size)
        prompts, outputs = _to(with_prompts.prompts, settings), _to(with_prompts.outputs, settings)
        bincount = BincountPenalties(on_device, prompts, outputs, self.vocab_size)
        contenders = {
            **_pair(DENSE, dense, outputs_only.open("SGLANG", self.vocab_size, parameters), outputs_only, logits),
            **_pair(BINCOUNT, bincount, with_prompts.open("VLLM", self.vocab_size, parameters), with_prompts, logits),
        }
        times = measure(contenders, settings)
        for peer, limit in ((DENSE, self.dense_limit), (BINCOUNT, 1.0)):
            yield Row.of(self.name, times[f"ours beside {peer}"], peer, times[peer], limit)


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

    def open(self, profile: str, vocab_size: int, parameters: NDArray[np.float32]) -> PenaltyOrchestrator:
        """Our state after them; parameters: [3, R]."""
        columns = zip(*parameters.tolist(), strict=True)
        rows = zip(columns, self.prompts, self.outputs, strict=True)
        starts = [RowStart(PenaltyParameters(r, f, p), prompt, output) for (r, f, p), prompt, output in rows]
        return PenaltyOrchestrator.create(profile, vocab_size, starts)


def cases() -> Iterator[Case]:
    """The whole grid."""
    for point in product(NUM_ROWS, VOCAB_SIZES, NUM_DISTINCT, DTYPES):
        yield Case(Point(*point).name, Point(*point).measure)


def _draw_parameters(rng: np.random.Generator, num_rows: int) -> NDArray[np.float32]:
    # [3, R], none neutral: repetition, frequency, presence
    low, high = np.array([[1.05], [0.1], [0.1]]), np.array([[1.5], [1.0], [1.0]])
    return rng.uniform(low, high, (3, num_rows)).astype(np.float32)


def _draw_histories(rng: np.random.Generator, point: Point, prompt_share: float) -> Histories:
    # Half of what the prompt has is in the output as well; half as many output tokens again are repeats.
    prompts, outputs, next_token_ids = [], [], []
    for row in range(point.num_rows):
        seen = rng.choice(point.vocab_size, point.num_distinct + 1, replace=False)
        seen, new = seen[:-1], seen[-1]
        prompt = seen[: int(point.num_distinct * prompt_share)]
        output = seen[len(prompt) // 2 :]
        prompts.append(prompt)
        outputs.append(rng.permutation(np.concatenate((output, rng.choice(output, point.num_distinct // 2)))))
        next_token_ids.append(new if row % 2 == 0 else output[0])
    return Histories(np.stack(prompts), np.stack(outputs), np.array(next_token_ids))


def _pair(
    name: str, peer: Peer, state: PenaltyOrchestrator, histories: Histories, logits: torch.Tensor
) -> dict[str, Contender]:
    work = logits.clone()
    token_ids = histories.next_token_ids
    on_device = torch.from_numpy(token_ids).to(logits.device)

    # The state is immutable, so each step starts from the same one. The peer counts on: its work stays the same.
    def step_ours() -> None:
        state.accumulate(token_ids).apply_inplace(work)

    def step_peer() -> None:
        peer.step_(work, on_device)

    def restore() -> None:
        work.copy_(logits)

    _check_equal(step_ours, step_peer, restore, work)
    return {f"ours beside {name}": Contender(step_ours, restore), name: Contender(step_peer, restore)}


def _check_equal(step_ours, step_peer, restore, work: torch.Tensor) -> None:
    results = []
    for step in (step_ours, step_peer):
        restore()
        step()
        results.append(work.clone())
    # By value: dense addition turns -0 into +0 in columns that nobody touched.
    torch.testing.assert_close(*results, rtol=0, atol=0)


def _to(array: NDArray[np.int64], settings: Settings) -> torch.Tensor:
    return torch.from_numpy(array).to(settings.device)
