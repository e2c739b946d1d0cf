"""One RPC as the log and the metrics see it: nothing here says what was sent, or for which batch."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

import grpc
from grpc_status import rpc_status

from logitd.service.errors import to_status
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from logitd.service.errors import ServiceError

_T = TypeVar("_T")
SERVICE_NAME = service_pb2.DESCRIPTOR.services_by_name["LogitProcessorService"].full_name


@dataclass(slots=True)
class CallRecord:
    """What a call has come to. `seconds` and `code` are final when it has ended; a code that is no OK has a reason."""

    method: str
    is_stream: bool
    peer_kind: str
    seconds: float = 0.0
    code: grpc.StatusCode = grpc.StatusCode.OK
    reason: str = ""
    messages_received: int = 0
    messages_sent: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0


class CallObserver:
    """Is told of every call as it goes; by default it does nothing.

    All runs in the event loop, for every message, but for `worked`, which runs where the worker does.
    """

    def started(self, record: CallRecord) -> None:
        """A call came in."""

    def received(self, record: CallRecord) -> None:
        """A message was taken up."""

    def worked(self, record: CallRecord, seconds: float) -> None:
        """A message was worked on for so long, waiting not included."""

    def sent(self, record: CallRecord) -> None:
        """A reply was handed to the transport."""

    def ended(self, record: CallRecord) -> None:
        """The call is over."""


class Call:
    """A gRPC call whose course is told to observers."""

    def __init__(
        self, context: grpc.aio.ServicerContext[bytes, bytes], record: CallRecord, observers: Sequence[CallObserver]
    ) -> None:
        self._context = context
        self._observers = observers
        self.record = record
        # What the last job took; the first may be anything.
        self.work_seconds = math.inf

    def count_received(self, message: bytes) -> None:
        """Note a message that is taken up."""
        self.record.messages_received += 1
        self.record.bytes_received += len(message)
        for observer in self._observers:
            observer.received(self.record)

    def count_sent(self, reply: bytes) -> None:
        """Note a reply."""
        self.record.messages_sent += 1
        self.record.bytes_sent += len(reply)
        for observer in self._observers:
            observer.sent(self.record)

    def work(self, job: Callable[..., _T], *arguments: object) -> _T:
        """Do a job and note how long it took; in the worker's turn."""
        began = time.perf_counter()
        try:
            return job(*arguments)
        finally:
            self.work_seconds = time.perf_counter() - began
            for observer in self._observers:
                observer.worked(self.record, self.work_seconds)

    async def write(self, reply: bytes) -> None:
        """Send a stream's reply."""
        try:
            await self._context.write(reply)
        except grpc.aio.BaseError as error:
            # The caller is gone, and the handler about to be cancelled; gRPC would log the error as a fault of ours.
            raise asyncio.CancelledError from error
        self.count_sent(reply)

    def conclude(self, error: ServiceError) -> grpc.Status:
        """Note that the call ends with this error; what to give to `abort`.

        Which comes after the error's own clause: what it raises outlives the call, and would keep the error alive,
        its frames, and the messages in them.
        """
        self.record.code, self.record.reason = error.code, error.reason
        return rpc_status.to_status(to_status(error))

    async def abort(self, status: grpc.Status) -> NoReturn:
        """End the call."""
        try:
            await self._context.abort_with_status(status)
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError as error:  # the caller is gone, as in `write`
            raise asyncio.CancelledError from error
        raise AssertionError("abort returned")


@contextmanager
def observed(
    method: str,
    context: grpc.aio.ServicerContext[bytes, bytes],
    observers: Sequence[CallObserver],
    *,
    is_stream: bool,
) -> Iterator[Call]:
    """The block in which a call is handled, from its start to its end, however it ends."""
    record = CallRecord(method, is_stream, context.peer().partition(":")[0])
    for observer in observers:
        observer.started(record)
    began = time.perf_counter()
    try:
        yield Call(context, record, observers)
        if context.time_remaining() == 0:  # the end that the caller saw
            record.code = grpc.StatusCode.DEADLINE_EXCEEDED
    except asyncio.CancelledError:
        record.code = _code_of_cancellation(context)
        raise
    except grpc.aio.AbortError:
        raise
    except Exception:
        record.code = grpc.StatusCode.UNKNOWN
        raise
    finally:
        record.seconds = time.perf_counter() - began
        for observer in observers:
            observer.ended(record)


def _code_of_cancellation(context: grpc.aio.ServicerContext[bytes, bytes]) -> grpc.StatusCode:
    # gRPC cancels the handler when the deadline is over, and when the caller left; it does not say which.
    is_late = context.time_remaining() == 0
    return grpc.StatusCode.DEADLINE_EXCEEDED if is_late else grpc.StatusCode.CANCELLED
