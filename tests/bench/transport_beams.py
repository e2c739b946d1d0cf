"""A beam step whose logits lie in shared memory, the whole client call, against the library's own step.

The row named `floor` holds against the same limit what no service could do without: a bare gRPC round trip, and the
library's step in a process that has waited for it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from harness import Case, Contender, Row, Settings, measure
from processes import bare_stream, logitd_server
from transport_shared import BareRoundTrip

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


class Floor(Contender):
    """A round trip of a few bytes, and then the library's step."""

    def __init__(self, round_trip: BareRoundTrip, step: LibraryStep) -> None:
        self._parts = (round_trip, step)

    def run(self) -> None:
        for part in self._parts:
            part.run()


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
        bare_stream() as stream,
    ):
        shared.array[...] = logits
        library, floor = (LibraryStep(search, torch.from_numpy(logits)) for _ in range(2))
        contenders = {
            "ours": OurCall(batch, shared),
            "library": library,
            "floor": Floor(BareRoundTrip(stream), floor),
        }
        times = measure(contenders, settings, clock=time.perf_counter)
    peer = "the library's own step"
    yield Row.of(NAME, times["ours"], peer, times["library"], LIMIT)
    yield Row.of(f"{NAME}/floor", times["floor"], peer, times["library"], LIMIT)
