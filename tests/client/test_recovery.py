"""Decoders whose server is killed in the middle: their results are those of an undisturbed run. Sync and asyncio."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from logitd.client import (
    BatchNotFoundError,
    Beam,
    EditTable,
    Penalties,
    RefillNeededError,
    Sequence,
    UnavailableError,
)

VOCAB = 40
EOS = 0
PENALTIES = [Penalties(1.3, 0.5, -0.25, 4), Penalties(frequency_penalty=0.1), None]
SEQUENCES = [
    Sequence([1, 2], each, 100, [EOS], [3], sequence_id=name) for name, each in zip("abc", PENALTIES, strict=True)
]
SEARCHES = [
    Sequence([1, 2], Penalties(1.5), 12, [EOS], beam=Beam(3, return_token_log_probs=True), sequence_id="a"),
    Sequence([3], None, 6, [EOS], beam=Beam(4, early_stopping="NEVER"), sequence_id="b"),
]


def logits_of(*key, rows=3, bias=0.0):
    logits = np.random.default_rng(key).normal(0, 2, (rows, VOCAB)).astype(np.float32)
    logits[:, EOS] += bias
    return logits


class Killer:
    """Kills the server before some of the steps that it is told of, and starts it again in the meantime."""

    def __init__(self, server=None, at=()):
        self._server, self._at, self._num_steps = server, set(at), 0
        self._starting = None

    def __call__(self):
        if self._num_steps in self._at:
            self.wait()
            self._at.discard(self._num_steps)
            self._server.kill()
            self._starting = threading.Thread(target=self._server.start)
            self._starting.start()
        self._num_steps += 1

    def wait(self):
        """Until the server is back; none is to die any more."""
        if self._starting is not None:
            self._starting.join()

    def finish(self):
        self.wait()
        assert not self._at


async def penalise(client, found):
    """All forms in turns, with rollback and a filter in between."""
    async with await client.create_batch(SEQUENCES, vocab_size=VOCAB, profile="HF") as batch:
        table, token_ids = EditTable(), None
        for step in range(8):
            logits = logits_of(step, rows=len(batch.rows))
            yield
            if step % 3 == 0:
                processed = await batch.apply(logits, token_ids)
            elif step % 3 == 1:
                processed = logits.copy()
                (await batch.apply_sparse(logits, token_ids)).apply_to_inplace(processed)
            else:
                table.update(await batch.edits(token_ids, since=table.revision))
                processed = logits.copy()
                table.apply_to_inplace(processed)
            found.append(processed.tobytes())
            token_ids = processed.argmax(axis=1)
            if step == 3:
                yield
                await batch.accumulate([[7, 8], [], [9]], rollback=[1, 0, 2])
                yield
                await batch.filter(["c", "a", ("a", "fork"), "b"])
                token_ids = None
        found.append(batch.revision)
        outputs = [list(sequence.output_token_ids) for sequence in batch.sequences]
        info = await client.get_batch(batch.batch_id, full=True)
        assert outputs == [list(sequence.output_token_ids) for sequence in info.sequences]
        found.append(outputs)


async def search(client, found, rule, searches):
    """Logits that depend on the rows' histories, so that a wrong beam shows."""
    options = {"vocab_size": VOCAB, "beam_rule": rule, "allow_penalty_extension": rule != "HF"}
    async with await client.create_beam_batch(searches, **options) as batch:
        rows = [tuple(search.prompt_token_ids) for search in searches]
        while batch.rows:
            logits = np.concatenate([logits_of(*row, rows=1, bias=2.0) for row in rows])
            yield
            step = await batch.beam_step(logits)
            found.append(described(step))
            rows = [(*rows[parent], int(token)) for parent, token in zip(step.parent_rows, step.token_ids, strict=True)]


def described(step):
    """All that a step said, to the bit."""
    return (
        step.parent_rows.tolist(),
        step.token_ids.tolist(),
        step.scores.tolist(),
        [
            (one.finish_reason, one.checkpoint, one.log_prob_sums.tolist(), one.token_log_probs.tolist())
            for one in step.searches
        ],
        [
            (h.token_ids.tolist(), h.score, h.running_sum, h.parent_chain.tolist(), h.token_log_probs.tolist())
            for one in step.searches
            for h in (*one.entered, *one.hypotheses)
        ],
    )


async def share(client, found, **options):
    """In place and as a patch, in memory that the server has to be given again."""
    async with (
        await client.create_batch(SEQUENCES, vocab_size=VOCAB) as batch,
        await client.shared_logits(3, VOCAB, **options) as shared,
    ):
        token_ids = None
        for step in range(8):

            def fill(step=step):
                shared.array[...] = logits_of(step)

            fill()
            yield
            if step % 3:
                await batch.apply_inplace(shared, token_ids, refill=fill)
            else:
                (await batch.apply_shared(shared, token_ids)).apply_to_inplace(shared.array)
            found.append(shared.array.tobytes())
            token_ids = shared.array.argmax(axis=1)


async def merge(client, found):
    """Every few steps another sequence comes in."""
    async with await client.create_batch(SEQUENCES[:1], vocab_size=VOCAB) as batch:
        for step in range(4):
            other = await client.create_batch(
                [Sequence(penalties=PENALTIES[0], sequence_id=str(step))], vocab_size=VOCAB
            )
            await other.accumulate([[step, step, 7]])
            yield
            await batch.merge(other)
            yield
            processed = await batch.apply(logits_of(step, rows=len(batch.rows)), list(range(len(batch.rows))))
            found.append((processed.tobytes(), batch.revision))


