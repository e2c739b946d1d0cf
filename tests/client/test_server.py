"""The client against the real server, which runs in its own process. Sync and asyncio alike."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import numpy as np
import pytest

from logitd.client import (
    AlreadyExistsError,
    AsyncClient,
    BatchNotFoundError,
    Beam,
    Client,
    InvalidArgumentError,
    Penalties,
    PenaltyBatch,
    RevisionMismatchError,
    Sequence,
    UidMismatchError,
    UnavailableError,
    from_bfloat16,
    to_bfloat16,
)

VOCAB = 50
REPEAT = Penalties(repetition_penalty=2.0)


def logits_of(rows, columns=VOCAB, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


def halved(logits, *ids):
    """SGLANG's repetition penalty of 2 on the ids of each row."""
    expected = logits.copy()
    for row, row_ids in enumerate(ids):
        touched = expected[row, row_ids]
        expected[row, row_ids] = np.where(touched < 0, touched * 2, touched / 2)
    return expected


def sequences(count, penalties=REPEAT, **fields):
    return [Sequence(penalties=penalties, **fields) for _ in range(count)]


def test_a_decoder_penalises_as_it_goes(server_target, connect, run):
    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch(sequences(2), vocab_size=VOCAB) as batch,
        ):
            logits = logits_of(2)
            assert np.array_equal(await batch.apply(logits), logits)
            assert np.array_equal(await batch.apply(logits, [3, 4]), halved(logits, [3], [4]))
            await batch.accumulate([[5, 6], []])
            assert np.array_equal(await batch.apply(logits), halved(logits, [3, 5, 6], [4]))
            await batch.accumulate([[7], []], rollback=[2, 1])
            assert np.array_equal(await batch.apply(logits), halved(logits, [3, 7], []))
            assert batch.revision == 3

    run(scenario)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", ">f4"])
def test_sparse_and_dense_agree_bit_by_bit(server_target, connect, run, dtype):
    logits = logits_of(3, VOCAB + 7)
    logits = to_bfloat16(logits) if dtype == "bfloat16" else logits.astype(dtype)

    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch(sequences(3, Penalties(1.3, 0.7, -0.4)), vocab_size=VOCAB) as batch,
        ):
            dense = await batch.apply(logits, [1, 2, 3])
            patch = await batch.apply_sparse(logits)
            patched = logits.astype(dense.dtype)
            patch.apply_to_inplace(patched)
            assert patched.tobytes() == dense.tobytes()
            assert patch.row_splits.tolist() == [0, 1, 2, 3]
            assert patch.token_ids.tolist() == [1, 2, 3]

    run(scenario)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_processed_logits_are_written_where_the_caller_wants_them(server_target, connect, run, dtype):
    logits = logits_of(5, VOCAB).astype(dtype)

    async def scenario():
        async with (
            connect(server_target, chunk_bytes=2 * logits[0].nbytes) as client,
            await client.create_batch(sequences(5, Penalties(1.3, 0.7, -0.4)), vocab_size=VOCAB) as batch,
        ):
            expected = await batch.apply(logits, [1, 2, 3, 4, 5])
            apart = np.zeros((5, 2 * VOCAB), dtype)[:, ::2]
            assert await batch.apply(logits, out=apart) is apart
            assert apart.tobytes() == expected.tobytes()
            for places, out_places in itertools.product((slice(5), slice(1, 6), slice(4, None, -1)), repeat=2):
                memory = np.zeros((6, VOCAB), dtype)
                memory[places] = logits
                out = memory[out_places]
                assert await batch.apply(memory[places], out=out) is out
                assert out.tobytes() == expected.tobytes()

    run(scenario)


def test_an_array_that_cannot_hold_the_processed_logits_is_refused(server_target, connect, run):
    logits, read_only = logits_of(2, VOCAB), logits_of(2, VOCAB)
    read_only.flags.writeable = False

    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch(sequences(2), vocab_size=VOCAB) as batch,
        ):
            for out in (logits_of(1, VOCAB), logits.astype(np.float16), read_only):
                with pytest.raises(ValueError, match=r"^out must be "):
                    await batch.apply(logits, [1, 2], out=out)
            assert batch.revision == 0

    run(scenario)


def test_bfloat16_is_carried_as_its_bits(server_target, connect, run):
    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch(sequences(1), vocab_size=4) as batch,
        ):
            logits = to_bfloat16(np.array([[1.5, -1.5, 0.25, 0]], np.float32))
            processed = await batch.apply(logits, [[0, 1]])
            assert processed.dtype == np.uint16
            assert from_bfloat16(processed).tolist() == [[0.75, -3.0, 0.25, 0]]

    run(scenario)


