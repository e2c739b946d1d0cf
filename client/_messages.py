"""The unary calls: bytes out, and how to read the bytes that come back. No I/O."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from logitd.client import _convert as convert
from logitd.client import _types as types
from logitd.client._arrays import check_kind
from logitd.client._exceptions import ProtocolError
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as AnySequence


Result = TypeVar("Result")
_Reply = TypeVar("_Reply", bound=Message)

SERVICE = "logitd.v1.LogitProcessorService"
UID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Call(Generic[Result]):
    """A unary call."""

    method: str
    message: bytes
    batch_id: str | None
    """The batch it is about; the default route."""
    parse: Callable[[bytes], Result]


@dataclass(frozen=True, slots=True)
class BatchPage:
    """A page of ListBatches."""

    batches: tuple[types.BatchInfo, ...]
    next_page_token: str


def method_path(method: str) -> str:
    """The path of a method of the service."""
    return f"/{SERVICE}/{method}"


def random_id() -> bytes:
    """16 random bytes, for request ids and create keys."""
    return os.urandom(16)


def random_batch_id() -> str:
    """A batch id that nobody else chooses."""
    return f"batch-{random_id().hex()}"


def parse(kind: type[_Reply], reply: bytes) -> _Reply:
    """A reply of a method; ProtocolError where it is none."""
    try:
        return kind.FromString(reply)
    except DecodeError as error:
        raise ProtocolError(f"a reply is no {kind.DESCRIPTOR.name}: {error}") from error


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How a batch is created, beside its sequences."""

    vocab_size: int
    profile: str | None
    batch_id: str | None
    create_key: bytes | None
    beam_rule: str | None = None
    allow_penalty_extension: bool = False


def create_request(
    kind: str, sequences: AnySequence[types.Sequence], options: BatchOptions
) -> service_pb2.CreateBatchRequest:
    """The request for a batch of the kind PENALTY or BEAM."""
    for index, sequence in enumerate(sequences):
        check_kind(f"sequences[{index}]", sequence, types.Sequence, "a Sequence")
    return service_pb2.CreateBatchRequest(
        batch_id=options.batch_id if options.batch_id is not None else random_batch_id(),
        create_key=options.create_key or random_id(),
        vocab_size=options.vocab_size,
        profile=convert.full_name(types_pb2.PenaltyProfile, options.profile),
        sequences=[convert.sequence_to_proto(sequence, index) for index, sequence in enumerate(sequences)],
        kind=convert.full_name(types_pb2.BatchKind, kind),
        beam_rule=convert.full_name(types_pb2.BeamRule, options.beam_rule),
        allow_penalty_extension=options.allow_penalty_extension,
    )


def create_batch(request: service_pb2.CreateBatchRequest) -> Call[types.BatchInfo]:
    """CreateBatch."""
    batch_id, kind = request.batch_id, convert.short_name(types_pb2.BatchKind, request.kind)
    return Call("CreateBatch", request.SerializeToString(), batch_id, lambda reply: _created(reply, batch_id, kind))


def get_batch(batch_id: str, uid: bytes | None, full: bool) -> Call[types.BatchInfo]:
    """GetBatch."""
    view = convert.full_name(types_pb2.BatchView, "FULL" if full else "BASIC")
    request = service_pb2.GetBatchRequest(batch_id=batch_id, uid=uid, view=view)
    return Call("GetBatch", request.SerializeToString(), batch_id, _parse_got)


def list_batches(page_size: int | None, page_token: str) -> Call[BatchPage]:
    """One page of ListBatches."""
    request = service_pb2.ListBatchesRequest(page_size=page_size, page_token=page_token)
    return Call("ListBatches", request.SerializeToString(), None, _parse_page)


def delete_batch(batch_id: str, uid: bytes | None, allow_missing: bool) -> Call[None]:
    """DeleteBatch."""
    request = service_pb2.DeleteBatchRequest(batch_id=batch_id, uid=uid, allow_missing=allow_missing)
    return Call("DeleteBatch", request.SerializeToString(), batch_id, _parse_deleted)


def register_shared_memory(request: service_pb2.RegisterSharedMemoryRequest) -> Call[str]:
    """RegisterSharedMemory; the region's id."""
    return Call("RegisterSharedMemory", request.SerializeToString(), None, _parse_registered)


def unregister_shared_memory(region_id: str) -> Call[None]:
    """UnregisterSharedMemory."""
    request = service_pb2.UnregisterSharedMemoryRequest(region_id=region_id)
    return Call("UnregisterSharedMemory", request.SerializeToString(), None, _parse_unregistered)


def get_capabilities() -> Call[types.Capabilities]:
    """GetCapabilities."""
    request = service_pb2.GetCapabilitiesRequest()
    return Call("GetCapabilities", request.SerializeToString(), None, _parse_capabilities)


def _created(reply: bytes, batch_id: str, kind: str | None) -> types.BatchInfo:
    batch = convert.batch_from_proto(parse(service_pb2.CreateBatchResponse, reply).batch)
    if batch.batch_id != batch_id or batch.kind != kind:
        wanted = f"the {kind} batch {batch_id!r}"
        raise ProtocolError(f"CreateBatch of {wanted} was answered with the {batch.kind} batch {batch.batch_id!r}")
    if len(batch.uid) != UID_BYTES:
        raise ProtocolError(f"a batch's uid has {UID_BYTES} bytes, got {len(batch.uid)}")
    return batch


def _parse_got(reply: bytes) -> types.BatchInfo:
    return convert.batch_from_proto(parse(service_pb2.GetBatchResponse, reply).batch)


def _parse_page(reply: bytes) -> BatchPage:
    page = parse(service_pb2.ListBatchesResponse, reply)
    return BatchPage(tuple(convert.batch_from_proto(batch) for batch in page.batches), page.next_page_token)


def _parse_deleted(reply: bytes) -> None:
    parse(service_pb2.DeleteBatchResponse, reply)


def _parse_registered(reply: bytes) -> str:
    return parse(service_pb2.RegisterSharedMemoryResponse, reply).region_id


def _parse_unregistered(reply: bytes) -> None:
    parse(service_pb2.UnregisterSharedMemoryResponse, reply)


def _parse_capabilities(reply: bytes) -> types.Capabilities:
    return convert.capabilities_from_proto(parse(service_pb2.GetCapabilitiesResponse, reply))
