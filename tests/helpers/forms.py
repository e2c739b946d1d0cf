"""Every form in which the logits of a batch can be processed: what is asked for, and what a caller makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from helpers import edit_reference
from helpers.wire import DATA_TYPES, patch, read_tensor, tensor
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from helpers.edit_reference import Table
    from helpers.wire import OpenBatch
    from logitd.client import SharedLogits

DENSE, SPARSE, IN_PLACE, EDITS = (
    types_pb2.ApplyForm.Value(f"APPLY_FORM_{name}") for name in ("DENSE", "SPARSE", "IN_PLACE", "EDITS")
)
_GUARD = 0xA5


class Form(NamedTuple):
    """One way to all rows: the messages, and the logits that a caller ends up with after their replies."""

    requests: list[service_pb2.ApplyRequest]
    result: Callable[[Sequence[service_pb2.ApplyResponse]], torch.Tensor]


@dataclass
class Step:
    """The logits [R, W] of a step at `revision`, and the rows of its messages, each as a first row and a number."""

    batch: OpenBatch
    profile: str
    logits: torch.Tensor
    pieces: Sequence[tuple[int, int]]
    revision: int

    def ask(self, form: int, first_row: int, **fields: Any) -> service_pb2.ApplyRequest:
        """A message that reads."""
        target = self.batch.target(expected_revision=self.revision, request_id=b"")
        return service_pb2.ApplyRequest(target=target, form=form, first_row=first_row, **fields)

    def inline(self, form: int) -> list[service_pb2.ApplyRequest]:
        """A message for each piece, with its logits."""
        return [self.ask(form, first, logits=tensor(self.logits[first : first + rows])) for first, rows in self.pieces]

    def answered(
        self, replies: Sequence[service_pb2.ApplyResponse]
    ) -> Iterator[tuple[slice, service_pb2.ApplyResponse]]:
        """Each piece's rows with their reply, which must be for them and for this step."""
        for (first, rows), reply in zip(self.pieces, replies, strict=True):
            assert (reply.first_row, reply.revision) == (first, self.revision)
            yield slice(first, first + rows), reply


def dense(step: Step) -> Form:
    """Logits up, logits down."""

    def result(replies: Sequence[service_pb2.ApplyResponse]) -> torch.Tensor:
        processed = torch.empty_like(step.logits)
        for rows, reply in step.answered(replies):
            processed[rows] = read_tensor(reply.dense.logits)
        return processed

    return Form(step.inline(DENSE), result)


def sparse(step: Step) -> Form:
    """Logits up, new values down."""
    return Form(step.inline(SPARSE), lambda replies: _patched(step, replies))


def _patched(step: Step, replies: Sequence[service_pb2.ApplyResponse]) -> torch.Tensor:
    processed = step.logits.clone()
    for rows, reply in step.answered(replies):
        assert reply.sparse.data_type == DATA_TYPES[step.logits.dtype]
        processed[rows] = patch(step.logits[rows], reply.sparse)
    return processed


class Region:
    """Shared memory that holds the logits of a step twice, to be read and to be changed, with guards around both."""

    def __init__(self, shared: SharedLogits) -> None:
        self._region_id = shared.region_id
        self._memory = shared.array.reshape(-1).view(np.uint8)

    def forms(self, step: Step, gaps: tuple[int, int]) -> list[Form]:
        """Sparse and in place; `gaps` are the items before the logits of each."""
        data = np.frombuffer(tensor(step.logits).data, np.uint8)
        first_gap, second_gap = (gap * step.logits.element_size() for gap in gaps)
        read, changed = first_gap, first_gap + len(data) + second_gap
        assert changed + len(data) < len(self._memory)
        self._memory[:] = _GUARD
        for offset in (read, changed):
            self._memory[offset : offset + len(data)] = data

        def result(replies: Sequence[service_pb2.ApplyResponse]) -> torch.Tensor:
            assert all(reply.HasField("in_place") for _, reply in step.answered(replies))
            assert bytes(self._memory[read : read + len(data)]) == bytes(data)
            processed = self._memory[changed : changed + len(data)].copy()
            left = (self._memory[:read], self._memory[read + len(data) : changed], self._memory[changed + len(data) :])
            assert all((guards == _GUARD).all() for guards in left)
            return torch.from_numpy(processed).view(step.logits.dtype).view(step.logits.shape)

        return [
            Form(self._named(step, SPARSE, read), lambda replies: _patched(step, replies)),
            Form(self._named(step, IN_PLACE, changed), result),
        ]

    def _named(self, step: Step, form: int, offset: int) -> list[service_pb2.ApplyRequest]:
        row_bytes = step.logits[0].nbytes
        data_type, columns = DATA_TYPES[step.logits.dtype], step.logits.shape[1]
        requests = []
        for first, rows in step.pieces:
            place = types_pb2.SharedMemoryRef(region_id=self._region_id, offset=offset + first * row_bytes)
            named = types_pb2.Tensor(data_type=data_type, shape=[rows, columns], shared_memory=place)
            requests.append(step.ask(form, first, logits=named))
        return requests


class Tables:
    """What a caller knows of a batch's edits at each revision from which on it is told differences."""

    def __init__(self) -> None:
        self._at: dict[int, Table] = {}

    def forget(self) -> None:
        """From here on the batch tells no difference to what is known."""
        self._at.clear()

    def whole(self, step: Step) -> Form:
        """All edits. Its result has to be asked for before those of `since`."""

        def result(replies: Sequence[service_pb2.ApplyResponse]) -> torch.Tensor:
            assert all(reply.edits.is_full for reply in replies)
            self._at[step.revision] = _merged(step, {}, replies)
            return edit_reference.apply(self._at[step.revision], step.logits, step.profile)

        return Form(_edit_requests(step), result)

    def since(self, step: Step, base: int) -> Form:
        """What changed since a revision, in full where that is none that the batch can tell."""

        def result(replies: Sequence[service_pb2.ApplyResponse]) -> torch.Tensor:
            assert {reply.edits.is_full for reply in replies} == {base not in self._at}
            if base == step.revision:
                assert not any(reply.edits.token_ids for reply in replies)
            table = _merged(step, self._at.get(base, {}), replies)
            assert table == self._at[step.revision]
            return edit_reference.apply(table, step.logits, step.profile)

        return Form(_edit_requests(step, edits_since_revision=base), result)


def _edit_requests(step: Step, **fields: Any) -> list[service_pb2.ApplyRequest]:
    return [step.ask(EDITS, first, row_count=rows, **fields) for first, rows in step.pieces]


def _merged(step: Step, known: Table, replies: Sequence[service_pb2.ApplyResponse]) -> Table:
    # The reference counts rows from the start of a message.
    merged: Table = {}
    for rows, reply in step.answered(replies):
        part = {
            (row - rows.start, token): edit for (row, token), edit in known.items() if rows.start <= row < rows.stop
        }
        part = edit_reference.merge(part, reply.edits)
        merged |= {(row + rows.start, token): edit for (row, token), edit in part.items()}
    return merged
