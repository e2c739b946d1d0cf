"""A decoder: a program that decodes text after text until it is told to stop. Its model is a table of bigrams."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from logitd.client import Beam, Client, Penalties, Sequence

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

FORMS = ("dense", "memory", "named")
ROWS, VOCAB = 3, 64
_PENALTIES = Penalties(repetition_penalty=1.3, frequency_penalty=0.4)


def next_logits(seed: int, token_ids: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
    """[R, VOCAB]: what follows each of the R tokens."""
    table: NDArray[np.float32] = np.random.default_rng(seed).normal(0, 3, (VOCAB, VOCAB)).astype(np.float32)
    return np.take(table, token_ids, axis=0)


def decode(
    client: Client,
    *,
    seed: int,
    steps: int,
    form: str = "dense",
    directory: str | None = None,
    before: Callable[[int], object] = lambda step: None,
) -> list[list[int]]:
    """The tokens of each row, chosen greedily from penalised logits. `before` is called with each step's number."""
    with contextlib.ExitStack() as resources:
        sequences = [Sequence(penalties=_PENALTIES, max_new_tokens=steps + 1) for _ in range(ROWS)]
        batch = resources.enter_context(client.create_batch(sequences, vocab_size=VOCAB))
        if form != "dense":
            place = directory if form == "named" else None
            shared = resources.enter_context(client.shared_logits(ROWS, VOCAB, shared_memory_dir=place))
        last, chosen = np.arange(ROWS), []
        for step in range(steps):
            before(step)
            token_ids = last if step else None
            logits = next_logits(seed, last)
            if form == "dense":
                logits = batch.apply(logits, token_ids)
            else:
                shared.array[...] = logits
                batch.apply_inplace(shared, token_ids, refill=functools.partial(np.copyto, shared.array, logits))
                logits = shared.array.copy()
            last = logits.argmax(axis=1)
            chosen.append(last)
    return [[int(token) for token in row] for row in np.transpose(chosen)]


def search(
    client: Client, *, seed: int, steps: int, before: Callable[[int], object] = lambda step: None
) -> list[list[int]]:
    """The tokens of each beam of one search."""
    numbers = itertools.count()

    def logits(parent_rows: object, token_ids: NDArray[np.integer[Any]] | None) -> NDArray[np.float32]:
        before(next(numbers))
        return next_logits(seed, np.zeros(1, np.int64) if token_ids is None else token_ids)

    searches = [Sequence(beam=Beam(width=4), max_new_tokens=steps)]
    with client.create_beam_batch(searches, vocab_size=VOCAB) as batch:
        (done,) = batch.search(logits)
    return [[int(token) for token in hypothesis.token_ids] for hypothesis in done.hypotheses]


def main() -> None:
    """Say on standard output, a line of JSON each, how far a text is and what it became."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--directory")
    parser.add_argument("--form", choices=FORMS, default="dense")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="before each step of the first text, in seconds")
    options = parser.parse_args()
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    # A first call that fails raises: the sidecar has to be there before its decoder.
    with Client(options.target) as client:
        seed = 0
        while not stopping:
            settings = {"seed": seed, "steps": options.steps, "form": options.form, "directory": options.directory}
            pause = functools.partial(_wait, 0.0 if seed else options.pause)
            _say(seed=seed, tokens=decode(client, before=pause, **settings))
            seed += 1


def _wait(seconds: float, step: int) -> None:
    _say(step=step)
    time.sleep(seconds)


def _say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
