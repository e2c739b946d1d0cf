"""gRPC's handlers: raw bytes in, one job on the worker thread, raw bytes or a status out."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import grpc
from grpc_status import rpc_status

from logitd.service.errors import Draining, RepliesNotRead, ServiceError, internal_status, to_status
from logitd.service.inbox import Inbox
from logitd.service.operations.table import STREAMS, UNARY
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from concurrent.futures import Executor

    from google.rpc import status_pb2

    from logitd.service.operations.context import OperationContext
    from logitd.service.operations.table import StepStream

_LOG = logging.getLogger(__name__)

SERVICE_NAME = service_pb2.DESCRIPTOR.services_by_name["LogitProcessorService"].full_name


class Handlers:
    """The handlers of one server. Messages are read raw, so that garbage is INVALID_ARGUMENT and not UNKNOWN."""

    def __init__(self, context: OperationContext, worker: Executor) -> None:
        self._context = context
        self._worker = worker
        self._inboxes: set[Inbox] = set()

    def generic_handler(self) -> grpc.GenericRpcHandler:
        """All RPCs of the service."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        for name, operation in UNARY.items():
            methods[name] = grpc.unary_unary_rpc_method_handler(self._unary(name, operation))
        for name, open_stream in STREAMS.items():
            methods[name] = grpc.stream_stream_rpc_method_handler(self._stream(name, open_stream))
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    def end_streams(self) -> None:
        """End every stream when the messages that it has received are answered."""
        for inbox in self._inboxes:
            inbox.end(Draining())

    def _unary(self, name: str, operation: Callable[[OperationContext, bytes], bytes]) -> Any:
        async def handle(data: bytes, call: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            return await self._run(name, call, operation, self._context, data)

        return handle

    def _stream(self, name: str, open_stream: Callable[[OperationContext], StepStream]) -> Any:
        async def handle(messages: AsyncIterator[bytes], call: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            inbox = Inbox(self._context.config.max_queued_bytes)
            self._inboxes.add(inbox)
            reader = asyncio.create_task(inbox.fill(messages))
            try:
                await self._serve_stream(name, open_stream(self._context), inbox, call)
            finally:
                self._inboxes.discard(inbox)
                reader.cancel()

        return handle

    async def _serve_stream(
        self, name: str, stream: StepStream, inbox: Inbox, call: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        while (data := await self._receive(inbox, call)) is not None:
            await self._send(call, await self._run(name, call, stream.step, data))

    async def _receive(self, inbox: Inbox, call: grpc.aio.ServicerContext[bytes, bytes]) -> bytes | None:
        try:
            return await inbox.get()
        except ServiceError as error:
            await _abort(call, to_status(error))
            raise AssertionError("abort returned") from error

    async def _send(self, call: grpc.aio.ServicerContext[bytes, bytes], reply: bytes) -> None:
        limit = self._context.config.reply_timeout_seconds
        try:
            async with asyncio.timeout(limit):
                await call.write(reply)
        except TimeoutError:
            await _abort(call, to_status(RepliesNotRead(limit)))

    async def _run(
        self, name: str, call: grpc.aio.ServicerContext[bytes, bytes], job: Callable[..., bytes], *arguments: Any
    ) -> bytes:
        try:
            # A job that was begun is finished, whether or not its caller waits: it commits all or nothing.
            return await asyncio.get_running_loop().run_in_executor(self._worker, job, *arguments)
        except ServiceError as error:
            status = to_status(error)
        except Exception:  # the boundary: whatever else escapes is a fault of ours, told as such
            _LOG.exception("%s failed", name)
            status = internal_status()
        await _abort(call, status)
        raise AssertionError("abort returned")


async def _abort(call: grpc.aio.ServicerContext[bytes, bytes], status: status_pb2.Status) -> None:
    await call.abort_with_status(rpc_status.to_status(status))