@pytest.mark.parametrize("chunk_bytes", [1, VOCAB * 4 * 3, VOCAB * 4 * 4 + 1])
def test_chunks_change_nothing_but_the_number_of_messages(server_target, connect, run, chunk_bytes):
    async def scenario():
        logits, ids = logits_of(7), [[row, row + 1] for row in range(7)]
        async with connect(server_target, chunk_bytes=chunk_bytes) as client:
            async with await client.create_batch(sequences(7), vocab_size=VOCAB) as batch:
                expected = halved(logits, *ids)
                assert np.array_equal(await batch.apply(logits, ids), expected)
                patched = logits.copy()
                (await batch.apply_sparse(logits)).apply_to_inplace(patched)
                assert np.array_equal(patched, expected)
                assert batch.revision == 1
            search = Sequence(beam=Beam(7), max_new_tokens=3)
            async with await client.create_beam_batch([search], vocab_size=VOCAB) as beams:
                first = await beams.beam_step(logits[:1])
                second = await beams.beam_step(logits)
        async with (
            connect(server_target) as client,
            await client.create_beam_batch([search], vocab_size=VOCAB) as beams,
        ):
            for chunked, logits_then in ((first, logits[:1]), (second, logits)):
                whole = await beams.beam_step(logits_then)
                assert np.array_equal(chunked.parent_rows, whole.parent_rows)
                assert np.array_equal(chunked.token_ids, whole.token_ids)
                assert np.array_equal(chunked.scores, whole.scores)

    run(scenario)


def test_large_logits_travel_though_servers_limit_a_message(server_target, connect, run):
    async def scenario():
        logits = logits_of(24, 100_000)  # 9.6 MB
        async with (
            connect(server_target) as client,
            await client.create_batch(sequences(24), vocab_size=100_000) as batch,
        ):
            ids = [[row] for row in range(24)]
            assert np.array_equal(await batch.apply(logits, ids), halved(logits, *ids))

    run(scenario)


@pytest.mark.parametrize("method", ["accumulate", "apply", "apply_sparse"])
def test_a_lost_reply_is_asked_for_again_and_nothing_is_counted_twice(lossy, connect, run, method):
    async def scenario():
        async with connect(lossy.target, recover=False) as client:
            counted = Penalties(frequency_penalty=1.0)
            async with await client.create_batch(sequences(2, counted), vocab_size=VOCAB) as batch:
                logits = np.zeros((2, VOCAB), np.float32)
                await batch.accumulate([3, 4])
                lossy.drop_in = 1
                arguments = [[3, 4]] if method == "accumulate" else [logits, [3, 4]]
                with pytest.raises(UnavailableError, match="the reply is lost"):
                    await getattr(batch, method)(*arguments)
                assert batch.has_unanswered_step
                await batch.retry()
                assert batch.revision == 2
                processed = await batch.apply(logits)
                assert processed[0, 3] == processed[1, 4] == -2

    run(scenario)


def test_a_refused_step_changes_nothing_and_the_next_one_works(server_target, connect, run):
    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch(sequences(2), vocab_size=VOCAB) as batch,
        ):
            await batch.accumulate([1, 1])
            with pytest.raises(InvalidArgumentError) as caught:
                await batch.accumulate([2, VOCAB])
            assert [violation.field for violation in caught.value.field_violations] == ["tokens.token_ids[1]"]
            with pytest.raises(InvalidArgumentError):
                await batch.apply(logits_of(2, VOCAB - 1), [2, 2])
            assert (batch.revision, batch.has_unanswered_step) == (1, False)
            logits = logits_of(2)
            assert np.array_equal(await batch.apply(logits, [2, 2]), halved(logits, [1, 2], [1, 2]))

    run(scenario)


def test_the_revision_of_another_caller_is_told(server_target):
    with Client(server_target) as client, client.create_batch(sequences(1), vocab_size=VOCAB) as batch:
        other = PenaltyBatch(client, batch.info, batch.history)
        batch.accumulate([1])
        with pytest.raises(RevisionMismatchError) as caught:
            other.accumulate([2])
        assert (caught.value.expected, caught.value.actual) == (0, 1)
        other.close()


def test_another_life_of_the_id_is_told(server_target, connect, run):
    async def scenario():
        async with connect(server_target, recover=False) as client:
            batch = await client.create_batch(sequences(1), vocab_size=VOCAB, batch_id="lives")
            await batch.accumulate([1])
            await client.delete_batch("lives", uid=batch.uid)
            with pytest.raises(BatchNotFoundError):
                await batch.accumulate([2])
            async with await client.create_batch(sequences(1), vocab_size=VOCAB, batch_id="lives"):
                with pytest.raises(UidMismatchError):
                    await batch.accumulate([2])
                await batch.delete()

    run(scenario)


