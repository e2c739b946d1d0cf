"""The step calls as streams: order, errors, interleaving, cancellation."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
import pytest
import torch

from helpers.right_requests import (
    PENALTY_LOGITS,
    STEPS,
    accumulate_request,
    apply_request,
    follow,
    penalty_creation,
    reading_request,
)
from helpers.wire import Failed, OpenBatch, Wire, creation, token_update
from logitd.v1 import service_pb2
from logitd.v1.types_pb2 import PenaltyParameters, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP_CALLS = ("Accumulate", "Apply", "BeamStep")


@pytest.fixture
def batch(wire: Wire) -> Iterator[OpenBatch]:
    with wire.opened(penalty_creation()) as batch:
        yield batch


def accumulate(batch: OpenBatch, revision: int, *token_ids: int) -> service_pb2.AccumulateRequest:
    target = batch.target(expected_revision=revision)
    return service_pb2.AccumulateRequest(target=target, tokens=token_update(*token_ids))


def test_stream_answers_each_message_in_order(wire: Wire, batch: OpenBatch) -> None:
    replies = wire.stream("Accumulate", [accumulate(batch, n, n, n) for n in range(6)])
    assert [reply.revision for reply in replies] == [1, 2, 3, 4, 5, 6]
    assert not any(reply.draining for reply in replies)
    assert batch.outputs() == [[2, 2, 3, 0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("method", STEP_CALLS)
def test_reply_comes_before_the_next_message_is_written(wire: Wire, method: str) -> None:
    _, open_batch, make = STEPS[method]
    batch = open_batch(wire)
    conversation = wire.converse(method)
    for revision in (2, 3, 4):
        batch.revision = conversation.ask(make(batch)).revision
        assert batch.revision == revision
    assert conversation.finish() == []


@pytest.mark.parametrize("method", STEP_CALLS)
def test_stream_without_messages_is_complete(wire: Wire, method: str) -> None:
    assert wire.stream(method, []) == []


def test_error_ends_the_stream_and_replies_before_it_stand(wire: Wire, batch: OpenBatch) -> None:
    good, bad, unread = accumulate(batch, 0, 4, 4), accumulate(batch, 1, 6, 6), accumulate(batch, 1, 5, 5)
    with pytest.raises(Failed) as caught:
        wire.stream("Accumulate", [good, bad, unread])
    assert [reply.revision for reply in caught.value.replies] == [1]
    assert caught.value.failure.field == "tokens.token_ids[0]"
    assert batch.outputs() == [[2, 2, 3, 4], [4]]
    assert [reply.revision for reply in wire.stream("Accumulate", [unread])] == [2]


def test_one_stream_may_serve_several_batches(wire: Wire, batch: OpenBatch) -> None:
    with wire.opened(penalty_creation()) as other:
        requests = [accumulate(b, n, n, n) for n in range(3) for b in (batch, other)]
        assert [reply.revision for reply in wire.stream("Accumulate", requests)] == [1, 1, 2, 2, 3, 3]
        assert batch.outputs() == other.outputs() == [[2, 2, 3, 0, 1, 2], [0, 1, 2]]


def test_several_streams_take_turns_on_one_batch(wire: Wire, batch: OpenBatch) -> None:
    applying, accumulating, reading = (wire.converse(method) for method in ("Apply", "Accumulate", "Apply"))
    for revision in range(0, 6, 2):
        batch.revision = revision
        first = applying.ask(apply_request(batch))
        batch.revision = first.revision
        batch.revision = accumulating.ask(accumulate_request(batch)).revision
        assert (first.revision, batch.revision) == (revision + 1, revision + 2)
        assert reading.ask(reading_request(batch)).revision == revision + 2
    for conversation in (applying, accumulating, reading):
        assert conversation.finish() == []


def test_of_rivals_for_a_revision_exactly_one_wins(wire: Wire, batch: OpenBatch) -> None:
    """Messages of one batch queue, from whichever stream."""
    outcomes: list[str] = []

    def compete(token_id: int) -> None:
        for revision in range(10):
            request = accumulate(batch, revision, token_id, token_id)
            try:
                wire.call("Accumulate", request)
                outcomes.append("won")
            except Failed as error:
                outcomes.append(error.failure.reason)
            barrier.wait()

    rivals = [threading.Thread(target=compete, args=(n,)) for n in range(6)]
    barrier = threading.Barrier(len(rivals))
    with wire.opened(creation(Sequence(sequence_id="a"), Sequence(sequence_id="b"))) as batch:
        for rival in rivals:
            rival.start()
        for rival in rivals:
            rival.join()
        assert Counter(outcomes) == {"won": 10, "REVISION_MISMATCH": 50}
        assert [len(output) for output in batch.outputs()] == [10, 10]


@pytest.mark.parametrize("method", STEP_CALLS)
def test_cancelled_call_leaves_the_batch_at_a_whole_revision(wire: Wire, method: str) -> None:
    _, open_batch, make = STEPS[method]
    for delay in (0, 0, 0.0005, 0.001, 0.002, 0.005):
        batch, twin = open_batch(wire), open_batch(wire)
        conversation = wire.converse(method)
        conversation.send(make(batch))
        time.sleep(delay)
        conversation.call.cancel()
        state = settled(batch)
        if state.revision == 2:
            twin.revision = wire.call(method, make(twin)).revision
        assert state.sequences == twin.describe().sequences
        batch.revision = state.revision
        assert follow(batch) == follow(twin)


def settled(batch: OpenBatch) -> object:
    """The batch when nothing of it is under way any more: a step that was begun is finished."""
    before = batch.describe()
    time.sleep(0.02)
    after = batch.describe()
    return after if before == after else settled(batch)


def test_deadline_of_a_stream_leaves_the_batch_at_a_whole_revision(wire: Wire, batch: OpenBatch) -> None:
    idle = wire.stub.Accumulate(iter(threading.Event().wait, None), timeout=0.05)
    with pytest.raises(grpc.RpcError) as caught:
        next(idle)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    batch.accumulate(1, 1)
    assert batch.outputs() == [[2, 2, 3, 1], [1]]


def test_ended_streams_leave_no_error_behind(wire: Wire, batch: OpenBatch, caplog: pytest.LogCaptureFixture) -> None:
    """Neither cancelled calls nor failed ones are faults of the server, and none of its tasks is left."""
    with caplog.at_level(logging.WARNING, "logitd"), caplog.at_level(logging.WARNING, "asyncio"):
        for _ in range(5):
            conversation = wire.converse("Apply")
            conversation.ask(reading_request(batch))
            conversation.call.cancel()
            with pytest.raises(Failed):
                wire.call("Apply", reading_request(OpenBatch(wire, "unknown", batch.uid, 0)))
        time.sleep(0.1)
        batch.apply(PENALTY_LOGITS)
    assert caplog.records == []


def test_many_streams_at_once_give_what_each_gives_alone(wire: Wire) -> None:
    """Rows of different batches on streams of their own never mix."""

    def decode(seed: int) -> list[float]:
        logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(seed))
        parameters = PenaltyParameters(repetition_penalty=1.5, frequency_penalty=0.25)
        with wire.opened(creation(Sequence(sequence_id="s", penalties=parameters), vocab_size=50)) as batch:
            token_ids: list[int] = []
            for _ in range(10):
                logits = batch.apply(logits, *token_ids)
                token_ids = [int(logits.argmax())]
        return logits.flatten().tolist()

    alone = [decode(seed) for seed in range(16)]
    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(decode, range(16))) == alone
    assert len(set(map(tuple, alone))) == 16
