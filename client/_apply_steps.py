"""The steps of the Apply stream, one for each form. No I/O."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from logitd.client import _types as types
from logitd.client._arrays import (
    are_below,
    check_kind,
    check_row_splits,
    data_type_of,
    floats_from_bytes,
    from_wire,
    ids_from_bytes,
)
from logitd.client._edits import Edits, join_edits
from logitd.client._exceptions import ProtocolError, RpcError
from logitd.client._messages import Result, parse
from logitd.client._penalty_history import PenaltyHistory
from logitd.client._steps import Receipt, Step, write_tokens
from logitd.client._wire import read_dense_reply
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections import abc

    import numpy.typing as npt

    from logitd.client._drafts import Drafts
    from logitd.client._history import History
    from logitd.client._logits import InlineLogits, LogitsSource, SharedRows
    from logitd.client._steps import Aim, StepTokens


class ApplyStep(Step[Result]):
    """State is applied to some rows a message, after token ids were counted with the first if there are any."""

    method = "Apply"
    form: ClassVar[types_pb2.ApplyForm]

    def __init__(
        self,
        num_messages: int,
        rows: abc.Callable[[int], slice],
        token_ids: StepTokens | None,
        drafts: Drafts | None,
    ) -> None:
        """`rows` gives the batch's rows, or the positions of drafts, that a message is about."""
        # The first message but for its rows.
        self._first = service_pb2.ApplyRequest()
        super().__init__(num_messages, is_mutation=token_ids is not None, target=self._first.target)
        self._rows = rows
        self._first.form = self.form
        if token_ids is not None:
            write_tokens(self._first.tokens, token_ids, None)
        if drafts is not None:
            self._first.drafts.CopyFrom(drafts.to_proto())

    def record(self, history: History[Any]) -> None:
        assert isinstance(history, PenaltyHistory)
        history.count(self._first.tokens)

    def _request(self, index: int, rows: slice) -> service_pb2.ApplyRequest:
        request = self._first
        if index or self._is_committed:
            drafts = request.drafts if request.HasField("drafts") else None
            request = service_pb2.ApplyRequest(target=self.reading_target, form=self.form, drafts=drafts)
        request.first_row = rows.start
        return request

    def _receipt(self, rows: slice, revision: int, first_row: int, draining: bool) -> Receipt:
        self._check_revision(revision, self.revision_after)
        if first_row != rows.start:
            raise ProtocolError(f"rows from {rows.start} on were answered with rows from {first_row} on")
        return Receipt(revision, draining, is_commit=self.is_mutation and not self._is_committed)


class _LogitsStep(ApplyStep[Result]):
    """Logits go up, or are named."""

    def __init__(self, logits: LogitsSource, token_ids: StepTokens | None, drafts: Drafts | None) -> None:
        super().__init__(logits.num_messages, logits.rows, token_ids, drafts)
        self._logits = logits
        self.memory = logits.memory

    def message(self, index: int) -> bytes:
        rows = self._rows(index)
        head = self._request(index, rows).SerializeToString()
        return self._logits.append_to(head, service_pb2.ApplyRequest.LOGITS_FIELD_NUMBER, rows)

    def keep(self) -> None:
        self._logits.keep()


