"""Revisions and request ids: what is committed once stays committed once, however often it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from helpers.right_requests import (
    BEAM_LOGITS,
    PENALTY_LOGITS,
    STEPS,
    beam_creation,
    follow,
    open_beam_batch,
    open_penalty_batch,
    penalty_creation,
)
from helpers.wire import Failed, Failure, OpenBatch, Wire, read_tensor, tensor, token_update
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

MUTATIONS = ("Accumulate", "Apply", "Apply of edits", "BeamStep")


@pytest.fixture
def batch(wire: Wire) -> Iterator[OpenBatch]:
    with wire.opened(penalty_creation()) as batch:
        yield batch


@pytest.fixture
def beams(wire: Wire) -> Iterator[OpenBatch]:
    with wire.opened(beam_creation()) as batch:
        yield batch


def refusal(wire: Wire, method: str, request: Message) -> Failure:
    with pytest.raises(Failed) as caught:
        wire.call(method, request)
    return caught.value.failure


def accumulate(batch: OpenBatch, *token_ids: int, **target: Any) -> service_pb2.AccumulateRequest:
    return service_pb2.AccumulateRequest(target=batch.target(**target), tokens=token_update(*token_ids))


def apply(batch: OpenBatch, *token_ids: int, logits: torch.Tensor = PENALTY_LOGITS) -> service_pb2.ApplyRequest:
    request = service_pb2.ApplyRequest(target=batch.target(), logits=tensor(logits))
    request.tokens.CopyFrom(token_update(*token_ids))
    return request


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_counts_the_revision_up_by_one(wire: Wire, name: str) -> None:
    method, open_batch, make = STEPS[name]
    batch = open_batch(wire)
    for revision in range(2, 5):
        assert wire.call(method, make(batch)).revision == revision == batch.describe().revision
        batch.revision = revision


def test_reading_apply_changes_nothing(wire: Wire, batch: OpenBatch) -> None:
    before = batch.describe()
    first, second = batch.apply(PENALTY_LOGITS), batch.apply(PENALTY_LOGITS)
    assert torch.equal(first, second)
    assert batch.describe() == before


@pytest.mark.parametrize("name", MUTATIONS)
def test_retry_commits_nothing_and_answers_with_the_same_bytes(wire: Wire, name: str) -> None:
    method, open_batch, make = STEPS[name]
    batch, twin = open_batch(wire), open_batch(wire)
    request = make(batch)
    first = wire.call(method, request)
    committed = batch.describe()
    for _ in range(3):
        assert wire.call(method, request).SerializeToString() == first.SerializeToString()
    assert batch.describe() == committed
    twin.revision = wire.call(method, make(twin)).revision
    batch.revision = first.revision
    assert follow(batch) == follow(twin)


def test_retry_on_the_same_stream_is_recognised(wire: Wire, batch: OpenBatch) -> None:
    request = accumulate(batch, 4, 4)
    assert [reply.revision for reply in wire.stream("Accumulate", [request, request])] == [1, 1]
    assert batch.outputs() == [[2, 2, 3, 4], [4]]


def test_request_id_alone_tells_a_retry_from_a_repetition(wire: Wire, batch: OpenBatch) -> None:
    """The same token twice in a row is two steps; the same message twice is one."""
    batch.accumulate(4, 1)
    batch.accumulate(4, 1)
    assert batch.outputs() == [[2, 2, 3, 4, 4], [1, 1]]


@pytest.mark.parametrize("name", MUTATIONS)
def test_another_request_id_at_a_taken_revision_is_refused(wire: Wire, name: str) -> None:
    method, open_batch, make = STEPS[name]
    batch = open_batch(wire)
    request, late = make(batch), make(batch)
    wire.call(method, request)
    committed = batch.describe()
    failure = refusal(wire, method, late)
    assert (failure.code, failure.reason) == ("FAILED_PRECONDITION", "REVISION_MISMATCH")
    assert failure.metadata == {"expected": "1", "actual": "2"}
    assert batch.describe() == committed


def test_retry_is_forgotten_once_the_batch_has_moved_on(wire: Wire, batch: OpenBatch) -> None:
    request = accumulate(batch, 0, 0)
    wire.call("Accumulate", request)
    batch.revision = 1
    batch.accumulate(1, 1)
    failure = refusal(wire, "Accumulate", request)
    assert failure.metadata == {"expected": "0", "actual": "2"}
    assert batch.outputs() == [[2, 2, 3, 0, 1], [0, 1]]


def test_request_id_of_the_last_step_at_an_older_revision_is_no_retry(wire: Wire, batch: OpenBatch) -> None:
    batch.accumulate(0, 0)
    last = accumulate(batch, 1, 1)
    assert wire.call("Accumulate", last).revision == 2
    last.target.expected_revision = 0
    assert refusal(wire, "Accumulate", last).metadata == {"expected": "0", "actual": "2"}


def test_request_id_of_another_method_is_no_retry(wire: Wire, batch: OpenBatch) -> None:
    done = accumulate(batch, 0, 0)
    wire.call("Accumulate", done)
    request = apply(batch, 0, 0)
    request.target.request_id = done.target.request_id
    assert refusal(wire, "Apply", request).reason == "REVISION_MISMATCH"
    assert batch.outputs() == [[2, 2, 3, 0], [0]]


def test_request_id_of_another_batch_is_no_retry(wire: Wire, batch: OpenBatch) -> None:
    with wire.opened(penalty_creation()) as other:
        batch.accumulate(0, 0)
        request = accumulate(other, 5, 5)
        wire.call("Accumulate", request)
        stale = service_pb2.AccumulateRequest(target=batch.target(), tokens=request.tokens)
        stale.target.expected_revision, stale.target.request_id = 0, request.target.request_id
        assert refusal(wire, "Accumulate", stale).reason == "REVISION_MISMATCH"
    assert batch.outputs() == [[2, 2, 3, 0], [0]]


def test_request_id_used_again_for_the_next_step_is_a_step(wire: Wire, batch: OpenBatch) -> None:
    """The revision says that it is meant for the batch as it is."""
    first = accumulate(batch, 0, 0)
    wire.call("Accumulate", first)
    batch.revision = 1
    second = accumulate(batch, 1, 1, request_id=first.target.request_id)
    assert wire.call("Accumulate", second).revision == 2
    assert batch.outputs() == [[2, 2, 3, 0, 1], [0, 1]]


def test_retried_apply_skips_the_tokens_and_processes_the_logits_it_carries(wire: Wire, batch: OpenBatch) -> None:
    request = apply(batch, 0, 1)
    wire.call("Apply", request)
    again = apply(batch, 0, 1, logits=PENALTY_LOGITS.flip(1) * 2)
    again.target.request_id = request.target.request_id
    reply = wire.call("Apply", again)
    assert batch.outputs() == [[2, 2, 3, 0], [1]]
    batch.revision = reply.revision
    assert torch.equal(read_tensor(reply.dense.logits), batch.apply(PENALTY_LOGITS.flip(1) * 2))


def test_retried_apply_may_ask_for_another_form_and_other_rows(wire: Wire, batch: OpenBatch) -> None:
    request = apply(batch, 0, 1)
    whole = read_tensor(wire.call("Apply", request).dense.logits)
    request.first_row = 1
    request.logits.CopyFrom(tensor(PENALTY_LOGITS[1:]))
    assert torch.equal(read_tensor(wire.call("Apply", request).dense.logits), whole[1:])
    request.form = types_pb2.APPLY_FORM_SPARSE
    assert wire.call("Apply", request).HasField("sparse")
    assert batch.describe().revision == 1


def test_retried_beam_step_gets_the_stored_bytes_whatever_came_between(wire: Wire, beams: OpenBatch) -> None:
    request = service_pb2.BeamStepRequest(target=beams.target(), logits=tensor(BEAM_LOGITS.repeat(2, 1)))
    first = wire.send_bytes("BeamStep", request.SerializeToString())
    other = open_beam_batch(wire)
    other.beam_step(BEAM_LOGITS.repeat(5, 1) * 3)
    beams.describe()
    assert wire.send_bytes("BeamStep", request.SerializeToString()) == first
    # The logits are not looked at any more: the step was made.
    request.logits.CopyFrom(tensor(-BEAM_LOGITS.repeat(2, 1)))
    assert wire.send_bytes("BeamStep", request.SerializeToString()) == first


def test_retry_of_the_step_that_ended_every_search_gets_the_hypotheses_again(wire: Wire, beams: OpenBatch) -> None:
    request = service_pb2.BeamStepRequest(target=beams.target(), finish_sequence_ids=["a", "b"])
    first = wire.call("BeamStep", request)
    assert [search.is_done for search in first.searches] == [True, True]
    assert wire.call("BeamStep", request) == first


def test_failed_mutation_leaves_its_request_id_free(wire: Wire, batch: OpenBatch) -> None:
    request = accumulate(batch, 0, 6)
    assert refusal(wire, "Accumulate", request).field == "tokens.token_ids[1]"
    request.tokens.CopyFrom(token_update(0, 5))
    assert wire.call("Accumulate", request).revision == 1
    assert batch.outputs() == [[2, 2, 3, 0], [5]]


@pytest.mark.parametrize("open_batch", [open_penalty_batch, open_beam_batch])
def test_uid_of_a_former_life_is_refused(wire: Wire, open_batch: Any) -> None:
    first = open_batch(wire)
    wire.call("DeleteBatch", service_pb2.DeleteBatchRequest(batch_id=first.batch_id, uid=first.uid))
    creation = penalty_creation(batch_id=first.batch_id)
    with wire.opened(creation) as second:
        assert second.uid != first.uid
        before = second.describe()
        for method, _, make in STEPS.values():
            failure = refusal(wire, method, make(first))
            assert (failure.code, failure.reason) == ("NOT_FOUND", "UID_MISMATCH")
        assert second.describe() == before
