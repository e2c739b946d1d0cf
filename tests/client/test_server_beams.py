"""Beam search with the real server. Sync and asyncio alike."""

from __future__ import annotations

import numpy as np
import pytest

from logitd.client import Beam, Penalties, Sequence, UnavailableError

VOCAB = 50


def logits_of(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, VOCAB)).astype(np.float32)


def test_beams_are_followed_to_their_end(server_target, connect, run):
    async def scenario():
        searches = [
            Sequence(beam=Beam(2), max_new_tokens=2, sequence_id="short"),
            Sequence(beam=Beam(3), max_new_tokens=4, sequence_id="long"),
        ]
        async with (
            connect(server_target) as client,
            await client.create_beam_batch(searches, vocab_size=VOCAB) as batch,
        ):
            assert [row.row_count for row in batch.rows] == [1, 1]
            step = await batch.beam_step(logits_of(2))
            assert [row.row_count for row in batch.rows] == [2, 3]
            assert step.parent_rows.tolist() == [0, 0, 1, 1, 1]
            step = await batch.beam_step(logits_of(5))
            short, long = step.searches
            assert (short.is_done, short.finish_reason, long.is_done) == (True, "LENGTH", False)
            assert [len(hypothesis.token_ids) for hypothesis in short.hypotheses] == [2, 2]
            assert [row.sequence_id for row in batch.rows] == ["long"]
            assert (step.parent_rows >= 2).all()
            step = await batch.beam_step(logits_of(3), finish=["long"])
            assert step.is_done
            assert step.searches[0].finish_reason == "REQUESTED"

    run(scenario)


def described(beams):
    return [
        (b.token_ids.tolist(), b.score, b.log_prob_sum, b.token_log_probs.tolist(), b.parent_chain.tolist())
        for b in beams.live_beams
    ]


@pytest.mark.parametrize("has_view", [True, False])
def test_a_beam_search_is_rebuilt_from_its_full_view_and_from_what_the_client_keeps(
    server_target, connect, run, has_view
):
    async def scenario():
        async with connect(server_target) as client:
            search = Sequence(
                [1], Penalties(repetition_penalty=2.0), 9, (0,), beam=Beam(3, return_token_log_probs=True)
            )
            steps = [logits_of(1), *(logits_of(3, seed=seed) for seed in (1, 2, 3))]
            async with await client.create_beam_batch([search], vocab_size=VOCAB) as batch:
                for logits in steps[:-1]:
                    await batch.beam_step(logits)
                info, (kept,) = await client.get_batch(batch.batch_id, full=True), batch.sequences
                expected = await batch.beam_step(steps[-1])
            assert described(kept.beams) == described(info.sequences[0].beams)
            assert kept.beams.checkpoint == info.sequences[0].beams.checkpoint
            sequences = info.sequences if has_view else [kept]
            async with await client.create_beam_batch(sequences, vocab_size=VOCAB) as rebuilt:
                step = await rebuilt.beam_step(steps[-1])
            assert np.array_equal(step.scores, expected.scores)
            assert np.array_equal(step.token_ids, expected.token_ids)
            assert len(expected.searches[0].token_log_probs) == 3

    run(scenario)


@pytest.mark.parametrize(("chunk_bytes", "drop_in"), [(10**6, 1), (VOCAB * 4, 1), (VOCAB * 4, 2), (VOCAB * 4, 3)])
def test_a_lost_beam_step_is_answered_as_it_would_have_been(lossy, server_target, connect, run, chunk_bytes, drop_in):
    logits = [logits_of(1), logits_of(3, seed=1)]
    searches = [Sequence(beam=Beam(3), max_new_tokens=5)]

    async def scenario():
        async with (
            connect(lossy.target, chunk_bytes=chunk_bytes, recover=False) as client,
            await client.create_beam_batch(searches, vocab_size=VOCAB) as batch,
        ):
            await batch.beam_step(logits[0])
            lossy.drop_in = drop_in
            with pytest.raises(UnavailableError, match="the reply is lost"):
                await batch.beam_step(logits[1])
            retried = await batch.retry()
            assert batch.revision == 2
        async with (
            connect(server_target) as client,
            await client.create_beam_batch(searches, vocab_size=VOCAB) as batch,
        ):
            await batch.beam_step(logits[0])
            whole = await batch.beam_step(logits[1])
        assert np.array_equal(retried.token_ids, whole.token_ids)
        assert np.array_equal(retried.scores, whole.scores)

    run(scenario)
