"""The client for asyncio: the same names as in the one for threads, awaited."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Self, TypeVar

import grpc
import grpc.aio

from logitd.client import _config as config
from logitd.client import _messages as messages
from logitd.client._aio_batch import AsyncBeamBatch, AsyncPenaltyBatch
from logitd.client._aio_limits import TaskLimits
from logitd.client._beam_history import BeamHistory
from logitd.client._exceptions import DeadlineExceededError, UnavailableError, from_grpc_error
from logitd.client._penalty_history import PenaltyHistory
from logitd.client._recovery import Patience
from logitd.client._shared import open_shared_file
from logitd.client._shared_logits import AsyncSharedLogits

if TYPE_CHECKING:
    from collections import abc
    from types import TracebackType

    import numpy.typing as npt

    from logitd.client import _types as types
    from logitd.client._shared import SharedMemory

Result = TypeVar("Result")


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
        self._limits = TaskLimits(self._config.step_timeout)

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
        self._limits.close()

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
        request = messages.create_request("PENALTY", sequences, options)
        info = await self._ask(messages.create_batch(request))
        return AsyncPenaltyBatch(self, info, PenaltyHistory.of(request, info))

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
        request = messages.create_request("BEAM", sequences, options)
        info = await self._ask(messages.create_batch(request))
        return AsyncBeamBatch(self, info, BeamHistory.of(request, info))

    async def shared_logits(
        self,
        rows: int,
        columns: int,
        dtype: npt.DTypeLike = "float32",
        *,
        side_socket: str | None = None,
        shared_memory_dir: str | None = None,
        file_name: str | None = None,
    ) -> AsyncSharedLogits:
        """As `Client.shared_logits`: `async with await client.shared_logits(...) as shared`."""
        options = {"side_socket": side_socket, "directory": shared_memory_dir, "file_name": file_name}
        file = open_shared_file((rows, columns), dtype, self._config.target, **options)
        shared = AsyncSharedLogits(self, (rows, columns), dtype, file)
        try:
            await self._patiently(lambda: self._register(shared))
        except BaseException:
            shared.release()
            raise
        return shared

    async def get_batch(self, batch_id: str, *, uid: bytes | None = None, full: bool = False) -> types.BatchInfo:
        """As `Client.get_batch`."""
        return await self._ask(messages.get_batch(batch_id, uid, full))

    async def list_batches(self, *, page_size: int | None = None) -> abc.AsyncIterator[types.BatchInfo]:
        """As `Client.list_batches`, with `async for`."""
        page = await self._ask(messages.list_batches(page_size, ""))
        for batch in page.batches:
            yield batch
        while page.next_page_token:
            page = await self._ask(messages.list_batches(page_size, page.next_page_token))
            for batch in page.batches:
                yield batch

    async def delete_batch(self, batch_id: str, *, uid: bytes | None = None, allow_missing: bool = False) -> None:
        """As `Client.delete_batch`."""
        await self._call(messages.delete_batch(batch_id, uid, allow_missing))

    async def capabilities(self) -> types.Capabilities:
        """As `Client.capabilities`."""
        return await self._ask(messages.get_capabilities())

    async def wait_until_ready(self, timeout: float = config.DEFAULT_TIMEOUT) -> types.Capabilities:  # noqa: ASYNC109
        """As `Client.wait_until_ready`."""
        deadline, unavailable = time.monotonic() + timeout, None
        try:
            while True:
                remaining = max(0.0, deadline - time.monotonic())
                try:
                    return await self._call(messages.get_capabilities(), limit=remaining, wait_for_ready=True)
                except DeadlineExceededError as error:
                    raise unavailable or self._not_ready(timeout, error) from error
                except UnavailableError as error:
                    unavailable = error
                    if time.monotonic() + config.STARTING_PAUSE > deadline:
                        raise
                await asyncio.sleep(config.STARTING_PAUSE)
        finally:
            del unavailable  # whose frames hold this one

    async def _register(self, memory: SharedMemory) -> None:
        request = await asyncio.to_thread(memory.registration, self._config.timeout)
        memory.rename(await self._call(messages.register_shared_memory(request)))

    async def _ask(self, call: messages.Call[Result]) -> Result:
        return await self._patiently(lambda: self._call(call))

    async def _patiently(self, action: abc.Callable[[], abc.Awaitable[Result]]) -> Result:
        """Does what may be repeated: a server that was there is waited for."""
        patience = Patience(self._config.recover_timeout)
        while True:
            try:
                return await action()
            except UnavailableError as error:
                patience.note_failure(error)
                if not (self._expects_server and patience.remaining):
                    raise
            await asyncio.sleep(patience.next_pause())
            with contextlib.suppress(DeadlineExceededError, UnavailableError):
                await self.wait_until_ready(patience.remaining)
                patience.note_ready()

    async def _call(
        self, call: messages.Call[Result], *, limit: float | None = None, wait_for_ready: bool = False
    ) -> Result:
        return call.parse(await self._send(call.method, call.message, call.batch_id, limit, wait_for_ready))

    async def _send(
        self,
        method: str,
        message: bytes,
        batch_id: str | None,
        limit: float | None = None,
        wait_for_ready: bool = False,
    ) -> bytes:
        self._check_open()
        send: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        send = self._channel.unary_unary(messages.method_path(method))
        metadata = self._config.metadata(batch_id)
        limit = self._config.timeout if limit is None else limit
        try:
            reply = await send(message, timeout=limit, metadata=metadata, wait_for_ready=wait_for_ready)
        except grpc.RpcError as error:
            raise from_grpc_error(error) from error
        self._was_reached = True
        return reply
