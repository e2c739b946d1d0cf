"""Unary calls, options and the end of batches, where the server is absent or behaves as the real one must not."""

from __future__ import annotations

import grpc
import pytest

from logitd.client import (
    BatchClosedError,
    Client,
    ClientClosedError,
    DeadlineExceededError,
    ProtocolError,
    RpcError,
    Sequence,
    StepTimeoutError,
    UnavailableError,
)
from logitd.client import _config as config
from logitd.v1 import service_pb2, types_pb2

TWO = [Sequence(), Sequence()]


def accumulated(revision):
    return service_pb2.AccumulateResponse(revision=revision)


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
    fake.script["DeleteBatch"] = [replies.fail(grpc.StatusCode.DATA_LOSS, "cannot delete")]

    async def scenario():
        async with connect(fake.target) as client:
            with pytest.raises(KeyError) as caught:
                async with await client.create_batch(TWO, vocab_size=4, batch_id="mine"):
                    raise KeyError("body")
            note = "and the batch 'mine' could not be deleted: DATA_LOSS: cannot delete"
            assert caught.value.__notes__ == [note]

    run(scenario)


def test_a_deletion_that_fails_alone_is_told(fake, replies, connect, run):
    fake.script["DeleteBatch"] = [replies.fail(grpc.StatusCode.DATA_LOSS, "cannot delete")]

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
            with pytest.raises(DeadlineExceededError, match=r"no server answered at 'unix:.*/nothing' within 0\.3 s"):
                await client.wait_until_ready(0.3)

    run(scenario)


def test_a_server_that_starts_is_waited_for(fake, replies, connect, run, monkeypatch):
    starting = replies.refuse(grpc.StatusCode.UNAVAILABLE, "STARTING")
    ready = service_pb2.GetCapabilitiesResponse(version="1")
    fake.script["GetCapabilities"] = [starting, starting, replies.send(ready), starting]

    async def scenario():
        async with connect(fake.target) as client:
            assert (await client.wait_until_ready(30)).version == "1"
            monkeypatch.setattr(config, "STARTING_PAUSE", 60)  # so that there is no time for another question
            with pytest.raises(UnavailableError):
                await client.wait_until_ready(30)

    run(scenario)


def test_a_server_that_has_said_why_it_is_not_ready_is_believed_to_the_end(fake, replies, connect, run):
    fake.script["GetCapabilities"] = [replies.refuse(grpc.StatusCode.UNAVAILABLE, "DRAINING"), replies.hang]

    async def scenario():
        async with connect(fake.target) as client:
            with pytest.raises(UnavailableError, match="DRAINING"):
                await client.wait_until_ready(2)

    run(scenario)
