"""Every field of the requests fed with wrong values: the right status, the field, the rule, and nothing changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from helpers import right_requests
from helpers.bad_creations import CREATIONS
from helpers.bad_input import MOST_ERROR_BYTES, Bad, leaf_fields, leaf_of
from helpers.bad_steps import LOOKUPS, STEPS
from helpers.right_requests import follow, peek
from helpers.wire import METHODS, STREAM_METHODS, Failed, Failure, OpenBatch, Wire
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

# Fields for which no value is wrong, and why.
CANNOT_BE_WRONG = {
    "DeleteBatchRequest.allow_missing": "both values are legal",
    "MergeBatchesRequest.source.request_id": "the target's counts, of the source nothing is told apart",
    "ApplyRequest.logits.padding": "ignored, whatever it holds",
    "BeamStepRequest.logits.padding": "ignored, whatever it holds",
    "CreateBatchRequest.sequences.beams.pool.is_filler": "follows from running_sum, and is not looked at",
}
GARBAGE = {"half a tag": b"\xff", "half a field": b"\x0a\x7f", "an end of nothing": b"\x0c"}


@pytest.fixture(scope="module")
def bystander(wire: Wire) -> Iterator[OpenBatch]:
    """A batch that nobody talks to."""
    with wire.opened(right_requests.penalty_creation()) as batch:
        yield batch


@pytest.fixture(scope="module")
def right_creations(wire: Wire) -> dict[str, service_pb2.CreateBatchRequest]:
    return {name: make(wire) for name, make in right_requests.CREATIONS.items()}


class Victim(NamedTuple):
    """A batch, and all that can be seen of it."""

    batch: OpenBatch
    state: types_pb2.Batch
    reply: bytes


@pytest.fixture(scope="module")
def penalty_victims(wire: Wire) -> list[Victim]:
    """The victim of all cases: one that nothing has changed serves again."""
    batch = right_requests.open_penalty_batch(wire)
    return [Victim(batch, batch.describe(), peek(batch))]


@pytest.fixture(scope="module")
def next_beam_step(wire: Wire) -> bytes:
    """What the next step of a beam batch gives where nothing went wrong."""
    return follow(right_requests.open_beam_batch(wire))


@pytest.fixture
def penalty_victim(wire: Wire, penalty_victims: list[Victim]) -> Iterator[OpenBatch]:
    """A penalty batch that a test may attack; it must be after it what it was before it."""
    victim = penalty_victims.pop()
    yield victim.batch
    try:
        assert victim.batch.describe() == victim.state
        assert peek(victim.batch) == victim.reply
        penalty_victims.append(victim)
    finally:
        if not penalty_victims:
            batch = right_requests.open_penalty_batch(wire)
            penalty_victims.append(Victim(batch, batch.describe(), victim.reply))


def is_for_penalties(case: Bad) -> bool:
    return right_requests.STEPS[case.base][1] is right_requests.open_penalty_batch


def failure_of(wire: Wire, method: str, request: Message) -> Failure:
    with pytest.raises(Failed) as caught:
        wire.call(method, request)
    assert caught.value.replies == []
    return caught.value.failure


def test_every_right_creation_is_accepted(
    wire: Wire, right_creations: dict[str, service_pb2.CreateBatchRequest]
) -> None:
    for name, request in right_creations.items():
        with wire.opened(request) as batch:
            assert batch.revision == 0, name


def test_every_right_step_is_accepted(wire: Wire) -> None:
    for name, (method, open_batch, make) in right_requests.STEPS.items():
        if not name.endswith((" on beams", " on penalties")):
            assert wire.call(method, make(open_batch(wire))).revision == (1 if "without" in name else 2), name


@pytest.mark.parametrize("case", CREATIONS, ids=str)
def test_wrong_creation_is_refused_and_leaves_nothing_behind(
    wire: Wire, right_creations: dict[str, service_pb2.CreateBatchRequest], bystander: OpenBatch, case: Bad
) -> None:
    request = service_pb2.CreateBatchRequest()
    request.CopyFrom(right_creations[case.base])
    batch_id, before = request.batch_id, bystander.describe()
    case.spoil(request)
    case.check(failure_of(wire, "CreateBatch", request))
    gone = failure_of(wire, "GetBatch", service_pb2.GetBatchRequest(batch_id=batch_id))
    assert gone.reason == "BATCH_NOT_FOUND"
    assert bystander.describe() == before


@pytest.mark.parametrize("case", [case for case in STEPS if is_for_penalties(case)], ids=str)
def test_wrong_step_is_refused_and_changes_nothing(wire: Wire, penalty_victim: OpenBatch, case: Bad) -> None:
    method, _, make = right_requests.STEPS[case.base]
    request = make(penalty_victim)
    case.spoil(request)
    case.check(failure_of(wire, method, request))


@pytest.mark.parametrize("case", [case for case in STEPS if not is_for_penalties(case)], ids=str)
def test_wrong_step_of_beams_is_refused_and_changes_nothing(wire: Wire, next_beam_step: bytes, case: Bad) -> None:
    method, open_batch, make = right_requests.STEPS[case.base]
    victim = open_batch(wire)
    request, before = make(victim), victim.describe()
    case.spoil(request)
    case.check(failure_of(wire, method, request))
    assert victim.describe() == before
    assert follow(victim) == next_beam_step


@pytest.mark.parametrize("case", LOOKUPS, ids=str)
def test_wrong_lookup_is_refused_and_changes_nothing(wire: Wire, penalty_victim: OpenBatch, case: Bad) -> None:
    request = getattr(service_pb2, f"{case.base}Request")()
    if case.base != "ListBatches":
        request.batch_id, request.uid = penalty_victim.batch_id, penalty_victim.uid
    case.spoil(request)
    case.check(failure_of(wire, case.base, request))


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
@pytest.mark.parametrize("method", METHODS)
def test_bytes_that_are_no_message_are_an_invalid_argument(
    wire: Wire, bystander: OpenBatch, method: str, garbage: bytes
) -> None:
    before = bystander.describe()
    with pytest.raises(Failed) as caught:
        wire.send_bytes(method, garbage)
    failure = caught.value.failure
    assert (failure.code, failure.reason) == ("INVALID_ARGUMENT", "MALFORMED_MESSAGE")
    assert f"logitd.v1.{method}Request, got {len(garbage)} bytes" in failure.message
    assert failure.num_bytes < MOST_ERROR_BYTES
    assert bystander.describe() == before


@pytest.mark.parametrize("method", [method for method in METHODS if method not in {"GetCapabilities", "ListBatches"}])
def test_empty_message_is_refused(wire: Wire, method: str) -> None:
    with pytest.raises(Failed) as caught:
        wire.send_bytes(method, b"")
    assert caught.value.failure.code in {"INVALID_ARGUMENT", "NOT_FOUND"}


def test_table_has_every_field() -> None:
    roots = {base: f"{method}Request" for base, (method, _, _) in right_requests.STEPS.items()}
    roots |= {name: f"{name}Request" for name in ("GetBatch", "DeleteBatch", "ListBatches")}
    cases = [*CREATIONS, *STEPS, *LOOKUPS]
    met = {leaf_of(roots.get(case.base, "CreateBatchRequest"), case.path) for case in cases}
    names = {*roots.values(), "CreateBatchRequest"}
    fields = {leaf for name in names for leaf in leaf_fields(getattr(service_pb2, name).DESCRIPTOR, name)}
    assert fields - met - CANNOT_BE_WRONG.keys() == set()
    assert CANNOT_BE_WRONG.keys() <= fields - met


def test_streams_are_the_step_calls() -> None:
    service = service_pb2.DESCRIPTOR.services_by_name["LogitProcessorService"]
    assert {m.name for m in service.methods if m.client_streaming and m.server_streaming} == set(STREAM_METHODS)
