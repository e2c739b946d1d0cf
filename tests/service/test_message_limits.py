"""gRPC refuses messages above 4 MiB unless told otherwise. No caller has to; and a refusal never leaves half a step."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
import torch

from helpers.live_server import LiveServer, serving
from helpers.right_requests import BEAM_LOGITS, beam_creation, follow
from helpers.tensors import assert_same_bits
from helpers.wire import (
    TIMEOUT,
    Failed,
    Failure,
    OpenBatch,
    Wire,
    creation,
    ints,
    read_doubles,
    read_ints,
    read_tensor,
    tensor,
    token_update,
)
from logitd import client as python
from logitd.service.config import ServerConfig
from logitd.v1 import service_pb2, types_pb2
from logitd.v1.types_pb2 import BeamParameters, BeamSearchState, LiveBeam, PenaltyParameters, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.message import Message

DEFAULT_LIMIT = 4 << 20
VOCAB_SIZE = 131_072
# Of the public reports: a vocabulary, a type, and the rows whose logits just fit.
FULL_CHUNKS = [
    (32_000, torch.float32, 32),
    (32_000, torch.float16, 65),
    (128_256, torch.float32, 8),
    (128_256, torch.bfloat16, 16),
    (151_936, torch.float32, 6),
    (151_936, torch.bfloat16, 13),
]
# As the client sets its limit by itself, and left at gRPC's own: a patch may have twice the bytes of its logits.
CLIENT_OPTIONS = [{}, {"max_message_bytes": DEFAULT_LIMIT}]
CLIENTS = [python.Client, python.AsyncClient]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    path = str(tmp_path_factory.mktemp("server") / "socket")
    with serving(ServerConfig(listen="", unix_socket=path, linger_seconds=0)) as live:
        yield live


@pytest.fixture(scope="module")
def wide(live: LiveServer) -> Iterator[Wire]:
    """A caller that takes replies of any size."""
    wire = Wire(live.address)
    yield wire
    wire.close()


@pytest.fixture(scope="module")
def plain(live: LiveServer) -> Iterator[Wire]:
    """A caller with gRPC's own limits."""
    wire = Wire(live.address, max_reply_bytes=DEFAULT_LIMIT)
    yield wire
    wire.close()


def normal(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).to(dtype)


async def settled(value: Any) -> Any:
    """What a call gives, of whichever client."""
    return await value if inspect.isawaitable(value) else value


def use(live: LiveServer, make: type, options: dict[str, int], scenario: Any) -> None:
    """Run a scenario with a client; one for asyncio lives in the server's loop, for gRPC wants no second one."""

    async def run() -> None:
        client = make(live.address, **options)
        try:
            await scenario(client)
        finally:
            await settled(client.close())

    if make is python.AsyncClient:
        live.run(run())
    else:
        asyncio.run(run())


@pytest.mark.parametrize("options", CLIENT_OPTIONS, ids=["client's limits", "gRPC's limits"])
@pytest.mark.parametrize("make", CLIENTS)
def test_forms_of_the_client_need_no_raised_limit(live: LiveServer, make: type, options: dict[str, int]) -> None:
    """Every id is touched, so that logits, patch and edits are larger than a message may be."""
    rows, every_id = 10, np.arange(VOCAB_SIZE)
    sequences = [python.Sequence(every_id, python.Penalties(1.5, presence_penalty=0.25)) for _ in range(rows)]
    logits = normal(rows, VOCAB_SIZE).numpy()

    async def scenario(client: Any) -> None:
        batch = await settled(client.create_batch(sequences, vocab_size=VOCAB_SIZE, profile="HF"))
        dense = await settled(batch.apply(logits, range(rows)))
        for changes in (await settled(batch.apply_sparse(logits)), await settled(batch.edits())):
            assert len(changes.token_ids) == logits.size
            changed = logits.copy()
            changes.apply_to_inplace(changed)
            assert changed.tobytes() == dense.tobytes()
        assert batch.revision == 1
        await settled(batch.delete())

    use(live, make, options, scenario)


@pytest.mark.parametrize("options", CLIENT_OPTIONS, ids=["client's limits", "gRPC's limits"])
@pytest.mark.parametrize("make", CLIENTS)
def test_beams_of_the_client_need_no_raised_limit(
    live: LiveServer, wide: Wire, make: type, options: dict[str, int]
) -> None:
    names = [f"search {number}" for number in range(9)]
    steps = [normal(len(names), VOCAB_SIZE), normal(2 * len(names), VOCAB_SIZE)]
    whole = [Sequence(sequence_id=name, beam=BeamParameters(width=2), max_new_tokens=4) for name in names]
    with wide.opened(creation(*whole, vocab_size=VOCAB_SIZE)) as one_message:
        expected = [one_message.beam_step(logits) for logits in steps]

    async def scenario(client: Any) -> None:
        searches = [python.Sequence(beam=python.Beam(2), max_new_tokens=4) for _ in names]
        batch = await settled(client.create_beam_batch(searches, vocab_size=VOCAB_SIZE))
        for logits, reply in zip(steps, expected, strict=True):
            step = await settled(batch.beam_step(logits.numpy()))
            assert step.parent_rows.tolist() == read_ints(reply.parent_rows)
            assert step.token_ids.tolist() == read_ints(reply.token_ids)
            assert step.scores.tolist() == read_doubles(reply.scores)
        await settled(batch.delete())

    use(live, make, options, scenario)