class DenseStep(_LogitsStep["npt.NDArray[Any]"]):
    """Processed logits come back."""

    form = types_pb2.APPLY_FORM_DENSE

    def __init__(
        self,
        logits: InlineLogits,
        token_ids: StepTokens | None,
        drafts: Drafts | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> None:
        super().__init__(logits, token_ids, drafts)
        shape, dtype = logits.array.shape, logits.dtype.newbyteorder("=")
        self._processed = np.empty(shape, dtype) if out is None else out
        check_kind("out", self._processed, np.ndarray, "an array")
        if (self._processed.dtype, self._processed.shape) != (dtype, shape):
            got = f"{self._processed.dtype} {list(self._processed.shape)}"
            raise ValueError(f"out must be {dtype} {list(shape)} as the logits, got {got}")
        if not self._processed.flags.writeable:
            raise ValueError("out must be writable, got an array that is not")
        if self.num_messages > 1 and _overlap_otherwise(self._processed, logits.array):
            logits.keep()

    def _read(self, index: int, reply: bytes) -> Receipt:
        response, rows = read_dense_reply(reply), self._rows(index)
        receipt = self._receipt(rows, response.revision, response.first_row, response.draining)
        items, place = response.items, self._processed[rows]
        if items is None:
            raise ProtocolError("a dense Apply was answered in another form")
        if (items.dtype, items.shape) != (place.dtype, place.shape):
            wanted = f"{place.dtype} {list(place.shape)}"
            raise ProtocolError(f"logits of {wanted} were answered with {items.dtype} {list(items.shape)}")
        place[...] = items
        return receipt

    def result(self) -> npt.NDArray[Any]:
        return self._processed


class SparseStep(_LogitsStep[types.SparsePatch]):
    """The new values of touched ids come back."""

    form = types_pb2.APPLY_FORM_SPARSE

    def __init__(self, logits: LogitsSource, token_ids: StepTokens | None, drafts: Drafts | None = None) -> None:
        super().__init__(logits, token_ids, drafts)
        self._patches: list[types.SparsePatch] = []

    def _read(self, index: int, reply: bytes) -> Receipt:
        response, rows = parse(service_pb2.ApplyResponse, reply), self._rows(index)
        receipt = self._receipt(rows, response.revision, response.first_row, response.draining)
        if response.WhichOneof("result") != "sparse":
            raise ProtocolError("a sparse Apply was answered in another form")
        self._patches.append(self._read_patch(response.sparse, rows.stop - rows.start))
        return receipt

    def _read_patch(self, message: service_pb2.SparsePatch, num_rows: int) -> types.SparsePatch:
        if message.data_type != data_type_of(self._logits.dtype):
            raise ProtocolError(f"logits of {self._logits.dtype} were answered with data type {message.data_type}")
        splits, ids = ids_from_bytes(message.row_splits), ids_from_bytes(message.token_ids)
        values = from_wire(message.values, message.data_type)
        check_row_splits(splits, num_rows, len(ids))
        if len(values) != len(ids):
            raise ProtocolError(f"a sparse reply has {len(values)} values for {len(ids)} token ids")
        if not are_below(ids, self._logits.num_columns):
            columns = self._logits.num_columns
            raise ProtocolError(f"a sparse reply has token ids {ids.min()} to {ids.max()} for {columns} columns")
        return types.SparsePatch(splits, ids, values)

    def result(self) -> types.SparsePatch:
        return join_patches(self._patches)


class InPlaceStep(_LogitsStep[None]):
    """Shared memory is changed where it lies, so that without the reply nobody knows what it holds."""

    form = types_pb2.APPLY_FORM_IN_PLACE

    def __init__(
        self,
        logits: SharedRows,
        token_ids: StepTokens | None,
        drafts: Drafts | None,
        refill: abc.Callable[[], object] | None,
    ) -> None:
        super().__init__(logits, token_ids, drafts)
        self.refill = refill

    def note_failure(self, error: BaseException) -> None:
        # What was refused was not begun.
        self.needs_refill |= not (isinstance(error, RpcError) and error.nothing_changed)

    def _read(self, index: int, reply: bytes) -> Receipt:
        response = parse(service_pb2.ApplyResponse, reply)
        receipt = self._receipt(self._rows(index), response.revision, response.first_row, response.draining)
        if response.WhichOneof("result") != "in_place":
            raise ProtocolError("an in-place Apply was answered in another form")
        return receipt

    def result(self) -> None:
        return None


class EditsStep(ApplyStep[Edits]):
    """What to do to logits that stay with the caller comes back, for some rows a message."""

    form = types_pb2.APPLY_FORM_EDITS

    def __init__(
        self,
        row_ranges: list[slice],
        token_ids: StepTokens | None,
        drafts: Drafts | None,
        since: int | None,
        profile: str | None,
    ) -> None:
        """`since` is a revision as the caller counts it."""
        super().__init__(len(row_ranges), row_ranges.__getitem__, token_ids, drafts)
        self._since = since
        self._profile = profile or ""
        self._position_rows = None if drafts is None else drafts.rows
        self._is_relaxed = drafts is not None and drafts.is_relaxed
        self._parts: list[Edits] = []

    def aim_again(self, aim: Aim) -> None:
        # The rebuilt batch may have no difference where the one before it had, and all parts must be of one kind.
        super().aim_again(aim)
        self.num_answered = 0
        self._parts.clear()

    def message(self, index: int) -> bytes:
        rows = self._rows(index)
        request = self._request(index, rows)
        request.row_count = rows.stop - rows.start
        if self._since is not None:
            request.edits_since_revision = self._since - self._offset
        return request.SerializeToString()

    def _read(self, index: int, reply: bytes) -> Receipt:
        response, rows = parse(service_pb2.ApplyResponse, reply), self._rows(index)
        receipt = self._receipt(rows, response.revision, response.first_row, response.draining)
        if response.WhichOneof("result") != "edits":
            raise ProtocolError("an Apply for edits was answered in another form")
        edits = self._read_edits(response.edits, response.revision + self._offset, rows)
        if any(part.is_full != edits.is_full for part in self._parts) or (self._since is None and not edits.is_full):
            raise ProtocolError("edits in full and as a difference were mixed")
        self._parts.append(edits)
        return receipt

    def _read_edits(self, message: service_pb2.Edits, revision: int, rows: slice) -> Edits:
        num_rows = rows.stop - rows.start
        splits, ids = ids_from_bytes(message.row_splits), ids_from_bytes(message.token_ids)
        check_row_splits(splits, num_rows, len(ids))
        edits = Edits(
            row_splits=splits,
            token_ids=ids,
            repetition=floats_from_bytes(message.repetition),
            presence=floats_from_bytes(message.presence),
            frequency_sums=floats_from_bytes(message.frequency_sums),
            flags=np.frombuffer(message.flags, np.uint8),
            is_full=message.is_full,
            revision=revision,
            profile=self._profile,
            base_revision=None if message.is_full else self._since,
            position_rows=None if self._position_rows is None else self._position_rows[rows],
            is_relaxed=self._is_relaxed,
        )
        lengths = [len(edits.repetition), len(edits.presence), len(edits.frequency_sums), len(edits.flags)]
        if lengths != [num_rows, num_rows, len(ids), len(ids)]:
            raise ProtocolError(f"edits of {len(ids)} entries over {num_rows} rows have arrays of {lengths} items")
        return edits

    def result(self) -> Edits:
        return join_edits(self._parts)


def join_patches(patches: abc.Sequence[types.SparsePatch]) -> types.SparsePatch:
    """The patches of consecutive rows as one."""
    if len(patches) == 1:
        return patches[0]
    lengths = np.concatenate([np.diff(patch.row_splits) for patch in patches])
    return types.SparsePatch(
        row_splits=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        token_ids=np.concatenate([patch.token_ids for patch in patches]),
        values=np.concatenate([patch.values for patch in patches]),
    )


def split_rows(weights: abc.Sequence[int], most: int) -> list[slice]:
    """Consecutive rows with at most `most` of their weights together, and at least one row, a slice."""
    starts, total = [0], 0
    for row, weight in enumerate(weights):
        if total + weight > most and row > starts[-1]:
            starts.append(row)
            total = 0
        total += weight
    return [slice(first, end) for first, end in itertools.pairwise([*starts, len(weights)])]


def _overlap_otherwise(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Whether arrays of one shape share memory, but not each item with the one at its place."""
    is_same = one.ctypes.data == other.ctypes.data and one.strides == other.strides
    return not is_same and np.shares_memory(one, other)
