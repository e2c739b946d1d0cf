"""The client for threads."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

import grpc

from logitd.client import _config as config
from logitd.client import _messages as messages
from logitd.client._exceptions import (
    ClientClosedError,
    LogitdError,
    NotFoundError,
    ProtocolError,
    UnavailableError,
    from_grpc_error,
    step_timeout,
)
from logitd.client._session import BatchSession
from logitd.client._steps import AccumulateStep, BeamSearchStep, DenseStep, SparseStep, Step
from logitd.client._watchdog import Watchdog

if TYPE_CHECKING:
    from collections import abc
    from types import TracebackType

    import numpy.typing as npt

    from logitd.client import _types as types
    from logitd.client._arrays import TokenIds
    from logitd.client._steps import StepTokens

Result = TypeVar("Result")

_MESSAGES_AHEAD = 3
"""Chunks that go out before the oldest of them is answered: both sides stay busy, and memory bounded."""


class Client(config.ClientBase):
    """A connection to a server. A context manager; threads may share it, but not a batch of it.

    Calls that fail raise a `LogitdError`; the tree of its kinds is drawn in its module.
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
        return PenaltyBatch(self, self._call(messages.create_batch("PENALTY", sequences, options)))

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
        return BeamBatch(self, self._call(messages.create_batch("BEAM", sequences, options)))

    def get_batch(self, batch_id: str, *, uid: bytes | None = None, full: bool = False) -> types.BatchInfo:
        """Describes a batch; `full` adds token ids and beams, all that a rebuild needs."""
        return self._call(messages.get_batch(batch_id, uid, full))

    def list_batches(self, *, page_size: int | None = None) -> abc.Iterator[types.BatchInfo]:
        """All live batches by id, fetched a page at a time, without their sequences."""
        page = self._call(messages.list_batches(page_size, ""))
        yield from page.batches
        while page.next_page_token:
            page = self._call(messages.list_batches(page_size, page.next_page_token))
            yield from page.batches

    def delete_batch(self, batch_id: str, *, uid: bytes | None = None, allow_missing: bool = False) -> None:
        """Releases a batch; one that is unknown is a NotFoundError unless `allow_missing`."""
        self._call(messages.delete_batch(batch_id, uid, allow_missing))

    def capabilities(self) -> types.Capabilities:
        """What the server does, and its limits."""
        return self._call(messages.get_capabilities())

    def wait_until_ready(self, timeout: float = config.DEFAULT_TIMEOUT) -> types.Capabilities:
        """Waits until a server answers, `timeout` seconds at most; then as `capabilities`.

        Raises
        ------
        DeadlineExceededError
            There was none.
        UnavailableError
            There was one that still starts, or that drains.
        """
        deadline = time.monotonic() + timeout
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            try:
                return self._call(messages.get_capabilities(), timeout=remaining, wait_for_ready=True)
            except UnavailableError:
                if time.monotonic() + config.STARTING_PAUSE > deadline:
                    raise
            time.sleep(config.STARTING_PAUSE)

    def _call(
        self, call: messages.Call[Result], *, timeout: float | None = None, wait_for_ready: bool = False
    ) -> Result:
        self._check_open()
        send: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        send = self._channel.unary_unary(messages.method_path(call.method))
        metadata = self._config.metadata(call.batch_id)
        limit = self._config.timeout if timeout is None else timeout
        try:
            reply = send(call.message, timeout=limit, metadata=metadata, wait_for_ready=wait_for_ready)
        except grpc.RpcError as error:
            raise from_grpc_error(error) from error
        return call.parse(reply)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError(f"the client of {self._config.target!r} is closed")


class _StreamCall(Protocol):
    def __next__(self) -> bytes: ...
    def cancel(self) -> object: ...
    def is_active(self) -> bool: ...


class _Stream:
    """An open stream; sending never waits."""

    def __init__(self, channel: grpc.Channel, method: str, metadata: tuple[tuple[str, str], ...]) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        open_call: grpc.StreamStreamMultiCallable[bytes, bytes]
        open_call = channel.stream_stream(messages.method_path(method))
        self.call = cast("_StreamCall", open_call(iter(self._outbox.get, None), metadata=metadata))

    def send(self, message: bytes) -> None:
        self._outbox.put(message)

    def receive(self) -> bytes:
        try:
            return next(self.call)
        except StopIteration:
            raise ProtocolError("the server ended a stream before it answered") from None

    def end(self) -> None:
        """Says that no more messages follow."""
        self._outbox.put(None)

    def cancel(self) -> None:
        self.end()
        self.call.cancel()


