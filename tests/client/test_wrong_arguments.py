"""Arguments of a wrong kind: refused before anything is sent, and the batch goes on as if nothing had been asked."""

from __future__ import annotations

import re

import numpy as np
import pytest

from logitd.client import Beam, Penalties, ResourceExhaustedError, Sequence, UnavailableError

VOCAB = 8
LOGITS = np.zeros((2, VOCAB), np.float32)
READ_ONLY = np.zeros((2, VOCAB), np.float32)
READ_ONLY.flags.writeable = False

STEPS = {
    "filter by number": lambda batch: batch.filter([0]),
    "filter by a triple": lambda batch: batch.filter([("0", "a", "b")]),
    "filter by no text": lambda batch: batch.filter(["\ud800"]),
    "edits since text": lambda batch: batch.edits([1, 2], since="x"),
    "edits since a fraction": lambda batch: batch.edits([1, 2], since=1.5),
    "an array as shared logits": lambda batch: batch.apply_shared(LOGITS, [1, 2]),
    "an array in place": lambda batch: batch.apply_inplace(LOGITS, [1, 2]),
    "a list as out": lambda batch: batch.apply(LOGITS, [1, 2], out=[[0.0]]),
    "out that is read-only": lambda batch: batch.apply(LOGITS, [1, 2], out=READ_ONLY),
    "fractions as token ids": lambda batch: batch.apply(LOGITS, [1.0, 2.0]),
    "too few rows": lambda batch: batch.apply(LOGITS[:1], [1, 2]),
    "too many rows": lambda batch: batch.apply(np.zeros((3, VOCAB), np.float32), [1, 2]),
    "too few rows for a patch": lambda batch: batch.apply_sparse(LOGITS[:1], [1, 2]),
    "too few positions": lambda batch: batch.apply(LOGITS, [1, 2], drafts=[[3], [4]]),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_cannot_be_made_leaves_the_batch_as_it_was(server_target, connect, run, name):
    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch([Sequence()] * 2, vocab_size=VOCAB) as batch,
        ):
            with pytest.raises((TypeError, ValueError)):
                await STEPS[name](batch)
            assert (batch.revision, batch.has_unanswered_step) == (0, False)
            await batch.accumulate([1, 2])
            found = await client.get_batch(batch.batch_id, full=True)
            assert [each.output_token_ids.tolist() for each in found.sequences] == [[1], [2]]

    run(scenario)


@pytest.mark.parametrize("ids", [5, iter([1, 2]), [1.0, 2.0], [None, None], ["1", "2"], [[1], 2], [[1], [2.0]]])
def test_token_ids_of_other_kinds_are_refused_in_words(server_target, connect, run, ids):
    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch([Sequence()] * 2, vocab_size=VOCAB) as batch,
        ):
            for step in (lambda: batch.accumulate(ids), lambda: batch.apply(LOGITS, ids), lambda: batch.edits(ids)):
                with pytest.raises(TypeError, match="token ids must be a flat list of integers"):
                    await step()

    run(scenario)


def test_a_beam_step_that_cannot_be_made_leaves_the_batch_as_it_was(server_target, connect, run):
    async def scenario():
        search = Sequence(max_new_tokens=4, beam=Beam(2))
        async with (
            connect(server_target) as client,
            await client.create_beam_batch([search], vocab_size=VOCAB) as batch,
        ):
            with pytest.raises(TypeError):
                await batch.beam_step(LOGITS[:1], finish=[0])
            assert not batch.has_unanswered_step
            assert len((await batch.beam_step(LOGITS[:1])).token_ids) == 2

    run(scenario)


def test_rows_are_counted_before_chunks_are_made(server_target, connect, run):
    """The first chunk alone is right, and would count the tokens."""

    async def scenario():
        wide = 4096
        async with (
            connect(server_target, chunk_bytes=4 * wide) as client,
            await client.create_batch([Sequence()] * 2, vocab_size=wide) as batch,
        ):
            with pytest.raises(ValueError, match=re.escape("logits must have 2 rows, those of the batch, got 3")):
                await batch.apply(np.zeros((3, wide), np.float32), [1, 2])
            assert (await client.get_batch(batch.batch_id)).revision == 0

    run(scenario)


@pytest.mark.parametrize(
    "logits", [[[0.0] * VOCAB] * 2, np.zeros((2, 3), np.float32), np.zeros((1, VOCAB), np.float32)]
)
def test_what_does_not_fit_is_not_edited(server_target, connect, run, logits):
    async def scenario():
        penalised = [Sequence(penalties=Penalties(2.0))] * 2
        async with connect(server_target) as client, await client.create_batch(penalised, vocab_size=VOCAB) as batch:
            edits, patch = await batch.edits([1, 5]), await batch.apply_sparse(LOGITS)
            for result in (edits, patch):
                with pytest.raises((TypeError, ValueError), match="logits must"):
                    result.apply_to_inplace(logits)

    run(scenario)


def test_a_sequence_of_another_kind_is_refused(server_target, connect, run):
    async def scenario():
        async with connect(server_target) as client:
            with pytest.raises(TypeError, match=re.escape("sequences[1] must be a Sequence, got dict")):
                await client.create_batch([Sequence(), {}], vocab_size=VOCAB)

    run(scenario)


def test_more_shared_memory_than_the_server_takes_is_refused_before_it_is_taken(server_target, connect, run):
    async def scenario():
        async with connect(server_target) as client:
            with pytest.raises(ResourceExhaustedError, match="max_region_bytes"):
                await client.shared_logits(10**5, 10**6)

    run(scenario)


def test_a_side_socket_that_is_not_there_is_told_while_the_server_is(server_target, connect, run):
    """And not after the time that a server may be away."""

    async def scenario():
        async with connect(server_target, recover_timeout=600) as client:
            await client.wait_until_ready()
            with pytest.raises(UnavailableError, match=re.escape("handed over at /nowhere.memory")):
                await client.shared_logits(2, VOCAB, side_socket="/nowhere.memory")

    run(scenario)
