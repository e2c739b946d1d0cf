"""CreateBatch, GetBatch, ListBatches, DeleteBatch: the life of a batch, from a first or a second birth to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from helpers.live_server import LiveServer, serving
from helpers.right_requests import (
    BEAM_LOGITS,
    PENALTY_LOGITS,
    beam_creation,
    follow,
    open_beam_batch,
    open_penalty_batch,
    penalty_creation,
)
from helpers.wire import Failed, Failure, OpenBatch, Wire, creation, ints, read_ints, request_id
from logitd.service.config import ServerConfig
from logitd.v1 import service_pb2, types_pb2
from logitd.v1.types_pb2 import BeamParameters, PenaltyParameters, Sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from google.protobuf.message import Message

UID_BYTES = 16


class Clock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def refusal(wire: Wire, method: str, request: Message) -> Failure:
    with pytest.raises(Failed) as caught:
        wire.call(method, request)
    return caught.value.failure


def rebuilt(batch: OpenBatch) -> service_pb2.CreateBatchRequest:
    """A request that makes the batch anew from what GetBatch says of it."""
    state = batch.describe()
    return creation(
        *state.sequences,
        vocab_size=state.vocab_size,
        profile=state.profile,
        beam_rule=state.beam_rule,
        kind=state.kind,
        allow_penalty_extension=state.allow_penalty_extension,
    )


def test_reply_has_every_default_filled_in(wire: Wire) -> None:
    with wire.opened(creation(Sequence(sequence_id="s"), vocab_size=7)) as batch:
        state = batch.describe()
    assert len(state.uid) == UID_BYTES
    assert state.revision == 0
    assert state.kind == types_pb2.BATCH_KIND_PENALTY
    assert (state.vocab_size, state.profile) == (7, types_pb2.PENALTY_PROFILE_SGLANG)
    assert state.beam_rule == types_pb2.BEAM_RULE_UNSPECIFIED
    assert state.idle_timeout_seconds == 600
    assert [(row.sequence_id, row.first_row, row.row_count) for row in state.rows] == [("s", 0, 1)]
    neutral = PenaltyParameters(repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0, min_new_tokens=0)
    assert list(state.sequences) == [Sequence(sequence_id="s", penalties=neutral, max_new_tokens=100)]


@pytest.mark.parametrize(
    ("rule", "profile"),
    [
        (types_pb2.BEAM_RULE_UNSPECIFIED, types_pb2.PENALTY_PROFILE_HF),
        (types_pb2.BEAM_RULE_HF, types_pb2.PENALTY_PROFILE_HF),
        (types_pb2.BEAM_RULE_VLLM, types_pb2.PENALTY_PROFILE_VLLM),
        (types_pb2.BEAM_RULE_VLLM_PROMPT_LENGTH, types_pb2.PENALTY_PROFILE_VLLM),
    ],
)
def test_beam_rule_implies_its_engines_profile_unless_told(wire: Wire, rule: int, profile: int) -> None:
    search = Sequence(
        sequence_id="s", prompt_token_ids=ints(0), max_new_tokens=5, beam=BeamParameters(width=2), eos_token_ids=[5]
    )
    with wire.opened(creation(search, beam_rule=rule)) as batch:
        state = batch.describe()
    assert state.kind == types_pb2.BATCH_KIND_BEAM
    assert state.beam_rule == (rule or types_pb2.BEAM_RULE_HF)
    assert state.profile == profile
    asked = BeamParameters(
        width=2, length_penalty=1.0, early_stopping=types_pb2.EARLY_STOPPING_FALSE, num_return_sequences=2
    )
    assert state.sequences[0].beam == asked
    with wire.opened(creation(search, beam_rule=rule, profile=types_pb2.PENALTY_PROFILE_SGLANG_FUSED)) as batch:
        assert batch.describe().profile == types_pb2.PENALTY_PROFILE_SGLANG_FUSED


def test_zero_is_not_the_same_as_not_set(wire: Wire) -> None:
    """Of num_return_sequences and repetition_penalty zero is refused; of the others it is a value."""
    parameters = PenaltyParameters(frequency_penalty=0.0, presence_penalty=0.0, min_new_tokens=0)
    beam = BeamParameters(width=2, length_penalty=0.0)
    with wire.opened(creation(Sequence(sequence_id="s", penalties=parameters, max_new_tokens=3, beam=beam))) as batch:
        assert batch.describe().sequences[0].beam.length_penalty == 0.0


def test_basic_view_leaves_token_ids_out(wire: Wire) -> None:
    for open_batch in (open_penalty_batch, open_beam_batch):
        batch = open_batch(wire)
        request = service_pb2.GetBatchRequest(batch_id=batch.batch_id)
        basic, full = wire.call("GetBatch", request).batch, batch.describe()
        assert basic.rows == full.rows
        for sequence in basic.sequences:
            assert not sequence.prompt_token_ids
            assert not sequence.output_token_ids
            assert not sequence.HasField("beams")


def test_creation_is_repeatable_until_the_first_mutation(wire: Wire) -> None:
    request = penalty_creation()
    with wire.opened(request) as batch:
        again = wire.open(request)
        assert again.uid == batch.uid
        batch.apply(PENALTY_LOGITS)
        assert wire.open(request).uid == batch.uid
        batch.accumulate(1, 1)
        failure = refusal(wire, "CreateBatch", request)
        assert (failure.code, failure.reason) == ("ALREADY_EXISTS", "BATCH_EXISTS")
        assert batch.outputs() == [[2, 2, 3, 1], [1]]


def change_key(request: service_pb2.CreateBatchRequest) -> None:
    request.create_key = request_id()


def change_penalty(request: service_pb2.CreateBatchRequest) -> None:
    request.sequences[1].penalties.presence_penalty = 0.5


def change_prompt(request: service_pb2.CreateBatchRequest) -> None:
    request.sequences[1].prompt_token_ids = ints(1)


def set_a_default(request: service_pb2.CreateBatchRequest) -> None:
    request.sequences[1].max_new_tokens = 100


@pytest.mark.parametrize("change", [change_key, change_penalty, change_prompt, set_a_default])
def test_live_id_is_refused_to_everybody_else(
    wire: Wire, change: Callable[[service_pb2.CreateBatchRequest], None]
) -> None:
    request = penalty_creation()
    with wire.opened(request) as batch:
        before = batch.describe()
        change(request)
        failure = refusal(wire, "CreateBatch", request)
        assert (failure.code, failure.reason) == ("ALREADY_EXISTS", "BATCH_EXISTS")
        assert batch.describe() == before


def test_deleted_batch_is_gone_and_its_id_free(wire: Wire) -> None:
    batch = open_penalty_batch(wire)
    delete = service_pb2.DeleteBatchRequest(batch_id=batch.batch_id, uid=batch.uid)
    wire.call("DeleteBatch", delete)
    assert refusal(wire, "DeleteBatch", delete).reason == "BATCH_NOT_FOUND"
    delete.allow_missing = True
    wire.call("DeleteBatch", delete)
    with wire.opened(penalty_creation(batch_id=batch.batch_id)) as second:
        assert second.revision == 0
        # Permission to be missing is none to end another life.
        assert refusal(wire, "DeleteBatch", delete).reason == "UID_MISMATCH"
        assert second.outputs() == [[2, 2, 3], []]


def test_list_goes_through_all_batches_page_by_page(tmp_path: Path) -> None:
    config = ServerConfig(listen="", unix_socket=str(tmp_path / "s"), linger_seconds=0)
    with serving(config) as live:
        wire = Wire(live.address)
        ids = [f"{number:02}" for number in range(7)]
        for batch_id in reversed(ids):
            wire.open(penalty_creation(batch_id=batch_id))
        pages, token = [], ""
        while True:
            page = wire.call("ListBatches", service_pb2.ListBatchesRequest(page_size=3, page_token=token))
            pages.append([batch.batch_id for batch in page.batches])
            token = page.next_page_token
            if not token:
                break
        everything = wire.call("ListBatches", service_pb2.ListBatchesRequest())
        wire.close()
    assert pages == [ids[:3], ids[3:6], ids[6:]]
    assert [batch.batch_id for batch in everything.batches] == ids
    assert not any(batch.sequences or batch.rows for batch in everything.batches)
    assert not everything.next_page_token


@pytest.mark.parametrize("open_batch", [open_penalty_batch, open_beam_batch])
def test_full_view_rebuilds_the_batch_bit_by_bit(wire: Wire, open_batch: Callable[[Wire], OpenBatch]) -> None:
    batch = open_batch(wire)
    with wire.opened(rebuilt(batch)) as second:
        assert second.describe().sequences == batch.describe().sequences
        second_reply, reply = follow(second), follow(batch)
    assert without_revision(second_reply, batch) == without_revision(reply, batch)


def without_revision(reply: bytes, batch: OpenBatch) -> Message:
    is_beam = batch.describe().kind == types_pb2.BATCH_KIND_BEAM
    message = (service_pb2.BeamStepResponse if is_beam else service_pb2.ApplyResponse).FromString(reply)
    message.revision = 0
    return message


def test_beam_batch_is_rebuilt_from_its_replies(wire: Wire) -> None:
    """A caller keeps the beams and the hypotheses that its replies bring; the checkpoint has the rest."""
    batch = wire.open(beam_creation())
    beams: dict[str, list[types_pb2.LiveBeam]] = {"a": [types_pb2.LiveBeam()], "b": [types_pb2.LiveBeam()]}
    pools: dict[str, list[types_pb2.Hypothesis]] = {"a": [], "b": []}
    checkpoints: dict[str, bytes] = {}
    for rows in (2, 5, 5):
        keep_reply(batch.beam_step(BEAM_LOGITS.repeat(rows, 1)), beams, pools, checkpoints)
    state = batch.describe()
    for sequence in state.sequences:
        name = sequence.sequence_id
        assert [read_ints(b.token_ids) for b in sequence.beams.live_beams] == [
            read_ints(b.token_ids) for b in beams[name]
        ]
        sequence.beams.CopyFrom(
            types_pb2.BeamSearchState(live_beams=beams[name], pool=pools[name], checkpoint=checkpoints[name])
        )
    with wire.opened(creation(*state.sequences, beam_rule=state.beam_rule, profile=state.profile)) as second:
        assert without_revision(follow(second), batch) == without_revision(follow(batch), batch)


def keep_reply(
    reply: service_pb2.BeamStepResponse,
    beams: dict[str, list[types_pb2.LiveBeam]],
    pools: dict[str, list[types_pb2.Hypothesis]],
    checkpoints: dict[str, bytes],
) -> None:
    flat = [(name, row, beam) for name in beams for row, beam in enumerate(beams[name])]
    parents, token_ids = read_ints(reply.parent_rows), read_ints(reply.token_ids)
    scores = memoryview(reply.scores).cast("d")
    for layout, search in zip(reply.rows, reply.searches, strict=True):
        sums = memoryview(search.log_prob_sums).cast("d")
        log_probs = memoryview(search.token_log_probs).cast("d")
        grown = []
        for place in range(layout.row_count):
            row = layout.first_row + place
            name, parent_row, parent = flat[parents[row]]
            assert name == search.sequence_id == layout.sequence_id
            grown.append(
                types_pb2.LiveBeam(
                    token_ids=parent.token_ids + ints(token_ids[row]),
                    score=scores[row],
                    log_prob_sum=sums[place],
                    parent_chain=parent.parent_chain + ints(parent_row),
                    token_log_probs=parent.token_log_probs + bytes(log_probs[place : place + 1]),
                )
            )
        beams[layout.sequence_id] = grown
        pools[search.sequence_id] += search.entered
        checkpoints[search.sequence_id] = search.checkpoint


def test_what_a_rebuild_brought_is_kept_once(server: LiveServer, wire: Wire) -> None:
    """The message of a long search is many times its state."""
    for open_batch in (open_penalty_batch, open_beam_batch):
        with wire.opened(rebuilt(open_batch(wire))) as batch:
            kept = server.registry.find(batch.batch_id, batch.uid)
            assert kept.plan.sequences == ()
            assert all(s.beams is None and len(s.output_token_ids) == 0 for s in kept.sequences)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ageing(tmp_path: Path, clock: Clock) -> Iterator[Wire]:
    """A server whose batches expire after 10 seconds by `clock`."""
    config = ServerConfig(listen="", unix_socket=str(tmp_path / "s"), idle_timeout_seconds=10, linger_seconds=0)
    with serving(config, clock) as live:
        wire = Wire(live.address)
        yield wire
        wire.close()


def test_idle_batch_expires_and_its_id_is_free(ageing: Wire, clock: Clock) -> None:
    batch = ageing.open(penalty_creation())
    clock.now += 10.01
    with pytest.raises(Failed) as caught:
        batch.accumulate(0, 0)
    assert (caught.value.failure.code, caught.value.failure.reason) == ("NOT_FOUND", "BATCH_NOT_FOUND")
    capabilities = ageing.call("GetCapabilities", service_pb2.GetCapabilitiesRequest())
    assert caught.value.failure.metadata == {"instance_id": capabilities.instance_id}
    second = ageing.open(penalty_creation(batch_id=batch.batch_id))
    assert second.uid != batch.uid
    assert refusal(ageing, "Accumulate", service_pb2.AccumulateRequest(target=batch.target())).reason == "UID_MISMATCH"


def test_every_message_keeps_a_batch_alive(ageing: Wire, clock: Clock) -> None:
    request = penalty_creation()
    used, idle = ageing.open(request), ageing.open(penalty_creation())
    uses: list[Callable[[], object]] = [
        lambda: ageing.open(request),
        used.describe,
        lambda: used.apply(PENALTY_LOGITS),
        lambda: used.accumulate(0, 0),
        lambda: used.apply(PENALTY_LOGITS, 1, 1),
    ]
    for use in uses:
        clock.now += 9.9
        use()
    listed = ageing.call("ListBatches", service_pb2.ListBatchesRequest()).batches
    assert [batch.batch_id for batch in listed] == [used.batch_id]
    assert refusal(ageing, "GetBatch", service_pb2.GetBatchRequest(batch_id=idle.batch_id)).reason == "BATCH_NOT_FOUND"
    assert torch.equal(used.apply(PENALTY_LOGITS), used.apply(PENALTY_LOGITS))
