"""The contract as a caller in any language has it: messages, bytes and statuses, no client library."""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import queue
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import numpy as np
import torch
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from logitd.v1 import service_pb2, service_pb2_grpc, types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from google.protobuf.message import Message
    from numpy.typing import NDArray

SERVICE = "logitd.v1.LogitProcessorService"
STREAM_METHODS = ("Accumulate", "Apply", "BeamStep")
METHODS = tuple(method.name for method in service_pb2.DESCRIPTOR.services_by_name["LogitProcessorService"].methods)
DATA_TYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
TIMEOUT = 20.0

_numbers = itertools.count()


def ints(*values: int) -> bytes:
    """The bytes of an int32 array."""
    return np.array(values, np.int32).tobytes()


def doubles(*values: float) -> bytes:
    """The bytes of a float64 array."""
    return np.array(values, np.float64).tobytes()


def read_ints(data: bytes) -> list[int]:
    return np.frombuffer(data, np.int32).tolist()


def read_doubles(data: bytes) -> list[float]:
    return np.frombuffer(data, np.float64).tolist()


def request_id() -> bytes:
    """16 bytes, new each time."""
    return next(_numbers).to_bytes(16, "big")


def tensor(logits: torch.Tensor | NDArray[np.float32]) -> types_pb2.Tensor:
    """Logits as a message, in their own type."""
    values = torch.as_tensor(logits).contiguous()
    items = values.view(torch.int16) if values.dtype == torch.bfloat16 else values
    data = items.numpy().tobytes()
    return types_pb2.Tensor(data_type=DATA_TYPES[values.dtype], shape=values.shape, data=data)


def read_tensor(message: types_pb2.Tensor) -> torch.Tensor:
    return read_items(message.data, message.data_type).view(*message.shape)


def read_items(data: bytes, data_type: int) -> torch.Tensor:
    """The items of a tensor or a patch, [N]."""
    dtype = {number: dtype for dtype, number in DATA_TYPES.items()}[data_type]
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def patch(logits: torch.Tensor, sparse: service_pb2.SparsePatch) -> torch.Tensor:
    """What a caller makes of a sparse reply: its logits with the new values in their places."""
    result = logits.clone()
    splits = read_ints(sparse.row_splits)
    rows = np.repeat(np.arange(len(splits) - 1), np.diff(splits))
    result[torch.from_numpy(rows), read_ints(sparse.token_ids)] = read_items(sparse.values, sparse.data_type)
    return result


class Failure(NamedTuple):
    """How a call ended: its status and what the google.rpc details say."""

    code: str
    message: str
    reason: str
    metadata: dict[str, str]
    field: str
    description: str
    retry_seconds: int
    num_bytes: int


def read_failure(error: grpc.RpcError) -> Failure:
    """The details of a status, each there at most once; `num_bytes` is what all of it took on the wire."""
    status = rpc_status.from_call(error)
    assert status is not None, error
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    for detail in status.details:
        assert sum(detail.Unpack(message) for message in (info, bad, retry)) == 1
    assert info.domain == "logitd"
    violation = bad.field_violations[0] if bad.field_violations else error_details_pb2.BadRequest.FieldViolation()
    trailers = sum(len(key) + len(value) for key, value in error.trailing_metadata())
    return Failure(
        code=error.code().name,
        message=status.message,
        reason=info.reason,
        metadata=dict(info.metadata),
        field=violation.field,
        description=violation.description,
        retry_seconds=retry.retry_delay.seconds,
        num_bytes=trailers + len(status.message.encode()),
    )


class Failed(Exception):
    """A call that ended with another status than OK; `replies` are those that came before it."""

    def __init__(self, failure: Failure, replies: list[Any]) -> None:
        super().__init__(f"{failure.code} {failure.reason}: {failure.message}")
        self.failure = failure
        self.replies = replies


class Conversation:
    """A stream whose sending side stays open: a reply can be read before the next message is written."""

    def __init__(self, wire: Wire, method: str) -> None:
        self._requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self.call = getattr(wire.stub, method)(iter(self._requests.get, None), timeout=TIMEOUT)

    def send(self, *requests: Message) -> None:
        for request in requests:
            self._requests.put(request)

    def ask(self, request: Message) -> Any:
        """The reply to one message; raises `Failed`."""
        self.send(request)
        try:
            return next(self.call)
        except grpc.RpcError as error:
            raise Failed(read_failure(error), []) from error

    def finish(self) -> list[Any]:
        """Half-close, and read what replies are left."""
        self._requests.put(None)
        return list(self.call)


