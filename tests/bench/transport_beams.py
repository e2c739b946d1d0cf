"""A beam step whose logits lie in shared memory, the whole client call, against the library's own step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from harness import Case, Contender, Row, Settings, measure
from processes import logitd_server

from logitd.client import Beam, BeamBatch, Sequence, SharedLogits
from logitd.sampling.beam import BeamParameters, BeamSearch, EarlyStopping, RequestStart

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH, VOCAB_SIZE, MAX_NEW_TOKENS = 4, 131_072, 16_384
LIMIT = 1.5
NAME = f"transport/beams/{WIDTH}x{VOCAB_SIZE}"


class OurCall(Contender):
    """The next step of one search; without an EOS id it goes on to its longest length."""

    def __init__(self, batch: BeamBatch, shared: SharedLogits) -> None:
        self._batch, self._shared = batch, shared
        batch.beam_step(shared)

    def run(self) -> None:
        self._batch.beam_step(self._shared)


class LibraryStep(Contender):
    """The same step, the search in this process; it goes on as well."""

    def __init__(self, search: BeamSearch, logits: torch.Tensor) -> None:
        self._search, self._logits = search.step(logits[:1])[0], logits

    def run(self) -> None:
        self._search = self._search.step(self._logits)[0]


def cases() -> Iterator[Case]:
    """One search."""
    yield Case(NAME, _measure)


def _measure(settings: Settings) -> Iterator[Row]:
    logits = np.random.default_rng(0).normal(0, 5, (WIDTH, VOCAB_SIZE)).astype(np.float32)
    asked = BeamParameters(WIDTH, MAX_NEW_TOKENS, early_stopping=EarlyStopping.NEVER)
    search = BeamSearch.start("HF", VOCAB_SIZE, [RequestStart(asked)])
    sequence = Sequence([1], max_new_tokens=MAX_NEW_TOKENS, beam=Beam(WIDTH, early_stopping="NEVER"))
    with (
        logitd_server() as client,
        client.create_beam_batch([sequence], vocab_size=VOCAB_SIZE) as batch,
        client.shared_logits(WIDTH, VOCAB_SIZE) as shared,
    ):
        shared.array[...] = logits
        contenders = {"ours": OurCall(batch, shared), "library": LibraryStep(search, torch.from_numpy(logits))}
        times = measure(contenders, settings, clock=time.perf_counter)
    yield Row.of(NAME, times["ours"], "the library's own step", times["library"], LIMIT)