async def decode_all(client, killer, memory_dir):
    """Decoders of every kind, a step of each after the other; what each of them found."""
    kinds = [
        penalise,
        lambda client, found: search(client, found, "HF", SEARCHES),
        lambda client, found: search(client, found, "VLLM", [SEARCHES[0], replace(SEARCHES[1], beam=Beam(2))]),
        share,
        lambda client, found: share(client, found, shared_memory_dir=memory_dir),
        merge,
    ]
    found = [[] for _ in kinds]
    decoders = [kind(client, results) for kind, results in zip(kinds, found, strict=True)]
    while decoders:
        for decoder in list(decoders):
            try:
                await anext(decoder)
            except StopAsyncIteration:
                decoders.remove(decoder)
            killer()
    killer.finish()
    return found


@pytest.mark.timeout(300)
def test_decoders_do_not_notice_that_their_server_dies(own_server, connect, run):
    async def scenario(killer):
        async with connect(own_server.target) as client:
            return await decode_all(client, killer, str(own_server.memory_dir))

    undisturbed = run(lambda: scenario(Killer()))
    # Each of the decoders once is the first to meet a server that is gone.
    disturbed = run(lambda: scenario(Killer(own_server, at=[5, 12, 19, 26, 33, 40])))
    for one, other in zip(disturbed, undisturbed, strict=True):
        assert one == other


def test_without_a_refill_the_decoder_is_told_when_its_server_is_back(own_server, connect, run):
    async def scenario():
        async with (
            connect(own_server.target) as client,
            await client.create_batch(SEQUENCES, vocab_size=VOCAB) as batch,
            await client.shared_logits(3, VOCAB) as shared,
        ):
            logits = logits_of(0)
            await batch.accumulate([4, 5, 6])
            shared.array[...] = logits
            killer = Killer(own_server, at=[0])
            killer()
            with pytest.raises(RefillNeededError):
                await batch.apply_inplace(shared, [1, 2, 3])
            shared.array[...] = logits
            await batch.retry(refilled=True)
            assert shared.array.tobytes() == (await batch.apply(logits)).tobytes()
            assert batch.revision == 2
            killer.wait()

    run(scenario)


def test_an_expired_batch_is_rebuilt_and_its_revision_counts_on(server_target, connect, run):
    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch(SEQUENCES, vocab_size=VOCAB) as batch,
        ):
            await batch.accumulate([1, 2, 3])
            await client.delete_batch(batch.batch_id)
            before = batch.uid
            await batch.accumulate([4, 5, 6])
            assert (batch.revision, batch.uid != before) == (2, True)
            info = await client.get_batch(batch.batch_id, full=True)
            assert (info.revision, list(info.sequences[1].output_token_ids)) == (1, [2, 5])
            assert (await batch.edits(since=1)).base_revision == 1
            assert (await batch.edits(since=0)).is_full

    run(scenario)


def test_a_merge_rebuilds_only_the_batch_that_is_gone(server_target, connect, run):
    async def scenario(lost):
        async with (
            connect(server_target) as client,
            await client.create_batch(SEQUENCES[:1], vocab_size=VOCAB) as batch,
        ):
            other = await client.create_batch(SEQUENCES[1:], vocab_size=VOCAB)
            await batch.accumulate([1])
            await other.accumulate([2, 3])
            uids = batch.uid, other.uid
            await client.delete_batch((batch, other)[lost].batch_id)
            await batch.merge(other)
            assert [list(sequence.output_token_ids) for sequence in batch.sequences] == [[1], [2], [3]]
            assert [batch.uid != uids[0], other.uid != uids[1]] == [lost == 0, lost == 1]

    run(lambda: scenario(0))
    run(lambda: scenario(1))


def test_the_patience_has_an_end(own_server, connect, run):
    async def scenario():
        async with connect(own_server.target, recover_timeout=2) as client, connect(own_server.target) as patient:
            before = await patient.capabilities()
            batch = await client.create_batch(SEQUENCES, vocab_size=VOCAB)
            await batch.accumulate([1, 2, 3])
            own_server.kill()
            began = time.monotonic()
            with pytest.raises(UnavailableError):
                await batch.accumulate([4, 5, 6])
            assert 1.9 < time.monotonic() - began < 10
            assert batch.has_unanswered_step
            starting = threading.Thread(target=own_server.start)
            starting.start()
            # Calls beside the steps wait for a server that was there.
            assert (await patient.capabilities()).instance_id != before.instance_id
            await batch.retry()
            assert [list(sequence.output_token_ids) for sequence in batch.sequences] == [[1, 4], [2, 5], [3, 6]]
            await batch.delete()
            starting.join()

    run(scenario)


def test_who_does_not_want_to_recover_is_told(server_target, connect, run):
    async def scenario():
        async with connect(server_target, recover=False) as client:
            batch = await client.create_batch(SEQUENCES, vocab_size=VOCAB)
            await client.delete_batch(batch.batch_id)
            with pytest.raises(BatchNotFoundError):
                await batch.accumulate([1, 2, 3])

    run(scenario)


def test_a_batch_without_sequences_cannot_be_rebuilt(server_target, connect, run):
    search_of_one = [Sequence(beam=Beam(2), max_new_tokens=1)]

    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_beam_batch(search_of_one, vocab_size=VOCAB) as batch,
        ):
            assert (await batch.beam_step(logits_of(0, rows=1))).is_done
            await client.delete_batch(batch.batch_id)
            with pytest.raises(BatchNotFoundError):
                await batch.filter([])

    run(scenario)
