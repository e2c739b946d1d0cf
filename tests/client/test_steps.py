from __future__ import annotations

import numpy as np
import pytest

from logitd.client import ProtocolError, SparsePatch
from logitd.client import _apply_steps as apply_steps
from logitd.client._apply_steps import join_patches
from logitd.client._beam_steps import BeamSearchStep
from logitd.client._logits import InlineLogits
from logitd.client._steps import AccumulateStep, Aim, Receipt, write_tokens
from logitd.v1 import service_pb2, types_pb2

UID = bytes(range(16))
LOGITS = np.arange(20, dtype=np.float32).reshape(5, 4)
ROW = 4 * LOGITS.itemsize


def dense_step(logits, token_ids, chunk_bytes):
    return apply_steps.DenseStep(InlineLogits(logits, chunk_bytes), token_ids)


def sparse_step(logits, token_ids, chunk_bytes):
    return apply_steps.SparseStep(InlineLogits(logits, chunk_bytes), token_ids)


def beam_step(logits, finish, chunk_bytes):
    return BeamSearchStep(InlineLogits(logits, chunk_bytes), finish)


def int32(*values):
    return np.array(values, "<i4").tobytes()


def float64(*values):
    return np.array(values, "<f8").tobytes()


def aimed(step, revision=7):
    step.aim(Aim("b", UID, revision))
    return step


def token_update(token_ids, rollback):
    update = service_pb2.TokenUpdate()
    write_tokens(update, token_ids, rollback)
    return update


def apply_requests(step):
    return [service_pb2.ApplyRequest.FromString(step.message(index)) for index in range(step.num_messages)]


def dense_reply(rows, first_row=0, revision=8, **fields):
    tensor = types_pb2.Tensor(data_type="DATA_TYPE_FP32", shape=rows.shape, data=rows.tobytes())
    reply = service_pb2.ApplyResponse(revision=revision, first_row=first_row, **fields)
    reply.dense.logits.CopyFrom(tensor)
    return reply.SerializeToString()


def sparse_reply(splits, ids, values, first_row=0, revision=7, data_type="DATA_TYPE_FP32"):
    patch = service_pb2.SparsePatch(
        row_splits=int32(*splits), token_ids=int32(*ids), values=np.array(values, "<f4").tobytes(), data_type=data_type
    )
    return service_pb2.ApplyResponse(revision=revision, first_row=first_row, sparse=patch).SerializeToString()


@pytest.mark.parametrize("ids", [[3, 4], (3, 4), np.array([3, 4]), [np.int64(3), np.int32(4)]])
def test_a_flat_list_is_one_token_a_sequence(ids):
    assert token_update(ids, None) == service_pb2.TokenUpdate(token_ids=int32(3, 4))


@pytest.mark.parametrize("ids", [[[3], [], [4, 5]], ((3,), (), (4, 5)), [np.array([3]), [], np.array([4, 5])]])
def test_a_list_of_lists_is_any_number_a_sequence(ids):
    expected = service_pb2.TokenUpdate(token_ids=int32(3, 4, 5), row_splits=int32(0, 1, 1, 3))
    assert token_update(ids, None) == expected


def test_a_matrix_is_a_list_of_its_rows():
    expected = service_pb2.TokenUpdate(token_ids=int32(1, 2, 3, 4), row_splits=int32(0, 2, 4))
    assert token_update(np.array([[1, 2], [3, 4]]), None) == expected


def test_rollback_may_come_without_tokens():
    expected = service_pb2.TokenUpdate(rollback_counts=int32(1, 2), row_splits=int32(0, 0, 0))
    assert token_update([[], []], [1, 2]) == expected


@pytest.mark.parametrize("ids", [[1.5], [[1], 2], [["a"]], ["a"]])
def test_tokens_of_other_types_are_refused(ids):
    with pytest.raises(TypeError):
        token_update(ids, None)


def test_an_accumulate_names_its_batch_and_a_request_id():
    step = aimed(AccumulateStep([1, 2], None))
    request = service_pb2.AccumulateRequest.FromString(step.message(0))
    assert (request.target.batch_id, request.target.uid, request.target.expected_revision) == ("b", UID, 7)
    assert len(request.target.request_id) == 16
    assert request.tokens.token_ids == int32(1, 2)


