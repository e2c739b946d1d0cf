"""One decoding step of the penalties: accumulate a token a row, then penalise the logits in place."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from harness import Case, Contender, Row, Settings, measure
from peers.bincount import BincountPenalties
from peers.dense import DensePenalties
from peers.inputs import Histories, Parameters

from logitd.sampling import PenaltyOrchestrator, PenaltyParameters, RowStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

NUM_ROWS = (1, 8, 64)
VOCAB_SIZES = (32768, 131072, 262144)
NUM_DISTINCT = (100, 1000)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

# Against the dense way on the CPU, at the point of a busy decoder; everywhere else ours must not be slower.
BUSY_POINT = (64, 131072, 1000)
BUSY_LIMITS = {"fp32": 1 / 150, "bf16": 1 / 50}


class Peer(Protocol):
    """The other side of a comparison."""

    def step_(self, logits: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Accumulate `token_ids` [R], then penalise `logits` [R, V] in their own memory."""


class Way(NamedTuple):
    """How a peer does it, and the profile that computes the same. SGLang's penalties never see the prompt."""

    name: str
    open_peer: Callable[[Parameters, Histories, int, torch.device], Peer]
    profile: str
    has_prompt: bool


WAYS = (
    Way("dense, SGLang's way", DensePenalties, "SGLANG", has_prompt=False),
    Way("bincount, vLLM's way", BincountPenalties, "VLLM", has_prompt=True),
)


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the grid; every row has seen `num_distinct` token ids."""

    num_rows: int
    vocab_size: int
    num_distinct: int
    dtype: str

    @property
    def name(self) -> str:
        return f"sampling/{self.num_rows}x{self.vocab_size}x{self.num_distinct}/{self.dtype}"

    def measure(self, settings: Settings) -> Iterator[Row]:
        """Against both peers, in one run."""
        rng = np.random.default_rng(0)
        logits = 5 * torch.from_numpy(rng.standard_normal((self.num_rows, self.vocab_size), np.float32))
        logits = logits.to(settings.device, DTYPES[self.dtype])
        contenders: dict[str, Contender] = {}
        for way in WAYS:
            contenders |= self._open(way, rng, logits)
        times = measure(contenders, settings)
        for way in WAYS:
            limit = self._limit(way) if settings.device == "cpu" else 1.0
            yield Row.of(self.name, times[_ours(way)], way.name, times[way.name], limit)

    def _limit(self, way: Way) -> float:
        is_busy = (self.num_rows, self.vocab_size, self.num_distinct) == BUSY_POINT
        return BUSY_LIMITS[self.dtype] if is_busy and way.profile == "SGLANG" else 1.0

    def _open(self, way: Way, rng: np.random.Generator, logits: torch.Tensor) -> dict[str, Contender]:
        parameters = Parameters.draw(rng, self.num_rows, self.vocab_size)
        histories = Histories.draw(rng, self.num_rows, self.vocab_size, self.num_distinct, has_prompt=way.has_prompt)
        state = open_state(way.profile, self.vocab_size, parameters, histories)
        peer = way.open_peer(parameters, histories, self.vocab_size, logits.device)
        ours = OurStep(state, histories.next_token_ids, logits)
        theirs = PeerStep(peer, torch.as_tensor(histories.next_token_ids, device=logits.device), logits)
        _check_equal(ours, theirs)
        return {_ours(way): ours, way.name: theirs}


class _Step(Contender):
    # A round's steps follow each other on the same logits, as if each had left them new.
    def __init__(self, logits: torch.Tensor) -> None:
        self._logits, self.work = logits, logits.clone()

    def prepare_round(self) -> None:
        self.work.copy_(self._logits)


class OurStep(_Step):
    """A step from the same state each time, which is immutable, so that the number of distinct ids stays."""

    def __init__(self, state: PenaltyOrchestrator, token_ids: NDArray[np.int64], logits: torch.Tensor) -> None:
        super().__init__(logits)
        self._state, self._token_ids = state, token_ids

    def run(self) -> None:
        self._state.accumulate(self._token_ids).apply_inplace(self.work)


class PeerStep(_Step):
    """A step that adds to what the last one left; its work is the same whatever the numbers are."""

    def __init__(self, peer: Peer, token_ids: torch.Tensor, logits: torch.Tensor) -> None:
        super().__init__(logits)
        self._peer, self._token_ids = peer, token_ids

    def run(self) -> None:
        self._peer.step_(self.work, self._token_ids)


def cases() -> Iterator[Case]:
    """The whole grid."""
    for values in product(NUM_ROWS, VOCAB_SIZES, NUM_DISTINCT, DTYPES):
        point = Point(*values)
        yield Case(point.name, point.measure)


def _ours(way: Way) -> str:
    return f"ours in profile {way.profile}"


def open_state(profile: str, vocab_size: int, parameters: Parameters, histories: Histories) -> PenaltyOrchestrator:
    rows = zip(
        parameters.repetition.tolist(),
        parameters.frequency.tolist(),
        parameters.presence.tolist(),
        parameters.min_new_tokens.tolist(),
        map(tuple, parameters.stop_token_ids.tolist()),
        strict=True,
    )
    starts = [
        RowStart(PenaltyParameters(*values), prompt, output)
        for values, prompt, output in zip(rows, histories.prompts, histories.outputs, strict=True)
    ]
    return PenaltyOrchestrator.create(profile, vocab_size, starts)


def _check_equal(ours: OurStep, theirs: PeerStep) -> None:
    for step in (ours, theirs):
        step.prepare_round()
        step.run()
    # By value: dense addition turns -0 into +0 in columns that nobody touched.
    torch.testing.assert_close(ours.work, theirs.work, rtol=0, atol=0)
