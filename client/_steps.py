"""The steps of the three streams: the messages that go out, the checks of what comes back. No I/O.

A step has one message, or several that each carry some consecutive rows of its logits. Whoever moves the bytes asks
for `message(index)` in order, hands every reply to `receive`, and takes `result()` when all are answered. A mutation
keeps its messages until they are answered, so that the very same bytes can be sent again.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeAlias

import numpy as np

from logitd.client import _convert as convert
from logitd.client import _types as types
from logitd.client._arrays import (
    check_logits,
    data_type_of,
    doubles_from_bytes,
    from_wire,
    ids_from_bytes,
    ids_to_bytes,
)
from logitd.client._exceptions import ProtocolError
from logitd.client._messages import Result, parse, random_id
from logitd.client._wire import read_dense_reply, with_tensor
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from collections import abc

    import numpy.typing as npt

    from logitd.client._arrays import TokenIds

    StepTokens: TypeAlias = TokenIds | abc.Sequence[TokenIds]


class Receipt(NamedTuple):
    """What a reply says about the batch."""

    revision: int
    draining: bool
    rows: tuple[types.RowLayout, ...] | None = None
    """The rows of the next step, where they change."""


class Step(ABC, Generic[Result]):
    """One step of a batch."""

    method: ClassVar[str]
    answers_stand: ClassVar[bool] = True
    """Whether the messages that were answered need not be sent again when the rest is."""

    def __init__(self, num_messages: int, is_mutation: bool) -> None:
        self.num_messages = num_messages
        self.is_mutation = is_mutation
        self.num_answered = 0
        self._target: service_pb2.StepTarget | None = None
        self._kept: dict[int, bytes] = {}

    def aim(self, batch_id: str, uid: bytes, revision: int) -> None:
        """Names the batch and the revision it is meant for; a step that is aimed already stays as it is."""
        if self._target is None:
            request_id = random_id() if self.is_mutation else b""
            self._target = service_pb2.StepTarget(
                batch_id=batch_id, uid=uid, expected_revision=revision, request_id=request_id
            )

    @property
    def target(self) -> service_pb2.StepTarget:
        """The batch, the revision and the request id of the first message."""
        assert self._target is not None
        return self._target

    @property
    def revision_after(self) -> int:
        """The batch's revision when the step is done."""
        return self.target.expected_revision + self.is_mutation

    def message(self, index: int) -> bytes:
        """The bytes of a message; the same ones each time for a mutation."""
        message = self._kept.get(index)
        if message is None:
            message = self._build(index)
            if self.is_mutation:
                self._kept[index] = message
        return message

    def receive(self, reply: bytes) -> Receipt:
        """Takes the reply to the first message that is not answered; ProtocolError where it breaks the contract."""
        receipt = self._read(self.num_answered, reply)
        if self.answers_stand:
            self._kept.pop(self.num_answered, None)
        self.num_answered += 1
        return receipt

    def keep_unanswered(self) -> None:
        """Copies what is not answered, before the caller may change the logits."""
        for index in range(self.num_answered, self.num_messages):
            self.message(index)

    def rewind(self) -> None:
        """Prepares to be sent again on a new stream."""
        if not self.answers_stand:
            self.num_answered = 0

    @abstractmethod
    def _build(self, index: int) -> bytes: ...

    @abstractmethod
    def _read(self, index: int, reply: bytes) -> Receipt: ...

    @abstractmethod
    def result(self) -> Result:
        """What the step gives its caller."""

    def _check_revision(self, revision: int, expected: int) -> None:
        if revision != expected:
            raise ProtocolError(f"{self.method} at revision {expected} was answered at revision {revision}")


class AccumulateStep(Step[None]):
    """Token ids are counted."""

    method = "Accumulate"

    def __init__(self, token_ids: StepTokens, rollback: TokenIds | None) -> None:
        super().__init__(1, is_mutation=True)
        self._tokens = token_update(token_ids, rollback)

    def _build(self, index: int) -> bytes:
        return service_pb2.AccumulateRequest(target=self.target, tokens=self._tokens).SerializeToString()

    def _read(self, index: int, reply: bytes) -> Receipt:
        response = parse(service_pb2.AccumulateResponse, reply)
        self._check_revision(response.revision, self.revision_after)
        return Receipt(response.revision, response.draining)

    def result(self) -> None:
        return None