def test_a_creation_may_be_repeated_with_its_key_and_not_with_another(server_target, connect, run):
    async def scenario():
        async with connect(server_target) as client:
            options = {"vocab_size": VOCAB, "batch_id": "twice", "create_key": b"k" * 16}
            async with await client.create_batch(sequences(1), **options) as first:
                again = await client.create_batch(sequences(1), **options)
                assert again.uid == first.uid
                with pytest.raises(AlreadyExistsError):
                    await client.create_batch(sequences(1), vocab_size=VOCAB, batch_id="twice")

    run(scenario)


def test_a_batch_is_deleted_at_the_end_and_also_after_an_error(server_target, connect, run):
    async def scenario():
        async with connect(server_target) as client:
            async with await client.create_batch(sequences(1), vocab_size=VOCAB) as first:
                assert (await client.get_batch(first.batch_id)).uid == first.uid
            with pytest.raises(KeyError, match="body"):
                async with await client.create_batch(sequences(1), vocab_size=VOCAB) as second:
                    raise KeyError("body")
            for batch_id in (first.batch_id, second.batch_id):
                with pytest.raises(BatchNotFoundError):
                    await client.get_batch(batch_id)

    run(scenario)


def test_a_batch_that_is_gone_can_be_deleted_only_when_told_so(server_target, connect, run):
    async def scenario():
        async with connect(server_target) as client:
            await client.delete_batch("never-was", allow_missing=True)
            with pytest.raises(BatchNotFoundError):
                await client.delete_batch("never-was")

    run(scenario)


def test_a_batch_is_rebuilt_from_its_full_view(server_target, connect, run):
    async def scenario():
        async with connect(server_target) as client:
            logits = logits_of(2)
            given = [
                Sequence([1, 2], REPEAT, 9, (0,), (3,), sequence_id="a"),
                Sequence([], Penalties(min_new_tokens=5), eos_token_ids=(7, 7), sequence_id="b"),
            ]
            async with await client.create_batch(given, vocab_size=VOCAB, profile="HF") as batch:
                await batch.accumulate([[4, 5], [6]])
                expected = await batch.apply(logits)
                info = await client.get_batch(batch.batch_id, full=True)
            assert (info.revision, info.profile, info.kind) == (1, "HF", "PENALTY")
            assert [sequence.sequence_id for sequence in info.sequences] == ["a", "b"]
            assert list(info.sequences[0].output_token_ids) == [4, 5]
            async with await client.create_batch(info.sequences, vocab_size=VOCAB, profile="HF") as rebuilt:
                assert np.array_equal(await rebuilt.apply(logits), expected)

    run(scenario)


def test_batches_are_listed_page_by_page(server_target):
    names = [f"listed-{index}" for index in range(5)]

    async def listed(page_size):
        async with AsyncClient(server_target) as client:
            return [batch.batch_id async for batch in client.list_batches(page_size=page_size)]

    with Client(server_target) as client, contextlib.ExitStack() as batches:
        for name in names:
            batches.enter_context(client.create_batch(sequences(1), vocab_size=VOCAB, batch_id=name))
        for page_size in (None, 2, 5):
            found = [batch.batch_id for batch in client.list_batches(page_size=page_size)]
            assert found == asyncio.run(listed(page_size))
            assert [name for name in found if name in names] == names


def test_a_server_that_restarts_is_found_again_and_has_forgotten(own_server):
    async def scenario():
        with Client(own_server.target, recover=False) as blocking:
            async with AsyncClient(own_server.target, recover=False) as client:
                first, idle = [blocking.create_batch(sequences(1), vocab_size=VOCAB) for _ in range(2)]
                second, idle_too = [await client.create_batch(sequences(1), vocab_size=VOCAB) for _ in range(2)]
                for batch in (first, idle):
                    batch.accumulate([1])
                for batch in (second, idle_too):
                    await batch.accumulate([1])
                own_server.kill()
                with pytest.raises(UnavailableError):
                    first.accumulate([2])
                with pytest.raises(UnavailableError):
                    await second.accumulate([2])
                idle.close()
                await idle_too.close()
                own_server.start()
                blocking.wait_until_ready(30)
                with pytest.raises(BatchNotFoundError):
                    first.retry()
                await client.wait_until_ready(30)
                with pytest.raises(BatchNotFoundError):
                    await second.retry()
                assert not first.has_unanswered_step
                assert not second.has_unanswered_step

    asyncio.run(scenario())


def test_capabilities_tell_what_the_client_can_use(server_target, connect, run):
    async def scenario():
        async with connect(server_target) as client:
            capabilities = await client.capabilities()
            assert {"FP32", "FP16", "BF16"} <= set(capabilities.data_types)
            assert {"SGLANG", "SGLANG_FUSED", "VLLM", "HF"} <= set(capabilities.profiles)
            assert {"DENSE", "SPARSE"} <= set(capabilities.apply_forms)
            assert "HF" in capabilities.beam_rules
            assert capabilities.limits.max_message_bytes > 4 * 1024 * 1024
            assert capabilities.instance_id == (await client.wait_until_ready()).instance_id

    run(scenario)
