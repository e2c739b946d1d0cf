"""Shared logits as the clients give them: memory that a server has as well, until they are closed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

from logitd.client import _messages as messages
from logitd.client._exceptions import LogitdError
from logitd.client._shared import SharedMemory

if TYPE_CHECKING:
    from types import TracebackType

    import numpy.typing as npt

    from logitd.client._aio import AsyncClient
    from logitd.client._shared import SharedFile
    from logitd.client._sync import Client


class SharedLogits(SharedMemory):
    """Logits [rows, columns] that the server reads, and changes when told, where they lie.

    `Client.shared_logits` makes them. The decoder fills `array` in each step. A context manager that closes them.
    """

    def __init__(self, client: Client, shape: tuple[int, int], dtype: npt.DTypeLike, file: SharedFile) -> None:
        super().__init__(shape, dtype, file)
        self._client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the sharing. Arrays that were taken keep their memory for themselves."""
        if self.is_closed:
            return
        # The server lets go of what nobody holds any more, told or not.
        with contextlib.suppress(LogitdError):
            self._client._call(messages.unregister_shared_memory(self.region_id))
        self.release()


class AsyncSharedLogits(SharedMemory):
    """As `SharedLogits`, made by `AsyncClient.shared_logits`; an async context manager."""

    def __init__(self, client: AsyncClient, shape: tuple[int, int], dtype: npt.DTypeLike, file: SharedFile) -> None:
        super().__init__(shape, dtype, file)
        self._client = client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """As `SharedLogits.close`."""
        if self.is_closed:
            return
        with contextlib.suppress(LogitdError):
            await self._client._call(messages.unregister_shared_memory(self.region_id))
        self.release()
