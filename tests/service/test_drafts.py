"""Draft positions through the running server: each is its row after its path, in every form, and none is committed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import penalty_cases as cases
from helpers.draft_steps import (
    FORMS,
    Region,
    Step,
    check_step,
    draw_step,
    expected_edits,
    merge_pieces,
    run_step,
    step_library,
)
from helpers.drafts import DraftRow, drafts_message, positions, stack_positions
from helpers.live_server import serving
from helpers.penalty_strategies import DTYPES, PROFILES, Batch, batches, draw_ids, draw_logits
from helpers.tensors import assert_same_bits
from helpers.wire import Failed, Wire, creation, ints, read_tensor, tensor, token_update
from helpers.wire_batches import creation_of, partitions, profile_number, sequence_of
from helpers.wire_updates import Update, draw_update, send_update
from logitd.sampling import PenaltyParameters, RowStart
from logitd.service.config import ServerConfig
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RELAXED = types_pb2.DRAFT_MODE_SGLANG_RELAXED
REGION_BYTES = 1 << 16

every_profile = pytest.mark.parametrize("profile", PROFILES)
every_form = pytest.mark.parametrize("form", FORMS)
bounded = settings(
    derandomize=True, deadline=None, max_examples=6, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory, directory: Path) -> Iterator[Wire]:
    path = str(tmp_path_factory.mktemp("server") / "logitd.sock")
    config = ServerConfig(listen="", unix_socket=path, linger_seconds=0, shared_memory_dir=str(directory))
    with serving(config) as live:
        wire = Wire(live.address)
        yield wire
        wire.close()


@pytest.fixture(scope="module")
def region(wire: Wire, directory: Path) -> Region:
    path = directory / "logits"
    path.write_bytes(bytes(REGION_BYTES))
    path.chmod(0o600)
    request = service_pb2.RegisterSharedMemoryRequest(file_name=path.name, byte_size=REGION_BYTES)
    return Region(path, wire.call("RegisterSharedMemory", request).region_id)


@every_form
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_profile
def test_positions_are_rows_after_their_paths(
    wire: Wire, region: Region, profile: str, dtype: torch.dtype, form: str
) -> None:
    """In pieces of any size and order, with token ids in the same message or none."""

    @bounded
    @given(st.data())
    def check(data: st.DataObject) -> None:
        drawn = data.draw(batches(profile, dtype=dtype, max_rows=3))
        with wire.opened(creation_of(drawn)) as batch:
            update = draw_update(data, batch, drawn.vocab_size) if data.draw(st.booleans()) else None
            rows, step = draw_step(data, drawn, form, update)
            state = step_library(drawn.open(), update)
            pieces = data.draw(partitions(len(step.logits)))
            check_step(wire, batch, region, step, pieces, stack_positions(state, rows))
            assert batch.outputs() == [state.output_token_ids(row).tolist() for row in range(state.num_rows)]
            assert batch.describe().revision == (update is not None)

    check()


@every_profile
def test_differences_of_positions_lead_from_their_rows_to_their_whole(wire: Wire, region: Region, profile: str) -> None:
    @settings(bounded, max_examples=20)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        drawn = data.draw(batches(profile, max_rows=3))
        with wire.opened(creation_of(drawn)) as batch:
            base = expected_edits(drawn.open())
            earlier = draw_update(data, batch, drawn.vocab_size)
            send_update(batch, earlier)
            update = draw_update(data, batch, drawn.vocab_size)
            rows, step = draw_step(data, drawn, "EDITS", update)
            plain = stack_positions(step_library(step_library(drawn.open(), earlier), update), rows)
            pieces = data.draw(partitions(len(step.logits)))
            requests = list(step.requests(batch, region, pieces))
            for request in requests:
                request.edits_since_revision = 0
            replies = wire.stream("Apply", requests)
            assert not any(reply.edits.is_full for reply in replies)
            known = {
                (position, token_id): edit
                for position, (row, _) in enumerate(positions(rows))
                for (of_row, token_id), edit in base.items()
                if of_row == row
            }
            assert merge_pieces(known, replies) == expected_edits(plain)

    check()


@every_profile
def test_accepting_token_by_token_gives_the_rows_of_one_step_with_drafts(wire: Wire, profile: str) -> None:
    """Both through the server: ragged chains, and plain steps of which each row takes as many as it has drafts."""

    @settings(bounded, max_examples=15)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        drawn = data.draw(batches(profile, max_rows=3))
        pool = (0, drawn.vocab_size // 2, drawn.vocab_size - 1)
        chains = [draw_ids(data.draw, pool, st.binary(max_size=4)) for _ in drawn.rows]
        starts = np.cumsum([0, *(1 + len(chain) for chain in chains)]).tolist()
        logits = draw_logits(data.draw, starts[-1], drawn.logits.shape[1], drawn.logits.dtype, pool)
        with wire.opened(creation_of(drawn)) as batch:
            request = service_pb2.ApplyRequest(target=batch.target(request_id=b""), logits=tensor(logits))
            request.drafts.CopyFrom(drafts_message([DraftRow(chain) for chain in chains]))
            drafted = read_tensor(wire.call("Apply", request).dense.logits)
            for depth in range(1 + max(map(len, chains))):
                going = [row for row, chain in enumerate(chains) if depth <= len(chain)]
                places = [starts[row] + min(depth, len(chain)) for row, chain in enumerate(chains)]
                taken = [chain[depth - 1 : depth] if depth else () for chain in chains]
                splits = np.cumsum([0, *map(len, taken)]).tolist()
                flat = [token_id for tokens in taken for token_id in tokens]
                plain = batch.apply(logits[places], *flat, splits=tuple(splits))
                assert_same_bits(drafted[places][going], plain[going])

    check()


@pytest.mark.parametrize("profile", ["SGLANG", "SGLANG_FUSED"])
@every_form
def test_relaxed_drafts_see_the_committed_tokens_alone(wire: Wire, region: Region, profile: str, form: str) -> None:
    @settings(bounded, max_examples=12)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        # The ranges of both profiles are the same.
        drawn = data.draw(batches("SGLANG_FUSED", max_rows=3))
        with wire.opened(creation_of(replace(drawn, profile=profile))) as batch:
            update = draw_update(data, batch, drawn.vocab_size)
            rows, step = draw_step(data, drawn, form, update)
            step.drafts.mode = RELAXED
            committed = step_library(drawn.open(), update)
            repeated = committed.filter([row for row, _ in positions(rows)])
            check_step(wire, batch, region, step, data.draw(partitions(len(step.logits))), repeated)

    check()


@pytest.mark.parametrize("profile", ["VLLM", "HF"])
@every_form
def test_relaxed_drafts_are_sglangs(wire: Wire, region: Region, profile: str, form: str) -> None:
    with wire.opened(creation_of(Batch(profile, 6, (RowStart(),), torch.zeros(1, 6)))) as batch:
        before = batch.describe()
        step = Step(form, torch.zeros(2, 6), drafts_message([DraftRow((1,))]), Update([0], [[1]]))
        step.drafts.mode = RELAXED
        requests = list(step.requests(batch, region, [(0, 2)]))
        with pytest.raises(Failed) as caught:
            wire.stream("Apply", requests)
        assert (caught.value.failure.code, caught.value.failure.field) == ("INVALID_ARGUMENT", "drafts.mode")
        assert "must be EXACT but in the profiles SGLANG and SGLANG_FUSED" in caught.value.failure.message
        assert batch.describe() == before


# The step of the public reports on penalties under speculation, in `penalty_cases` token by token.
VERIFIED, NEXT = cases.DRAFTS[:-1], cases.DRAFTS[-1]
DRAFT_IDS = tuple(token_id for step in VERIFIED for token_id in step.tokens)
RELAXED_ROWS = ((1.0, 2.0, 1.625, 0.5, 3.0, -1.0), (1.0, 2.0, 1.625, 0.5, 3.0, -1.0)) + (
    (2.0, 1.0, 1.375, 0.0, 4.0, -2.0),
) * 2


def open_reported(wire: Wire, profile: str) -> Any:
    parameters = PenaltyParameters(**cases.DRAFTS_ROW.parameters)
    sequence = sequence_of("s", RowStart(parameters, (), cases.DRAFTS_ROW.output))
    return wire.opened(creation(sequence, vocab_size=6, profile=profile_number(profile)))


@every_profile
def test_the_reported_step(wire: Wire, profile: str) -> None:
    """Two of three drafts are accepted and a token recovered: all three count, and the rejected one does not."""
    logits = torch.tensor([step.logits for step in VERIFIED])
    with open_reported(wire, profile) as batch:
        request = service_pb2.ApplyRequest(target=batch.target(request_id=b""), logits=tensor(logits))
        request.drafts.CopyFrom(drafts_message([DraftRow(DRAFT_IDS)]))
        verified = read_tensor(wire.call("Apply", request).dense.logits)
        after = batch.apply(torch.tensor([NEXT.logits]), *DRAFT_IDS[:2], *NEXT.tokens, splits=(0, 3))
        assert batch.outputs() == [[2, 2, 4, 1]]
        if profile in NEXT.expected:
            assert verified.tolist() == [list(step.expected[profile]) for step in VERIFIED]
            assert verified.argmax(1).tolist() == [4, 4, 0, 0]
            assert after.tolist() == [list(NEXT.expected[profile])]


@pytest.mark.parametrize("profile", ["SGLANG", "SGLANG_FUSED"])
def test_the_reported_step_relaxed(wire: Wire, profile: str) -> None:
    logits = torch.tensor([step.logits for step in VERIFIED])
    with open_reported(wire, profile) as batch:
        request = service_pb2.ApplyRequest(target=batch.target(request_id=b""), logits=tensor(logits))
        request.drafts.CopyFrom(drafts_message([DraftRow(DRAFT_IDS)]))
        request.drafts.mode = RELAXED
        assert read_tensor(wire.call("Apply", request).dense.logits).tolist() == [list(row) for row in RELAXED_ROWS]


@every_form
def test_a_retry_of_a_step_with_drafts_counts_its_tokens_once(wire: Wire, region: Region, form: str) -> None:
    asked = PenaltyParameters(1.5, 0.5, 0.25, 4, (5,))
    drawn = Batch("SGLANG", 6, (RowStart(asked, (), (1,)), RowStart(asked)), torch.zeros(2, 6))
    step = Step(form, torch.ones(5, 6), drafts_message([DraftRow((2, 2)), DraftRow((5,))]), Update([1, 0], [[], [3]]))
    with wire.opened(creation_of(drawn)) as batch:
        requests = list(step.requests(batch, region, [(0, 3), (3, 2)]))
        results = []
        for _ in range(3):
            step.fill(region)
            replies = wire.stream("Apply", requests)
            results.append([reply.SerializeToString() for reply in replies])
            if form == "IN_PLACE":
                results[-1].append(region.path.read_bytes())
            assert batch.outputs() == [[], [3]]
        assert results[0] == results[1] == results[2]
        assert batch.describe().revision == 1


@every_form
def test_nothing_is_committed_by_drafts(wire: Wire, region: Region, form: str) -> None:
    asked = PenaltyParameters(1.5, 0.5, 0.25, 4, (5,))
    drawn = Batch("SGLANG", 6, (RowStart(asked, (), (1,)), RowStart(asked)), torch.ones(2, 6))
    with wire.opened(creation_of(drawn)) as batch:
        before, plain = batch.describe(), batch.apply(drawn.logits)
        drafts = drafts_message([DraftRow((2, 5, 2), (-1, 0, -1)), DraftRow((1,), (-1,))])
        run_step(wire, batch, region, Step(form, torch.ones(6, 6), drafts), [(0, 2), (2, 4)])
        assert batch.describe() == before
        assert_same_bits(batch.apply(drawn.logits), plain)


def test_a_row_without_splits_has_one_draft(wire: Wire) -> None:
    asked = types_pb2.PenaltyParameters(presence_penalty=1.0)
    with wire.opened(creation(*(types_pb2.Sequence(sequence_id=name, penalties=asked) for name in "ab"))) as batch:
        request = service_pb2.ApplyRequest(target=batch.target(request_id=b""), logits=tensor(torch.zeros(4, 6)))
        request.drafts.token_ids = ints(1, 2)
        processed = read_tensor(wire.call("Apply", request).dense.logits)
        assert processed.nonzero().tolist() == [[1, 1], [3, 2]]


def test_eos_among_drafts_stays_banned_until_their_path_is_long_enough(wire: Wire) -> None:
    asked = types_pb2.PenaltyParameters(min_new_tokens=3)
    sequence = types_pb2.Sequence(sequence_id="s", penalties=asked, eos_token_ids=[5], output_token_ids=ints(1))
    drafts = drafts_message([DraftRow((5, 5, 2, 5, 0), (-1, 0, -1, 2, 3))])
    with wire.opened(creation(sequence)) as batch:
        request = service_pb2.ApplyRequest(target=batch.target(request_id=b""), logits=tensor(torch.zeros(6, 6)))
        request.drafts.CopyFrom(drafts)
        processed = read_tensor(wire.call("Apply", request).dense.logits)
        assert processed.isneginf().nonzero().tolist() == [[position, 5] for position in (0, 1, 3)]


@pytest.mark.parametrize("form", ["SPARSE", "EDITS"])
def test_a_reply_that_would_be_too_large_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """A message of 2 KiB asks for the 16384 entries of its row 501 times, one of 2 MiB 60 times."""
    made: list[str] = []
    monkeypatch.setattr("logitd.sampling.draft_state.DraftState._gather", lambda *args: made.append("gathered"))
    columns, drafts = 16_384, DraftRow((1,) * 500)
    config = ServerConfig(
        listen="", unix_socket=str(tmp_path / "s"), linger_seconds=0, max_rows_per_batch=16, max_vocab_size=columns
    )
    sequence = sequence_of("s", RowStart(PenaltyParameters(1.5), (), range(columns)))
    sequence.max_new_tokens = 2 * columns
    with serving(config) as live:
        wire = Wire(live.address)
        with wire.opened(creation(sequence, vocab_size=columns)) as batch:
            before = batch.describe()
            request = service_pb2.ApplyRequest(
                target=batch.target(), tokens=token_update(1), drafts=drafts_message([drafts])
            )
            ask_for(request, form, columns)
            with pytest.raises(Failed) as caught:
                wire.call("Apply", request)
            assert (caught.value.failure.code, caught.value.failure.reason) == ("RESOURCE_EXHAUSTED", "REPLY_TOO_LARGE")
            assert batch.describe() == before
            assert made == []
        wire.close()


def ask_for(request: service_pb2.ApplyRequest, form: str, columns: int) -> None:
    """As many positions as a message of the form has room for."""
    request.form = types_pb2.ApplyForm.Value(f"APPLY_FORM_{form}")
    if form == "SPARSE":
        request.logits.CopyFrom(tensor(torch.zeros(60, columns, dtype=torch.bfloat16)))
