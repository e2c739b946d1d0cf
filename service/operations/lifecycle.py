"""CreateBatch, GetBatch, ListBatches, DeleteBatch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitd.service.beam_batch import BeamBatch
from logitd.service.codec import parse
from logitd.service.creation import plan_batch
from logitd.service.errors import BatchNotFound, Draining, InvalidField
from logitd.service.identity import UID_BYTES, check_batch_id, check_length
from logitd.service.penalty_batch import PenaltyBatch
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from logitd.service.batch import Batch
    from logitd.service.creation import BatchPlan
    from logitd.service.operations.context import OperationContext

_DEFAULT_PAGE_SIZE = 100
_MAX_PAGE_SIZE = 1000


def create_batch(context: OperationContext, data: bytes) -> bytes:
    """Open a batch, or recognise the retry of its creation."""
    request = parse(service_pb2.CreateBatchRequest, data)
    plan = plan_batch(request, context.config)
    batch = context.registry.find_retry(plan)
    if batch is None:
        if context.is_draining:
            raise Draining
        context.registry.check_room(plan)
        batch = _build(plan)
        context.registry.add(batch)
    message = batch.describe(types_pb2.BATCH_VIEW_BASIC, context.config.idle_timeout_seconds)
    return service_pb2.CreateBatchResponse(batch=message).SerializeToString()


def get_batch(context: OperationContext, data: bytes) -> bytes:
    """Describe a batch."""
    request = parse(service_pb2.GetBatchRequest, data)
    _check_reference(request.batch_id, request.uid)
    if request.view not in types_pb2.BatchView.values():
        raise InvalidField("view", "must be BASIC or FULL", request.view)
    batch = context.registry.find(request.batch_id, request.uid)
    message = batch.describe(request.view, context.config.idle_timeout_seconds)
    return context.check_reply(service_pb2.GetBatchResponse(batch=message).SerializeToString())


def list_batches(context: OperationContext, data: bytes) -> bytes:
    """A page of the live batches; the token of the next page is the last id of this one."""
    request = parse(service_pb2.ListBatchesRequest, data)
    if request.page_size < 0:
        raise InvalidField("page_size", "must be 0 or more", request.page_size)
    if request.page_token:
        check_batch_id("page_token", request.page_token)
    size = min(request.page_size or _DEFAULT_PAGE_SIZE, _MAX_PAGE_SIZE)
    found = context.registry.list_after(request.page_token, size + 1)
    page = found[:size]
    response = service_pb2.ListBatchesResponse(
        batches=[batch.summarise(context.config.idle_timeout_seconds) for batch in page],
        next_page_token=page[-1].plan.batch_id if len(found) > size else "",
    )
    return response.SerializeToString()


def delete_batch(context: OperationContext, data: bytes) -> bytes:
    """Let a batch go."""
    request = parse(service_pb2.DeleteBatchRequest, data)
    _check_reference(request.batch_id, request.uid)
    try:
        context.registry.find(request.batch_id, request.uid)
    except BatchNotFound:
        if not request.allow_missing:
            raise
    else:
        context.registry.remove(request.batch_id)
    return service_pb2.DeleteBatchResponse().SerializeToString()


def _build(plan: BatchPlan) -> Batch:
    return BeamBatch(plan) if plan.kind == types_pb2.BATCH_KIND_BEAM else PenaltyBatch(plan)


def _check_reference(batch_id: str, uid: bytes) -> None:
    check_batch_id("batch_id", batch_id)
    if uid:
        check_length("uid", uid, UID_BYTES)
