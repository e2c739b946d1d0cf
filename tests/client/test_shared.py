"""Logits in memory that the real server shares. Sync and asyncio alike."""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat

import grpc
import numpy as np
import pytest

from logitd.client import (
    AsyncClient,
    Beam,
    Client,
    NotSupportedError,
    Penalties,
    RefillNeededError,
    RegionNotFoundError,
    Sequence,
    SharedLogitsClosedError,
    UnavailableError,
    to_bfloat16,
)
from logitd.client import _messages as messages
from logitd.client._shared import side_socket_of
from logitd.v1 import service_pb2

VOCAB = 40
COLUMNS = VOCAB + 3
PENALISED = [Sequence(penalties=Penalties(1.3, 0.5, -0.25)) for _ in range(3)]


def logits_of(rows, dtype="float32", seed=0):
    logits = np.random.default_rng(seed).normal(size=(rows, COLUMNS)).astype(np.float32)
    return to_bfloat16(logits) if dtype == "uint16" else logits.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint16"])
def test_all_ways_give_the_bits_of_dense(server_target, connect, run, dtype):
    logits = logits_of(5, dtype)

    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
            await client.shared_logits(5, COLUMNS, dtype) as shared,
        ):
            shared.array[...] = logits
            patch = await batch.apply_shared(shared, [[1, 2], [3], [1, 1]])
            assert shared.array.tobytes() == logits.tobytes()
            dense = await batch.apply(logits[:3])
            patched = logits[:3].copy()
            patch.apply_to_inplace(patched)
            assert patched.tobytes() == dense.tobytes()

            await batch.apply_inplace(shared)
            assert shared.array[:3].tobytes() == dense.tobytes()
            assert shared.array[3:].tobytes() == logits[3:].tobytes()

            shared.array[...] = logits
            await batch.apply_inplace(shared, [5, 6, 7])
            assert shared.array[:3].tobytes() == (await batch.apply(logits[:3])).tobytes()
            assert batch.revision == 2

    run(scenario)


def test_some_rows_are_processed_where_they_lie(server_target, connect, run):
    logits = logits_of(3)

    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
            await client.shared_logits(3, COLUMNS) as shared,
        ):
            shared.array[...] = logits
            patch = await batch.apply_shared(shared, [1, 2, 3], rows=slice(1, 3))
            assert (patch.row_splits.tolist(), patch.token_ids.tolist()) == ([0, 1, 2], [2, 3])
            await batch.apply_inplace(shared, rows=slice(-1, None))
            dense = await batch.apply(logits)
            assert shared.array.tobytes() == np.concatenate([logits[:2], dense[2:]]).tobytes()
            for rows in (slice(2, 2), slice(0, 3, 2)):
                with pytest.raises(ValueError, match="rows must be some in a row of the 3"):
                    await batch.apply_shared(shared, rows=rows)
            async with await client.shared_logits(2, COLUMNS) as small:
                with pytest.raises(ValueError, match=r"of the 2 of the shared logits, got slice\(0, 3"):
                    await batch.apply_inplace(small)

    run(scenario)


def test_beams_are_searched_in_shared_logits(server_target, connect, run):
    steps = [logits_of(1), logits_of(3, seed=1), logits_of(3, seed=2)]
    search = Sequence(beam=Beam(3), max_new_tokens=9)

    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_beam_batch([search], vocab_size=VOCAB) as inline,
            await client.create_beam_batch([search], vocab_size=VOCAB) as batch,
            await client.shared_logits(4, COLUMNS) as shared,
        ):
            for logits in steps:
                shared.array[: len(logits)] = logits
                step, expected = await batch.beam_step(shared), await inline.beam_step(logits)
                assert np.array_equal(step.scores, expected.scores)
                assert np.array_equal(step.token_ids, expected.token_ids)

    run(scenario)


