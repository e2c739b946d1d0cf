"""Streams that fail in ways the real server must not: no answer, garbage, an early end. Sync and asyncio alike."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent import futures

import grpc
import numpy as np
import pytest

from logitd.client import (
    AsyncClient,
    BatchBusyError,
    BatchClosedError,
    BatchStateError,
    Client,
    ClientClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    ProtocolError,
    RpcError,
    Sequence,
    StepTimeoutError,
    UnansweredStepError,
    UnavailableError,
)
from logitd.v1 import service_pb2, types_pb2

LOGITS = np.arange(8, dtype=np.float32).reshape(2, 4)
ROW = 16
TWO = [Sequence(), Sequence()]


def accumulated(revision):
    return service_pb2.AccumulateResponse(revision=revision)


def processed(rows, revision, first_row=0):
    tensor = types_pb2.Tensor(data_type="DATA_TYPE_FP32", shape=rows.shape, data=rows.tobytes())
    dense = service_pb2.DenseResult(logits=tensor)
    return service_pb2.ApplyResponse(revision=revision, first_row=first_row, dense=dense)


def echo_of_one_row(request, context):
    row = service_pb2.ApplyRequest.FromString(request).first_row
    return processed(np.zeros((1, 4), np.float32), 1, row).SerializeToString()


def test_a_step_without_an_answer_times_out_and_can_be_sent_again(fake, replies, connect, run):
    fake.script["Accumulate"] = [replies.hang, replies.send(accumulated(1)), replies.send(accumulated(2))]

    async def scenario():
        async with (
            connect(fake.target, step_timeout=0.2) as client,
            await client.create_batch(TWO, vocab_size=4) as batch,
        ):
            start = time.monotonic()
            with pytest.raises(StepTimeoutError, match=r"Accumulate was not answered within 0\.2 s"):
                await batch.accumulate([1, 2])
            assert 0.2 <= time.monotonic() - start < 5
            assert batch.has_unanswered_step
            with pytest.raises(UnansweredStepError, match="the last Accumulate was not answered"):
                await batch.accumulate([1, 2])
            with pytest.raises(UnansweredStepError):
                await batch.apply(LOGITS)
            assert await batch.retry() is None
            assert (batch.revision, batch.has_unanswered_step) == (1, False)
            await batch.accumulate([3, 4])

    run(scenario)
    first, second, third = fake.received["Accumulate"]
    assert first == second
    assert third != first


def test_an_apply_is_sent_again_with_the_logits_it_had(fake, replies, connect, run):
    fake.script["Apply"] = [replies.fail(grpc.StatusCode.UNAVAILABLE, "gone"), replies.send(processed(LOGITS, 1))]

    async def scenario():
        async with connect(fake.target) as client, await client.create_batch(TWO, vocab_size=4) as batch:
            logits = LOGITS.copy()
            with pytest.raises(UnavailableError, match="gone"):
                await batch.apply(logits, [1, 2])
            logits[...] = 0
            assert np.array_equal(await batch.retry(), LOGITS)

    run(scenario)
    first, second = fake.received["Apply"]
    assert first == second


def test_only_the_chunks_without_an_answer_are_sent_again(fake, replies, connect, run):
    gone = replies.fail(grpc.StatusCode.UNAVAILABLE, "gone")
    answers = [replies.send(processed(LOGITS[row : row + 1] + 1, 1, row)) for row in (0, 1)]
    fake.script["Apply"] = [answers[0], gone, answers[1]]

    async def scenario():
        async with (
            connect(fake.target, chunk_bytes=ROW) as client,
            await client.create_batch(TWO, vocab_size=4) as batch,
        ):
            with pytest.raises(UnavailableError):
                await batch.apply(LOGITS, [1, 2])
            assert (batch.revision, batch.has_unanswered_step) == (1, True)
            assert np.array_equal(await batch.retry(), LOGITS + 1)

    run(scenario)
    _, second, third = fake.received["Apply"]
    assert second == third


def test_a_read_that_fails_leaves_nothing_to_retry(fake, replies, connect, run):
    fake.script["Apply"] = [replies.fail(grpc.StatusCode.UNAVAILABLE, "gone"), replies.send(processed(LOGITS, 0))]

    async def scenario():
        async with connect(fake.target) as client, await client.create_batch(TWO, vocab_size=4) as batch:
            with pytest.raises(UnavailableError):
                await batch.apply(LOGITS)
            with pytest.raises(BatchStateError, match="nothing to retry"):
                await batch.retry()
            await batch.apply(LOGITS)

    run(scenario)


def test_a_refusal_that_changed_nothing_leaves_nothing_to_retry(fake, replies, connect, run):
    refusal = replies.refuse(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    fake.script["Accumulate"] = [refusal, replies.hang, refusal, replies.send(accumulated(1))]

    async def scenario():
        async with (
            connect(fake.target, step_timeout=0.2) as client,
            await client.create_batch(TWO, vocab_size=4) as batch,
        ):
            with pytest.raises(InvalidArgumentError):
                await batch.accumulate([1, 2])
            assert not batch.has_unanswered_step
            with pytest.raises(StepTimeoutError):
                await batch.accumulate([1, 2])
            with pytest.raises(InvalidArgumentError):
                await batch.retry()
            assert not batch.has_unanswered_step
            await batch.accumulate([1, 2])

    run(scenario)


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"", b"\x08\x63"])
def test_garbage_for_a_reply_breaks_the_contract_and_the_stream_is_opened_anew(fake, replies, connect, run, garbage):
    fake.script["Accumulate"] = [replies.send(garbage), replies.send(accumulated(1))]

    async def scenario():
        async with connect(fake.target) as client, await client.create_batch(TWO, vocab_size=4) as batch:
            with pytest.raises(ProtocolError):
                await batch.accumulate([1, 2])
            await batch.retry()
            assert batch.revision == 1

    run(scenario)


def test_a_stream_that_ends_early_breaks_the_contract(fake, replies, connect, run):
    fake.script["Accumulate"] = [replies.end, replies.send(accumulated(1))]

    async def scenario():
        async with connect(fake.target) as client, await client.create_batch(TWO, vocab_size=4) as batch:
            with pytest.raises(ProtocolError, match="ended a stream before it answered"):
                await batch.accumulate([1, 2])
            await batch.retry()

    run(scenario)


def test_an_error_within_many_chunks_is_told(fake, replies, connect, run):
    fake.script["Apply"] = [replies.refuse(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")]

    async def scenario():
        async with (
            connect(fake.target, chunk_bytes=1) as client,
            await client.create_batch(TWO, vocab_size=4) as batch,
        ):
            with pytest.raises(InvalidArgumentError):
                await batch.apply(np.zeros((50, 4), np.float32), [1, 2])

    run(scenario)


def test_a_stream_that_breaks_within_many_chunks_is_unavailable_and_not_internal(fake, replies, connect, run):
    gone = replies.fail(grpc.StatusCode.UNAVAILABLE, "gone")
    fake.script["Apply"] = [echo_of_one_row] * 20 + [gone] + [echo_of_one_row] * 10 + [gone] + [echo_of_one_row] * 50

    async def scenario():
        async with (
            connect(fake.target, chunk_bytes=1) as client,
            await client.create_batch(TWO, vocab_size=4) as batch,
        ):
            with pytest.raises(UnavailableError):
                await batch.apply(np.zeros((50, 4), np.float32), [1, 2])
            with pytest.raises(UnavailableError):
                await batch.retry()
            assert (await batch.retry()).shape == (50, 4)

    run(scenario)


def test_a_unary_call_that_hangs_ends_with_its_timeout(fake, replies, connect, run):
    fake.script["GetBatch"] = [replies.hang]

    async def scenario():
        async with connect(fake.target, timeout=0.2) as client:
            with pytest.raises(DeadlineExceededError) as caught:
                await client.get_batch("b")
            assert not isinstance(caught.value, StepTimeoutError)

    run(scenario)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"\xff", "is no CreateBatchResponse"),
        (service_pb2.CreateBatchResponse(), "the PENALTY batch 'mine' was answered with the None batch ''"),
        (
            service_pb2.CreateBatchResponse(batch=types_pb2.Batch(batch_id="mine", kind="BATCH_KIND_PENALTY")),
            "uid has 16 bytes, got 0",
        ),
    ],
)
def test_a_creation_that_is_answered_wrongly_breaks_the_contract(fake, replies, connect, run, reply, message):
    fake.script["CreateBatch"] = [replies.send(reply)]

    async def scenario():
        async with connect(fake.target) as client:
            with pytest.raises(ProtocolError, match=message):
                await client.create_batch(TWO, vocab_size=4, batch_id="mine")

    run(scenario)


def test_the_error_of_the_body_is_not_hidden_by_the_deletion(fake, replies, connect, run):
    fake.script["DeleteBatch"] = [replies.fail(grpc.StatusCode.INTERNAL, "cannot delete")]

    async def scenario():
        async with connect(fake.target) as client:
            with pytest.raises(KeyError) as caught:
                async with await client.create_batch(TWO, vocab_size=4, batch_id="mine"):
                    raise KeyError("body")
            note = "and the batch 'mine' could not be deleted: INTERNAL: cannot delete"
            assert caught.value.__notes__ == [note]

    run(scenario)


def test_a_deletion_that_fails_alone_is_told(fake, replies, connect, run):
    fake.script["DeleteBatch"] = [replies.fail(grpc.StatusCode.INTERNAL, "cannot delete")]

    async def scenario():
        async with connect(fake.target) as client:
            with pytest.raises(RpcError, match="cannot delete"):
                async with await client.create_batch(TWO, vocab_size=4):
                    pass

    run(scenario)


def test_a_batch_that_is_gone_at_the_end_is_no_error(fake, replies, connect, run):
    fake.script["DeleteBatch"] = [replies.refuse(grpc.StatusCode.NOT_FOUND, "UID_MISMATCH")]

    async def scenario():
        async with connect(fake.target) as client, await client.create_batch(TWO, vocab_size=4):
            pass

    run(scenario)


def test_a_closed_batch_is_not_deleted_and_takes_no_steps(fake, connect, run):
    async def scenario():
        async with connect(fake.target) as client, await client.create_batch(TWO, vocab_size=4) as batch:
            await batch.close()
            with pytest.raises(BatchClosedError):
                await batch.accumulate([1, 2])

    run(scenario)
    assert fake.received["DeleteBatch"] == []


def test_a_closed_client_says_so(fake, connect, run):
    async def scenario():
        async with connect(fake.target) as client:
            batch = await client.create_batch(TWO, vocab_size=4)
        with pytest.raises(ClientClosedError):
            await client.capabilities()
        with pytest.raises(ClientClosedError):
            await batch.accumulate([1, 2])
        assert not batch.has_unanswered_step

    run(scenario)


def test_every_call_carries_the_route(fake, replies, connect, run):
    fake.script["Accumulate"] = [replies.send(accumulated(1))]
    fake.script["GetCapabilities"] = [replies.send(b"")] * 2

    async def scenario(**options):
        async with connect(fake.target, **options) as client:
            await client.capabilities()
            async with await client.create_batch(TWO, vocab_size=4, batch_id="mine") as batch:
                await batch.accumulate([1, 2])

    run(scenario)
    fake.script["Accumulate"] = [replies.send(accumulated(1))]
    run(lambda: scenario(route="r"))
    for method in ("CreateBatch", "Accumulate", "DeleteBatch"):
        assert [sent["x-logitd-route"] for sent in fake.metadata[method]] == ["mine", "r"]
    assert [sent.get("x-logitd-route") for sent in fake.metadata["GetCapabilities"]] == [None, "r"]


def test_a_batch_id_that_cannot_be_a_route_is_refused(fake, connect, run):
    async def scenario():
        async with connect(fake.target) as client:
            for batch_id in ("ä", "a\n", "x" * 1000):
                with pytest.raises(ValueError, match="printable ASCII"):
                    await client.get_batch(batch_id)

    run(scenario)


@pytest.mark.parametrize(
    "options", [{"timeout": 0}, {"step_timeout": -1}, {"chunk_bytes": 0}, {"max_message_bytes": 0}]
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        Client("unix:nowhere", **options)


def test_no_server_is_unavailable_at_once_and_waiting_for_one_ends(tmp_path, connect, run):
    async def scenario():
        async with connect(f"unix:{tmp_path}/nothing") as client:
            with pytest.raises(UnavailableError):
                await client.capabilities()
            with pytest.raises(DeadlineExceededError):
                await client.wait_until_ready(0.3)

    run(scenario)


def test_a_server_that_starts_is_waited_for(fake, replies, connect, run):
    starting = replies.refuse(grpc.StatusCode.UNAVAILABLE, "STARTING")
    ready = service_pb2.GetCapabilitiesResponse(version="1")
    fake.script["GetCapabilities"] = [starting, starting, replies.send(ready), starting, starting]

    async def scenario():
        async with connect(fake.target) as client:
            assert (await client.wait_until_ready(5)).version == "1"
            with pytest.raises(UnavailableError):
                await client.wait_until_ready(0.05)

    run(scenario)


def test_two_threads_cannot_step_one_batch(fake, replies):
    fake.script["Accumulate"] = [replies.hang]
    with (
        Client(fake.target, step_timeout=1) as client,
        client.create_batch(TWO, vocab_size=4) as batch,
        futures.ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(batch.accumulate, [1, 2])
        while not fake.received["Accumulate"]:
            time.sleep(0.01)
        with pytest.raises(BatchBusyError):
            batch.accumulate([1, 2])
        assert isinstance(first.exception(), StepTimeoutError)


def test_two_tasks_cannot_step_one_batch(fake, replies):
    fake.script["Accumulate"] = [replies.hang]

    async def scenario():
        async with (
            AsyncClient(fake.target, step_timeout=0.5) as client,
            await client.create_batch(TWO, vocab_size=4) as batch,
        ):
            steps = [batch.accumulate([1, 2]), batch.accumulate([3, 4])]
            return await asyncio.gather(*steps, return_exceptions=True)

    kinds = [type(result) for result in asyncio.run(scenario())]
    assert kinds == [StepTimeoutError, BatchBusyError]


def test_a_cancelled_task_leaves_its_step_to_retry(fake, replies):
    fake.script["Accumulate"] = [replies.hang, replies.send(accumulated(1))]

    async def scenario():
        async with AsyncClient(fake.target) as client, await client.create_batch(TWO, vocab_size=4) as batch:
            step = asyncio.create_task(batch.accumulate([1, 2]))
            await asyncio.sleep(0.2)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            assert batch.has_unanswered_step
            await batch.retry()
            assert batch.revision == 1

    asyncio.run(scenario())


def test_no_threads_are_left(fake, replies):
    fake.script["Accumulate"] = [replies.send(accumulated(1))]
    fake.script["Apply"] = [replies.hang]
    with Client(fake.target, step_timeout=0.2) as client, client.create_batch(TWO, vocab_size=4) as batch:
        batch.accumulate([1, 2])
        with pytest.raises(StepTimeoutError):
            batch.apply(LOGITS, [1, 2])
    deadline = time.monotonic() + 5
    while (left := client_threads()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == []


def client_threads():
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if "consume_request_iterator" in name or "logitd" in name]
