"""Decoders whose server is killed in the middle: their results are those of an undisturbed run. Sync and asyncio."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest

from logitd.client import (
    AsyncClient,
    BatchNotFoundError,
    Beam,
    Client,
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
    """Kills the server now and then, where it is asked to, and starts it again a moment later."""

    def __init__(self, server=None, at=()):
        self._server, self._at, self._asked = server, set(at), 0
        self._starting = None

    @property
    def num_kills(self):
        return sum(place < self._asked for place in self._at)

    def __call__(self):
        if self._asked in self._at:
            self.wait()
            self._server.kill()
            self._starting = threading.Thread(target=self._server.start)
            self._starting.start()
        self._asked += 1

    def wait(self):
        if self._starting is not None:
            self._starting.join()


async def decode(batch, killer):
    """All forms in turns, and changes of the batch's members in between; the results in their order."""
    table, found, token_ids = EditTable(), [], None
    for step in range(14):
        logits = logits_of(step, rows=len(batch.rows))
        killer()
        if step % 4 == 3:
            table.update(await batch.edits(token_ids, since=table.revision))
            processed = logits.copy()
            table.apply_to_inplace(processed)
        elif step % 4 == 2:
            processed = logits.copy()
            (await batch.apply_sparse(logits, token_ids)).apply_to_inplace(processed)
        else:
            processed = await batch.apply(logits, token_ids)
        found.append(processed)
        token_ids = processed.argmax(axis=1)
        if step == 5:
            await batch.accumulate([[7, 8], [], [9]], rollback=[1, 0, 2])
        if step == 8:
            await batch.accumulate(token_ids)
            killer()
            await batch.filter(["c", "a", ("a", "fork"), "b"])
            token_ids = None
    return found


def test_a_decoder_does_not_notice_that_its_server_dies(own_server, connect, run):
    async def scenario(killer):
        async with (
            connect(own_server.target) as client,
            await client.create_batch(SEQUENCES, vocab_size=VOCAB, profile="HF") as batch,
        ):
            found = await decode(batch, killer)
            info = await client.get_batch(batch.batch_id, full=True)
            outputs = [list(sequence.output_token_ids) for sequence in info.sequences]
            assert [list(sequence.output_token_ids) for sequence in batch.sequences] == outputs
            killer.wait()
            return found, outputs, batch.revision

    undisturbed = run(lambda: scenario(Killer()))
    killer = Killer(own_server, at=[0, 4, 7, 9, 12])
    found, outputs, revision = run(lambda: scenario(killer))
    assert killer.num_kills == 5
    assert (outputs, revision) == undisturbed[1:]
    assert [each.tobytes() for each in found] == [each.tobytes() for each in undisturbed[0]]


async def search(batch, killer):
    """Logits that depend on the rows' histories, so that a wrong beam shows; the results in their order."""
    rows, found = [(1, 2), (3,)], []
    while batch.rows:
        logits = np.concatenate([logits_of(*row, rows=1, bias=2.0) for row in rows])
        killer()
        step = await batch.beam_step(logits)
        found.append(step)
        rows = [(*rows[parent], int(token)) for parent, token in zip(step.parent_rows, step.token_ids, strict=True)]
    return found


