"""Open batches, for threads."""

from __future__ import annotations

import contextlib
import queue
import time
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar, cast

import grpc

from logitd.client import _config as config
from logitd.client import _recovery as recovery
from logitd.client._apply_steps import EditsStep, InPlaceStep
from logitd.client._beam_steps import BeamSearchStep
from logitd.client._drafts import as_drafts
from logitd.client._exceptions import LogitdError, NotFoundError, ProtocolError, from_grpc_error, step_timeout
from logitd.client._kinds import BeamSession, PenaltySession, SearchResults
from logitd.client._membership_steps import FilterStep, MergeStep
from logitd.client._session import BatchSession, Running
from logitd.client._steps import AccumulateStep, Step
from logitd.client._watchdog import Limit

if TYPE_CHECKING:
    from collections import abc
    from types import TracebackType

    import numpy as np
    import numpy.typing as npt

    from logitd.client import _types as types
    from logitd.client._arrays import TokenIds
    from logitd.client._drafts import AnyDrafts
    from logitd.client._edits import Edits
    from logitd.client._history import History
    from logitd.client._shared_logits import SharedLogits
    from logitd.client._steps import StepTokens
    from logitd.client._sync import Client
    from logitd.client._types import RowLayouts

    LogitsCallback: TypeAlias = abc.Callable[
        [npt.NDArray[np.int32] | None, npt.NDArray[np.int32] | None], npt.ArrayLike | SharedLogits
    ]

Result = TypeVar("Result")

_MESSAGES_AHEAD = 3
"""Chunks that go out before the oldest of them is answered: both sides stay busy, and memory bounded."""


class _StreamCall(Protocol):
    def __next__(self) -> bytes: ...
    def cancel(self) -> object: ...
    def is_active(self) -> bool: ...


class _Stream:
    """An open stream; sending never waits."""

    def __init__(self, client: Client, method: str, batch_id: str) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.call = cast("_StreamCall", client._open_stream(method, iter(self._outbox.get, None), batch_id))

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

    def __init__(self, client: Client, info: types.BatchInfo, history: History[Any]) -> None:
        super().__init__(info, history)
        self._client = client
        self._streams: dict[str, _Stream] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_closed:
            return
        if error is None:
            self.delete()
            return
        self.close()
        try:
            self._client._call(self._deletion(), timeout=config.CLEAN_UP_TIMEOUT)
        except LogitdError as failure:
            error.add_note(f"and the batch {self.batch_id!r} could not be deleted: {failure}")

    def close(self) -> None:
        """Ends the streams; the batch stays until it expires."""
        self._is_closed = True
        for stream in self._streams.values():
            stream.end()
        self._streams.clear()

    def delete(self) -> None:
        """Ends the streams and releases the batch; one that is gone already is no error."""
        self.close()
        with contextlib.suppress(NotFoundError):
            self._client._ask(self._deletion())

    def filter(self, selection: abc.Iterable[str | tuple[str, str]]) -> RowLayouts:
        """Keeps some sequences, in this order, and lets the others go; the new `rows`.

        Parameters
        ----------
        selection
            Ids of sequences. One that goes on under another id is a pair, (id, new id), and so is one that is named
            again: it is forked, and both go separate ways from here.
        """
        return self._run(FilterStep(selection))

    def merge(self, other: Self) -> RowLayouts:
        """Appends the sequences of `other`, which is gone then, and closed; the new `rows`.

        Both batches must be of one server, and agree in kind, vocabulary, profile and rule, else BatchesDifferError;
        no sequence id may be in both. Where a proxy chooses the server, give all clients of such batches one `route`.
        """
        return self._run(MergeStep(self._mergeable(other)))

    def _run(self, step: Step[Result]) -> Result:
        self._client._check_open()
        with Running(self, step):
            try:
                self._attempt(step)
            except LogitdError as error:
                self._follow(recovery.Recovery(self, step, self._client._config).orders(error), step)
        for other in step.others:
            cast("_Batch", other).close()
        return step.result()

    def _attempt(self, step: Step[Any]) -> None:
        if step.is_unary:
            self._receive(step, self._client._send(step.method, step.outgoing(0), self.batch_id))
            return
        stream = self._open_stream(step.method)
        try:
            with Limit(self._client._watchdog, stream.call, self._client._config.step_timeout) as limit:
                self._exchange(stream, step)
        except grpc.RpcError as error:
            self._drop_stream(step.method)
            if limit.has_passed and limit.seconds is not None:
                raise step_timeout(step.method, limit.seconds) from error
            raise from_grpc_error(error) from error
        except BaseException:
            self._drop_stream(step.method)
            raise

    def _follow(self, orders: recovery.Orders, step: Step[Any]) -> None:
        order = recovery.go_on(orders, None)
        while order is not None:
            try:
                answer = self._carry_out(order, step)
            except LogitdError as error:
                order = recovery.complain(orders, error)
            else:
                order = recovery.go_on(orders, answer)

    def _carry_out(self, order: recovery.Order, step: Step[Any]) -> object:
        match order:
            case recovery.Attempt():
                self._attempt(step)
            case recovery.Pause(seconds):
                time.sleep(seconds)
            case recovery.AwaitServer(seconds):
                self._client.wait_until_ready(seconds)
            case recovery.Ask(call):
                return self._client._call(call)
            case recovery.Register(memory):
                self._client._register(memory)
            case recovery.Refill(fill):
                fill()
        return None

    def _exchange(self, stream: _Stream, step: Step[Any]) -> None:
        next_message = step.num_answered
        while step.num_answered < step.num_messages:
            while next_message < min(step.num_messages, step.num_answered + _MESSAGES_AHEAD):
                stream.send(step.outgoing(next_message))
                next_message += 1
            self._receive(step, stream.receive())

    def _open_stream(self, method: str) -> _Stream:
        stream = self._streams.get(method)
        if stream is None or not stream.call.is_active():
            if stream is not None:
                stream.end()
            stream = self._streams[method] = _Stream(self._client, method, self.batch_id)
        return stream

    def _drop_stream(self, method: str) -> None:
        stream = self._streams.pop(method, None)
        if stream is not None:
            stream.cancel()


