"""Filter and merge with the real server. Sync and asyncio alike."""

from __future__ import annotations

import numpy as np
import pytest

from logitd.client import (
    BatchBusyError,
    BatchClosedError,
    BatchesDifferError,
    BatchNotFoundError,
    BatchStateError,
    Beam,
    Client,
    InvalidArgumentError,
    Penalties,
    Sequence,
    UnansweredStepError,
    UnavailableError,
)

VOCAB = 12
ZEROS = np.zeros((9, VOCAB), np.float32)


def counted(*names, frequency=1.0):
    return [Sequence(penalties=Penalties(frequency_penalty=frequency), sequence_id=name) for name in names]


async def counts(batch):
    """How often each token was output, per row, as the server has it."""
    num_rows = len(batch.rows)
    return (-(await batch.apply(ZEROS[:num_rows]))).tolist()


def count_of(*ids):
    return np.bincount(ids, minlength=VOCAB).tolist() if ids else [0] * VOCAB


def names(batch):
    return [row.sequence_id for row in batch.rows]


def outputs(batch):
    return [list(sequence.output_token_ids) for sequence in batch.sequences]


def test_sequences_stay_in_the_order_that_is_named_and_fork(server_target, connect, run):
    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch(counted(*"abc"), vocab_size=VOCAB) as batch,
        ):
            await batch.accumulate([1, 2, 3])
            rows = await batch.filter(["c", ("a", "a1"), ("a", "a2")])
            assert rows == batch.rows
            assert (names(batch), batch.revision) == (["c", "a1", "a2"], 2)
            assert await counts(batch) == [count_of(3), count_of(1), count_of(1)]
            await batch.accumulate([4, 5, 6])
            assert await counts(batch) == [count_of(3, 4), count_of(1, 5), count_of(1, 6)]
            assert outputs(batch) == [[3, 4], [1, 5], [1, 6]]
            await batch.filter("a2")
            assert (names(batch), outputs(batch)) == (["a2"], [[1, 6]])

    run(scenario)


def test_a_merge_appends_and_closes_the_other_batch(server_target, connect, run):
    async def scenario():
        async with (
            connect(server_target, route="one") as client,
            await client.create_batch(counted("a"), vocab_size=VOCAB) as batch,
        ):
            other = await client.create_batch(counted("b", "c", frequency=2.0), vocab_size=VOCAB)
            await batch.accumulate([[1, 1]])
            await other.accumulate([2, 3])
            rows = await batch.merge(other)
            assert rows == batch.rows
            assert (names(batch), batch.revision) == (["a", "b", "c"], 2)
            assert outputs(batch) == [[1, 1], [2], [3]]
            assert await counts(batch) == [count_of(1, 1), count_of(2, 2), count_of(3, 3)]
            with pytest.raises(BatchClosedError):
                await other.accumulate([1, 1])
            with pytest.raises(BatchNotFoundError):
                await client.get_batch(other.batch_id)
            info = await client.get_batch(batch.batch_id, full=True)
            assert [list(sequence.output_token_ids) for sequence in info.sequences] == outputs(batch)

    run(scenario)


def test_searches_are_filtered_and_merged_with_their_beams(server_target, connect, run):
    random = np.random.default_rng(3)
    steps = [random.normal(size=(9, VOCAB)).astype(np.float32) for _ in range(4)]

    def search(name, width):
        return Sequence(beam=Beam(width), max_new_tokens=9, sequence_id=name)

    async def alone(client, name, width):
        async with await client.create_beam_batch([search(name, width)], vocab_size=VOCAB) as batch:
            await batch.beam_step(steps[0][:1])
            return [await batch.beam_step(logits[:width]) for logits in steps[1:]]

    async def scenario():
        async with connect(server_target) as client:
            batch = await client.create_beam_batch([search("a", 2), search("b", 3)], vocab_size=VOCAB)
            other = await client.create_beam_batch([search("c", 4)], vocab_size=VOCAB)
            await batch.beam_step(np.repeat(steps[0][:1], 2, axis=0))
            await other.beam_step(steps[0][:1])
            await batch.filter(["b"])
            await batch.merge(other)
            assert [(row.sequence_id, row.row_count) for row in batch.rows] == [("b", 3), ("c", 4)]
            together = [await batch.beam_step(np.concatenate([s[:3], s[:4]])) for s in steps[1:]]
            expected = zip(await alone(client, "b", 3), await alone(client, "c", 4), strict=True)
            for got, (b, c) in zip(together, expected, strict=True):
                assert np.array_equal(got.scores, np.concatenate([b.scores, c.scores]))
                assert np.array_equal(got.token_ids, np.concatenate([b.token_ids, c.token_ids]))
                assert np.array_equal(got.parent_rows, np.concatenate([b.parent_rows, c.parent_rows + 3]))
            await batch.delete()

    run(scenario)