def refused(wire: Wire, method: str, *requests: Message) -> str:
    """What gRPC itself says when a message is too large for the side that receives it: there are no details."""
    with pytest.raises(grpc.RpcError) as caught:
        list(getattr(wire.stub, method)(iter(requests), timeout=TIMEOUT))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    return str(caught.value.details())


def refusal(wire: Wire, method: str, request: Message) -> Failure:
    with pytest.raises(Failed) as caught:
        wire.call(method, request)
    return caught.value.failure


def every_id_seen(rows: int, vocab_size: int) -> service_pb2.CreateBatchRequest:
    """Sequences with the whole vocabulary in their prompt, and a penalty for it."""
    prompt, asked = np.arange(vocab_size, dtype=np.int32).tobytes(), PenaltyParameters(repetition_penalty=1.5)
    sequences = [Sequence(sequence_id=str(row), prompt_token_ids=prompt, penalties=asked) for row in range(rows)]
    return creation(*sequences, vocab_size=vocab_size, profile=types_pb2.PENALTY_PROFILE_HF)


@pytest.mark.parametrize(("vocab_size", "dtype", "rows"), FULL_CHUNKS, ids=str)
def test_a_caller_with_grpcs_limits_works_in_chunks(
    plain: Wire, vocab_size: int, dtype: torch.dtype, rows: int
) -> None:
    """With a row more than fits the reply cannot be read; the step is done, and recognised when it comes in chunks."""
    asked = PenaltyParameters(presence_penalty=0.5)
    sequences = [Sequence(sequence_id=str(row), penalties=asked) for row in range(rows + 1)]
    logits = normal(rows + 1, vocab_size, dtype)
    expected = logits.clone()
    expected[:, 3] = (logits[:, 3].float() - 0.5).to(dtype)
    with plain.opened(creation(*sequences, vocab_size=vocab_size)) as batch:
        first = service_pb2.ApplyRequest(target=batch.target(), tokens=token_update(*[3] * (rows + 1)))
        first.logits.CopyFrom(tensor(logits))
        said = refused(plain, "Apply", first)
        assert "CLIENT: Received message larger than max" in said
        assert f"vs. {DEFAULT_LIMIT}" in said
        assert batch.outputs() == [[3]] * (rows + 1)
        first.logits.CopyFrom(tensor(logits[:rows]))
        batch.revision = 1
        last = service_pb2.ApplyRequest(target=batch.target(), first_row=rows, logits=tensor(logits[rows:]))
        replies = plain.stream("Apply", [first, last])
        assert batch.outputs() == [[3]] * (rows + 1)
    assert_same_bits(torch.cat([read_tensor(reply.dense.logits) for reply in replies]), expected)


@pytest.mark.parametrize("form", ["sparse", "edits"])
def test_patches_and_edits_of_fewer_rows_fit_grpcs_limits(plain: Wire, form: str) -> None:
    """An entry takes 8 or 9 bytes, so that where every id is touched they are larger than the logits."""
    rows = 4
    number = types_pb2.ApplyForm.Value(f"APPLY_FORM_{form.upper()}")
    logits = normal(rows, VOCAB_SIZE)

    def ask(batch: OpenBatch, first_row: int, count: int) -> service_pb2.ApplyRequest:
        request = service_pb2.ApplyRequest(target=batch.target(), form=number, first_row=first_row)
        if form == "sparse":
            request.logits.CopyFrom(tensor(logits[first_row : first_row + count]))
        else:
            request.row_count = count
        return request

    with plain.opened(every_id_seen(rows, VOCAB_SIZE)) as batch:
        assert "CLIENT: Received message larger than max" in refused(plain, "Apply", ask(batch, 0, rows))
        replies = plain.stream("Apply", [ask(batch, row, 1) for row in range(rows)])
        assert [len(getattr(reply, form).token_ids) for reply in replies] == [4 * VOCAB_SIZE] * rows


def test_beams_beyond_the_callers_limit_are_committed_and_kept(wide: Wire, live: LiveServer) -> None:
    """The reply waits for a caller that takes it, and the batch goes on from there."""
    narrow = Wire(live.address, max_reply_bytes=256)
    with wide.opened(beam_creation()) as batch, wide.opened(beam_creation()) as twin:
        request = service_pb2.BeamStepRequest(target=batch.target(), logits=tensor(BEAM_LOGITS.repeat(2, 1)))
        assert "vs. 256" in refused(narrow, "BeamStep", request)
        assert batch.describe().revision == 1
        reply = wide.call("BeamStep", request)
        assert reply == twin.beam_step(BEAM_LOGITS.repeat(2, 1))
        batch.revision = reply.revision
        assert follow(batch) == follow(twin)
    narrow.close()


