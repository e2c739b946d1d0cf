"""The client for asyncio: the same names as in the one for threads, awaited."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import grpc
import grpc.aio

from logitd.client import _config as config
from logitd.client import _messages as messages
from logitd.client._exceptions import (
    ClientClosedError,
    ErrorDetails,
    LogitdError,
    NotFoundError,
    ProtocolError,
    RpcError,
    UnavailableError,
    from_grpc_error,
    step_timeout,
)
from logitd.client._session import BatchSession
from logitd.client._steps import AccumulateStep, BeamSearchStep, DenseStep, SparseStep, Step

if TYPE_CHECKING:
    from collections import abc
    from types import TracebackType

    import numpy.typing as npt

    from logitd.client import _types as types
    from logitd.client._arrays import TokenIds
    from logitd.client._steps import StepTokens

    _Stream = grpc.aio.StreamStreamCall[bytes, bytes]

Result = TypeVar("Result")

_LOST_STATUS = "Internal error from Core"
"""What grpc.aio reports, as INTERNAL, in the place of the status of a stream that ended under a write."""


class AsyncClient(config.ClientBase):
    """A connection to a server, for one event loop: create it inside of it. An async context manager.

    The methods are those of `Client`, which describes them.
    """

    def _connect(self) -> None:
        target, credentials = self._config.target, self._config.credentials
        options = self._config.channel_options
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(target, options)
        else:
            self._channel = grpc.aio.secure_channel(target, credentials, options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """As `Client.close`."""
        self._is_closed = True
        await self._channel.close()

    async def create_batch(
        self,
        sequences: abc.Sequence[types.Sequence],
        *,
        vocab_size: int,
        profile: str | None = None,
        batch_id: str | None = None,
        create_key: bytes | None = None,
    ) -> AsyncPenaltyBatch:
        """As `Client.create_batch`: `async with await client.create_batch(...) as batch`."""
        options = messages.BatchOptions(vocab_size, profile, batch_id, create_key)
        return AsyncPenaltyBatch(self, await self._call(messages.create_batch("PENALTY", sequences, options)))

    async def create_beam_batch(
        self,
        sequences: abc.Sequence[types.Sequence],
        *,
        vocab_size: int,
        beam_rule: str | None = None,
        profile: str | None = None,
        allow_penalty_extension: bool = False,
        batch_id: str | None = None,
        create_key: bytes | None = None,
    ) -> AsyncBeamBatch:
        """As `Client.create_beam_batch`: `async with await client.create_beam_batch(...) as batch`."""
        options = messages.BatchOptions(vocab_size, profile, batch_id, create_key, beam_rule, allow_penalty_extension)
        return AsyncBeamBatch(self, await self._call(messages.create_batch("BEAM", sequences, options)))

    async def get_batch(self, batch_id: str, *, uid: bytes | None = None, full: bool = False) -> types.BatchInfo:
        """As `Client.get_batch`."""
        return await self._call(messages.get_batch(batch_id, uid, full))

    async def list_batches(self, *, page_size: int | None = None) -> abc.AsyncIterator[types.BatchInfo]:
        """As `Client.list_batches`, with `async for`."""
        page = await self._call(messages.list_batches(page_size, ""))
        for batch in page.batches:
            yield batch
        while page.next_page_token:
            page = await self._call(messages.list_batches(page_size, page.next_page_token))
            for batch in page.batches:
                yield batch

    async def delete_batch(self, batch_id: str, *, uid: bytes | None = None, allow_missing: bool = False) -> None:
        """As `Client.delete_batch`."""
        await self._call(messages.delete_batch(batch_id, uid, allow_missing))

    async def capabilities(self) -> types.Capabilities:
        """As `Client.capabilities`."""
        return await self._call(messages.get_capabilities())

    async def wait_until_ready(self, timeout: float = config.DEFAULT_TIMEOUT) -> types.Capabilities:  # noqa: ASYNC109
        """As `Client.wait_until_ready`."""
        deadline = time.monotonic() + timeout
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            try:
                return await self._call(messages.get_capabilities(), limit=remaining, wait_for_ready=True)
            except UnavailableError:
                if time.monotonic() + config.STARTING_PAUSE > deadline:
                    raise
            await asyncio.sleep(config.STARTING_PAUSE)

    async def _call(
        self, call: messages.Call[Result], *, limit: float | None = None, wait_for_ready: bool = False
    ) -> Result:
        self._check_open()
        send: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        send = self._channel.unary_unary(messages.method_path(call.method))
        metadata = self._config.metadata(call.batch_id)
        limit = self._config.timeout if limit is None else limit
        try:
            reply = await send(call.message, timeout=limit, metadata=metadata, wait_for_ready=wait_for_ready)
        except grpc.RpcError as error:
            raise from_grpc_error(error) from error
        return call.parse(reply)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError(f"the client of {self._config.target!r} is closed")


class _AsyncBatch(BatchSession):
    """What both kinds of batches do with their streams."""

    def __init__(self, client: AsyncClient, info: types.BatchInfo) -> None:
        super().__init__(info)
        self._client = client
        self._streams: dict[str, _Stream] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_closed:
            return
        try:
            await self._delete(self._client._config.timeout if error is None else config.CLEAN_UP_TIMEOUT)
        except LogitdError as failure:
            if error is None:
                raise
            error.add_note(f"and the batch {self.batch_id!r} could not be deleted: {failure}")

    async def close(self) -> None:
        """As `PenaltyBatch.close`."""
        self._is_closed = True
        streams = list(self._streams.values())
        self._streams.clear()
        for stream in streams:
            # A stream that broke has nothing to end.
            with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
                await stream.done_writing()

    async def delete(self) -> None:
        """As `PenaltyBatch.delete`."""
        await self._delete(self._client._config.timeout)

    async def _delete(self, limit: float | None) -> None:
        await self.close()
        call = messages.delete_batch(self.batch_id, self.uid, allow_missing=True)
        # Where another batch has the id now, ours is gone.
        with contextlib.suppress(NotFoundError):
            await self._client._call(call, limit=limit)

    async def _run(self, step: Step[Result]) -> Result:
        self._client._check_open()
        with self._running(step):
            stream = self._open_stream(step.method)
            seconds = self._client._config.step_timeout
            try:
                async with asyncio.timeout(seconds) as limit:
                    await self._exchange(stream, step)
            except BaseException as error:
                self._drop_stream(step.method)
                if isinstance(error, TimeoutError) and limit.expired() and seconds is not None:
                    raise step_timeout(step.method, seconds) from error
                if isinstance(error, grpc.RpcError):
                    raise _translate(error) from error
                raise
        return step.result()

    async def _exchange(self, stream: _Stream, step: Step[Any]) -> None:
        # What is refused is mostly refused with the first message. A write to a stream that has ended makes grpc.aio
        # forget the status, so the others wait for its answer.
        await _write(stream, step.message(step.num_answered))
        self._receive(step, await _read(stream))
        if step.num_answered == step.num_messages:
            return
        # The server may stop reading until its replies are read, so both directions have to move at once.
        writer = asyncio.create_task(_write_unanswered(stream, step))
        try:
            while step.num_answered < step.num_messages:
                self._receive(step, await _read(stream))
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    def _open_stream(self, method: str) -> _Stream:
        stream = self._streams.get(method)
        if stream is None or stream.done():
            open_call: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
            open_call = self._client._channel.stream_stream(messages.method_path(method))
            metadata = self._client._config.metadata(self.batch_id)
            stream = self._streams[method] = open_call(metadata=metadata)
        return stream

    def _drop_stream(self, method: str) -> None:
        stream = self._streams.pop(method, None)
        if stream is not None:
            stream.cancel()


class AsyncPenaltyBatch(_AsyncBatch):
    """An open batch for penalties. An async context manager that deletes the batch when it ends.

    The methods are those of `PenaltyBatch`, which describes them.
    """

    async def accumulate(self, token_ids: StepTokens, *, rollback: TokenIds | None = None) -> None:
        """As `PenaltyBatch.accumulate`."""
        await self._run(AccumulateStep(token_ids, rollback))

    async def apply(self, logits: npt.ArrayLike, token_ids: StepTokens | None = None) -> npt.NDArray[Any]:
        """As `PenaltyBatch.apply`."""
        return await self._run(DenseStep(logits, token_ids, self._client._config.chunk_bytes))

    async def apply_sparse(self, logits: npt.ArrayLike, token_ids: StepTokens | None = None) -> types.SparsePatch:
        """As `PenaltyBatch.apply_sparse`."""
        return await self._run(SparseStep(logits, token_ids, self._client._config.chunk_bytes))

    async def retry(self) -> npt.NDArray[Any] | types.SparsePatch | None:
        """As `PenaltyBatch.retry`."""
        result = await self._run(self._unanswered_step())
        return cast("npt.NDArray[Any] | types.SparsePatch | None", result)


class AsyncBeamBatch(_AsyncBatch):
    """An open batch of beam searches. An async context manager that deletes the batch when it ends.

    The methods are those of `BeamBatch`, which describes them.
    """

    async def beam_step(self, logits: npt.ArrayLike, *, finish: abc.Iterable[str] = ()) -> types.BeamStep:
        """As `BeamBatch.beam_step`."""
        return await self._run(BeamSearchStep(logits, finish, self._client._config.chunk_bytes))

    async def retry(self) -> types.BeamStep:
        """As `BeamBatch.retry`."""
        return cast("types.BeamStep", await self._run(self._unanswered_step()))


async def _write(stream: _Stream, message: bytes) -> None:
    # A stream that is over refuses messages without saying why; reading from it tells.
    with contextlib.suppress(asyncio.InvalidStateError):
        await stream.write(message)


async def _write_unanswered(stream: _Stream, step: Step[Any]) -> None:
    for index in range(step.num_answered, step.num_messages):
        await _write(stream, step.message(index))


async def _read(stream: _Stream) -> bytes:
    reply = await stream.read()
    if not isinstance(reply, bytes):
        raise ProtocolError("the server ended a stream before it answered")
    return reply


def _translate(error: grpc.RpcError) -> RpcError:
    translated = from_grpc_error(error)
    if translated.message != _LOST_STATUS:
        return translated
    details = ErrorDetails(grpc.StatusCode.UNAVAILABLE)
    return UnavailableError("the stream ended while a message was being sent", details)
