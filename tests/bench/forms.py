"""What a step through logitd costs in each form, beside an empty round trip and a real model's decode step.

Prints the README's table. The model is SmolLM2-135M on this machine's CPU, its steps timed with the server idle.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
from harness import FULL, QUICK, Contender, Settings, measure
from processes import bare_stream, logitd_server
from transport_shared import BareRoundTrip
from workloads import open_batch

from logitd.client.demo.llm import load_smollm2

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from logitd.client import Client, PenaltyBatch

NUM_ROWS, VOCAB_SIZE, NUM_DISTINCT = (1, 8, 64), 49_152, 1000
FORMS = ("edits, changed ones", "in place", "edits, all", "sparse", "dense")
MODEL_STEPS, MODEL_PROMPT = 5, range(1, 65)


class Step(Contender):
    """A whole call of the client with one new token a row."""

    def __init__(self, num_rows: int, call: Callable[[NDArray[np.int64]], object]) -> None:
        self._num_rows, self._call = num_rows, call
        self._rng = np.random.default_rng(1)

    def prepare(self) -> None:
        self._token_ids = self._rng.integers(0, VOCAB_SIZE, self._num_rows)

    def run(self) -> None:
        self._call(self._token_ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    settings = Settings(QUICK if parser.parse_args().quick else FULL, "cpu")
    model = {num_rows: time_model(num_rows) for num_rows in NUM_ROWS}
    times = {num_rows: time_forms(num_rows, settings) for num_rows in NUM_ROWS}
    print(f"| V = {VOCAB_SIZE:,}, {NUM_DISTINCT:,} ids a row | " + " | ".join(f"B = {n}" for n in NUM_ROWS) + " |")
    print("|---" * (len(NUM_ROWS) + 1) + "|")
    for name in ("an empty round trip", *FORMS):
        print(f"| {name} | " + " | ".join(format_time(times[n][name]) for n in NUM_ROWS) + " |")
    print("| the model's decode step | " + " | ".join(format_time(model[n]) for n in NUM_ROWS) + " |")


def format_time(milliseconds: float) -> str:
    return f"{milliseconds:.2g} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"


def time_model(num_rows: int) -> float:
    """The median milliseconds of a decode step with a cache, all rows at once."""
    session = load_smollm2().session()
    session.start(list(MODEL_PROMPT), num_rows)
    seconds = []
    for _ in range(MODEL_STEPS):
        start = time.perf_counter()
        session.step(range(num_rows), [1] * num_rows)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds)) * 1000


def time_forms(num_rows: int, settings: Settings) -> dict[str, float]:
    """The median milliseconds of each form's call, and of an empty round trip."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 5, (num_rows, VOCAB_SIZE)).astype(np.float32)
    with ExitStack() as stack:
        stream, client = stack.enter_context(bare_stream()), stack.enter_context(logitd_server())
        contenders: dict[str, Contender] = {"an empty round trip": BareRoundTrip(stream)}
        for form in FORMS:
            batch = stack.enter_context(open_batch(client, rng, logits.shape, NUM_DISTINCT))
            contenders[form] = Step(num_rows, make_call(client, batch, form, logits))
        return measure(contenders, settings, clock=time.perf_counter)


def make_call(
    client: Client, batch: PenaltyBatch, form: str, logits: NDArray[np.float32]
) -> Callable[[NDArray[np.int64]], object]:
    if form == "dense":
        out = np.zeros_like(logits)
        return lambda token_ids: batch.apply(logits, token_ids, out=out)
    if form == "sparse":
        return lambda token_ids: batch.apply_sparse(logits, token_ids)
    if form == "edits, all":
        return batch.edits
    if form == "edits, changed ones":
        batch.edits()
        return lambda token_ids: batch.edits(token_ids, since=batch.revision)
    shared = client.shared_logits(*logits.shape)
    shared.array[...] = logits
    return lambda token_ids: batch.apply_inplace(shared, token_ids)


if __name__ == "__main__":
    main()