@contextmanager
def limited(path: Path, **limits: Any) -> Iterator[Wire]:
    """A caller of a server of its own, whose message limit follows from these limits."""
    with serving(ServerConfig(listen="", unix_socket=str(path / "socket"), linger_seconds=0, **limits)) as live:
        wire = Wire(live.address)
        yield wire
        wire.close()


def assert_names_the_limit(wire: Wire, failure: Failure) -> None:
    most = wire.limits().max_message_bytes
    assert (failure.code, failure.reason) == ("RESOURCE_EXHAUSTED", "REPLY_TOO_LARGE")
    assert f"max_message_bytes, {most}, got " in failure.message
    assert int(failure.metadata["got"]) > int(failure.metadata["most"]) == most


def test_a_patch_beyond_the_servers_limit_is_refused_before_its_tokens_count(tmp_path: Path) -> None:
    rows, columns = 16, 32_768
    creating = every_id_seen(rows, columns)
    with limited(tmp_path, max_rows_per_batch=rows, max_vocab_size=columns) as wire, wire.opened(creating) as batch:
        request = service_pb2.ApplyRequest(target=batch.target(), form=types_pb2.APPLY_FORM_SPARSE)
        request.tokens.CopyFrom(token_update(*range(rows)))
        logits = normal(rows, columns)
        request.logits.CopyFrom(tensor(logits))
        before = batch.describe()
        assert_names_the_limit(wire, refusal(wire, "Apply", request))
        assert batch.describe() == before
        request.logits.CopyFrom(tensor(logits[:4]))
        assert wire.call("Apply", request).revision == 1


def test_hypotheses_beyond_the_servers_limit_are_refused_and_their_search_goes_on(tmp_path: Path) -> None:
    """They come twice, as those that entered the pool and as the best: a mebibyte holds the beams and not the reply."""
    length = 50_000
    array = bytes(4 * length)
    beams = [LiveBeam(token_ids=array, parent_chain=array, score=-n, log_prob_sum=-n) for n in (1, 2)]
    search = Sequence(sequence_id="a", max_new_tokens=length + 9, beam=BeamParameters(width=2))
    search.beams.CopyFrom(BeamSearchState(live_beams=beams))
    with limited(tmp_path, max_rows_per_batch=2, max_vocab_size=6) as wire, wire.opened(creation(search)) as batch:
        before = batch.describe()
        finishing = service_pb2.BeamStepRequest(target=batch.target(), finish_sequence_ids=["a"])
        assert_names_the_limit(wire, refusal(wire, "BeamStep", finishing))
        assert batch.describe() == before
        assert batch.beam_step(BEAM_LOGITS.repeat(2, 1)).revision == 1


def test_a_history_beyond_the_servers_limit_can_be_described_without_it(tmp_path: Path) -> None:
    with limited(tmp_path, max_rows_per_batch=8, max_vocab_size=6) as wire:
        names = [str(row) for row in range(8)]
        sequences = [Sequence(sequence_id=name, max_new_tokens=40_000) for name in names]
        with wire.opened(creation(*sequences)) as batch:
            for _ in range(2):
                half = bytes(4 * 20_000 * len(names))
                splits = ints(*range(0, 20_000 * len(names) + 1, 20_000))
                tokens = service_pb2.TokenUpdate(token_ids=half, row_splits=splits)
                request = service_pb2.AccumulateRequest(target=batch.target(), tokens=tokens)
                batch.revision = wire.call("Accumulate", request).revision
            asking = service_pb2.GetBatchRequest(batch_id=batch.batch_id, view=types_pb2.BATCH_VIEW_FULL)
            assert_names_the_limit(wire, refusal(wire, "GetBatch", asking))
            asking.view = types_pb2.BATCH_VIEW_BASIC
            assert [row.sequence_id for row in wire.call("GetBatch", asking).batch.rows] == names


def test_a_chunk_beyond_the_servers_limit_drops_the_beams_before_it(tmp_path: Path) -> None:
    with limited(tmp_path, max_rows_per_batch=5, max_vocab_size=6) as wire, wire.opened(beam_creation()) as batch:
        before, most = batch.describe(), wire.limits().max_message_bytes
        chunk = service_pb2.BeamStepRequest(target=batch.target(), logits=tensor(BEAM_LOGITS), has_more_chunks=True)
        conversation = wire.converse("BeamStep")
        assert conversation.ask(chunk).is_chunk_acknowledgement
        last = service_pb2.BeamStepRequest(target=chunk.target, first_row=1, logits=tensor(torch.zeros(1, most // 4)))
        conversation.send(last)
        with pytest.raises(grpc.RpcError) as caught:
            next(conversation.call)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"SERVER: Received message larger than max ({last.ByteSize()} vs. {most})" in str(caught.value.details())
        assert batch.describe() == before
        last.logits.CopyFrom(tensor(BEAM_LOGITS))
        acknowledgement, reply = wire.stream("BeamStep", [chunk, last])
        assert (acknowledgement.revision, reply.revision) == (0, 1)
