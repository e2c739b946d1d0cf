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
    BatchStateError,
    Client,
    ClientClosedError,
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
            connect(fake.target, step_timeout=2) as client,
            await client.create_batch(TWO, vocab_size=4) as batch,
        ):
            start = time.monotonic()
            with pytest.raises(StepTimeoutError, match=r"Accumulate was not answered within 2 s"):
                await batch.accumulate([1, 2])
            assert 2 <= time.monotonic() - start < 10
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
        async with connect(fake.target, recover=False) as client, await client.create_batch(TWO, vocab_size=4) as batch:
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
            connect(fake.target, recover=False, chunk_bytes=ROW) as client,
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
        async with connect(fake.target, recover=False) as client, await client.create_batch(TWO, vocab_size=4) as batch:
            with pytest.raises(UnavailableError):
                await batch.apply(LOGITS)
            with pytest.raises(BatchStateError, match="nothing to retry"):
                await batch.retry()
            await batch.apply(LOGITS)

    run(scenario)


def test_a_refusal_that_changed_nothing_leaves_nothing_to_retry(fake, replies, connect, run):
    refusal = replies.refuse(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    lost = replies.fail(grpc.StatusCode.DATA_LOSS, "lost")
    fake.script["Accumulate"] = [refusal, lost, refusal, replies.send(accumulated(1))]

    async def scenario():
        async with connect(fake.target) as client, await client.create_batch(TWO, vocab_size=4) as batch:
            with pytest.raises(InvalidArgumentError):
                await batch.accumulate([1, 2])
            assert not batch.has_unanswered_step
            with pytest.raises(RpcError, match="lost"):
                await batch.accumulate([1, 2])
            assert batch.has_unanswered_step
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
            await client.create_batch([Sequence()] * 50, vocab_size=4) as batch,
        ):
            with pytest.raises(InvalidArgumentError):
                await batch.apply(np.zeros((50, 4), np.float32), [1] * 50)

    run(scenario)


def test_a_stream_that_breaks_within_many_chunks_is_unavailable_and_not_internal(fake, replies, connect, run):
    gone = replies.fail(grpc.StatusCode.UNAVAILABLE, "gone")
    fake.script["Apply"] = [echo_of_one_row] * 20 + [gone] + [echo_of_one_row] * 10 + [gone] + [echo_of_one_row] * 50

    async def scenario():
        async with (
            connect(fake.target, recover=False, chunk_bytes=1) as client,
            await client.create_batch([Sequence()] * 50, vocab_size=4) as batch,
        ):
            with pytest.raises(UnavailableError):
                await batch.apply(np.zeros((50, 4), np.float32), [1] * 50)
            with pytest.raises(UnavailableError):
                await batch.retry()
            assert (await batch.retry()).shape == (50, 4)

    run(scenario)


def test_two_threads_cannot_step_one_batch(fake):
    has_arrived, may_go = threading.Event(), threading.Event()

    def answer_late(request, context):
        has_arrived.set()
        may_go.wait(20)
        return accumulated(1).SerializeToString()

    fake.script["Accumulate"] = [answer_late]
    with (
        Client(fake.target) as client,
        client.create_batch(TWO, vocab_size=4) as batch,
        futures.ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(batch.accumulate, [1, 2])
        assert has_arrived.wait(20)
        with pytest.raises(BatchBusyError):
            batch.accumulate([1, 2])
        may_go.set()
        first.result()
        assert batch.revision == 1


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
    has_arrived = threading.Event()

    def hang(request, context):
        has_arrived.set()
        replies.hang(request, context)

    fake.script["Accumulate"] = [hang, replies.send(accumulated(1))]

    async def scenario():
        async with AsyncClient(fake.target) as client, await client.create_batch(TWO, vocab_size=4) as batch:
            step = asyncio.create_task(batch.accumulate([1, 2]))
            assert await asyncio.to_thread(has_arrived.wait, 20)
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
    before = set(client_threads())
    with Client(fake.target, step_timeout=2) as client, client.create_batch(TWO, vocab_size=4) as batch:
        batch.accumulate([1, 2])
        with pytest.raises(StepTimeoutError):
            batch.apply(LOGITS, [1, 2])
        assert set(client_threads()) - before
    deadline = time.monotonic() + 20
    while (left := set(client_threads()) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


def client_threads():
    threads = threading.enumerate()
    return [thread for thread in threads if "consume_request_iterator" in thread.name or "logitd" in thread.name]


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5])
def test_a_step_under_way_ends_when_its_client_is_closed(server_target, turns):
    async def scenario():
        client = AsyncClient(server_target, step_timeout=0.5, recover=False)
        batch = await client.create_batch(TWO, vocab_size=4)
        step = asyncio.create_task(batch.accumulate([1, 2]))
        for _ in range(turns):
            await asyncio.sleep(0)
        await client.close()
        done, _ = await asyncio.wait([step], timeout=10)
        assert done == {step}
        step.cancelled() or step.exception()

    asyncio.run(scenario())


def test_a_step_that_was_cancelled_with_its_last_answer_is_retried(fake, monkeypatch):
    """Its writer is waited for after that; all is answered by then."""
    fake.script["Apply"] = [echo_of_one_row] * 2

    async def scenario():
        async with (
            AsyncClient(fake.target, chunk_bytes=1) as client,
            await client.create_batch(TWO, vocab_size=4) as batch,
        ):
            receive, logits = batch._receive, np.zeros((2, 4), np.float32)

            def receive_and_cancel(step, reply):
                receive(step, reply)
                if step.num_answered == step.num_messages:
                    asyncio.current_task().cancel()

            monkeypatch.setattr(batch, "_receive", receive_and_cancel)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(batch.apply(logits, [1, 2]))
            monkeypatch.undo()
            assert batch.has_unanswered_step
            assert np.array_equal(await batch.retry(), logits)
            assert not batch.has_unanswered_step

    asyncio.run(scenario())


def test_threads_that_step_while_another_closes_the_client_hear_of_that_alone(server_target):
    errors = []

    def accumulate(batch):
        try:
            while True:
                batch.accumulate([1, 2])
        except Exception as error:
            errors.append(error)

    for _ in range(15):
        client = Client(server_target, step_timeout=5, recover=False)
        batches = [client.create_batch(TWO, vocab_size=4) for _ in range(4)]
        threads = [threading.Thread(target=accumulate, args=(batch,)) for batch in batches]
        for thread in threads:
            thread.start()
        client.close()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    assert {type(error) for error in errors} <= {ClientClosedError, UnavailableError, RpcError}
