"""The server's bytes are the library's, whatever the batch; the whole of a step is the sum of its chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.penalty_strategies import DTYPES, PROFILES, Batch, batches
from helpers.tensors import assert_same_bits
from helpers.wire import OpenBatch, Wire, patch, read_ints, read_items, read_tensor, tensor
from helpers.wire_batches import creation_of, partitions
from helpers.wire_updates import Update, draw_update, message_of
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from logitd.sampling import PenaltyOrchestrator

quick = settings(
    derandomize=True, deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
quicker = settings(quick, max_examples=8)
# Beyond 16 KiB a message's logits are not parsed but viewed.
LARGE_VOCABULARY = 5_003


def apply_request(
    batch: OpenBatch, logits: torch.Tensor, form: int, update: Update | None = None, first_row: int = 0
) -> service_pb2.ApplyRequest:
    request = service_pb2.ApplyRequest(target=batch.target(), form=form, first_row=first_row, logits=tensor(logits))
    if update is not None:
        request.tokens.CopyFrom(message_of(update))
    return request


def step_library(state: PenaltyOrchestrator, update: Update) -> PenaltyOrchestrator:
    flat = [token_id for tokens in update.tokens for token_id in tokens]
    return state.accumulate(flat, np.cumsum([0, *map(len, update.tokens)]), rollback=update.rollback)


def check_dense(reply: service_pb2.ApplyResponse, state: PenaltyOrchestrator, logits: torch.Tensor) -> None:
    expected = logits.clone()
    state.apply_inplace(expected, first_row=reply.first_row)
    assert_same_bits(read_tensor(reply.dense.logits), expected)


def check_sparse(reply: service_pb2.ApplyResponse, state: PenaltyOrchestrator, logits: torch.Tensor) -> None:
    expected = state.compute_patch(logits, first_row=reply.first_row)
    assert read_ints(reply.sparse.row_splits) == expected.row_splits.tolist()
    assert read_ints(reply.sparse.token_ids) == expected.token_ids.tolist()
    assert_same_bits(read_items(reply.sparse.values, reply.sparse.data_type), expected.values)


def check_against_library(wire: Wire, batch: Batch, data: st.DataObject) -> None:
    """Three steps, each applied densely with its tokens and sparsely without."""
    state = batch.open()
    with wire.opened(creation_of(batch)) as live:
        for _ in range(3):
            update = draw_update(data, live, batch.vocab_size)
            state = step_library(state, update)
            dense = wire.call("Apply", apply_request(live, batch.logits, types_pb2.APPLY_FORM_DENSE, update))
            live.revision = dense.revision
            sparse = wire.call("Apply", apply_request(live, batch.logits, types_pb2.APPLY_FORM_SPARSE))
            check_dense(dense, state, batch.logits)
            check_sparse(sparse, state, batch.logits)
            assert_same_bits(patch(batch.logits, sparse.sparse), read_tensor(dense.dense.logits))
        assert live.outputs() == [state.output_token_ids(row).tolist() for row in range(state.num_rows)]


@quick
@given(st.data())
@pytest.mark.parametrize("profile", PROFILES)
def test_replies_are_the_librarys_bytes(wire: Wire, profile: str, data: st.DataObject) -> None:
    check_against_library(wire, data.draw(batches(profile)), data)


@quicker
@given(st.data())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_replies_to_large_messages_are_the_librarys_bytes(wire: Wire, dtype: torch.dtype, data: st.DataObject) -> None:
    check_against_library(wire, data.draw(batches(vocab_size=LARGE_VOCABULARY, dtype=dtype)), data)


@quick
@given(st.data())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_chunks_of_any_rows_in_any_order_are_the_whole_step(
    wire: Wire, dtype: torch.dtype, data: st.DataObject
) -> None:
    """The tokens of all rows travel in the first message and are committed with it, once."""
    vocab_size = data.draw(st.sampled_from((2, 7, 2_003, LARGE_VOCABULARY)))
    batch = data.draw(batches(vocab_size=vocab_size, dtype=dtype, max_rows=6))
    form, check = data.draw(
        st.sampled_from([(types_pb2.APPLY_FORM_DENSE, check_dense), (types_pb2.APPLY_FORM_SPARSE, check_sparse)])
    )
    pieces = data.draw(partitions(len(batch.rows)))
    with wire.opened(creation_of(batch)) as live:
        update = draw_update(data, live, vocab_size)
        state = step_library(batch.open(), update)
        requests = []
        for number, (first_row, count) in enumerate(pieces):
            logits = batch.logits[first_row : first_row + count]
            requests.append(apply_request(live, logits, form, None if number else update, first_row))
            live.revision = 1
        replies = wire.stream("Apply", requests)
        assert live.describe().revision == 1
    for reply, (first_row, count) in zip(replies, pieces, strict=True):
        assert (reply.revision, reply.first_row) == (1, first_row)
        check(reply, state, batch.logits[first_row : first_row + count])


def test_chunks_of_a_step_that_broke_off_leave_the_next_revision(wire: Wire) -> None:
    """The tokens came with the first chunk; the rest of the rows may be asked for again, or never."""
    logits = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    sequences = [types_pb2.Sequence(sequence_id=name) for name in "ab"]
    for sequence in sequences:
        sequence.penalties.presence_penalty = 1.0
    with wire.opened(
        service_pb2.CreateBatchRequest(batch_id="broken", create_key=bytes(16), vocab_size=2, sequences=sequences)
    ) as live:
        conversation = wire.converse("Apply")
        update = Update([0, 0], [[0], [1]])
        first = apply_request(live, logits[:1], types_pb2.APPLY_FORM_DENSE, update)
        assert conversation.ask(first).revision == 1
        conversation.call.cancel()
        assert live.describe().revision == 1
        again = wire.call("Apply", first)
        live.revision = again.revision
        second = wire.call("Apply", apply_request(live, logits[1:], types_pb2.APPLY_FORM_DENSE, first_row=1))
        assert live.outputs() == [[0], [1]]
        assert read_tensor(again.dense.logits).tolist() == [[0.0, 2.0]]
        assert read_tensor(second.dense.logits).tolist() == [[3.0, 3.0]]
