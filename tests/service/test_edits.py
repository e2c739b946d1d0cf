"""Edits, whole and since a revision: applied elsewhere they give the bits of a dense reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import edit_reference
from helpers.penalty_strategies import PROFILES, batches
from helpers.tensors import assert_same_numbers
from helpers.wire import Failed, creation, ints, read_ints, token_update
from helpers.wire_batches import creation_of
from helpers.wire_updates import draw_update, send_update
from logitd.service import penalty_batch
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from helpers.wire import OpenBatch, Wire

quick = settings(
    derandomize=True, deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)


def ask(batch: OpenBatch, **fields: object) -> service_pb2.Edits:
    request = service_pb2.ApplyRequest(target=batch.target(), form=types_pb2.APPLY_FORM_EDITS, **fields)
    reply = batch.wire.call("Apply", request)
    batch.revision = reply.revision
    return reply.edits


@pytest.mark.parametrize("profile", PROFILES)
def test_edits_since_any_revision_lead_to_the_bits_of_dense(wire: Wire, profile: str) -> None:
    @quick
    @given(st.data())
    def check(data: st.DataObject) -> None:
        drawn = data.draw(batches(profile))
        with wire.opened(creation_of(drawn)) as batch:
            known = [edit_reference.merge({}, ask(batch))]
            for _ in range(2):
                send_update(batch, draw_update(data, batch, drawn.vocab_size))
                now = edit_reference.merge({}, ask(batch))
                for revision, table in enumerate(known):
                    changes = ask(batch, edits_since_revision=revision)
                    assert not changes.is_full
                    assert edit_reference.merge(table, changes) == now
                known.append(now)
                expected = batch.apply(drawn.logits)
                assert_same_numbers(edit_reference.apply(now, drawn.logits, profile), expected)

    check()


def test_edits_may_bring_token_ids_along(wire: Wire) -> None:
    penalties = types_pb2.PenaltyParameters(frequency_penalty=0.5)
    with wire.opened(creation_single(penalties)) as batch:
        changes = ask(batch, tokens=token_update(3), edits_since_revision=0)
        assert (batch.revision, changes.is_full, read_ints(changes.token_ids)) == (1, False, [3])
        assert ask(batch, edits_since_revision=1).token_ids == b""


def test_a_ban_that_is_lifted_is_told_as_no_edit(wire: Wire) -> None:
    penalties = types_pb2.PenaltyParameters(min_new_tokens=1)
    with wire.opened(creation_single(penalties, eos_token_ids=[5])) as batch:
        before = ask(batch)
        assert (read_ints(before.token_ids), before.flags) == ([5], bytes([edit_reference.BANNED]))
        changes = ask(batch, tokens=token_update(0), edits_since_revision=0)
        assert (read_ints(changes.token_ids), changes.flags) == ([5], b"\0")


def test_a_base_before_a_filter_is_answered_in_full(wire: Wire) -> None:
    with wire.opened(creation_single(types_pb2.PenaltyParameters(presence_penalty=1.0))) as batch:
        batch.accumulate(1)
        request = service_pb2.FilterBatchRequest(
            target=batch.target(), sequences=[service_pb2.SequenceSelection(sequence_id="a")]
        )
        batch.revision = wire.call("FilterBatch", request).revision
        assert ask(batch, edits_since_revision=1).is_full
        assert not ask(batch, edits_since_revision=2).is_full


def test_changes_are_remembered_for_a_while_only(wire: Wire) -> None:
    with wire.opened(creation_single(types_pb2.PenaltyParameters(presence_penalty=1.0))) as batch:
        for _ in range(65):
            batch.accumulate(1)
        assert ask(batch, edits_since_revision=0).is_full
        assert not ask(batch, edits_since_revision=1).is_full


def test_large_changes_are_forgotten_sooner(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penalty_batch, "_MAX_CHANGED_KEYS", 3)
    with wire.opened(creation_single(types_pb2.PenaltyParameters(presence_penalty=1.0))) as batch:
        batch.accumulate(1, 2, splits=(0, 2))
        batch.accumulate(3, 4, splits=(0, 2))
        assert ask(batch, edits_since_revision=0).is_full
        assert not ask(batch, edits_since_revision=1).is_full


@pytest.mark.parametrize("base", [-1, 7])
def test_an_unknown_base_is_answered_in_full(wire: Wire, base: int) -> None:
    with wire.opened(creation_single(types_pb2.PenaltyParameters(presence_penalty=1.0))) as batch:
        assert ask(batch, edits_since_revision=base).is_full


def test_rows_may_be_asked_for_a_few_at_a_time(wire: Wire) -> None:
    @quick
    @given(batches(max_rows=4))
    def check(drawn: object) -> None:
        with wire.opened(creation_of(drawn)) as batch:
            whole = ask(batch)
            splits = read_ints(whole.row_splits)
            for row in range(len(splits) - 1):
                part = ask(batch, first_row=row, row_count=1)
                assert part.token_ids == whole.token_ids[4 * splits[row] : 4 * splits[row + 1]]
                assert part.flags == whole.flags[splits[row] : splits[row + 1]]
                assert part.repetition == whole.repetition[4 * row : 4 * row + 4]

    check()


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"row_count": 0}, "row_count"),
        ({"row_count": 2}, "row_count"),
        ({"first_row": 1}, "first_row"),
        ({"first_row": -1}, "first_row"),
        ({"logits": types_pb2.Tensor(data_type=1, shape=[1, 6], data=ints(*range(6)))}, "logits"),
    ],
)
def test_wrong_fields_are_refused(wire: Wire, fields: dict[str, object], path: str) -> None:
    with wire.opened(creation_single(types_pb2.PenaltyParameters(presence_penalty=1.0))) as batch:
        with pytest.raises(Failed) as caught:
            ask(batch, tokens=token_update(1), **fields)
        assert (caught.value.failure.code, caught.value.failure.field) == ("INVALID_ARGUMENT", path)
        assert batch.outputs() == [[]]


def creation_single(penalties: types_pb2.PenaltyParameters, **fields: object) -> service_pb2.CreateBatchRequest:
    return creation(types_pb2.Sequence(sequence_id="a", penalties=penalties, **fields))
