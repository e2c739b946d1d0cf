"""gRPC's handlers: raw bytes in, one job of the worker's, raw bytes or a status out."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from logitd.service.calls import SERVICE_NAME, observed
from logitd.service.errors import Draining, InternalFault, ServiceError
from logitd.service.inbox import Inbox
from logitd.service.operations.table import STREAMS, UNARY
from logitd.service.operations.unfinished import Unfinished
from logitd.service.reply_watch import ReplyWatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from logitd.service.calls import Call, CallObserver
    from logitd.service.operations.context import OperationContext
    from logitd.service.operations.table import StepStream
    from logitd.service.worker import Worker

_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)
# A small message of a stream whose last one took no longer is worked on in the event loop: for so long a thread may
# keep the interpreter to itself anyway. Work on a large one goes on beside the transport of the next.
_QUICK_SECONDS = sys.getswitchinterval()
_SMALL_BYTES = 256 << 10


class Handlers:
    """The handlers of one server. Messages are read raw, so that garbage is INVALID_ARGUMENT and not UNKNOWN."""

    def __init__(self, context: OperationContext, worker: Worker, observers: Sequence[CallObserver] = ()) -> None:
        self._context = context
        self._worker = worker
        self._observers = observers
        self._inboxes: set[Inbox] = set()
        self._is_ending = False

    def generic_handler(self) -> grpc.GenericRpcHandler:
        """All RPCs of the service."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        for name, operation in UNARY.items():
            methods[name] = grpc.unary_unary_rpc_method_handler(self._unary(name, operation))
        for name, open_stream in STREAMS.items():
            methods[name] = grpc.stream_stream_rpc_method_handler(self._stream(name, open_stream))
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    def end_streams(self) -> None:
        """End every stream, and those that still come, when the messages that it has received are answered."""
        self._is_ending = True
        for inbox in self._inboxes:
            inbox.end(Draining())

    @property
    def queued_bytes(self) -> int:
        """Bytes of all streams that are read and not yet worked on; from any thread."""
        return sum(inbox.queued_bytes for inbox in tuple(self._inboxes))

    def _unary(self, name: str, operation: Callable[[OperationContext, bytes], bytes | Unfinished]) -> Any:
        async def handle(data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            with observed(name, context, self._observers, is_stream=False) as call:
                call.count_received(data)
                reply = await self._answer(call, self._do_all(call, operation, data))
                call.count_sent(reply)
                return reply

        return handle

    async def _do_all(
        self, call: Call, operation: Callable[[OperationContext, bytes], bytes | Unfinished], data: bytes
    ) -> bytes:
        reply: bytes | Unfinished = await self._worker.run(call.work, operation, self._context, data)
        while isinstance(reply, Unfinished):
            reply = await self._worker.run(call.work, reply.go_on)
        return reply

    def _stream(self, name: str, open_stream: Callable[[OperationContext], StepStream]) -> Any:
        async def handle(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            inbox = Inbox(context.read, self._context.config.max_queued_bytes)
            watch = ReplyWatch(self._context.config.reply_timeout_seconds, inbox.read_ahead)
            if self._is_ending:
                inbox.end(Draining())
            self._inboxes.add(inbox)
            try:
                with observed(name, context, self._observers, is_stream=True) as call:
                    await self._answer(call, self._serve_stream(call, open_stream(self._context), inbox, watch))
            finally:
                self._inboxes.discard(inbox)

        return handle

    async def _serve_stream(self, call: Call, stream: StepStream, inbox: Inbox, watch: ReplyWatch) -> None:
        # Closed before the status goes out: a caller that does not read may keep it waiting for as long as it likes.
        with closing(inbox), closing(watch):
            while await self._serve_message(call, stream, inbox, watch):
                pass
            # A caller that is gone looks like one that half-closed until gRPC cancels this task, mostly in this turn.
            await asyncio.sleep(0)

    async def _serve_message(self, call: Call, stream: StepStream, inbox: Inbox, watch: ReplyWatch) -> bool:
        # On its own, so that nothing of a message or its reply is held while the next one is waited for.
        data = await inbox.get()
        if data is None:
            return False
        call.count_received(data)
        is_quick = len(data) <= _SMALL_BYTES and call.work_seconds <= _QUICK_SECONDS
        inbox.read_ahead(not is_quick)
        reply = await self._worker.run(call.work, stream.step, data, is_quick=is_quick)
        await watch.write(call.write(reply))
        return True

    async def _answer(self, call: Call, answer: Awaitable[_T]) -> _T:
        # The boundary: what a call raises becomes its status.
        try:
            return await answer
        except ServiceError as error:
            status = call.conclude(error)
        except Exception:  # whatever else escapes is a fault of ours, told as such
            _LOG.exception("%s failed", call.record.method)
            status = call.conclude(InternalFault())
        return await call.abort(status)
