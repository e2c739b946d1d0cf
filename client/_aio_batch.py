"""Open batches, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, cast

import grpc
import grpc.aio

from logitd.client import _config as config
from logitd.client import _messages as messages
from logitd.client import _recovery as recovery
from logitd.client._aio_limits import TaskLimit
from logitd.client._apply_steps import EditsStep, InPlaceStep
from logitd.client._beam_steps import BeamSearchStep
from logitd.client._drafts import as_drafts
from logitd.client._exceptions import (
    ErrorDetails,
    LogitdError,
    NotFoundError,
    ProtocolError,
    RpcError,
    UnavailableError,
    from_grpc_error,
    step_timeout,
)
from logitd.client._kinds import BeamSession, PenaltySession, SearchResults
from logitd.client._membership_steps import FilterStep, MergeStep
from logitd.client._session import BatchSession, Running
from logitd.client._steps import AccumulateStep, Step

if TYPE_CHECKING:
    from collections import abc
    from types import TracebackType

    import numpy as np
    import numpy.typing as npt

    from logitd.client import _types as types
    from logitd.client._aio import AsyncClient
    from logitd.client._arrays import TokenIds
    from logitd.client._drafts import AnyDrafts
    from logitd.client._edits import Edits
    from logitd.client._history import History
    from logitd.client._shared_logits import AsyncSharedLogits
    from logitd.client._steps import StepTokens
    from logitd.client._types import RowLayouts

    AsyncLogitsCallback: TypeAlias = abc.Callable[
        [npt.NDArray[np.int32] | None, npt.NDArray[np.int32] | None],
        abc.Awaitable[npt.ArrayLike | AsyncSharedLogits],
    ]

    _Stream = grpc.aio.StreamStreamCall[bytes, bytes]

Result = TypeVar("Result")

_LOST_STATUS = "Internal error from Core"
"""What grpc.aio reports, as INTERNAL, in the place of the status of a stream that ended under a write."""


class _AsyncBatch(BatchSession):
    """What both kinds of batches do with their streams."""

    def __init__(self, client: AsyncClient, info: types.BatchInfo, history: History[Any]) -> None:
        super().__init__(info, history)
        self._client = client
        self._streams: dict[str, _Stream] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_closed:
            return
        if error is None:
            await self.delete()
            return
        await self.close()
        try:
            await self._client._call(self._deletion(), limit=config.CLEAN_UP_TIMEOUT)
        except LogitdError as failure:
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
        await self.close()
        # Where another batch has the id now, ours is gone.
        with contextlib.suppress(NotFoundError):
            await self._client._ask(self._deletion())

    async def filter(self, selection: abc.Iterable[str | tuple[str, str]]) -> RowLayouts:
        """As `PenaltyBatch.filter`."""
        return await self._run(FilterStep(selection))

    async def merge(self, other: Self) -> RowLayouts:
        """As `PenaltyBatch.merge`."""
        return await self._run(MergeStep(self._mergeable(other)))

    async def _run(self, step: Step[Result]) -> Result:
        self._client._check_open()
        with Running(self, step):
            try:
                await self._attempt(step)
            except LogitdError as error:
                await self._follow(recovery.Recovery(self, step, self._client._config).orders(error), step)
        for other in step.others:
            await cast("_AsyncBatch", other).close()
        return step.result()

    async def _attempt(self, step: Step[Any]) -> None:
        if step.is_unary:
            self._receive(step, await self._client._send(step.method, step.outgoing(0), self.batch_id))
            return
        if step.num_answered == step.num_messages:  # it was cancelled with its last answer
            return
        stream = self._open_stream(step.method)
        try:
            with TaskLimit(self._client._limits) as limit:
                # What is refused is mostly refused with the first message. A write to a stream that has ended makes
                # grpc.aio forget the status, so the others wait for its answer.
                await _write(stream, step.outgoing(step.num_answered))
                self._receive(step, await _read(stream))
                if step.num_answered < step.num_messages:
                    await self._exchange_rest(stream, step)
        except BaseException as error:
            self._drop_stream(step.method)
            seconds = self._client._limits.seconds
            if isinstance(error, TimeoutError) and limit.has_passed and seconds is not None:
                raise step_timeout(step.method, seconds) from error
            if isinstance(error, grpc.RpcError):
                raise _translate(error) from error
            raise

    async def _follow(self, orders: recovery.Orders, step: Step[Any]) -> None:
        order = recovery.go_on(orders, None)
        while order is not None:
            try:
                answer = await self._carry_out(order, step)
            except LogitdError as error:
                order = recovery.complain(orders, error)
            else:
                order = recovery.go_on(orders, answer)

    async def _carry_out(self, order: recovery.Order, step: Step[Any]) -> object:
        match order:
            case recovery.Attempt():
                await self._attempt(step)
            case recovery.Pause(seconds):
                await asyncio.sleep(seconds)
            case recovery.AwaitServer(seconds):
                await self._client.wait_until_ready(seconds)
            case recovery.Ask(call):
                return await self._client._call(call)
            case recovery.Register(memory):
                await self._client._register(memory)
            case recovery.Refill(fill):
                filled = fill()
                if inspect.isawaitable(filled):
                    await filled
        return None

    async def _exchange_rest(self, stream: _Stream, step: Step[Any]) -> None:
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


class AsyncPenaltyBatch(_AsyncBatch, PenaltySession):
    """An open batch for penalties. An async context manager that deletes the batch when it ends.

    The methods are those of `PenaltyBatch`, which describes them.
    """

    async def accumulate(self, token_ids: StepTokens, *, rollback: TokenIds | None = None) -> None:
        """As `PenaltyBatch.accumulate`."""
        await self._run(AccumulateStep(token_ids, rollback))

    async def apply(
        self,
        logits: npt.ArrayLike,
        token_ids: StepTokens | None = None,
        *,
        drafts: AnyDrafts | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """As `PenaltyBatch.apply`."""
        return await self._run(self._dense_step(logits, token_ids, drafts, out, self._client._config))

    async def apply_sparse(
        self, logits: npt.ArrayLike, token_ids: StepTokens | None = None, *, drafts: AnyDrafts | None = None
    ) -> types.SparsePatch:
        """As `PenaltyBatch.apply_sparse`."""
        made = as_drafts(drafts)
        source = self._inline(logits, self._client._config.chunk_bytes, made)
        return await self._run(self._sparse_step(source, token_ids, made, self._client._config))

    async def apply_shared(
        self,
        shared: AsyncSharedLogits,
        token_ids: StepTokens | None = None,
        *,
        drafts: AnyDrafts | None = None,
        rows: slice | None = None,
    ) -> types.SparsePatch:
        """As `PenaltyBatch.apply_shared`."""
        made = as_drafts(drafts)
        source = self._rows_in(shared, rows, made)
        return await self._run(self._sparse_step(source, token_ids, made, self._client._config))

    async def apply_inplace(
        self,
        shared: AsyncSharedLogits,
        token_ids: StepTokens | None = None,
        *,
        drafts: AnyDrafts | None = None,
        rows: slice | None = None,
        refill: abc.Callable[[], object] | None = None,
    ) -> None:
        """As `PenaltyBatch.apply_inplace`; `refill` may be a coroutine function."""
        made = as_drafts(drafts)
        await self._run(InPlaceStep(self._rows_in(shared, rows, made), token_ids, made, refill))

    async def edits(
        self, token_ids: StepTokens | None = None, *, drafts: AnyDrafts | None = None, since: int | None = None
    ) -> Edits:
        """As `PenaltyBatch.edits`."""
        made = as_drafts(drafts)
        ranges = self._edit_ranges(token_ids, made, self._client._config)
        return await self._run(EditsStep(ranges, token_ids, made, since, self.info.profile))

    async def retry(
        self, *, refilled: bool = False
    ) -> npt.NDArray[Any] | types.SparsePatch | Edits | RowLayouts | None:
        """As `PenaltyBatch.retry`."""
        result = await self._run(self._unanswered_step(refilled))
        return cast("npt.NDArray[Any] | types.SparsePatch | Edits | RowLayouts | None", result)


class AsyncBeamBatch(_AsyncBatch, BeamSession):
    """An open batch of beam searches. An async context manager that deletes the batch when it ends.

    The methods are those of `BeamBatch`, which describes them.
    """

    async def beam_step(
        self, logits: npt.ArrayLike | AsyncSharedLogits, *, finish: abc.Iterable[str] = ()
    ) -> types.BeamStep:
        """As `BeamBatch.beam_step`."""
        return await self._run(BeamSearchStep(self._logits_of(logits, self._client._config.chunk_bytes), finish))

    async def search(self, logits: AsyncLogitsCallback) -> tuple[types.SearchStep, ...]:
        """As `BeamBatch.search`, with a coroutine function."""
        results = SearchResults(self.rows)
        parent_rows = token_ids = None
        while self.rows:
            step = await self.beam_step(await logits(parent_rows, token_ids))
            results.take(step)
            parent_rows, token_ids = step.parent_rows, step.token_ids
        return results.in_order()

    async def retry(self) -> types.BeamStep | RowLayouts:
        """As `BeamBatch.retry`."""
        return cast("types.BeamStep | RowLayouts", await self._run(self._unanswered_step()))


async def _write(stream: _Stream, message: bytes) -> None:
    try:
        await stream.write(message)
    except asyncio.InvalidStateError:
        # A stream that is over refuses messages without saying why; reading from it tells.
        return


async def _write_unanswered(stream: _Stream, step: Step[Any]) -> None:
    for index in range(step.num_answered, step.num_messages):
        await _write(stream, step.outgoing(index))


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