class _LogitsStep(Step[Result]):
    """A step whose messages carry consecutive rows of logits."""

    def __init__(self, logits: npt.ArrayLike, chunk_bytes: int, is_mutation: bool) -> None:
        self._logits = check_logits(logits)  # [R, columns]
        num_rows, num_columns = self._logits.shape
        row_bytes = max(1, num_columns * self._logits.itemsize)
        self._rows_per_chunk = max(1, chunk_bytes // row_bytes)
        super().__init__(max(1, -(-num_rows // self._rows_per_chunk)), is_mutation)

    def _rows(self, index: int) -> slice:
        first = index * self._rows_per_chunk
        return slice(first, min(first + self._rows_per_chunk, len(self._logits)))


class _ApplyStep(_LogitsStep[Result]):
    """Logits are processed, after token ids were counted if there are any."""

    method = "Apply"
    form: ClassVar[str]

    def __init__(self, logits: npt.ArrayLike, token_ids: StepTokens | None, chunk_bytes: int) -> None:
        super().__init__(logits, chunk_bytes, is_mutation=token_ids is not None)
        self._tokens = None if token_ids is None else token_update(token_ids, None)

    def _build(self, index: int) -> bytes:
        rows = self._rows(index)
        request = service_pb2.ApplyRequest(form=self.form, first_row=rows.start)
        if index == 0:
            request.target.CopyFrom(self.target)
            if self._tokens is not None:
                request.tokens.CopyFrom(self._tokens)
        else:
            request.target.batch_id, request.target.uid = self.target.batch_id, self.target.uid
            request.target.expected_revision = self.revision_after
        head = request.SerializeToString()
        return with_tensor(head, service_pb2.ApplyRequest.LOGITS_FIELD_NUMBER, self._logits[rows])

    def _check_place(self, rows: slice, first_row: int, revision: int) -> None:
        self._check_revision(revision, self.revision_after)
        if first_row != rows.start:
            raise ProtocolError(f"rows from {rows.start} on were answered with rows from {first_row} on")


class DenseStep(_ApplyStep["npt.NDArray[Any]"]):
    """Processed logits come back."""

    form = "APPLY_FORM_DENSE"

    def __init__(self, logits: npt.ArrayLike, token_ids: StepTokens | None, chunk_bytes: int) -> None:
        super().__init__(logits, token_ids, chunk_bytes)
        self._processed = np.empty(self._logits.shape, self._logits.dtype.newbyteorder("="))

    def _read(self, index: int, reply: bytes) -> Receipt:
        rows = self._rows(index)
        response = read_dense_reply(reply)
        self._check_place(rows, response.first_row, response.revision)
        items, place = response.items, self._processed[rows]
        if items is None:
            raise ProtocolError("a dense Apply was answered in another form")
        if (items.dtype, items.shape) != (place.dtype, place.shape):
            wanted = f"{place.dtype} {list(place.shape)}"
            raise ProtocolError(f"logits of {wanted} were answered with {items.dtype} {list(items.shape)}")
        place[...] = items
        return Receipt(response.revision, response.draining)

    def result(self) -> npt.NDArray[Any]:
        return self._processed


class SparseStep(_ApplyStep[types.SparsePatch]):
    """The new values of touched ids come back."""

    form = "APPLY_FORM_SPARSE"

    def __init__(self, logits: npt.ArrayLike, token_ids: StepTokens | None, chunk_bytes: int) -> None:
        super().__init__(logits, token_ids, chunk_bytes)
        self._patches: list[types.SparsePatch] = []

    def _read(self, index: int, reply: bytes) -> Receipt:
        rows = self._rows(index)
        response = parse(service_pb2.ApplyResponse, reply)
        self._check_place(rows, response.first_row, response.revision)
        if response.WhichOneof("result") != "sparse":
            raise ProtocolError("a sparse Apply was answered in another form")
        self._patches.append(self._read_patch(response.sparse, rows.stop - rows.start))
        return Receipt(response.revision, response.draining)

    def _read_patch(self, message: service_pb2.SparsePatch, num_rows: int) -> types.SparsePatch:
        if message.data_type != data_type_of(self._logits.dtype):
            raise ProtocolError(f"logits of {self._logits.dtype} were answered with data type {message.data_type}")
        splits, ids = ids_from_bytes(message.row_splits), ids_from_bytes(message.token_ids)
        values = from_wire(message.values, message.data_type)
        if len(splits) != num_rows + 1 or splits[0] != 0 or splits[-1] != len(ids) or np.any(splits[1:] < splits[:-1]):
            raise ProtocolError(f"a sparse reply has no row splits of {len(ids)} entries over {num_rows} rows")
        if len(values) != len(ids):
            raise ProtocolError(f"a sparse reply has {len(values)} values for {len(ids)} token ids")
        if len(ids) and not (ids.min() >= 0 and ids.max() < self._logits.shape[1]):
            columns = self._logits.shape[1]
            raise ProtocolError(f"a sparse reply has token ids {ids.min()} to {ids.max()} for {columns} columns")
        return types.SparsePatch(splits, ids, values)

    def result(self) -> types.SparsePatch:
        return join_patches(self._patches)


class BeamSearchStep(_LogitsStep[types.BeamStep]):
    """The next beams come back."""

    method = "BeamStep"
    # The server drops the chunks of a step whose stream ends.
    answers_stand = False

    def __init__(self, logits: npt.ArrayLike, finish: abc.Iterable[str], chunk_bytes: int) -> None:
        super().__init__(logits, chunk_bytes, is_mutation=True)
        self._finish = [finish] if isinstance(finish, str) else list(finish)
        self._step: types.BeamStep | None = None

    def _build(self, index: int) -> bytes:
        rows, is_last = self._rows(index), index == self.num_messages - 1
        request = service_pb2.BeamStepRequest(
            target=self.target,
            first_row=rows.start,
            has_more_chunks=not is_last,
            finish_sequence_ids=self._finish if is_last else (),
        )
        head = request.SerializeToString()
        return with_tensor(head, service_pb2.BeamStepRequest.LOGITS_FIELD_NUMBER, self._logits[rows])

    def _read(self, index: int, reply: bytes) -> Receipt:
        response = parse(service_pb2.BeamStepResponse, reply)
        is_last = index == self.num_messages - 1
        if response.is_chunk_acknowledgement == is_last:
            got = "an acknowledgement" if is_last else "a result"
            raise ProtocolError(f"chunk {index + 1} of {self.num_messages} of a BeamStep was answered with {got}")
        if not is_last:
            if response.revision != self.revision_after:  # which it is where the step had happened already
                self._check_revision(response.revision, self.target.expected_revision)
            return Receipt(response.revision, response.draining)
        self._check_revision(response.revision, self.revision_after)
        self._step = read_beam_step(response, len(self._logits))
        return Receipt(response.revision, response.draining, self._step.rows)

    def result(self) -> types.BeamStep:
        assert self._step is not None
        return self._step


def token_update(token_ids: StepTokens, rollback: TokenIds | None) -> service_pb2.TokenUpdate:
    """One id a sequence from a flat list, any number a sequence from a list of lists."""
    rollback_counts = b"" if rollback is None else ids_to_bytes(rollback, "rollback")
    if not len(token_ids) or isinstance(token_ids[0], (int, np.integer)):
        flat: Any = token_ids
        return service_pb2.TokenUpdate(rollback_counts=rollback_counts, token_ids=ids_to_bytes(flat))
    ragged: Any = token_ids
    splits = list(itertools.accumulate((len(ids) for ids in ragged), initial=0))
    return service_pb2.TokenUpdate(
        rollback_counts=rollback_counts,
        token_ids=b"".join(ids_to_bytes(ids) for ids in ragged),
        row_splits=ids_to_bytes(splits),
    )


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


def read_beam_step(response: service_pb2.BeamStepResponse, num_rows: int) -> types.BeamStep:
    """The next beams after a step of `num_rows` rows."""
    rows = convert.rows_from_proto(response.rows)
    parents, ids = ids_from_bytes(response.parent_rows), ids_from_bytes(response.token_ids)
    scores = doubles_from_bytes(response.scores)
    lengths = {len(parents), len(ids), len(scores), sum(row.row_count for row in rows)}
    if len(lengths) != 1:
        raise ProtocolError(f"a BeamStep reply has arrays of different lengths: {sorted(lengths)}")
    if len(parents) and not (parents.min() >= 0 and parents.max() < num_rows):
        raise ProtocolError(f"a BeamStep reply has parent rows {parents.min()} to {parents.max()} of {num_rows}")
    searches = tuple(convert.search_step_from_proto(search) for search in response.searches)
    return types.BeamStep(parents, ids, scores, rows, searches)