class _Batch(BatchSession):
    """What both kinds of batches do with their streams."""

    def __init__(self, client: Client, info: types.BatchInfo) -> None:
        super().__init__(info)
        self._client = client
        self._streams: dict[str, _Stream] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_closed:
            return
        try:
            self._delete(self._client._config.timeout if error is None else config.CLEAN_UP_TIMEOUT)
        except LogitdError as failure:
            if error is None:
                raise
            error.add_note(f"and the batch {self.batch_id!r} could not be deleted: {failure}")

    def close(self) -> None:
        """Ends the streams; the batch stays on the server until it expires."""
        self._is_closed = True
        for stream in self._streams.values():
            stream.end()
        self._streams.clear()

    def delete(self) -> None:
        """Ends the streams and releases the batch; one that is gone already is no error."""
        self._delete(self._client._config.timeout)

    def _delete(self, timeout: float | None) -> None:
        self.close()
        call = messages.delete_batch(self.batch_id, self.uid, allow_missing=True)
        try:
            self._client._call(call, timeout=timeout)
        except NotFoundError:
            # Another batch has the id now; ours is gone.
            return

    def _run(self, step: Step[Result]) -> Result:
        self._client._check_open()
        with self._running(step):
            stream = self._open_stream(step.method)
            seconds = self._client._config.step_timeout
            try:
                with self._client._watchdog.limit(stream.call, seconds) as limit:
                    self._exchange(stream, step)
            except grpc.RpcError as error:
                self._drop_stream(step.method)
                if limit.has_passed and seconds is not None:
                    raise step_timeout(step.method, seconds) from error
                raise from_grpc_error(error) from error
            except BaseException:
                self._drop_stream(step.method)
                raise
        return step.result()

    def _exchange(self, stream: _Stream, step: Step[Any]) -> None:
        next_message = step.num_answered
        while step.num_answered < step.num_messages:
            while next_message < min(step.num_messages, step.num_answered + _MESSAGES_AHEAD):
                stream.send(step.message(next_message))
                next_message += 1
            self._receive(step, stream.receive())

    def _open_stream(self, method: str) -> _Stream:
        stream = self._streams.get(method)
        if stream is None or not stream.call.is_active():
            if stream is not None:
                stream.end()
            metadata = self._client._config.metadata(self.batch_id)
            stream = self._streams[method] = _Stream(self._client._channel, method, metadata)
        return stream

    def _drop_stream(self, method: str) -> None:
        stream = self._streams.pop(method, None)
        if stream is not None:
            stream.cancel()


class PenaltyBatch(_Batch):
    """An open batch for penalties. A context manager that deletes the batch when it ends.

    It does one step at a time. A step that fails without an answer (StepTimeoutError, UnavailableError, a broken
    stream) may have happened; when it carried token ids, `retry()` it before anything else.
    """

    def accumulate(self, token_ids: StepTokens, *, rollback: TokenIds | None = None) -> None:
        """Counts tokens as output.

        Parameters
        ----------
        token_ids
            One id a sequence, or for each sequence a list of any number of ids.
        rollback
            How many output tokens each sequence drops first.
        """
        self._run(AccumulateStep(token_ids, rollback))

    def apply(self, logits: npt.ArrayLike, token_ids: StepTokens | None = None) -> npt.NDArray[Any]:
        """The processed logits, a new array of the shape and type of `logits`.

        Parameters
        ----------
        logits
            [rows, columns] in float32, float16, or uint16 for the bits of bfloat16; columns from the vocabulary's
            size on are padding and come back as they were.
        token_ids
            As in `accumulate`; counted first. None: nothing is counted.
        """
        return self._run(DenseStep(logits, token_ids, self._client._config.chunk_bytes))

    def apply_sparse(self, logits: npt.ArrayLike, token_ids: StepTokens | None = None) -> types.SparsePatch:
        """What `apply` would change in `logits`, which stay as they are; the parameters are those of `apply`."""
        return self._run(SparseStep(logits, token_ids, self._client._config.chunk_bytes))

    def retry(self) -> npt.NDArray[Any] | types.SparsePatch | None:
        """Sends the step that was not answered again, the same bytes, and returns its result.

        The server counts it once, whether it had happened or not.
        """
        return cast("npt.NDArray[Any] | types.SparsePatch | None", self._run(self._unanswered_step()))


class BeamBatch(_Batch):
    """An open batch of beam searches. A context manager that deletes the batch when it ends.

    It does one step at a time. A step that fails without an answer (StepTimeoutError, UnavailableError, a broken
    stream) may have happened: `retry()` it before anything else.
    """

    def beam_step(self, logits: npt.ArrayLike, *, finish: abc.Iterable[str] = ()) -> types.BeamStep:
        """The next beams.

        Parameters
        ----------
        logits
            [rows, columns] of all live rows, in the order of `rows`; types as in `PenaltyBatch.apply`. NaN and +inf
            are refused, -inf is a ban.
        finish
            Ids of the searches that end now and answer with their best hypotheses, before the step.
        """
        return self._run(BeamSearchStep(logits, finish, self._client._config.chunk_bytes))

    def retry(self) -> types.BeamStep:
        """Sends the step that was not answered again, the same bytes, and returns its result.

        The server takes it once, whether it had happened or not.
        """
        return cast("types.BeamStep", self._run(self._unanswered_step()))
