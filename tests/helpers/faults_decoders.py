"""Decoders whose results depend on every step before, for runs in which something breaks and nothing may be lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from logitd.client import Beam, Client, EditTable, Penalties, Sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from logitd.client import BeamStep

VOCAB = 40
EOS = 0
_PENALTIES = (Penalties(1.3, 0.5, -0.25, 4), Penalties(frequency_penalty=0.1), None)
_SEQUENCES = tuple(
    Sequence([1, 2], each, 400, [EOS], [3], sequence_id=name) for name, each in zip("abc", _PENALTIES, strict=True)
)
_SEARCHES = (
    Sequence([1, 2], Penalties(1.5), 12, [EOS], beam=Beam(3, return_token_log_probs=True), sequence_id="a"),
    Sequence([3], None, 8, [EOS], beam=Beam(4), sequence_id="b"),
)

Found: TypeAlias = list[Any]


class Decoding:
    """Where and how a decoder runs; it calls `pause` before each of its steps."""

    def __init__(self, client: Client, seed: int, pause: Callable[[], object], side_socket: str | None) -> None:
        self.client = client
        self.seed = seed
        self.pause = pause
        self.side_socket = side_socket

    def logits(self, *key: int, rows: int = 3, bias: float = 0.0) -> NDArray[np.float32]:
        logits = np.random.default_rng((self.seed, *key)).normal(0, 2, (rows, VOCAB)).astype(np.float32)
        logits[:, EOS] += bias
        return logits


def penalise(run: Decoding) -> Found:
    """All forms in turns, with rollback, a filter that forks, and a merge in between."""
    found: Found = []
    with run.client.create_batch(_SEQUENCES, vocab_size=VOCAB, profile="HF") as batch:
        table, token_ids = EditTable(), None
        for step in range(12):
            run.pause()
            processed = _apply_in_a_form(run, batch, table, step, token_ids)
            found.append(processed.tobytes())
            token_ids = processed.argmax(axis=1)
            if step == 4:
                run.pause()
                batch.accumulate([[7, 8], [], [9]], rollback=[1, 0, 2])
                batch.filter(["c", "a", ("a", "fork"), "b"])
                token_ids = None
            if step == 8:
                other = run.client.create_batch(
                    [Sequence(penalties=_PENALTIES[0], max_new_tokens=50, sequence_id="late")],
                    vocab_size=VOCAB,
                    profile="HF",
                )
                run.pause()
                batch.merge(other)
                token_ids = None
        outputs = [list(sequence.output_token_ids) for sequence in batch.sequences]
        run.pause()
        last = batch.apply(run.logits(0, rows=len(batch.rows)))  # the server's history is the client's
        return [*found, last.tobytes(), batch.revision, outputs]


def _apply_in_a_form(run: Decoding, batch: Any, table: EditTable, step: int, token_ids: Any) -> NDArray[np.float32]:
    logits = run.logits(step, rows=len(batch.rows))
    if step % 3 == 0:
        return batch.apply(logits, token_ids)  # type: ignore[no-any-return]
    if step % 3 == 1:
        batch.apply_sparse(logits, token_ids).apply_to_inplace(logits)
    else:
        table.update(batch.edits(token_ids, since=table.revision))
        table.apply_to_inplace(logits)
    return logits


def share(run: Decoding) -> Found:
    """In place and as a patch, in memory that the server has to be given again."""
    found: Found = []
    with (
        run.client.create_batch(_SEQUENCES, vocab_size=VOCAB) as batch,
        run.client.shared_logits(3, VOCAB, side_socket=run.side_socket) as shared,
    ):
        token_ids = None
        for step in range(12):

            def fill(step: int = step) -> None:
                shared.array[...] = run.logits(step)

            fill()
            run.pause()
            if step % 3:
                batch.apply_inplace(shared, token_ids, refill=fill)
            else:
                batch.apply_shared(shared, token_ids).apply_to_inplace(shared.array)
            found.append(shared.array.tobytes())
            token_ids = shared.array.argmax(axis=1)
    return found


def search_hf(run: Decoding) -> Found:
    return _search(run, "HF", _SEARCHES)


def search_vllm(run: Decoding) -> Found:
    return _search(run, "VLLM", _SEARCHES)


def _search(run: Decoding, rule: str, searches: Iterable[Sequence]) -> Found:
    """Logits that depend on the rows' histories, so that a wrong beam shows."""
    found: Found = []
    options: dict[str, Any] = {"vocab_size": VOCAB, "beam_rule": rule, "allow_penalty_extension": rule != "HF"}
    with run.client.create_beam_batch(list(searches), **options) as batch:
        rows = [tuple(search.prompt_token_ids) for search in searches]
        while batch.rows:
            logits = np.concatenate([run.logits(*row, rows=1, bias=1.5) for row in rows])
            run.pause()
            step = batch.beam_step(logits)
            found.append(_describe(step))
            rows = [(*rows[parent], int(token)) for parent, token in zip(step.parent_rows, step.token_ids, strict=True)]
    return found


def _describe(step: BeamStep) -> tuple[Any, ...]:
    """All that a step said, to the bit."""
    return (
        step.parent_rows.tolist(),
        step.token_ids.tolist(),
        step.scores.tolist(),
        [(one.finish_reason, one.checkpoint, one.log_prob_sums.tolist()) for one in step.searches],
        [
            (h.token_ids.tolist(), h.score, h.running_sum, h.parent_chain.tolist(), h.token_log_probs.tolist())
            for one in step.searches
            for h in (*one.entered, *one.hypotheses)
        ],
    )


KINDS: tuple[Callable[[Decoding], Found], ...] = (penalise, search_hf, share, search_vllm)


class Load:
    """Decoders of all kinds, one a thread, over and over until they are told to stop; all that they find is compared.

    `address` is where they connect; `reference` is a server that nothing happens to while this is made.
    """

    def __init__(
        self, reference: str, address: str, side_socket: str, pause: Callable[[], object], **options: Any
    ) -> None:
        self._address, self._side_socket, self._pause, self._options = address, side_socket, pause, options
        self._over = threading.Event()
        self._rounds = [0] * len(KINDS)  # each thread counts for itself
        with Client(reference) as client:
            self._expected = [kind(Decoding(client, 0, lambda: None, side_socket)) for kind in KINDS]

    def run(self, disturb: Callable[[], object]) -> None:
        """Disturb the decoders, then let each finish what it has begun; what they found must be what was expected."""
        with ThreadPoolExecutor(len(KINDS)) as threads:
            running = [threads.submit(self._decode, number) for number in range(len(KINDS))]
            try:
                disturb()
            finally:
                self._over.set()
                for each in running:  # what went wrong with a decoder tells more than what follows from it
                    each.result()

    @property
    def rounds(self) -> int:
        """How often all of them together have come to their end."""
        return sum(self._rounds)

    @property
    def has_seen_all(self) -> bool:
        """Whether each kind has come to its end."""
        return all(self._rounds)

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def _decode(self, number: int) -> None:
        # A decoder that fails ends the disturbance's sense, but not the others: its error is raised at the end.
        while not self.is_over:
            with Client(self._address, **self._options) as client:
                client.wait_until_ready()  # a server that was there is expected back by the calls that follow
                found = KINDS[number](Decoding(client, 0, self._pause, self._side_socket))
            assert found == self._expected[number], KINDS[number].__name__
            self._rounds[number] += 1