class PenaltyBatch(_Batch, PenaltySession):
    """An open batch for penalties. A context manager that deletes the batch when it ends.

    It does one step at a time. Where the client does not recover (see `Client`), or not in time, a step that fails
    without an answer (StepTimeoutError, UnavailableError, a broken stream) may have happened; when it carried token
    ids, `retry()` it before anything else.
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

    def apply(
        self,
        logits: npt.ArrayLike,
        token_ids: StepTokens | None = None,
        *,
        drafts: AnyDrafts | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """The processed logits, of the shape and type of `logits`.

        Parameters
        ----------
        logits
            [rows, columns] in float32, float16, or uint16 for the bits of bfloat16; columns from the vocabulary's
            size on are padding and come back as they were.
        token_ids
            As in `accumulate`; counted first. None: nothing is counted.
        drafts
            `Drafts`, or a list of ids for each sequence, a chain. The rows of the logits are their positions then.
        out
            Where to write them, perhaps over `logits`; returned. When the step fails some may be. None: a new array.
        """
        return self._run(self._dense_step(logits, token_ids, drafts, out, self._client._config))

    def apply_sparse(
        self, logits: npt.ArrayLike, token_ids: StepTokens | None = None, *, drafts: AnyDrafts | None = None
    ) -> types.SparsePatch:
        """What `apply` would change in `logits`, which stay as they are; the parameters are those of `apply`."""
        made = as_drafts(drafts)
        source = self._inline(logits, self._client._config.chunk_bytes, made)
        return self._run(self._sparse_step(source, token_ids, made, self._client._config))

    def apply_shared(
        self,
        shared: SharedLogits,
        token_ids: StepTokens | None = None,
        *,
        drafts: AnyDrafts | None = None,
        rows: slice | None = None,
    ) -> types.SparsePatch:
        """What `apply` would change in shared logits, which must stay until it, or a `retry()` of it, returns.

        Parameters
        ----------
        shared
            Row i of the batch is row i of them.
        token_ids
            As in `accumulate`, for all sequences; counted first. None: nothing is counted.
        drafts
            As in `apply`; position i is row i then.
        rows
            The rows to process, which come in the patch from 0 on; None: all of the batch.
        """
        made = as_drafts(drafts)
        source = self._rows_in(shared, rows, made)
        return self._run(self._sparse_step(source, token_ids, made, self._client._config))

    def apply_inplace(
        self,
        shared: SharedLogits,
        token_ids: StepTokens | None = None,
        *,
        drafts: AnyDrafts | None = None,
        rows: slice | None = None,
        refill: abc.Callable[[], object] | None = None,
    ) -> None:
        """Changes shared logits where they lie, to what `apply` gives: the fastest way.

        If its reply is lost, they may hold anything, and must be filled again before the step is repeated. `refill`
        does that, wherever the client repeats it by itself; without one it raises RefillNeededError, and
        `retry(refilled=True)` is yours. `apply_shared` needs none of this.

        Parameters
        ----------
        shared, token_ids, drafts, rows
            As in `apply_shared`.
        refill
            Fills `shared.array` with this step's logits again.
        """
        made = as_drafts(drafts)
        self._run(InPlaceStep(self._rows_in(shared, rows, made), token_ids, made, refill))

    def edits(
        self, token_ids: StepTokens | None = None, *, drafts: AnyDrafts | None = None, since: int | None = None
    ) -> Edits:
        """What to do to logits that stay with the caller.

        Parameters
        ----------
        token_ids
            As in `accumulate`; counted first. None: nothing is counted.
        drafts
            As in `apply`; the edits are those of the positions.
        since
            An earlier `revision`, as of an `EditTable`: only what changed since, if the server still knows (`is_full`).
        """
        made = as_drafts(drafts)
        ranges = self._edit_ranges(token_ids, made, self._client._config)
        return self._run(EditsStep(ranges, token_ids, made, since, self.info.profile))

    def retry(self, *, refilled: bool = False) -> npt.NDArray[Any] | types.SparsePatch | Edits | RowLayouts | None:
        """Sends the step that was not answered again, the same bytes, and returns its result.

        The server counts it once, whether it had happened or not. `refilled` says that the shared logits of an
        `apply_inplace` were filled again; without it that one raises RefillNeededError.
        """
        result = self._run(self._unanswered_step(refilled))
        return cast("npt.NDArray[Any] | types.SparsePatch | Edits | RowLayouts | None", result)


class BeamBatch(_Batch, BeamSession):
    """An open batch of beam searches. A context manager that deletes the batch when it ends.

    It does one step at a time. Where the client does not recover (see `Client`), or not in time, a step that fails
    without an answer (StepTimeoutError, UnavailableError, a broken stream) may have happened: `retry()` it before
    anything else.
    """

    def beam_step(self, logits: npt.ArrayLike | SharedLogits, *, finish: abc.Iterable[str] = ()) -> types.BeamStep:
        """The next beams.

        Parameters
        ----------
        logits
            [rows, columns] of all live rows, in the order of `rows`; types as in `PenaltyBatch.apply`. NaN and +inf
            are refused, -inf is a ban. Of shared logits the first rows are taken; they stay as they are, and must
            until this returns, and a `retry()` of it.
        finish
            Ids of the searches that end now and answer with their best hypotheses, before the step.
        """
        return self._run(BeamSearchStep(self._logits_of(logits, self._client._config.chunk_bytes), finish))

    def search(self, logits: LogitsCallback) -> tuple[types.SearchStep, ...]:
        """Runs all searches to their end.

        Parameters
        ----------
        logits
            Called with `parent_rows` and `token_ids`, int32 [rows] each: row i continues row `parent_rows[i]` of the
            call before, by which the caller gathers its cache, with `token_ids[i]`. Gives the logits of the next
            token for each row, as `beam_step` takes them. The first call has None and None: the rows as they stand,
            which for new searches are their prompts, one row each.

        Returns
        -------
        The last step of each search, in the batch's order: `hypotheses`, best first, and why it ended.
        """
        results = SearchResults(self.rows)
        parent_rows = token_ids = None
        while self.rows:
            step = self.beam_step(logits(parent_rows, token_ids))
            results.take(step)
            parent_rows, token_ids = step.parent_rows, step.token_ids
        return results.in_order()

    def retry(self) -> types.BeamStep | RowLayouts:
        """Sends the step that was not answered again, the same bytes, and returns its result.

        The server takes it once, whether it had happened or not.
        """
        return cast("types.BeamStep | RowLayouts", self._run(self._unanswered_step()))
