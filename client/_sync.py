"""The client for threads."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Self, TypeVar

import grpc

from logitd.client import _config as config
from logitd.client import _messages as messages
from logitd.client._beam_history import BeamHistory
from logitd.client._exceptions import DeadlineExceededError, UnavailableError, from_grpc_error
from logitd.client._penalty_history import PenaltyHistory
from logitd.client._recovery import Patience
from logitd.client._shared import open_shared_file
from logitd.client._shared_logits import SharedLogits
from logitd.client._sync_batch import BeamBatch, PenaltyBatch
from logitd.client._watchdog import Watchdog

if TYPE_CHECKING:
    from collections import abc
    from types import TracebackType

    import numpy.typing as npt

    from logitd.client import _types as types
    from logitd.client._shared import SharedMemory

Result = TypeVar("Result")


class Client(config.ClientBase):
    """A connection to a server. A context manager; threads may share it, but not a batch of it.

    Calls that fail raise a `LogitdError`; `help("logitd.client._exceptions")` draws the tree of its kinds. A server
    that restarts is waited for, and what it forgot is rebuilt; the parameters say how long, and how to leave that out.
    """

    def _connect(self) -> None:
        target, credentials = self._config.target, self._config.credentials
        options = self._config.channel_options
        if credentials is None:
            self._channel = grpc.insecure_channel(target, options)
        else:
            self._channel = grpc.secure_channel(target, credentials, options)
        self._watchdog = Watchdog()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Batches that were not deleted stay on the server until they expire."""
        self._is_closed = True
        self._channel.close()
        self._watchdog.close()

    def create_batch(
        self,
        sequences: abc.Sequence[types.Sequence],
        *,
        vocab_size: int,
        profile: str | None = None,
        batch_id: str | None = None,
        create_key: bytes | None = None,
    ) -> PenaltyBatch:
        """Opens a batch for penalties, or rebuilds one from its sequences' histories.

        Parameters
        ----------
        sequences
            One row of logits each, in this order.
        vocab_size
            The real columns of the logits.
        profile
            A `Profile` or its name; None: SGLANG.
        batch_id
            1 to 128 printable ASCII characters; None: a random one.
        create_key
            16 random bytes. Repeating a creation with the same id, key and content is safe.

        Raises
        ------
        AlreadyExistsError
            The id is live with other content.
        ResourceExhaustedError
            The server has no room.
        """
        options = messages.BatchOptions(vocab_size, profile, batch_id, create_key)
        request = messages.create_request("PENALTY", sequences, options)
        info = self._ask(messages.create_batch(request))
        return PenaltyBatch(self, info, PenaltyHistory.of(request, info))

    def create_beam_batch(
        self,
        sequences: abc.Sequence[types.Sequence],
        *,
        vocab_size: int,
        beam_rule: str | None = None,
        profile: str | None = None,
        allow_penalty_extension: bool = False,
        batch_id: str | None = None,
        create_key: bytes | None = None,
    ) -> BeamBatch:
        """Opens a batch of beam searches; every sequence needs `beam` and `max_new_tokens`.

        Parameters
        ----------
        sequences
            The searches. A new one has one row of logits in its first step, then up to its width.
        vocab_size
            The real columns of the logits.
        beam_rule
            A `BeamRule` or its name; None: HF.
        profile
            A `Profile` or its name; None: that of the rule's engine.
        allow_penalty_extension
            Permits penalties under the VLLM rules, which that engine does not have.
        batch_id, create_key
            As in `create_batch`.

        Raises
        ------
        AlreadyExistsError
            The id is live with other content.
        ResourceExhaustedError
            The server has no room.
        """
        options = messages.BatchOptions(vocab_size, profile, batch_id, create_key, beam_rule, allow_penalty_extension)
        request = messages.create_request("BEAM", sequences, options)
        info = self._ask(messages.create_batch(request))
        return BeamBatch(self, info, BeamHistory.of(request, info))

    def shared_logits(
        self,
        rows: int,
        columns: int,
        dtype: npt.DTypeLike = "float32",
        *,
        side_socket: str | None = None,
        shared_memory_dir: str | None = None,
        file_name: str | None = None,
    ) -> SharedLogits:
        """Logits [rows, columns] in memory that a server on this machine shares, zero at first. A context manager.

        By default in a sealed memory file, which is handed over through the side socket of the server's Unix socket.

        Parameters
        ----------
        rows, columns
            At least as many as the batches have that use them, and one of their steps at a time.
        dtype
            float32, float16, or uint16 for the bits of bfloat16.
        side_socket
            Where the server takes descriptors; None: the target's path with ".memory" behind it.
        shared_memory_dir
            The directory of the server's `--shared-memory-dir`, as this process sees it: the logits lie in a new file
            there, which both may write. For a server that cannot be reached over a Unix socket.
        file_name
            The file's name, "logitd-" and anything; None: a random one.

        Raises
        ------
        UnavailableError
            There is no server, or no side socket.
        NotSupportedError
            The server takes no named files.
        ResourceExhaustedError
            The server has no room.
        """
        options = {"side_socket": side_socket, "directory": shared_memory_dir, "file_name": file_name}
        file = open_shared_file((rows, columns), dtype, self._config.target, **options)
        shared = SharedLogits(self, (rows, columns), dtype, file)
        try:
            self._patiently(lambda: self._register(shared))
        except BaseException:
            shared.release()
            raise
        return shared

    def get_batch(self, batch_id: str, *, uid: bytes | None = None, full: bool = False) -> types.BatchInfo:
        """Describes a batch; `full` adds token ids and beams, all that a rebuild needs."""
        return self._ask(messages.get_batch(batch_id, uid, full))

    def list_batches(self, *, page_size: int | None = None) -> abc.Iterator[types.BatchInfo]:
        """All live batches by id, fetched a page at a time, without their sequences."""
        page = self._ask(messages.list_batches(page_size, ""))
        yield from page.batches
        while page.next_page_token:
            page = self._ask(messages.list_batches(page_size, page.next_page_token))
            yield from page.batches

    def delete_batch(self, batch_id: str, *, uid: bytes | None = None, allow_missing: bool = False) -> None:
        """Releases a batch; one that is unknown is a NotFoundError unless `allow_missing`."""
        self._call(messages.delete_batch(batch_id, uid, allow_missing))

    def capabilities(self) -> types.Capabilities:
        """What the server does, and its limits."""
        return self._ask(messages.get_capabilities())

    def wait_until_ready(self, timeout: float = config.DEFAULT_TIMEOUT) -> types.Capabilities:
        """Waits until a server answers, `timeout` seconds at most; then as `capabilities`.

        Raises
        ------
        DeadlineExceededError
            There was none.
        UnavailableError
            There was one that still starts, or that drains.
        """
        deadline, unavailable = time.monotonic() + timeout, None
        try:
            while True:
                remaining = max(0.0, deadline - time.monotonic())
                try:
                    return self._call(messages.get_capabilities(), timeout=remaining, wait_for_ready=True)
                except DeadlineExceededError as error:
                    raise unavailable or self._not_ready(timeout, error) from error
                except UnavailableError as error:
                    unavailable = error
                    if time.monotonic() + config.STARTING_PAUSE > deadline:
                        raise
                time.sleep(config.STARTING_PAUSE)
        finally:
            del unavailable  # whose frames hold this one

    def _register(self, memory: SharedMemory) -> None:
        memory.rename(self._call(messages.register_shared_memory(memory.registration(self._config.timeout))))

    def _ask(self, call: messages.Call[Result]) -> Result:
        return self._patiently(lambda: self._call(call))

    def _patiently(self, action: abc.Callable[[], Result]) -> Result:
        """Does what may be repeated: a server that was there is waited for."""
        patience = Patience(self._config.recover_timeout)
        while True:
            try:
                return action()
            except UnavailableError as error:
                patience.note_failure(error)
                if not (self._expects_server and patience.remaining):
                    raise
            time.sleep(patience.next_pause())
            with contextlib.suppress(DeadlineExceededError, UnavailableError):
                self.wait_until_ready(patience.remaining)
                patience.note_ready()

    def _call(
        self, call: messages.Call[Result], *, timeout: float | None = None, wait_for_ready: bool = False
    ) -> Result:
        return call.parse(self._send(call.method, call.message, call.batch_id, timeout, wait_for_ready))

    def _send(
        self,
        method: str,
        message: bytes,
        batch_id: str | None,
        timeout: float | None = None,
        wait_for_ready: bool = False,
    ) -> bytes:
        self._check_open()
        send: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        send = self._channel.unary_unary(messages.method_path(method))
        metadata = self._config.metadata(batch_id)
        limit = self._config.timeout if timeout is None else timeout
        try:
            reply = send(message, timeout=limit, metadata=metadata, wait_for_ready=wait_for_ready)
        except grpc.RpcError as error:
            raise from_grpc_error(error) from error
        except ValueError:  # of a channel that another thread has just closed
            self._check_open()
            raise
        self._was_reached = True
        return reply

    def _open_stream(self, method: str, messages_out: abc.Iterator[bytes], batch_id: str) -> abc.Iterator[bytes]:
        open_call: grpc.StreamStreamMultiCallable[bytes, bytes]
        open_call = self._channel.stream_stream(messages.method_path(method))
        try:
            return open_call(messages_out, metadata=self._config.metadata(batch_id))
        except ValueError:  # as in `_send`
            self._check_open()
            raise