def test_a_memory_file_is_sealed_and_all_there(server_target):
    with Client(server_target) as client, client.shared_logits(64, 5000) as shared:
        descriptor = shared._file.descriptor
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        assert seals & (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
        assert os.fstat(descriptor).st_blocks * 512 >= 64 * 5000 * 4
        assert not shared.array.any()


def test_a_named_file_is_there_and_locked_while_it_is_shared(shared_server, connect, run):
    async def scenario():
        async with (
            connect(shared_server.target) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
        ):
            directory = shared_server.memory_dir
            async with await client.shared_logits(3, COLUMNS, shared_memory_dir=str(directory)) as shared:
                (path,) = directory.iterdir()
                assert path.name.startswith("logitd-")
                assert stat.S_IMODE(path.stat().st_mode) == 0o660
                with path.open("rb") as file, pytest.raises(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shared.array[...] = logits = logits_of(3)
                await batch.apply_inplace(shared, [1, 2, 3])
                assert shared.array.tobytes() == (await batch.apply(logits)).tobytes()
            assert not list(directory.iterdir())

    run(scenario)


def test_a_file_name_may_be_chosen_once(shared_server):
    options = {"shared_memory_dir": str(shared_server.memory_dir), "file_name": "logitd-mine"}
    with Client(shared_server.target) as client, client.shared_logits(1, 2, **options):
        assert [path.name for path in shared_server.memory_dir.iterdir()] == ["logitd-mine"]
        with pytest.raises(FileExistsError):
            client.shared_logits(1, 2, **options)
        for name in ("mine", "logitd-/../x"):
            with pytest.raises(ValueError, match="file_name must start with 'logitd-'"):
                client.shared_logits(1, 2, shared_memory_dir=str(shared_server.memory_dir), file_name=name)
    assert not list(shared_server.memory_dir.iterdir())


def test_what_is_closed_is_gone_on_both_sides(server_target, connect, run):
    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
        ):
            async with await client.shared_logits(3, COLUMNS) as shared:
                kept = shared.array
                kept[0, 0] = 7
                region_id = shared.region_id
            await shared.close()
            assert kept[0, 0] == 7
            for use in (lambda: shared.array, lambda: shared.dtype):
                with pytest.raises(SharedLogitsClosedError):
                    use()
            with pytest.raises(SharedLogitsClosedError):
                await batch.apply_shared(shared, [1, 2, 3])
            assert batch.revision == 0
            assert not batch.has_unanswered_step
            with pytest.raises(RegionNotFoundError):
                await client._call(messages.unregister_shared_memory(region_id))

    run(scenario)


@pytest.mark.parametrize("recover", [True, False])
def test_a_region_that_the_server_lost_is_handed_over_again(server_target, connect, run, recover):
    async def scenario():
        async with (
            connect(server_target, recover=recover) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
            await client.shared_logits(3, COLUMNS) as shared,
        ):
            shared.array[...] = logits = logits_of(3)
            for step in (batch.apply_shared, batch.apply_inplace):
                before = shared.region_id
                await client._call(messages.unregister_shared_memory(before))
                await step(shared, [1, 2, 3])
                assert shared.region_id != before
            assert shared.array.tobytes() == (await batch.apply(logits)).tobytes()
            assert batch.revision == 2

    run(scenario)


def test_a_side_socket_that_is_gone_ends_a_step_soon(server_target, connect, run, tmp_path):
    """And not after the time that a server may be away, which it is not."""
    side_socket = tmp_path / "side"
    side_socket.symlink_to(side_socket_of(server_target))

    async def scenario():
        async with (
            connect(server_target, recover_timeout=600) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
            await client.shared_logits(3, COLUMNS, side_socket=str(side_socket)) as shared,
        ):
            shared.array[...] = logits_of(3)
            await client._call(messages.unregister_shared_memory(shared.region_id))
            side_socket.unlink()
            with pytest.raises(UnavailableError, match=f"handed over at {side_socket}"):
                await batch.apply_inplace(shared)

    run(scenario)


def test_a_lost_reply_of_a_patch_costs_nothing(lossy, server_target, connect, run):
    side_socket = side_socket_of(server_target)

    async def scenario():
        async with (
            connect(lossy.target, recover=False) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
            await client.shared_logits(3, COLUMNS, side_socket=side_socket) as shared,
        ):
            shared.array[...] = logits = logits_of(3)
            lossy.drop_in = 1
            with pytest.raises(UnavailableError, match="the reply is lost"):
                await batch.apply_shared(shared, [1, 2, 3])
            patch = await batch.retry()
            patched = logits.copy()
            patch.apply_to_inplace(patched)
            assert patched.tobytes() == (await batch.apply(logits)).tobytes()
            assert batch.revision == 1

    run(scenario)


@pytest.mark.parametrize("recover", [True, False])
def test_a_lost_reply_in_place_needs_the_logits_again(lossy, server_target, connect, run, recover):
    async def scenario():
        async with (
            connect(lossy.target, recover=recover) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
            await client.shared_logits(3, COLUMNS, side_socket=side_socket_of(server_target)) as shared,
        ):
            shared.array[...] = logits = logits_of(3)
            lossy.drop_in = 1
            with pytest.raises(RefillNeededError if recover else UnavailableError):
                await batch.apply_inplace(shared, [1, 2, 3])
            assert batch.has_unanswered_step
            with pytest.raises(RefillNeededError, match="fill them again"):
                await batch.retry()
            shared.array[...] = logits
            await batch.retry(refilled=True)
            assert shared.array.tobytes() == (await batch.apply(logits)).tobytes()
            assert batch.revision == 1

    run(scenario)


@pytest.mark.parametrize("token_ids", [None, [1, 2, 3]])
def test_a_refill_makes_up_for_a_lost_reply(lossy, server_target, connect, run, token_ids):
    async def scenario():
        async with (
            connect(lossy.target) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
            await client.shared_logits(3, COLUMNS, side_socket=side_socket_of(server_target)) as shared,
        ):
            await batch.accumulate([4, 5, 6])
            logits, num_refills = logits_of(3), 0

            def refill():
                nonlocal num_refills
                num_refills += 1
                shared.array[...] = logits

            shared.array[...] = logits
            lossy.drop_in = 1
            await batch.apply_inplace(shared, token_ids, refill=refill)
            assert num_refills == 1
            assert shared.array.tobytes() == (await batch.apply(logits)).tobytes()
            await batch.apply_inplace(shared, token_ids, refill=refill)
            assert num_refills == 1

    run(scenario)


def test_a_refill_may_be_awaited(lossy, server_target):
    side_socket = side_socket_of(server_target)

    async def scenario():
        async with (
            AsyncClient(lossy.target) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
            await client.shared_logits(3, COLUMNS, side_socket=side_socket) as shared,
        ):
            logits = logits_of(3)

            async def refill():
                await asyncio.sleep(0)
                shared.array[...] = logits

            await refill()
            lossy.drop_in = 1
            await batch.apply_inplace(shared, [1, 2, 3], refill=refill)
            assert shared.array.tobytes() == (await batch.apply(logits)).tobytes()

    asyncio.run(scenario())


def test_where_nothing_is_shared_no_file_is_left(fake, replies, connect, run, tmp_path):
    async def scenario():
        async with connect(fake.target) as client:
            with pytest.raises(UnavailableError, match=r"could not be handed over at .*socket.memory"):
                await client.shared_logits(3, COLUMNS)
            fake.script["RegisterSharedMemory"] = [replies.refuse(grpc.StatusCode.UNIMPLEMENTED, "NOT_SUPPORTED")]
            with pytest.raises(NotSupportedError):
                await client.shared_logits(3, COLUMNS, shared_memory_dir=str(tmp_path))
            assert not list(tmp_path.iterdir())

    run(scenario)


def test_a_registration_that_is_cut_is_tried_for_as_long_as_the_server_is_waited_for(
    fake, replies, connect, run, tmp_path
):
    """However often the server is ready in between: what is cut is the network's, and no wrong side socket."""
    cut = replies.refuse(grpc.StatusCode.UNAVAILABLE, "CUT")
    registered = replies.send(service_pb2.RegisterSharedMemoryResponse(region_id="r"))
    fake.script["RegisterSharedMemory"] = [*[cut] * 6, registered]
    fake.script["GetCapabilities"] = [replies.send(service_pb2.GetCapabilitiesResponse())] * 7

    async def scenario():
        async with connect(fake.target) as client:
            await client.wait_until_ready()
            async with await client.shared_logits(3, COLUMNS, shared_memory_dir=str(tmp_path)):
                assert not fake.script["RegisterSharedMemory"]

    run(scenario)


@pytest.mark.parametrize(
    ("target", "arguments", "message"),
    [
        ("localhost:1", {}, "shared logits need a server at a Unix socket.*got 'localhost:1'"),
        ("unix:/x", {"rows": 0}, r"rows and columns must be at least 1, got \[0, 2\]"),
        ("unix:/x", {"file_name": "logitd-x"}, "file_name must come with shared_memory_dir"),
    ],
)
def test_arguments_that_cannot_be_right_are_refused(target, arguments, message):
    with Client(target) as client, pytest.raises(ValueError, match=message):
        client.shared_logits(**{"rows": 1, "columns": 2, **arguments})


def test_only_logits_of_the_wire_can_be_shared():
    with Client("unix:/x") as client, pytest.raises(TypeError, match="got float64"):
        client.shared_logits(1, 2, np.float64)


def test_the_side_socket_stands_beside_the_servers():
    assert side_socket_of("unix:/run/x.sock") == "/run/x.sock.memory"
    assert side_socket_of("unix:///run/x.sock") == "/run/x.sock.memory"
    assert side_socket_of("unix:x.sock") == "x.sock.memory"
