"""What one caller does or gets wrong shows nowhere else: not in other batches, not in errors, not in logs."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from helpers.right_requests import PENALTY_LOGITS, STEPS, open_beam_batch, open_penalty_batch, penalty_creation
from helpers.wire import Failed, OpenBatch, Wire, creation, doubles, ints, tensor, token_update
from logitd.v1 import service_pb2
from logitd.v1.types_pb2 import BeamParameters, BeamSearchState, LiveBeam, PenaltyParameters, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

# Ids that no size, limit or count in a message can be mistaken for.
SECRETS = (31_337, 27_182, 14_142)
VOCAB_SIZE = 40_000


def test_steps_of_one_batch_leave_the_others_as_they_are(wire: Wire) -> None:
    """Batches of the same content, sequence ids and revision, one of which is worked on."""
    theirs, their_beams = wire.open(penalty_creation()), open_beam_batch(wire)
    before = (theirs.describe(), their_beams.describe())
    for method, _, make in STEPS.values():
        for batch in (wire.open(penalty_creation(batch_id=f"{theirs.batch_id}-2")), open_beam_batch(wire)):
            try:
                wire.call(method, make(batch))
            except Failed as error:
                assert error.failure.reason in {"WRONG_BATCH_KIND", "BATCHES_DIFFER"}  # noqa: PT017
            wire.call("DeleteBatch", service_pb2.DeleteBatchRequest(batch_id=batch.batch_id))
    assert (theirs.describe(), their_beams.describe()) == before


def test_interleaved_batches_give_what_each_gives_alone(wire: Wire) -> None:
    order = random.Random(7)
    histories = [[[order.randrange(6), order.randrange(6)] for _ in range(7)] for _ in range(4)]
    alone = [run_steps(wire.open(penalty_creation()), history) for history in histories]
    batches = [wire.open(penalty_creation()) for _ in histories]
    places = [place for place in range(4) for _ in range(7)]
    order.shuffle(places)
    together: list[list[torch.Tensor]] = [[] for _ in histories]
    for place in places:
        step = histories[place][len(together[place])]
        together[place] += run_steps(batches[place], [step])
    for ours, theirs in zip(together, alone, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def run_steps(batch: OpenBatch, history: list[list[int]]) -> list[torch.Tensor]:
    return [batch.apply(PENALTY_LOGITS, *token_ids) for token_ids in history]


def test_uid_is_needed_and_cannot_be_had_from_errors(wire: Wire) -> None:
    batch = open_penalty_batch(wire)
    for method, _, make in STEPS.values():
        request = make(batch)
        request.target.uid = bytes(16)
        with pytest.raises(Failed) as caught:
            wire.call(method, request)
        text = repr(caught.value.failure)
        assert batch.uid.hex() not in text
        assert repr(batch.uid)[2:-1] not in text


@pytest.fixture
def secret_batch(wire: Wire) -> Iterator[OpenBatch]:
    """A penalty batch whose every token is one of SECRETS."""
    history = ints(*SECRETS)
    asked = PenaltyParameters(repetition_penalty=1.5, frequency_penalty=0.5, min_new_tokens=9)
    sequences = [
        Sequence(
            sequence_id=name,
            prompt_token_ids=history,
            output_token_ids=history,
            penalties=asked,
            max_new_tokens=20,
            stop_token_ids=SECRETS,
        )
        for name in "ab"
    ]
    with wire.opened(creation(*sequences, vocab_size=VOCAB_SIZE)) as batch:
        yield batch


@pytest.fixture
def secret_beams(wire: Wire) -> Iterator[OpenBatch]:
    """A beam batch whose every token is one of SECRETS."""
    beams = [
        LiveBeam(token_ids=ints(*SECRETS), score=-n, log_prob_sum=-n, token_log_probs=doubles(0, 0, 0)) for n in (1, 2)
    ]
    search = Sequence(
        sequence_id="a",
        prompt_token_ids=ints(*SECRETS),
        max_new_tokens=20,
        beam=BeamParameters(width=2, return_token_log_probs=True),
        beams=BeamSearchState(live_beams=beams),
    )
    with wire.opened(creation(search, vocab_size=VOCAB_SIZE)) as batch:
        yield batch


def wrong_messages(batch: OpenBatch, beams: OpenBatch) -> Iterator[tuple[str, Message]]:
    """One of each kind of failure, all of them with secret ids in their arrays where they have arrays."""
    good = token_update(*SECRETS, splits=(0, 3, 3))
    for tokens in (
        token_update(*SECRETS),
        token_update(*SECRETS, splits=(0, 3)),
        token_update(*SECRETS, splits=(0, 3, 2)),
        token_update(*SECRETS, splits=(0, 3, 3), rollback=(4, 0)),
        token_update(*SECRETS * 9, splits=(0, 27, 27)),
        token_update(*SECRETS, VOCAB_SIZE, splits=(0, 4, 4)),
        service_pb2.TokenUpdate(token_ids=ints(*SECRETS) + b"x"),
        service_pb2.TokenUpdate(token_ids=ints(*SECRETS), rollback_counts=ints(0)),
    ):
        yield "Accumulate", service_pb2.AccumulateRequest(target=batch.target(), tokens=tokens)
    for target in (batch.target(expected_revision=7), batch.target(uid=bytes(16)), beams.target()):
        yield "Accumulate", service_pb2.AccumulateRequest(target=target, tokens=good)
    yield "Apply", service_pb2.ApplyRequest(target=batch.target(), tokens=good, logits=tensor(torch.zeros(1, 7)))
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[:, SECRETS[0]] = 5
    yield "BeamStep", service_pb2.BeamStepRequest(target=beams.target(), logits=tensor(logits[:1]))
    yield "BeamStep", service_pb2.BeamStepRequest(target=beams.target(), logits=tensor(logits.log() * torch.nan))
    request = creation(*batch.describe().sequences, vocab_size=VOCAB_SIZE, batch_id=batch.batch_id)
    yield "CreateBatch", request
    for name in ("prompt_token_ids", "output_token_ids"):
        spoilt = creation(*batch.describe().sequences, vocab_size=VOCAB_SIZE)
        setattr(spoilt.sequences[1], name, ints(*SECRETS, -1))
        yield "CreateBatch", spoilt
        spoilt.sequences[1].sequence_id = "a"
        setattr(spoilt.sequences[1], name, ints(*SECRETS))
        yield "CreateBatch", spoilt
    rebuilt = creation(*beams.describe().sequences, vocab_size=VOCAB_SIZE)
    rebuilt.sequences[0].beams.live_beams[0].token_ids = ints(*SECRETS, *SECRETS)
    yield "CreateBatch", rebuilt


def test_neither_errors_nor_logs_tell_tokens(
    wire: Wire, secret_batch: OpenBatch, secret_beams: OpenBatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        texts = [failure_text(wire, *case) for case in wrong_messages(secret_batch, secret_beams)]
        secret_batch.apply(torch.zeros(2, VOCAB_SIZE), *SECRETS[:2])
        secret_beams.beam_step(torch.zeros(2, VOCAB_SIZE).index_fill(1, torch.tensor(SECRETS), 5.0))
    assert len(texts) == 20
    for text in [*texts, *(record.getMessage() for record in caplog.records)]:
        assert not any(str(token_id) in text for token_id in SECRETS), text
    assert secret_batch.outputs() == [[*SECRETS, SECRETS[0]], [*SECRETS, SECRETS[1]]]


def failure_text(wire: Wire, method: str, request: Any) -> str:
    with pytest.raises(Failed) as caught:
        wire.call(method, request)
    assert caught.value.failure.code not in {"INTERNAL", "UNKNOWN"}
    return repr(caught.value.failure)
