"""Apply: logits in, processed logits out; token ids that come along are committed first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitd.service.codec import parse_step, write_int32, write_items
from logitd.service.errors import InvalidField, NotSupported
from logitd.service.identity import Standing, read_target
from logitd.service.rows import check_rows
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from logitd.sampling import PenaltyOrchestrator
    from logitd.service.codec import WireLogits
    from logitd.service.frames import Payload
    from logitd.service.identity import Target
    from logitd.service.operations.context import OperationContext
    from logitd.service.penalty_batch import PenaltyBatch

_METHOD = "Apply"
_DENSE_LOGITS = (
    service_pb2.ApplyResponse.DENSE_FIELD_NUMBER,
    service_pb2.DenseResult.LOGITS_FIELD_NUMBER,
)


class ApplyStream:
    """One stream's messages, each a step or a chunk of rows of one."""

    def __init__(self, context: OperationContext) -> None:
        self._context = context

    def step(self, data: bytes) -> bytes:
        """Commit the message's token ids, if any, and answer for its rows."""
        request, payload = parse_step(service_pb2.ApplyRequest, data, service_pb2.ApplyRequest.LOGITS_FIELD_NUMBER)
        form = _read_form(request)
        target = read_target(request.target, is_mutation=request.HasField("tokens"))
        batch = self._context.find_penalty_batch(target, _METHOD)
        state = _compute_state(batch, target, request)
        logits = self._read_rows(batch, request, payload)
        is_mutation = state is not batch.state
        response = service_pb2.ApplyResponse(
            revision=batch.revision + is_mutation, first_row=request.first_row, draining=self._context.is_draining
        )
        reply = _REPLIES[form](response, state, logits)
        if is_mutation:
            batch.state = state
            batch.commit(target, _METHOD)
        return reply

    def _read_rows(self, batch: PenaltyBatch, request: service_pb2.ApplyRequest, payload: Payload | None) -> WireLogits:
        if not request.HasField("logits"):
            raise InvalidField("logits", "must be set", "nothing")
        check_rows("logits", request.first_row, list(request.logits.shape)[:1], batch.num_rows)
        return self._context.read_logits(batch, request.logits, payload)


def _read_form(request: service_pb2.ApplyRequest) -> types_pb2.ApplyForm:
    form = request.form or types_pb2.APPLY_FORM_DENSE
    if form not in types_pb2.ApplyForm.values():
        raise InvalidField("form", "must be DENSE, SPARSE, IN_PLACE or EDITS", form)
    if form not in SUPPORTED_FORMS:
        raise NotSupported(types_pb2.ApplyForm.Name(form))
    if request.HasField("edits_since_revision"):
        raise InvalidField("edits_since_revision", "must not be set but in form EDITS", request.edits_since_revision)
    return form


def _compute_state(batch: PenaltyBatch, target: Target, request: service_pb2.ApplyRequest) -> PenaltyOrchestrator:
    # The state to apply: after the message's token ids, unless they are committed already.
    if not request.HasField("tokens"):
        batch.check_reading(target)
        return batch.state
    if batch.check_mutation(target, _METHOD) is Standing.RETRY:
        return batch.state
    return batch.compute_next("tokens", request.tokens)


def _reply_dense(response: service_pb2.ApplyResponse, state: PenaltyOrchestrator, logits: WireLogits) -> bytes:
    reply, copied = logits.copy_into(response.SerializeToString(), _DENSE_LOGITS)
    state.apply_inplace(copied, first_row=response.first_row)
    return reply


def _reply_sparse(response: service_pb2.ApplyResponse, state: PenaltyOrchestrator, logits: WireLogits) -> bytes:
    patch = state.compute_patch(logits.view(), first_row=response.first_row)
    response.sparse.row_splits = write_int32(patch.row_splits)
    response.sparse.token_ids = write_int32(patch.token_ids)
    response.sparse.values = write_items(patch.values)
    response.sparse.data_type = logits.data_type
    return response.SerializeToString()


def _reply_in_place(response: service_pb2.ApplyResponse, state: PenaltyOrchestrator, logits: WireLogits) -> bytes:
    if not logits.is_shared:
        raise InvalidField("logits.shared_memory", "must be set in form IN_PLACE", "nothing")
    response.in_place.SetInParent()
    reply = response.SerializeToString()
    state.apply_inplace(logits.view(), first_row=response.first_row)
    return reply


_REPLIES = {
    types_pb2.APPLY_FORM_DENSE: _reply_dense,
    types_pb2.APPLY_FORM_SPARSE: _reply_sparse,
    types_pb2.APPLY_FORM_IN_PLACE: _reply_in_place,
}
SUPPORTED_FORMS = tuple(_REPLIES)
