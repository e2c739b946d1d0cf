"""What there is room for: limits refuse newcomers with a reason, and leave those who are in alone."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
import torch

from helpers.live_server import serving
from helpers.right_requests import PENALTY_LOGITS, beam_creation, penalty_creation
from helpers.wire import TIMEOUT, Failed, Failure, Wire, creation, ints, read_tensor, tensor, token_update
from logitd.service.config import ServerConfig
from logitd.v1 import service_pb2, types_pb2
from logitd.v1.types_pb2 import BeamParameters, PenaltyParameters, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.message import Message


@contextmanager
def limited(path: Path, **limits: Any) -> Iterator[Wire]:
    with serving(ServerConfig(listen="", unix_socket=str(path / "s"), linger_seconds=0, **limits)) as live:
        wire = Wire(live.address)
        yield wire
        wire.close()


def refusal(wire: Wire, request: Message) -> Failure:
    with pytest.raises(Failed) as caught:
        wire.call("CreateBatch", request)
    assert caught.value.failure.code == "RESOURCE_EXHAUSTED"
    return caught.value.failure


def raw_code(call: Any, request: Any) -> grpc.StatusCode:
    """The status of a call that gRPC itself ends: such a one has no details."""
    with pytest.raises(grpc.RpcError) as caught:
        call(request)
    return caught.value.code()


def test_too_many_batches(tmp_path: Path) -> None:
    with limited(tmp_path, max_batches=2) as wire:
        request = penalty_creation()
        first, second = wire.open(request), wire.open(penalty_creation())
        failure = refusal(wire, penalty_creation())
        assert failure.reason == "TOO_MANY_BATCHES"
        assert failure.metadata == {"limit": "max_batches", "most": "2", "got": "3"}
        assert failure.retry_seconds == 1
        assert wire.open(request).uid == first.uid
        second.accumulate(0, 0)
        first.wire.call("DeleteBatch", service_pb2.DeleteBatchRequest(batch_id=first.batch_id))
        wire.open(penalty_creation()).accumulate(0, 0)


def test_expired_batches_make_room(tmp_path: Path) -> None:
    now = [0.0]
    config = ServerConfig(listen="", unix_socket=str(tmp_path / "s"), linger_seconds=0, max_batches=1)
    with serving(config, lambda: now[0]) as live:
        wire = Wire(live.address)
        wire.open(penalty_creation())
        now[0] = config.idle_timeout_seconds
        assert refusal(wire, penalty_creation()).reason == "TOO_MANY_BATCHES"
        now[0] += 0.1
        wire.open(penalty_creation())
        wire.close()


def test_too_many_rows_is_not_worth_waiting_for(tmp_path: Path) -> None:
    with limited(tmp_path, max_rows_per_batch=4) as wire:
        wire.open(creation(*(Sequence(sequence_id=str(n)) for n in range(4))))
        failure = refusal(wire, creation(*(Sequence(sequence_id=str(n)) for n in range(5))))
        assert failure.reason == "TOO_MANY_ROWS"
        assert failure.metadata == {"limit": "max_rows_per_batch", "most": "4", "got": "5"}
        assert failure.retry_seconds == 0
        # The rows that a search may have count, though it begins with one.
        assert refusal(wire, beam_creation()).metadata["got"] == "5"


def test_sequences_beyond_the_rows_are_refused_unread(tmp_path: Path) -> None:
    """A sequence takes five bytes of a message and a thousand of memory."""
    with limited(tmp_path, max_rows_per_batch=4) as wire:
        failure = refusal(wire, creation(*[Sequence(sequence_id="x")] * 50_000))
        assert failure.reason == "TOO_MANY_ROWS"
        assert failure.metadata["got"] == "50000"


def test_state_is_reserved_for_what_sequences_may_grow_to(tmp_path: Path) -> None:
    tokens = 1000
    with limited(tmp_path, max_state_bytes=100_000) as wire:
        batch = wire.open(creation(Sequence(sequence_id="s", max_new_tokens=tokens)))
        failure = refusal(wire, creation(Sequence(sequence_id="s", max_new_tokens=2 * tokens)))
        assert failure.reason == "TOO_MUCH_STATE"
        assert failure.metadata["limit"] == "max_state_bytes"
        assert int(failure.metadata["got"]) > int(failure.metadata["most"]) == 100_000
        assert failure.retry_seconds == 1
        batch.accumulate(*range(6), *[5] * (tokens - 6), splits=(0, tokens))
        wire.call("DeleteBatch", service_pb2.DeleteBatchRequest(batch_id=batch.batch_id))
        wire.open(creation(Sequence(sequence_id="s", max_new_tokens=2 * tokens)))


@pytest.mark.parametrize(
    "sequence",
    [
        Sequence(sequence_id="s", max_new_tokens=131_072),
        Sequence(sequence_id="s", max_new_tokens=1, prompt_token_ids=ints(0) * 100_000),
        Sequence(sequence_id="s", max_new_tokens=2048, beam=BeamParameters(width=3)),
        Sequence(sequence_id="s", max_new_tokens=2048, beam=BeamParameters(width=256)),
    ],
    ids=["output", "prompt", "beams", "many beams"],
)
def test_each_kind_of_state_is_reserved(tmp_path: Path, sequence: Sequence) -> None:
    with limited(tmp_path, max_state_bytes=1 << 20) as wire:
        assert refusal(wire, creation(sequence)).reason == "TOO_MUCH_STATE"
        wire.open(creation(Sequence(sequence_id="s", max_new_tokens=2048, eos_token_ids=[0] * 1024)))


def test_stop_ids_are_state_too(tmp_path: Path) -> None:
    stops = [Sequence(sequence_id=str(n), max_new_tokens=1, stop_token_ids=[0] * 1024) for n in range(256)]
    with limited(tmp_path, max_state_bytes=8 << 20) as wire:
        assert refusal(wire, creation(*stops)).reason == "TOO_MUCH_STATE"
        for sequence in stops:
            sequence.ClearField("stop_token_ids")
        wire.open(creation(*stops))


def test_message_limit_follows_from_rows_and_vocabulary(tmp_path: Path) -> None:
    rows, columns = 2, 50_000
    with limited(tmp_path, max_rows_per_batch=rows, max_vocab_size=columns) as wire:
        most = rows * columns * 4 + (1 << 20)
        limits = wire.call("GetCapabilities", service_pb2.GetCapabilitiesRequest()).limits
        assert limits.max_message_bytes == most
        batch = wire.open(creation(Sequence(sequence_id="a"), Sequence(sequence_id="b"), vocab_size=columns))
        batch.apply(torch.zeros(rows, columns))
        before = batch.describe()
        fits, over = filled(most), filled(most + 1)
        assert raw_code(lambda request: wire.stub.GetBatch(request, timeout=TIMEOUT), fits).name == "INVALID_ARGUMENT"
        assert raw_code(lambda request: wire.stub.GetBatch(request, timeout=TIMEOUT), over).name == "RESOURCE_EXHAUSTED"
        assert batch.describe() == before
        batch.apply(torch.zeros(rows, columns))


def filled(num_bytes: int) -> service_pb2.GetBatchRequest:
    """A message of this size."""
    request = service_pb2.GetBatchRequest(batch_id="x" * (num_bytes - 5))
    request.batch_id += "x" * (num_bytes - request.ByteSize())
    assert request.ByteSize() == num_bytes
    return request


def test_message_over_the_limit_ends_a_stream_and_changes_nothing(tmp_path: Path) -> None:
    with limited(tmp_path, max_rows_per_batch=1, max_vocab_size=8) as wire:
        batch = wire.open(creation(Sequence(sequence_id="s")))
        before = batch.describe()
        request = service_pb2.ApplyRequest(target=batch.target(), tokens=token_update(1))
        request.logits.CopyFrom(tensor(torch.zeros(1, 1 << 19)))
        code = raw_code(lambda message: list(wire.stub.Apply(iter([message]), timeout=TIMEOUT)), request)
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert batch.describe() == before
        assert batch.apply(torch.zeros(1, 6), 1).shape == (1, 6)


def test_reply_over_the_callers_limit_was_committed_and_is_recognised_when_repeated(wire: Wire) -> None:
    narrow = Wire(wire.address, max_reply_bytes=64)
    with wire.opened(penalty_creation()) as batch:
        request = service_pb2.ApplyRequest(target=batch.target(), tokens=token_update(1, 1))
        request.logits.CopyFrom(tensor(PENALTY_LOGITS))
        code = raw_code(lambda message: list(narrow.stub.Apply(iter([message]), timeout=TIMEOUT)), request)
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert batch.outputs() == [[2, 2, 3, 1], [1]]
        reply = wire.call("Apply", request)
        assert batch.outputs() == [[2, 2, 3, 1], [1]]
        batch.revision = reply.revision
        assert torch.equal(batch.apply(PENALTY_LOGITS), read_tensor(reply.dense.logits))
    narrow.close()


def test_a_reply_that_is_too_large_changes_nothing(tmp_path: Path) -> None:
    # 8 bytes an entry of a sparse reply, 4 bytes a column of what may be sent: all ids of all rows are too many.
    rows, columns = 16, 32_768
    with limited(tmp_path, max_vocab_size=columns, max_rows_per_batch=rows) as wire:
        every_id = np.arange(columns, dtype=np.int32).tobytes()
        asked = PenaltyParameters(repetition_penalty=1.5)
        sequences = [Sequence(sequence_id=str(n), prompt_token_ids=every_id, penalties=asked) for n in range(rows)]
        with wire.opened(creation(*sequences, vocab_size=columns, profile=types_pb2.PENALTY_PROFILE_HF)) as batch:
            tokens = token_update(*range(rows))
            edits = service_pb2.ApplyRequest(target=batch.target(), tokens=tokens, form=types_pb2.APPLY_FORM_EDITS)
            with pytest.raises(Failed) as caught:
                wire.call("Apply", edits)
            assert caught.value.failure.reason == "REPLY_TOO_LARGE"
            assert batch.outputs() == [[]] * rows
            edits.row_count = rows // 4
            assert wire.call("Apply", edits).revision == 1