def test_every_mutation_has_its_own_request_id_and_keeps_it():
    first, second = aimed(AccumulateStep([1], None)), aimed(AccumulateStep([1], None))
    assert first.message(0) != second.message(0)
    before = first.message(0)
    assert aimed(first, revision=9).message(0) == before


def test_an_accumulate_must_be_answered_at_the_next_revision():
    step = aimed(AccumulateStep([1], None))
    with pytest.raises(ProtocolError, match="at revision 8 was answered at revision 7"):
        step.receive(service_pb2.AccumulateResponse(revision=7).SerializeToString())
    reply = service_pb2.AccumulateResponse(revision=8, draining=True).SerializeToString()
    assert step.receive(reply) == Receipt(8, draining=True, is_commit=True)


def test_an_apply_without_tokens_is_no_mutation():
    (request,) = apply_requests(aimed(dense_step(LOGITS, None, 10**6)))
    assert request.target == service_pb2.StepTarget(batch_id="b", uid=UID, expected_revision=7)
    assert not request.HasField("tokens")
    assert request.form == types_pb2.APPLY_FORM_DENSE
    assert request.logits.shape == [5, 4]
    assert request.logits.data == LOGITS.tobytes()


def test_chunks_carry_consecutive_rows_and_the_tokens_once():
    requests = apply_requests(aimed(sparse_step(LOGITS, [1, 2, 3, 4, 5], 2 * ROW + 1)))
    assert [request.first_row for request in requests] == [0, 2, 4]
    assert b"".join(request.logits.data for request in requests) == LOGITS.tobytes()
    assert [request.HasField("tokens") for request in requests] == [True, False, False]
    assert [request.target.expected_revision for request in requests] == [7, 8, 8]
    assert [len(request.target.request_id) for request in requests] == [16, 0, 0]


@pytest.mark.parametrize("ids", [[], np.zeros(0, np.int32)])
def test_an_update_of_no_sequences_is_a_mutation_all_the_same(ids):
    (request,) = apply_requests(aimed(sparse_step(LOGITS[:0], ids, 10**6)))
    assert request.HasField("tokens")
    assert len(request.target.request_id) == 16


def test_chunks_of_an_apply_without_tokens_read_one_revision():
    requests = apply_requests(aimed(dense_step(LOGITS, None, 1)))
    assert [request.target.expected_revision for request in requests] == [7] * 5
    assert [request.first_row for request in requests] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_logits_without_items_are_one_message(shape):
    (request,) = apply_requests(aimed(dense_step(np.zeros(shape, np.float16), None, 100)))
    assert request.logits.shape == list(shape)


def test_dense_chunks_come_together_in_a_new_array():
    step = aimed(dense_step(LOGITS, [0] * 5, 3 * ROW))
    assert step.receive(dense_reply(LOGITS[:3] + 1)) == Receipt(8, draining=False, is_commit=True)
    assert step.receive(dense_reply(LOGITS[3:] + 1, first_row=3, draining=True)) == Receipt(8, draining=True)
    assert np.array_equal(step.result(), LOGITS + 1)
    assert step.result().flags.writeable


def test_the_result_of_big_endian_logits_is_of_the_machine():
    step = aimed(dense_step(LOGITS.astype(">f4"), None, 10**6))
    step.receive(dense_reply(LOGITS, revision=7))
    assert step.result().dtype == np.float32


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (dense_reply(LOGITS, revision=8), "at revision 7 was answered at revision 8"),
        (dense_reply(LOGITS, revision=7, first_row=1), "rows from 0 on were answered with rows from 1 on"),
        (dense_reply(LOGITS[1:], revision=7), r"float32 \[5, 4\] were answered with float32 \[4, 4\]"),
        (dense_reply(LOGITS.reshape(4, 5), revision=7), r"answered with float32 \[4, 5\]"),
        (dense_reply(np.zeros((5, 4), "<f4"), revision=7)[:-1], "ends within"),
        (sparse_reply([0] * 6, [], []), "another form"),
        (b"", "at revision 7 was answered at revision 0"),
    ],
)
def test_a_dense_reply_that_does_not_fit_is_refused(reply, message):
    step = aimed(dense_step(LOGITS, None, 10**6))
    with pytest.raises(ProtocolError, match=message):
        step.receive(reply)


