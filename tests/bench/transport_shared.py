"""Steps whose logits never cross the socket: in place in shared memory, and edits; whole client calls.

The rows named `floor` hold against the same limits what no service could do without: a bare gRPC reply of as many
bytes, and reading and writing the same items from another process. Where the floor is over the limit, or near it, the
limit cannot be reached.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
from harness import Case, Contender, Row, Settings, measure
from peers import bare_server
from processes import BareStream, Toucher, bare_stream, logitd_server, toucher
from workloads import open_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from logitd.client import PenaltyBatch, SharedLogits

NUM_ROWS, VOCAB_SIZE, NUM_DISTINCT = 64, 131_072, 1000
LARGE_VOCAB_SIZE = 262_144
# What a copy of the logits may add to an empty round trip.
SHARE_OF_COPY = 0.25
# Bytes of edits: of each row, of each entry.
ROW_BYTES, ENTRY_BYTES = 12, 9
LIMITS = {"in place": 1.0, "in place/large": 1.3, "edits": 2.5, "edits/since": 1.6}


class BareRoundTrip(Contender):
    """A few bytes through a bare gRPC stream, which come back or are answered with as many as wanted."""

    def __init__(self, stream: BareStream, wanted: int = bare_server.ECHO) -> None:
        self._stream, self._message = stream, bare_server.WANTED.pack(wanted)

    def prepare(self) -> None: ...

    def run(self) -> None:
        self._stream.exchange(self._message)


class Copy(Contender):
    """A copy of the logits into memory that was touched before."""

    def __init__(self, logits: NDArray[np.float32]) -> None:
        self._from, self._to = logits, logits.copy()

    def prepare(self) -> None: ...

    def run(self) -> None:
        np.copyto(self._to, self._from)


class InPlace(Contender):
    """An in-place Apply with one new token a row; the buffer is filled again before it, outside the clock."""

    def __init__(self, batch: PenaltyBatch, shared: SharedLogits, logits: NDArray[np.float32]) -> None:
        self._batch, self._shared, self._logits = batch, shared, logits
        self._rng = np.random.default_rng(1)

    def prepare(self) -> None:
        np.copyto(self._shared.array, self._logits)
        self._token_ids = self._rng.integers(0, self._logits.shape[1], len(self._logits))

    def run(self) -> None:
        self._batch.apply_inplace(self._shared, self._token_ids)


class Touch(Contender):
    """Another process reads and writes as many items of memory that was filled again here."""

    def __init__(self, other: Toucher, logits: NDArray[np.float32]) -> None:
        self._other, self._logits = other, logits

    def prepare(self) -> None:
        np.copyto(self._other.array, self._logits)

    def run(self) -> None:
        self._other.touch()


class AskEdits(Contender):
    """Token ids up, all edits down, or those that changed."""

    def __init__(self, batch: PenaltyBatch, *, is_incremental: bool) -> None:
        self._batch, self._is_incremental = batch, is_incremental
        self._rng = np.random.default_rng(1)
        self._revision = batch.edits().revision

    def prepare(self) -> None:
        self._token_ids = self._rng.integers(0, VOCAB_SIZE, NUM_ROWS)

    def run(self) -> None:
        edits = self._batch.edits(self._token_ids, since=self._revision if self._is_incremental else None)
        self._revision = edits.revision


def cases() -> Iterator[Case]:
    """In place at two vocabularies, edits whole and as a difference."""
    yield Case(f"transport/in place/{NUM_ROWS}x{VOCAB_SIZE}", _measure_in_place)
    yield Case(f"transport/edits/{NUM_ROWS}x{VOCAB_SIZE}", _measure_edits)


def _measure_in_place(settings: Settings) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    small, large = (rng.normal(0, 5, (NUM_ROWS, v)).astype(np.float32) for v in (VOCAB_SIZE, LARGE_VOCAB_SIZE))
    with ExitStack() as stack:
        client, stream = stack.enter_context(logitd_server()), stack.enter_context(bare_stream())
        touch = Touch(stack.enter_context(toucher(small.shape, NUM_DISTINCT)), small)
        contenders: dict[str, Contender] = {"empty": BareRoundTrip(stream), "copy": Copy(small), "touch": touch}
        for name, logits in (("small", small), ("large", large)):
            batch = stack.enter_context(open_batch(client, rng, logits.shape, NUM_DISTINCT))
            shared = stack.enter_context(client.shared_logits(*logits.shape))
            contenders[name] = InPlace(batch, shared, logits)
        times = measure(contenders, settings, clock=time.perf_counter)
    budget = times["empty"] + SHARE_OF_COPY * times["copy"]
    name = f"transport/in place/{NUM_ROWS}"
    peer = "an empty round trip and 0.25 copies of the logits"
    yield Row.of(f"{name}x{VOCAB_SIZE}", times["small"], peer, budget, LIMITS["in place"])
    yield Row.of(f"{name}x{VOCAB_SIZE}/floor", times["touch"], peer, budget, LIMITS["in place"])
    peer = "itself at half the vocabulary"
    yield Row.of(f"{name}x{LARGE_VOCAB_SIZE}", times["large"], peer, times["small"], LIMITS["in place/large"])


def _measure_edits(settings: Settings) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    shape = (NUM_ROWS, VOCAB_SIZE)
    with ExitStack() as stack:
        client, stream = stack.enter_context(logitd_server()), stack.enter_context(bare_stream())
        whole, since = (stack.enter_context(open_batch(client, rng, shape, NUM_DISTINCT)) for _ in range(2))
        contenders = {
            "empty": BareRoundTrip(stream),
            "edits": AskEdits(whole, is_incremental=False),
            "edits/since": AskEdits(since, is_incremental=True),
            "edits/floor": BareRoundTrip(stream, NUM_ROWS * (ROW_BYTES + ENTRY_BYTES * NUM_DISTINCT)),
            "edits/since/floor": BareRoundTrip(stream, NUM_ROWS * (ROW_BYTES + ENTRY_BYTES)),
        }
        times = measure(contenders, settings, clock=time.perf_counter)
    for name in ("edits", "edits/since"):
        full_name = f"transport/{name}/{NUM_ROWS}x{VOCAB_SIZE}"
        yield Row.of(full_name, times[name], "an empty round trip", times["empty"], LIMITS[name])
        yield Row.of(f"{full_name}/floor", times[f"{name}/floor"], "an empty round trip", times["empty"], LIMITS[name])
