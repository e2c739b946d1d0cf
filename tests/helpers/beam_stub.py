"""A model whose logits are a hash of the whole token sequence, so that a wrong parent shows at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from logitd.sampling.beam import BatchStep, BeamSearch, Hypothesis, RequestStep


@dataclass(frozen=True)
class StubModel:
    """Logits as a pure function of the token ids.

    `step` rounds logits to its multiples, which makes ties; `banned` is the share of columns at -inf, never all of a
    row; `eos_bias` is added to `eos_token_ids`.
    """

    seed: int
    vocab_size: int
    scale: float = 2.0
    step: float = 0.0
    banned: float = 0.0
    eos_token_ids: tuple[int, ...] = ()
    eos_bias: float = 0.0

    def __call__(self, token_ids: Iterable[int]) -> NDArray[np.float32]:
        """Float32 [V]."""
        rng = np.random.default_rng([self.seed, *token_ids])
        logits = rng.standard_normal(self.vocab_size) * self.scale
        logits[list(set(self.eos_token_ids))] += self.eos_bias
        if self.step:
            logits = np.round(logits / self.step) * self.step
        if self.banned:
            spared = rng.integers(self.vocab_size)
            mask = rng.random(self.vocab_size) < self.banned
            mask[spared] = False
            logits[mask] = -np.inf
        return logits.astype(np.float32)

    def rows(self, sequences: Iterable[Iterable[int]]) -> torch.Tensor:
        """Float32 [R, V]."""
        return torch.from_numpy(np.stack([self(sequence) for sequence in sequences]))


class Decoder:
    """Keeps what a decoder keeps: one token sequence a live row, gathered by `parent_rows`."""

    def __init__(
        self,
        search: BeamSearch,
        models: Sequence[StubModel],
        prompts: Sequence[Sequence[int]],
        *,
        dtype: torch.dtype = torch.float32,
        padding: int = 0,
    ) -> None:
        """Start with `prompts`; padding columns are NaN."""
        self.search = search
        self.models = list(models)
        self.dtype = dtype
        self.padding = padding
        self.num_steps = [0] * len(models)
        self.results: dict[int, RequestStep] = {}
        # Which of the first requests each request of the batch is, and the sequence of each row.
        self.numbers = list(range(len(models)))
        self.sequences = [
            tuple(prompt) for prompt, count in zip(prompts, self._row_counts(), strict=True) for _ in range(count)
        ]

    def logits(self) -> torch.Tensor:
        """The next step's logits."""
        owners = np.repeat(self.numbers, self._row_counts()).tolist()
        rows = [self.models[owner](sequence) for owner, sequence in zip(owners, self.sequences, strict=True)]
        logits = torch.full((len(rows), self.search.vocab_size + self.padding), torch.nan, dtype=self.dtype)
        logits[:, : self.search.vocab_size] = torch.from_numpy(np.stack(rows))
        return logits

    def step(self, logits: torch.Tensor | None = None, finish: Sequence[int] = ()) -> BatchStep:
        """One step of the batch; `finish` names requests by their place in it."""
        self.search, step = self.search.step(self.logits() if logits is None else logits, finish)
        for place in range(len(self.numbers)):
            self.num_steps[self.numbers[place]] += place not in finish
        self.follow(step)
        return step

    def follow(self, step: BatchStep) -> None:
        """Gather the rows and note what ended."""
        for request in step.requests:
            if request.is_done:
                self.results[self.numbers[request.index]] = request
        self.numbers = [self.numbers[place] for place in step.remaining]
        parents = [self.sequences[row] for row in step.parent_rows.tolist()]
        appended = [(token_id,) for token_id in step.token_ids.tolist()] or [()] * len(parents)
        self.sequences = [parent + more for parent, more in zip(parents, appended, strict=True)]

    def run(self, watch: Callable[[BatchStep], None] = lambda step: None) -> Decoder:
        """Step until every search ended."""
        while self.search.requests:
            watch(self.step())
        return self

    def _row_counts(self) -> list[int]:
        return np.diff(self.search.row_splits).tolist()


def bits(hypotheses: Iterable[Hypothesis]) -> list[tuple[object, ...]]:
    """Everything that hypotheses hold, comparable to the last bit."""
    return [
        (
            h.token_ids.tolist(),
            np.float64(h.score).tobytes(),
            np.float64(h.running_sum).tobytes(),
            np.float64(h.log_prob_sum).tobytes(),
            h.finish_reason,
            h.parent_chain.tolist(),
            None if h.token_log_probs is None else h.token_log_probs.tobytes(),
        )
        for h in hypotheses
    ]
