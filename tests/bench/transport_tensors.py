"""Logits over the socket: dense and sparse Apply against a bare gRPC stream of the same bytes in the same chunks."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from harness import Case, Contender, Row, Settings, measure
from peers import bare_server
from processes import BareStream, bare_stream, logitd_server
from workloads import open_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from logitd.client import PenaltyBatch

NUM_ROWS, VOCAB_SIZE, NUM_DISTINCT = 64, 131_072, 1000
CHUNK_BYTES = 4 << 20
MESSAGES_AHEAD = 3
LIMITS = {"sparse": 1.15, "dense": 1.2}


class OurApply(Contender):
    """A whole call of the client, one new token a row."""

    def __init__(self, batch: PenaltyBatch, apply: Callable[..., object], logits: NDArray[np.float32]) -> None:
        self._num_rows, self._apply, self._logits = len(batch.rows), apply, logits
        self._rng = np.random.default_rng(1)

    def prepare(self) -> None:
        self._token_ids = self._rng.integers(0, self._logits.shape[1], self._num_rows)

    def run(self) -> None:
        self._apply(self._logits, self._token_ids)


class BareExchange(Contender):
    """The same bytes in the same chunks, as many ahead, and nothing done with them."""

    def __init__(self, stream: BareStream, chunk: NDArray[np.uint8], num_chunks: int, wanted: int) -> None:
        self._stream, self._chunk, self._num_chunks = stream, chunk, num_chunks
        self._header = bare_server.WANTED.pack(wanted)

    def prepare(self) -> None: ...

    def run(self) -> None:
        sent = 0
        for received in range(self._num_chunks):
            while sent < min(self._num_chunks, received + MESSAGES_AHEAD):
                self._stream.send(b"".join((self._header, memoryview(self._chunk))))
                sent += 1
            self._stream.receive()


def cases() -> Iterator[Case]:
    """Both forms."""
    for form in LIMITS:
        yield Case(f"transport/{form}/{NUM_ROWS}x{VOCAB_SIZE}", lambda settings, form=form: _measure(form, settings))


def _measure(form: str, settings: Settings) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 5, (NUM_ROWS, VOCAB_SIZE)).astype(np.float32)
    num_chunks = logits.nbytes // CHUNK_BYTES
    chunk = np.zeros(CHUNK_BYTES, np.uint8)
    # A patch's entry is an id and a value.
    wanted = bare_server.ECHO if form == "dense" else NUM_ROWS * NUM_DISTINCT * 8 // num_chunks
    with (
        logitd_server() as client,
        bare_stream() as stream,
        open_batch(client, rng, logits.shape, NUM_DISTINCT) as batch,
    ):
        # As a decoder does that has the memory already.
        apply = partial(batch.apply, out=np.zeros_like(logits)) if form == "dense" else batch.apply_sparse
        contenders = {"ours": OurApply(batch, apply, logits), "bare": BareExchange(stream, chunk, num_chunks, wanted)}
        times = measure(contenders, settings, clock=time.perf_counter)
    name = f"transport/{form}/{NUM_ROWS}x{VOCAB_SIZE}"
    yield Row.of(name, times["ours"], "bare gRPC, same bytes, same chunks", times["bare"], LIMITS[form])
