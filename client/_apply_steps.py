"""The steps of the Apply stream, one for each form. No I/O."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from logitd.client import _types as types
from logitd.client._arrays import check_row_splits, data_type_of, floats_from_bytes, from_wire, ids_from_bytes
from logitd.client._edits import Edits, join_edits
from logitd.client._exceptions import ProtocolError, RpcError
from logitd.client._messages import Result, parse
from logitd.client._steps import Receipt, Step, record_tokens, token_update
from logitd.client._wire import read_dense_reply
from logitd.v1 import service_pb2

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
    form: ClassVar[str]

    def __init__(self, num_messages: int, token_ids: StepTokens | None, drafts: Drafts | None) -> None:
        super().__init__(num_messages, is_mutation=token_ids is not None)
        self._tokens = None if token_ids is None else token_update(token_ids, None)
        self._drafts = None if drafts is None else drafts.to_proto()

    def record(self, history: History[Any]) -> None:
        assert self._tokens is not None
        record_tokens(history, self._tokens)

    def _request(self, index: int) -> service_pb2.ApplyRequest:
        first_row = self._rows(index).start
        is_first = index == 0 and not self._is_committed
        return service_pb2.ApplyRequest(
            target=self.target if is_first else self.reading_target,
            tokens=self._tokens if is_first else None,
            form=self.form,
            first_row=first_row,
            drafts=self._drafts,
        )

    def _receipt(self, index: int, revision: int, first_row: int, draining: bool) -> Receipt:
        rows = self._rows(index)
        self._check_revision(revision, self.revision_after)
        if first_row != rows.start:
            raise ProtocolError(f"rows from {rows.start} on were answered with rows from {first_row} on")
        return Receipt(revision, draining, is_commit=self.is_mutation and not self._is_committed)

    @abstractmethod
    def _rows(self, index: int) -> slice: ...


class _LogitsStep(ApplyStep[Result]):
    """Logits go up, or are named."""

    def __init__(self, logits: LogitsSource, token_ids: StepTokens | None, drafts: Drafts | None) -> None:
        super().__init__(logits.num_messages, token_ids, drafts)
        self._logits = logits
        self.memory = logits.memory

    def message(self, index: int) -> bytes:
        head = self._request(index).SerializeToString()
        return self._logits.append_to(head, service_pb2.ApplyRequest.LOGITS_FIELD_NUMBER, index)

    def keep(self) -> None:
        self._logits.keep()

    def _rows(self, index: int) -> slice:
        return self._logits.rows(index)


class DenseStep(_LogitsStep["npt.NDArray[Any]"]):
    """Processed logits come back."""

    form = "APPLY_FORM_DENSE"

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
        if (self._processed.dtype, self._processed.shape) != (dtype, shape):
            got = f"{self._processed.dtype} {list(self._processed.shape)}"
            raise ValueError(f"out must be {dtype} {list(shape)} as the logits, got {got}")
        if not self._processed.flags.writeable:
            raise ValueError("out must be writable, got an array that is not")

    def _read(self, index: int, reply: bytes) -> Receipt:
        response = read_dense_reply(reply)
        receipt = self._receipt(index, response.revision, response.first_row, response.draining)
        items, place = response.items, self._processed[self._rows(index)]
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

    form = "APPLY_FORM_SPARSE"

    def __init__(self, logits: LogitsSource, token_ids: StepTokens | None, drafts: Drafts | None = None) -> None:
        super().__init__(logits, token_ids, drafts)
        self._patches: list[types.SparsePatch] = []

    def _read(self, index: int, reply: bytes) -> Receipt:
        response = parse(service_pb2.ApplyResponse, reply)
        receipt = self._receipt(index, response.revision, response.first_row, response.draining)
        if response.WhichOneof("result") != "sparse":
            raise ProtocolError("a sparse Apply was answered in another form")
        rows = self._rows(index)
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
        if len(ids) and not (ids.min() >= 0 and ids.max() < self._logits.num_columns):
            columns = self._logits.num_columns
            raise ProtocolError(f"a sparse reply has token ids {ids.min()} to {ids.max()} for {columns} columns")
        return types.SparsePatch(splits, ids, values)

    def result(self) -> types.SparsePatch:
        return join_patches(self._patches)


class InPlaceStep(_LogitsStep[None]):
    """Shared memory is changed where it lies, so that without the reply nobody knows what it holds."""

    form = "APPLY_FORM_IN_PLACE"

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
        receipt = self._receipt(index, response.revision, response.first_row, response.draining)
        if response.WhichOneof("result") != "in_place":
            raise ProtocolError("an in-place Apply was answered in another form")
        return receipt

    def result(self) -> None:
        return None


class EditsStep(ApplyStep[Edits]):
    """What to do to logits that stay with the caller comes back, for some rows a message."""

    form = "APPLY_FORM_EDITS"

    def __init__(
        self,
        row_ranges: abc.Sequence[slice],
        token_ids: StepTokens | None,
        drafts: Drafts | None,
        since: int | None,
        profile: str | None,
    ) -> None:
        """`since` is a revision as the caller counts it."""
        super().__init__(len(row_ranges), token_ids, drafts)
        self._row_ranges = row_ranges
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
        request, rows = self._request(index), self._rows(index)
        request.row_count = rows.stop - rows.start
        if self._since is not None:
            request.edits_since_revision = self._since - self._offset
        return request.SerializeToString()

    def _rows(self, index: int) -> slice:
        return self._row_ranges[index]

    def _read(self, index: int, reply: bytes) -> Receipt:
        response = parse(service_pb2.ApplyResponse, reply)
        receipt = self._receipt(index, response.revision, response.first_row, response.draining)
        if response.WhichOneof("result") != "edits":
            raise ProtocolError("an Apply for edits was answered in another form")
        rows = self._rows(index)
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
