"""RegisterSharedMemory and UnregisterSharedMemory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from logitd.service.codec import parse
from logitd.service.errors import Draining, InvalidField
from logitd.service.identity import check_length
from logitd.service.operations.unfinished import Unfinished
from logitd.service.regions.registry import TOKEN_BYTES
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from logitd.service.operations.context import OperationContext


def register_shared_memory(context: OperationContext, data: bytes) -> Unfinished:
    """Map a region, and have all its pages before its id is told."""
    request = parse(service_pb2.RegisterSharedMemoryRequest, data)
    if context.is_draining:
        raise Draining
    if request.HasField("memory_file_token"):
        check_length("memory_file_token", request.memory_file_token, TOKEN_BYTES)
        region_id = context.regions.register_memory_file(request.memory_file_token, request.byte_size)
    elif request.HasField("file_name"):
        region_id = context.regions.register_named_file(request.file_name, request.byte_size)
    else:
        raise InvalidField("source", "must be memory_file_token or file_name", "nothing")
    return Unfinished(partial(_touch_pages, context, region_id, 0))


def unregister_shared_memory(context: OperationContext, data: bytes) -> bytes:
    """Let a region go."""
    request = parse(service_pb2.UnregisterSharedMemoryRequest, data)
    context.regions.unregister(request.region_id)
    return service_pb2.UnregisterSharedMemoryResponse().SerializeToString()


def _touch_pages(context: OperationContext, region_id: str, start: int) -> bytes | Unfinished:
    region = context.regions.find(region_id)
    try:
        stop = region.touch_pages(start)
    except InvalidField:
        context.regions.unregister(region_id)
        raise
    if stop < region.byte_size:
        return Unfinished(partial(_touch_pages, context, region_id, stop))
    return service_pb2.RegisterSharedMemoryResponse(region_id=region_id).SerializeToString()
