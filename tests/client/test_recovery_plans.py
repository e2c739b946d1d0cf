"""What the client does about servers that fail in rare ways, which a script plays. Sync and asyncio alike."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from logitd.client import ProtocolError, RegionNotFoundError, ResourceExhaustedError, Sequence, UnavailableError
from logitd.v1 import service_pb2, types_pb2

TWO = [Sequence([9]), Sequence(max_new_tokens=5)]
LOGITS = np.arange(8, dtype=np.float32).reshape(2, 4)
ROW = 16
NOT_FOUND = grpc.StatusCode.NOT_FOUND
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def accumulated(revision):
    return service_pb2.AccumulateResponse(revision=revision)


def processed(rows, revision, first_row):
    tensor = types_pb2.Tensor(data_type="DATA_TYPE_FP32", shape=rows.shape, data=rows.tobytes())
    dense = service_pb2.DenseResult(logits=tensor)
    return service_pb2.ApplyResponse(revision=revision, first_row=first_row, dense=dense)


def edits(revision, first_row, token_id, is_full):
    arrays = {
        "row_splits": np.array([0, 1], "<i4").tobytes(),
        "token_ids": np.array([token_id], "<i4").tobytes(),
        "repetition": np.ones(1, "<f4").tobytes(),
        "presence": np.zeros(1, "<f4").tobytes(),
        "frequency_sums": np.zeros(1, "<f4").tobytes(),
        "flags": b"\x03",
    }
    message = service_pb2.Edits(is_full=is_full, **arrays)
    return service_pb2.ApplyResponse(revision=revision, first_row=first_row, edits=message)


def creations(fake):
    return [service_pb2.CreateBatchRequest.FromString(message) for message in fake.received["CreateBatch"]]


def targets(fake, method, kind):
    return [kind.FromString(message).target for message in fake.received[method]]


@pytest.fixture
def open_batch(fake, replies, connect, run):
    """Runs a scenario with a batch of two sequences whose server answers when it is waited for."""
    fake.script["GetCapabilities"] = [replies.send(b"")] * 20

    def open_and_run(scenario, **options):
        async def opened():
            async with (
                connect(fake.target, **options) as client,
                await client.create_batch(TWO, vocab_size=40, batch_id="mine") as batch,
            ):
                await scenario(batch)

        run(opened)

    return open_and_run


def test_a_batch_that_was_forgotten_is_created_anew_before_the_step(fake, replies, open_batch):
    lost = replies.refuse(NOT_FOUND, "BATCH_NOT_FOUND")
    fake.script["Accumulate"] = [replies.send(accumulated(1)), lost, replies.send(accumulated(1))]

    async def scenario(batch):
        await batch.accumulate([1, 2])
        await batch.accumulate([3, 4])
        assert batch.revision == 2

    open_batch(scenario)
    first, second = creations(fake)
    assert first.create_key != second.create_key
    assert [each.output_token_ids for each in second.sequences] == [bytes([1, 0, 0, 0]), bytes([2, 0, 0, 0])]
    for sequence in second.sequences:
        sequence.output_token_ids = b""
    second.create_key = first.create_key
    assert second == first
    before, after = targets(fake, "Accumulate", service_pb2.AccumulateRequest)[1:]
    assert (before.expected_revision, after.expected_revision) == (1, 0)


def test_a_creation_whose_reply_is_lost_is_asked_for_again(fake, replies, open_batch):
    create = fake.script["CreateBatch"][0]
    gone = replies.fail(grpc.StatusCode.UNAVAILABLE, "gone")
    fake.script["CreateBatch"] = [create, gone, create]
    fake.script["Accumulate"] = [
        replies.refuse(NOT_FOUND, "BATCH_NOT_FOUND"),
        replies.refuse(NOT_FOUND, "UID_MISMATCH"),
        replies.send(accumulated(1)),
    ]

    async def scenario(batch):
        await batch.accumulate([1, 2])

    open_batch(scenario)
    _, second, third = fake.received["CreateBatch"]
    assert second == third


def test_a_server_without_room_is_asked_again_when_it_says_so(fake, replies, open_batch):
    create = fake.script["CreateBatch"][0]
    info = error_details_pb2.ErrorInfo(domain="logitd", reason="TOO_MUCH_STATE")
    soon = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=1000))
    lost = replies.refuse(NOT_FOUND, "BATCH_NOT_FOUND")
    full, never = replies.fail(EXHAUSTED, "full", info, soon), replies.refuse(EXHAUSTED, "TOO_MANY_ROWS")
    fake.script["CreateBatch"] = [create, full, create, never]
    fake.script["Accumulate"] = [lost, lost, replies.send(accumulated(1)), lost]

    async def scenario(batch):
        await batch.accumulate([1, 2])
        with pytest.raises(ResourceExhaustedError):
            await batch.accumulate([3, 4])
        assert (batch.revision, batch.has_unanswered_step) == (1, False)

    open_batch(scenario)
    assert len(creations(fake)) == 4


def test_a_batch_that_comes_back_with_other_rows_breaks_the_contract(fake, replies, open_batch):
    def create_less(request, context):
        batch = types_pb2.Batch(batch_id="mine", uid=bytes(16), kind="BATCH_KIND_PENALTY")
        return service_pb2.CreateBatchResponse(batch=batch).SerializeToString()

    fake.script["CreateBatch"] = [fake.script["CreateBatch"][0], create_less]
    fake.script["Accumulate"] = [replies.refuse(NOT_FOUND, "BATCH_NOT_FOUND")]

    async def scenario(batch):
        with pytest.raises(ProtocolError, match="'mine' was rebuilt with other rows"):
            await batch.accumulate([1, 2])

    open_batch(scenario)


def test_a_server_that_drains_is_waited_for_and_gets_the_same_message(fake, replies, open_batch):
    draining = replies.refuse(grpc.StatusCode.UNAVAILABLE, "DRAINING")
    fake.script["Accumulate"] = [draining, draining, replies.send(accumulated(1))]
    fake.script["GetCapabilities"][:0] = [draining]

    async def scenario(batch):
        await batch.accumulate([1, 2])

    open_batch(scenario)
    assert len(set(fake.received["Accumulate"])) == 1
    assert len(fake.received["GetCapabilities"]) == 3
    assert len(creations(fake)) == 1


def test_chunks_that_were_answered_are_not_sent_to_the_rebuilt_batch(fake, replies, open_batch):
    gone = replies.fail(grpc.StatusCode.UNAVAILABLE, "gone")
    fake.script["Apply"] = [
        replies.send(processed(LOGITS[:1] + 1, 1, 0)),
        gone,
        replies.refuse(NOT_FOUND, "BATCH_NOT_FOUND"),
        replies.send(processed(LOGITS[1:] + 1, 0, 1)),
    ]

    async def scenario(batch):
        assert np.array_equal(await batch.apply(LOGITS, [1, 2]), LOGITS + 1)
        assert batch.revision == 1

    open_batch(scenario, chunk_bytes=ROW)
    assert [len(each.output_token_ids) for each in creations(fake)[1].sequences] == [4, 4]
    assert [each.expected_revision for each in targets(fake, "Apply", service_pb2.ApplyRequest)] == [0, 1, 1, 0]


def test_edits_of_two_lives_are_not_mixed(fake, replies, open_batch):
    fake.script["Accumulate"] = [replies.send(accumulated(1))]
    fake.script["Apply"] = [
        replies.send(edits(2, 0, 5, is_full=False)),
        replies.refuse(NOT_FOUND, "BATCH_NOT_FOUND"),
        replies.send(edits(0, 0, 6, is_full=True)),
        replies.send(edits(0, 1, 7, is_full=True)),
    ]

    async def scenario(batch):
        await batch.accumulate([3, 4])
        result = await batch.edits([1, 2], since=1)
        assert (result.token_ids.tolist(), result.is_full, result.revision) == ([6, 7], True, 2)
        assert result.base_revision is None

    open_batch(scenario, chunk_bytes=1)
    requests = [service_pb2.ApplyRequest.FromString(message) for message in fake.received["Apply"]]
    assert [each.edits_since_revision for each in requests] == [1, 1, -1, -1]
    assert [each.HasField("tokens") for each in requests] == [True, False, False, False]
    assert [each.first_row for each in requests] == [0, 1, 0, 1]


def test_differences_that_nobody_asked_for_break_the_contract(fake, replies, open_batch):
    fake.script["Apply"] = [replies.send(edits(0, 0, 5, is_full=False))]

    async def scenario(batch):
        with pytest.raises(ProtocolError, match="in full and as a difference were mixed"):
            await batch.edits()

    open_batch(scenario, chunk_bytes=1)


def test_a_region_that_stays_unknown_is_told(fake, replies, connect, run, tmp_path):
    registered = service_pb2.RegisterSharedMemoryResponse(region_id="r")
    fake.script["RegisterSharedMemory"] = [replies.send(registered)] * 2
    fake.script["UnregisterSharedMemory"] = [replies.send(b"")]
    fake.script["Apply"] = [replies.refuse(NOT_FOUND, "REGION_NOT_FOUND")] * 2

    async def scenario():
        async with (
            connect(fake.target) as client,
            await client.create_batch(TWO, vocab_size=40) as batch,
            await client.shared_logits(2, 40, shared_memory_dir=str(tmp_path)) as shared,
        ):
            with pytest.raises(RegionNotFoundError):
                await batch.apply_inplace(shared, [1, 2])
            assert not batch.has_unanswered_step

    run(scenario)
    assert len(fake.received["Apply"]) == 2


def test_a_batch_is_created_once_the_server_that_drains_is_replaced(fake, replies, connect, run):
    create, draining = fake.script["CreateBatch"][0], replies.refuse(grpc.StatusCode.UNAVAILABLE, "DRAINING")
    fake.script["CreateBatch"] = [draining, create, draining, draining, create]
    fake.script["GetCapabilities"] = [replies.send(b"")] * 3

    async def scenario():
        async with connect(fake.target) as client:
            # It has answered nothing yet, so that it may be none.
            with pytest.raises(UnavailableError):
                await client.create_batch(TWO, vocab_size=40)
            for _ in range(2):
                await client.create_batch(TWO, vocab_size=40)

    run(scenario)
    assert len(set(fake.received["CreateBatch"][2:])) == 1
