"""One step of the beam search by the HF rule, against Transformers' own work in a step, on the same logits.

Several requests are one batch on both sides: Transformers then runs each operation once over all of their rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch
from harness import Case, Contender, Row, Settings, measure

from logitd.sampling.beam import BeamParameters, BeamSearch, EarlyStopping, RequestStart
from logitd.sampling.orchestrator import PenaltyOrchestrator, RowStart
from logitd.sampling.parameters import PenaltyParameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_peer import PeerState, TransformersBeams

WIDTH = 4
PROMPT_LENGTH, MAX_NEW_TOKENS = 64, 128
# So many steps lie behind the one that is timed.
STEPS_BEFORE = 24
EOS = 0
REPETITION_PENALTY = 1.2


@dataclass(frozen=True, slots=True)
class Point:
    """So many requests of 4 beams each over a vocabulary."""

    num_requests: int
    vocab_size: int
    repetition_penalty: float
    limit: float

    @property
    def name(self) -> str:
        penalties = "" if self.repetition_penalty == 1 else "/repetition"
        return f"beam/{self.num_requests}x{WIDTH}x{self.vocab_size}{penalties}"

    def measure(self, settings: Settings) -> Iterator[Row]:
        """Both sides from the same state, which they reached by the same steps; on the CPU alone."""
        if settings.device != "cpu":
            return
        rng = np.random.default_rng(0)
        prompts = rng.integers(1, self.vocab_size, (self.num_requests, PROMPT_LENGTH))
        search, peer = self._open_search(prompts), self._open_peer(prompts)
        state = peer.start
        for _ in range(STEPS_BEFORE):
            logits = self._draw(rng)
            live = logits if search.num_rows == len(logits) else logits[::WIDTH]
            search, state = search.step(live)[0], peer.step(state, logits)
            _check_equal(search, state)
        logits = self._draw(rng)
        _check_equal(search.step(logits)[0], peer.step(state, logits))
        name = "Transformers, its own methods"
        times = measure({"ours": OurStep(search, logits), name: PeerStep(peer, state, logits)}, settings)
        yield Row.of(self.name, times["ours"], name, times[name], self.limit)

    def _open_search(self, prompts: np.ndarray) -> BeamSearch:
        asked = BeamParameters(WIDTH, MAX_NEW_TOKENS, early_stopping=EarlyStopping.NEVER, eos_token_ids=(EOS,))
        penalties = None
        if self.repetition_penalty != 1:
            parameters = PenaltyParameters(repetition_penalty=self.repetition_penalty)
            rows = [RowStart(parameters, prompt) for prompt in prompts]
            penalties = PenaltyOrchestrator.create("HF", self.vocab_size, rows)
        return BeamSearch.start("HF", self.vocab_size, [RequestStart(asked)] * self.num_requests, penalties)

    def _open_peer(self, prompts: np.ndarray) -> TransformersBeams:
        from beam_peer import TransformersBeams
        from transformers import RepetitionPenaltyLogitsProcessor

        is_neutral = self.repetition_penalty == 1
        return TransformersBeams(
            torch.from_numpy(prompts),
            width=WIDTH,
            max_new_tokens=MAX_NEW_TOKENS,
            eos_token_id=EOS,
            processors=[] if is_neutral else [RepetitionPenaltyLogitsProcessor(self.repetition_penalty)],
        )

    def _draw(self, rng: np.random.Generator) -> torch.Tensor:
        """Float32 [R, V]; the EOS is among the best of some rows."""
        logits = 5 * rng.standard_normal((self.num_requests * WIDTH, self.vocab_size), np.float32)
        logits[:, EOS] += 15
        return torch.from_numpy(logits)


class OurStep(Contender):
    """The library's step; a search is immutable."""

    def __init__(self, search: BeamSearch, logits: torch.Tensor) -> None:
        self._search, self._logits = search, logits

    def run(self) -> None:
        self._search.step(self._logits)


class PeerStep(Contender):
    """The engine's; its state is not changed in place either."""

    def __init__(self, peer: TransformersBeams, state: PeerState, logits: torch.Tensor) -> None:
        self._peer, self._state, self._logits = peer, state, logits

    def run(self) -> None:
        self._peer.step(self._state, self._logits)


def cases() -> Iterator[Case]:
    """Without and with a processor, where Transformers is installed."""
    if find_spec("transformers") is None:
        print("beam/ is left out: it needs Transformers, of the extra parity")
        return
    for num_requests, vocab_size, limit in ((1, 49_152, 1.0), (1, 131_072, 0.6), (8, 49_152, 0.6)):
        for repetition_penalty in (1.0, REPETITION_PENALTY):
            point = Point(num_requests, vocab_size, repetition_penalty, limit)
            yield Case(point.name, point.measure)


def _check_equal(search: BeamSearch, state: PeerState) -> None:
    """Assert the same live beams and the same pool."""
    snapshots = [search.snapshot(index) for index in range(len(search.requests))]
    assert len(snapshots) == len(state.scores)
    generated = slice(PROMPT_LENGTH, state.length)
    for start, tokens, sums, scores, is_finished in zip(
        snapshots, state.running[:, :, generated], state.running_scores, state.scores, state.is_finished, strict=True
    ):
        assert [beam.token_ids.tolist() for beam in start.live_beams] == tokens.tolist()
        assert [beam.score for beam in start.live_beams] == sums.tolist()
        assert [hypothesis.score for hypothesis in start.pool] == scores[is_finished].tolist()