def described(steps):
    """All that the steps of a search said, to the bit."""
    return [
        (
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
        for step in steps
    ]


@pytest.mark.parametrize("rule", ["HF", "VLLM"])
def test_a_search_does_not_notice_that_its_server_dies(own_server, connect, run, rule):
    searches = SEARCHES if rule == "HF" else [Sequence([1, 2], None, 9, [EOS], beam=Beam(3)), SEARCHES[0]]
    options = {"vocab_size": VOCAB, "beam_rule": rule, "allow_penalty_extension": rule == "VLLM"}

    async def scenario(killer):
        async with (
            connect(own_server.target) as client,
            await client.create_beam_batch(searches, **options) as batch,
        ):
            found = await search(batch, killer)
            killer.wait()
            return described(found)

    killer = Killer(own_server, at=[0, 2, 5])
    disturbed = run(lambda: scenario(killer))
    assert killer.num_kills == 3
    assert disturbed == run(lambda: scenario(Killer()))


def test_batches_whose_server_dies_are_merged(own_server, connect, run):
    async def scenario(killer):
        async with (
            connect(own_server.target) as client,
            await client.create_batch(SEQUENCES[:2], vocab_size=VOCAB) as batch,
        ):
            other = await client.create_batch(SEQUENCES[2:], vocab_size=VOCAB)
            await batch.accumulate([5, 6])
            await other.accumulate([[7, 7, 8]])
            killer()
            await batch.merge(other)
            killer()
            processed = await batch.apply(logits_of(0), [1, 2, 3])
            killer.wait()
            return processed.tobytes(), batch.revision

    killer = Killer(own_server, at=[0, 1])
    assert run(lambda: scenario(killer)) == run(lambda: scenario(Killer()))


@pytest.mark.parametrize("kind", ["memory file", "named file"])
def test_shared_logits_outlive_their_server(own_server, connect, run, kind):
    options = {"shared_memory_dir": str(own_server.memory_dir)} if kind == "named file" else {}

    async def scenario(killer):
        async with (
            connect(own_server.target) as client,
            await client.create_batch(SEQUENCES, vocab_size=VOCAB) as batch,
            await client.shared_logits(3, VOCAB, **options) as shared,
        ):
            found, token_ids = [], None
            for step in range(6):

                def fill(step=step):
                    shared.array[...] = logits_of(step)

                fill()
                killer()
                if step % 2:
                    (await batch.apply_shared(shared, token_ids)).apply_to_inplace(shared.array)
                else:
                    await batch.apply_inplace(shared, token_ids, refill=fill)
                found.append(shared.array.tobytes())
                token_ids = shared.array.argmax(axis=1)
            killer.wait()
            return found

    killer = Killer(own_server, at=[1, 4])
    assert run(lambda: scenario(killer)) == run(lambda: scenario(Killer()))


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
        async with connect(own_server.target, recover_timeout=0.5) as client:
            batch = await client.create_batch(SEQUENCES, vocab_size=VOCAB)
            await batch.accumulate([1, 2, 3])
            own_server.kill()
            began = time.monotonic()
            with pytest.raises(UnavailableError):
                await batch.accumulate([4, 5, 6])
            assert 0.4 < time.monotonic() - began < 5
            assert batch.has_unanswered_step
            own_server.start()
            await batch.retry()
            assert [list(sequence.output_token_ids) for sequence in batch.sequences] == [[1, 4], [2, 5], [3, 6]]
            await batch.delete()

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


def test_calls_beside_the_steps_wait_for_a_server_that_was_there(own_server, connect, run):
    async def scenario():
        async with connect(own_server.target) as client:
            before = await client.capabilities()
            killer = Killer(own_server, at=[0])
            killer()
            batch = await client.create_batch(SEQUENCES, vocab_size=VOCAB)
            assert (await client.capabilities()).instance_id != before.instance_id
            assert (await client.get_batch(batch.batch_id)).uid == batch.uid
            killer.wait()

    run(scenario)


def test_both_surfaces_recover_side_by_side(own_server):
    async def scenario():
        async with (
            AsyncClient(own_server.target) as client,
            await client.create_batch(SEQUENCES, vocab_size=VOCAB) as batch,
        ):
            with Client(own_server.target) as blocking, blocking.create_batch(SEQUENCES, vocab_size=VOCAB) as other:
                killer = Killer(own_server, at=[0])
                killer()
                logits = logits_of(0)
                mine = batch.apply(logits, [1, 2, 3])
                others = asyncio.to_thread(other.apply, logits, [1, 2, 3])
                assert np.array_equal(*await asyncio.gather(mine, others))
                killer.wait()

    asyncio.run(scenario())