class Wire:
    """One channel to a server."""

    def __init__(self, address: str, *, max_reply_bytes: int = -1) -> None:
        self.address = address
        self._regions: dict[bytes, str] = {}
        self._side_socket: socket.socket | None = None
        options = [("grpc.max_receive_message_length", max_reply_bytes), ("grpc.max_send_message_length", -1)]
        self.channel = grpc.insecure_channel(address, options=options)
        self.stub = service_pb2_grpc.LogitProcessorServiceStub(self.channel)

    def call(self, method: str, request: Message) -> Any:
        """The reply of a unary RPC, or the one reply of a stream with one message."""
        return self.stream(method, [request])[0] if method in STREAM_METHODS else self._unary(method, request)

    def stream(self, method: str, requests: Iterable[Message]) -> list[Any]:
        """The replies to a stream's messages, the sending side closed after them; raises `Failed`."""
        replies: list[Any] = []
        try:
            replies.extend(getattr(self.stub, method)(iter(requests), timeout=TIMEOUT))
        except grpc.RpcError as error:
            raise Failed(read_failure(error), replies) from error
        return replies

    def send_bytes(self, method: str, data: bytes) -> bytes:
        """The raw reply to raw bytes; raises `Failed`."""
        path = f"/{SERVICE}/{method}"
        try:
            if method in STREAM_METHODS:
                return next(self.channel.stream_stream(path)(iter([data]), timeout=TIMEOUT))
            return self.channel.unary_unary(path)(data, timeout=TIMEOUT)
        except grpc.RpcError as error:
            raise Failed(read_failure(error), []) from error

    def converse(self, method: str) -> Conversation:
        return Conversation(self, method)

    def open(self, request: service_pb2.CreateBatchRequest) -> OpenBatch:
        batch = self.call("CreateBatch", request).batch
        return OpenBatch(self, batch.batch_id, batch.uid, batch.revision)

    @contextmanager
    def opened(self, request: service_pb2.CreateBatchRequest) -> Iterator[OpenBatch]:
        """A batch that is deleted at the end of the block."""
        batch = self.open(request)
        try:
            yield batch
        finally:
            delete = service_pb2.DeleteBatchRequest(batch_id=batch.batch_id, allow_missing=True)
            self.call("DeleteBatch", delete)

    def limits(self) -> service_pb2.Limits:
        capabilities = self.call("GetCapabilities", service_pb2.GetCapabilitiesRequest())
        return capabilities.limits

    def reflected_services(self) -> list[str]:
        """What gRPC reflection names, if it is served."""
        stub = reflection_pb2_grpc.ServerReflectionStub(self.channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        reply = next(stub.ServerReflectionInfo(iter([request]), timeout=TIMEOUT))
        return [service.name for service in reply.list_services_response.service]

    def share(self, data: bytes) -> str:
        """The id of a region of one page that starts with `data`; it lives until `close`."""
        if data not in self._regions:
            descriptor = os.memfd_create("logits", os.MFD_ALLOW_SEALING)
            os.write(descriptor, data.ljust(mmap.PAGESIZE, b"\0"))
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            request = service_pb2.RegisterSharedMemoryRequest(
                memory_file_token=self._hand_over(descriptor), byte_size=mmap.PAGESIZE
            )
            os.close(descriptor)
            self._regions[data] = self.call("RegisterSharedMemory", request).region_id
        return self._regions[data]

    def close(self) -> None:
        self.channel.close()
        if self._side_socket is not None:
            self._side_socket.close()

    def _hand_over(self, descriptor: int) -> bytes:
        if self._side_socket is None:
            self._side_socket = socket.socket(socket.AF_UNIX)
            self._side_socket.connect(self.address.removeprefix("unix:") + ".memory")
        socket.send_fds(self._side_socket, [b"\1"], [descriptor])
        return self._side_socket.recv(16)

    def _unary(self, method: str, request: Message) -> Any:
        try:
            return getattr(self.stub, method)(request, timeout=TIMEOUT)
        except grpc.RpcError as error:
            raise Failed(read_failure(error), []) from error


def creation(*sequences: types_pb2.Sequence, **fields: Any) -> service_pb2.CreateBatchRequest:
    """A CreateBatchRequest of a new id."""
    defaults = {"batch_id": f"batch-{next(_numbers)}", "create_key": request_id(), "vocab_size": 6}
    return service_pb2.CreateBatchRequest(sequences=sequences, **(defaults | fields))


@dataclass
class OpenBatch:
    """A live batch and the revision that its caller believes in."""

    wire: Wire
    batch_id: str
    uid: bytes
    revision: int

    def target(self, **changes: Any) -> service_pb2.StepTarget:
        defaults = {"batch_id": self.batch_id, "uid": self.uid, "expected_revision": self.revision}
        return service_pb2.StepTarget(**(defaults | {"request_id": request_id()} | changes))

    def accumulate(self, *token_ids: int, splits: tuple[int, ...] = (), rollback: tuple[int, ...] = ()) -> None:
        """Commit token ids; one a sequence unless `splits` says otherwise."""
        tokens = token_update(*token_ids, splits=splits, rollback=rollback)
        request = service_pb2.AccumulateRequest(target=self.target(), tokens=tokens)
        self.revision = self.wire.call("Accumulate", request).revision

    def apply(self, logits: torch.Tensor, *token_ids: int, splits: tuple[int, ...] = ()) -> torch.Tensor:
        """The processed logits of all rows, after the token ids where there are any."""
        request = service_pb2.ApplyRequest(target=self.target(), logits=tensor(logits))
        if token_ids or splits:
            request.tokens.CopyFrom(token_update(*token_ids, splits=splits))
        reply = self.wire.call("Apply", request)
        self.revision = reply.revision
        return read_tensor(reply.dense.logits)

    def beam_step(self, logits: torch.Tensor, *finish: str) -> service_pb2.BeamStepResponse:
        request = service_pb2.BeamStepRequest(target=self.target(), finish_sequence_ids=finish)
        if logits.numel():
            request.logits.CopyFrom(tensor(logits))
        reply = self.wire.call("BeamStep", request)
        self.revision = reply.revision
        return reply

    def describe(self) -> types_pb2.Batch:
        """All that the server has of it."""
        request = service_pb2.GetBatchRequest(batch_id=self.batch_id, view=types_pb2.BATCH_VIEW_FULL)
        return self.wire.call("GetBatch", request).batch

    def outputs(self) -> list[list[int]]:
        return [read_ints(sequence.output_token_ids) for sequence in self.describe().sequences]


def token_update(
    *token_ids: int, splits: tuple[int, ...] = (), rollback: tuple[int, ...] = ()
) -> service_pb2.TokenUpdate:
    return service_pb2.TokenUpdate(
        token_ids=ints(*token_ids), row_splits=ints(*splits), rollback_counts=ints(*rollback)
    )