def test_sparse_chunks_come_together_as_one_patch():
    step = aimed(sparse_step(LOGITS, None, 2 * ROW))
    step.receive(sparse_reply([0, 1, 3], [2, 0, 3], [9, 8, 7]))
    step.receive(sparse_reply([0, 0, 0], [], [], first_row=2))
    step.receive(sparse_reply([0, 1], [1], [6], first_row=4))
    patch, changed = step.result(), LOGITS.copy()
    patch.apply_to_inplace(changed)
    expected = LOGITS.copy()
    expected[0, 2], expected[1, 0], expected[1, 3], expected[4, 1] = 9, 8, 7, 6
    assert np.array_equal(changed, expected)
    assert patch.row_splits.tolist() == [0, 1, 3, 3, 3, 4]
    assert patch.row_indices.tolist() == [0, 1, 1, 4]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (sparse_reply([0, 1], [1], [1]), "no row splits of 1 entries over 5 rows"),
        (sparse_reply([], [], []), "no row splits"),
        (sparse_reply([0, 0, 0, 0, 0, 2], [1], [1]), "no row splits"),
        (sparse_reply([1, 1, 1, 1, 1, 1], [1], [1]), "no row splits"),
        (sparse_reply([0, 2, 1, 2, 2, 2], [1, 2], [1, 2]), "no row splits"),
        (sparse_reply([0, 1, 1, 1, 1, 1], [1], [1, 2]), "2 values for 1 token ids"),
        (sparse_reply([0, 1, 1, 1, 1, 1], [4], [1]), "token ids 4 to 4 for 4 columns"),
        (sparse_reply([0, 1, 1, 1, 1, 1], [-1], [1]), "token ids -1 to -1"),
        (sparse_reply([0] * 6, [], [], data_type="DATA_TYPE_FP16"), "answered with data type 2"),
        (dense_reply(LOGITS, revision=7), "another form"),
        (b"\xff", "is no ApplyResponse"),
    ],
)
def test_a_sparse_reply_that_does_not_fit_is_refused(reply, message):
    step = aimed(sparse_step(LOGITS, None, 10**6))
    with pytest.raises(ProtocolError, match=message):
        step.receive(reply)


def test_a_patch_fits_only_the_logits_it_is_for():
    patch = SparsePatch(np.array([0, 1]), np.array([0]), np.array([1], np.float32))
    with pytest.raises(ValueError, match=r"\[1, columns\], got \[2, 3\]"):
        patch.apply_to_inplace(np.zeros((2, 3), np.float32))
    with pytest.raises(TypeError, match="float32, got float16"):
        patch.apply_to_inplace(np.zeros((1, 3), np.float16))
    big_endian = np.zeros((1, 3), ">f4")
    patch.apply_to_inplace(big_endian)
    assert big_endian.tolist() == [[1, 0, 0]]


def test_one_patch_is_joined_as_it_is():
    patch = SparsePatch(np.array([0, 1]), np.array([0]), np.array([1], np.float32))
    assert join_patches([patch]) is patch


def test_a_step_that_is_kept_sends_the_same_bytes_again_though_the_logits_changed():
    logits = LOGITS.copy()
    step = aimed(dense_step(logits, [0] * 5, 2 * ROW))
    expected = [step.message(index) for index in range(3)]
    step.keep()
    logits[...] = -1
    step.rewind()
    assert [step.message(index) for index in range(3)] == expected


def test_a_rebuilt_batch_gets_the_whole_step_where_no_chunk_was_answered():
    step = aimed(dense_step(LOGITS, [0] * 5, 3 * ROW))
    before = apply_requests(step)
    step.aim_again(Aim("b", bytes(16), 0, offset=7))
    first, second = apply_requests(step)
    assert first.target == service_pb2.StepTarget(
        batch_id="b", uid=bytes(16), expected_revision=0, request_id=before[0].target.request_id
    )
    assert (first.tokens, second.target.expected_revision) == (before[0].tokens, 1)


def test_a_rebuilt_batch_that_has_the_tokens_gets_the_chunks_that_were_not_answered():
    step = aimed(dense_step(LOGITS, [0] * 5, 3 * ROW))
    step.receive(dense_reply(LOGITS[:3] + 1))
    step.aim_again(Aim("b", bytes(16), 0, offset=8))
    assert step.num_answered == 1
    request = service_pb2.ApplyRequest.FromString(step.message(1))
    assert request.target == service_pb2.StepTarget(batch_id="b", uid=bytes(16), expected_revision=0)
    assert step.receive(dense_reply(LOGITS[3:] + 1, first_row=3, revision=0)) == Receipt(0, draining=False)
    assert np.array_equal(step.result(), LOGITS + 1)