def test_a_refused_change_changes_nothing(server_target, connect, run):
    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch(counted(*"ab"), vocab_size=VOCAB) as batch,
            await client.create_batch(counted("c"), vocab_size=VOCAB + 1) as other,
        ):
            with pytest.raises(InvalidArgumentError, match="must name a sequence of the batch"):
                await batch.filter(["a", "x"])
            with pytest.raises(BatchesDifferError):
                await batch.merge(other)
            assert (batch.revision, names(batch), outputs(batch)) == (0, ["a", "b"], [[], []])
            assert not batch.has_unanswered_step
            await batch.accumulate([1, 2])
            await other.accumulate([3])

    run(scenario)


def test_a_lost_filter_is_repeated(lossy, connect, run):
    async def scenario():
        async with (
            connect(lossy.target, recover=False) as client,
            await client.create_batch(counted(*"abc"), vocab_size=VOCAB) as batch,
        ):
            lossy.drop_in = 1
            with pytest.raises(UnavailableError, match="the reply is lost"):
                await batch.filter(["c", "a"])
            assert names(batch) == ["a", "b", "c"]
            assert await batch.retry() == batch.rows
            assert (names(batch), batch.revision) == (["c", "a"], 1)
        first, second = lossy.received["FilterBatch"]
        assert first == second

    run(scenario)


def test_a_lost_merge_is_repeated_from_the_batch_that_stays(lossy, connect, run):
    async def scenario():
        async with (
            connect(lossy.target, recover=False) as client,
            await client.create_batch(counted("a"), vocab_size=VOCAB) as batch,
        ):
            other = await client.create_batch(counted("b"), vocab_size=VOCAB)
            await other.accumulate([2])
            lossy.drop_in = 1
            with pytest.raises(UnavailableError, match="the reply is lost"):
                await batch.merge(other)
            with pytest.raises(UnansweredStepError, match="the last MergeBatches was not answered"):
                await other.accumulate([3])
            with pytest.raises(BatchStateError, match="to be retried from the batch that it was called on"):
                await other.retry()
            await batch.retry()
            assert (names(batch), outputs(batch), batch.revision) == (["a", "b"], [[], [2]], 1)
            with pytest.raises(BatchClosedError):
                await other.accumulate([3])
        first, second = lossy.received["MergeBatches"]
        assert first == second

    run(scenario)


def test_only_two_batches_of_a_kind_that_rest_can_be_merged(server_target):
    search = Sequence(beam=Beam(2), max_new_tokens=3)
    with (
        Client(server_target) as client,
        client.create_batch(counted("a"), vocab_size=VOCAB) as batch,
        client.create_batch(counted("b"), vocab_size=VOCAB) as other,
        client.create_beam_batch([search], vocab_size=VOCAB) as beams,
    ):
        with pytest.raises(ValueError, match="got itself"):
            batch.merge(batch)
        with pytest.raises(TypeError, match="PenaltyBatch must be merged with another one, got a BeamBatch"):
            batch.merge(beams)
        with other._one_at_a_time, pytest.raises(BatchBusyError):
            batch.merge(other)
        batch.merge(other)
        with pytest.raises(BatchClosedError):
            batch.merge(other)
