"""The forms of Apply: what each takes and how it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from logitd.sampling import DraftState
from logitd.service.codec import as_int32
from logitd.service.errors import InvalidField, ReplyTooLarge
from logitd.service.frames import append_arrays
from logitd.service.rows import check_rows
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from logitd.sampling import PenaltyOrchestrator
    from logitd.service.codec import WireLogits
    from logitd.service.frames import Payload
    from logitd.service.operations.context import OperationContext
    from logitd.service.penalty_batch import NextState, PenaltyBatch

# What an entry takes in a patch of 16-bit values, the least there is.
_BYTES_PER_ENTRY = 6
_SPARSE, _EDITS = service_pb2.SparsePatch, service_pb2.Edits
_DENSE_LOGITS = (
    service_pb2.ApplyResponse.DENSE_FIELD_NUMBER,
    service_pb2.DenseResult.LOGITS_FIELD_NUMBER,
)


@dataclass(frozen=True, slots=True)
class ApplyJob:
    """A message that is to be answered.

    `following` is what it makes of the batch, if anything. `state` is what is applied; its rows are those of the batch
    or the positions of drafts.
    """

    context: OperationContext
    batch: PenaltyBatch
    request: service_pb2.ApplyRequest
    payload: Payload | None
    following: NextState | None
    state: PenaltyOrchestrator | DraftState

    def read_logits(self) -> WireLogits:
        """The message's logits, checked."""
        if not self.request.HasField("logits"):
            raise InvalidField("logits", "must be set", "nothing")
        check_rows("logits", self.request.first_row, self.request.logits.shape, self.state.num_rows)
        return self.context.read_logits(self.batch, self.request.logits, self.payload)

    def start_response(self) -> service_pb2.ApplyResponse:
        """The response without its result."""
        return service_pb2.ApplyResponse(
            revision=self.batch.revision + (self.following is not None),
            first_row=self.request.first_row,
            draining=self.context.is_draining,
        )


def reply_dense(job: ApplyJob) -> bytes:
    """The processed logits, worked on where they lie in the reply."""
    reply, logits = job.read_logits().copy_into(job.start_response().SerializeToString(), _DENSE_LOGITS)
    job.state.apply_inplace(logits, first_row=job.request.first_row)
    return reply


def reply_sparse(job: ApplyJob) -> bytes:
    """The new values alone."""
    logits = job.read_logits()
    _check_entries(job, logits.shape[0])
    patch = job.state.compute_patch(logits.view(), first_row=job.request.first_row)
    arrays = (
        (_SPARSE.ROW_SPLITS_FIELD_NUMBER, as_int32(patch.row_splits)),
        (_SPARSE.TOKEN_IDS_FIELD_NUMBER, patch.token_ids),
        (_SPARSE.VALUES_FIELD_NUMBER, patch.values),
    )
    tail = _SPARSE(data_type=logits.data_type).SerializeToString()
    head = job.start_response().SerializeToString()
    return append_arrays(head, service_pb2.ApplyResponse.SPARSE_FIELD_NUMBER, arrays, tail)


def reply_in_place(job: ApplyJob) -> bytes:
    """Nothing: the caller's region holds the result."""
    logits = job.read_logits()
    if not logits.is_shared:
        raise InvalidField("logits.shared_memory", "must be set in form IN_PLACE", "nothing")
    response = job.start_response()
    response.in_place.SetInParent()
    job.state.apply_inplace(logits.view(), first_row=job.request.first_row)
    return response.SerializeToString()


def reply_edits(job: ApplyJob) -> bytes:
    """The parts of every edit, or of those that changed since a revision."""
    if job.request.HasField("logits"):
        raise InvalidField("logits", "must not be set in form EDITS", "a value")
    num_rows = _read_row_count(job)
    since = None
    if job.request.HasField("edits_since_revision"):
        since = job.batch.changes_since(job.request.edits_since_revision, job.following)
    _check_entries(job, num_rows, None if since is None else since[0])
    edits = job.state.list_edits(since, first_row=job.request.first_row, num_rows=num_rows)
    arrays = (
        (_EDITS.ROW_SPLITS_FIELD_NUMBER, as_int32(edits.row_splits)),
        (_EDITS.TOKEN_IDS_FIELD_NUMBER, edits.token_ids),
        (_EDITS.REPETITION_FIELD_NUMBER, edits.repetition),
        (_EDITS.PRESENCE_FIELD_NUMBER, edits.presence),
        (_EDITS.FREQUENCY_SUMS_FIELD_NUMBER, edits.frequency_sums),
        (_EDITS.FLAGS_FIELD_NUMBER, edits.flags),
    )
    tail = _EDITS(is_full=since is None).SerializeToString()
    head = job.start_response().SerializeToString()
    return append_arrays(head, service_pb2.ApplyResponse.EDITS_FIELD_NUMBER, arrays, tail)


REPLIES: Mapping[types_pb2.ApplyForm, Callable[[ApplyJob], bytes]] = {
    types_pb2.APPLY_FORM_DENSE: reply_dense,
    types_pb2.APPLY_FORM_SPARSE: reply_sparse,
    types_pb2.APPLY_FORM_IN_PLACE: reply_in_place,
    types_pb2.APPLY_FORM_EDITS: reply_edits,
}


def _read_row_count(job: ApplyJob) -> int:
    first_row, num_rows = job.request.first_row, job.state.num_rows
    check_rows("row_count", first_row, [], num_rows)
    if not job.request.HasField("row_count"):
        return num_rows - first_row
    if not 1 <= job.request.row_count <= num_rows - first_row:
        rule = f"must be in [1, {num_rows - first_row}], the rows from first_row on"
        raise InvalidField("row_count", rule, job.request.row_count)
    return job.request.row_count


def _check_entries(job: ApplyJob, num_rows: int, touched: NDArray[np.int64] | None = None) -> None:
    # Positions can ask for an entry of their row very often; too often is noticed before any of it is made.
    if isinstance(job.state, DraftState):
        num_bytes = _BYTES_PER_ENTRY * job.state.count_entries(job.request.first_row, num_rows, touched)
        if num_bytes > job.context.config.max_message_bytes:
            raise ReplyTooLarge(job.context.config.max_message_bytes, num_bytes)