def test_answered_chunks_of_an_apply_are_not_sent_again():
    step = aimed(dense_step(LOGITS, [0] * 5, 3 * ROW))
    step.message(0)
    step.receive(dense_reply(LOGITS[:3]))
    step.rewind()
    assert step.num_answered == 1


def beam_reply(parents=(0, 0), ids=(1, 2), scores=(-1.0, -2.0), rows=2, revision=8, **fields):
    reply = service_pb2.BeamStepResponse(
        revision=revision, parent_rows=int32(*parents), token_ids=int32(*ids), scores=float64(*scores), **fields
    )
    reply.rows.add(sequence_id="0", first_row=0, row_count=rows)
    return reply.SerializeToString()


def test_the_chunks_of_a_beam_step_share_a_request_id_and_start_over_together():
    step = aimed(beam_step(LOGITS, ["x"], 2 * ROW))
    requests = [service_pb2.BeamStepRequest.FromString(step.message(index)) for index in range(3)]
    assert [request.has_more_chunks for request in requests] == [True, True, False]
    assert [list(request.finish_sequence_ids) for request in requests] == [[], [], ["x"]]
    assert [request.first_row for request in requests] == [0, 2, 4]
    assert len({request.target.SerializeToString() for request in requests}) == 1
    acknowledgement = service_pb2.BeamStepResponse(revision=7, is_chunk_acknowledgement=True).SerializeToString()
    assert step.receive(acknowledgement) == Receipt(7, draining=False)
    step.rewind()
    assert step.num_answered == 0
    assert service_pb2.BeamStepRequest.FromString(step.message(0)) == requests[0]


def test_a_beam_step_gives_the_next_beams():
    step = aimed(beam_step(LOGITS[:1], (), 10**6))
    search = service_pb2.SearchStep(
        sequence_id="0", checkpoint=b"c", log_prob_sums=float64(-1, -2), token_log_probs=float64(-1, -2)
    )
    search.entered.add(token_ids=int32(2), score=-0.5, finish_reason="FINISH_REASON_EOS", parent_chain=int32(0))
    receipt = step.receive(beam_reply(searches=[search]))
    result = step.result()
    assert receipt.rows == result.rows
    assert (result.parent_rows.tolist(), result.token_ids.tolist()) == ([0, 0], [1, 2])
    assert (result.scores.tolist(), result.is_done) == ([-1.0, -2.0], False)
    assert result.searches[0].entered[0].token_ids.tolist() == [2]
    assert result.searches[0].entered[0].finish_reason == "EOS"
    assert result.searches[0].finish_reason is None
    assert result.searches[0].token_log_probs.tolist() == [-1.0, -2.0]


def test_a_search_may_be_named_alone():
    step = aimed(beam_step(LOGITS, "mine", 10**6))
    assert service_pb2.BeamStepRequest.FromString(step.message(0)).finish_sequence_ids == ["mine"]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (beam_reply(revision=7), "at revision 8 was answered at revision 7"),
        (beam_reply(parents=[0]), "arrays of different lengths"),
        (beam_reply(scores=[0.5]), "arrays of different lengths"),
        (beam_reply(rows=3), "arrays of different lengths"),
        (beam_reply(parents=[0, 1]), "parent rows 0 to 1 of 1"),
        (beam_reply(parents=[-1, 0]), "parent rows -1 to 0 of 1"),
        (beam_reply(is_chunk_acknowledgement=True), "chunk 1 of 1 .* an acknowledgement"),
    ],
)
def test_a_beam_reply_that_does_not_fit_is_refused(reply, message):
    step = aimed(beam_step(LOGITS[:1], (), 10**6))
    with pytest.raises(ProtocolError, match=message):
        step.receive(reply)


def test_a_result_in_place_of_an_acknowledgement_is_refused():
    step = aimed(beam_step(LOGITS, (), ROW))
    with pytest.raises(ProtocolError, match=r"chunk 1 of 5 .* a result"):
        step.receive(beam_reply())
