"""Steps with drafts in every form, through a server, and what each must leave with its caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from helpers import edit_reference
from helpers.drafts import DraftRow, drafts_message, draw_drafts, positions
from helpers.penalty_states import append, penalise
from helpers.penalty_strategies import draw_logits
from helpers.tensors import assert_same_bits, assert_same_numbers
from helpers.wire import DATA_TYPES, patch, read_items, read_tensor, tensor
from helpers.wire_updates import message_of
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hypothesis import strategies as st

    from helpers.penalty_strategies import Batch
    from helpers.wire import OpenBatch, Wire
    from helpers.wire_updates import Update
    from logitd.sampling import PenaltyOrchestrator

FORMS = ("DENSE", "SPARSE", "IN_PLACE", "EDITS")


@dataclass(frozen=True)
class Region:
    """A file that the server has mapped."""

    path: Path
    region_id: str


@dataclass(frozen=True)
class Step:
    """A step with drafts in one form; `update` is committed first, with the first message."""

    form: str
    logits: torch.Tensor
    drafts: service_pb2.DraftTokens
    update: Update | None = None

    def requests(
        self, batch: OpenBatch, region: Region, pieces: Sequence[tuple[int, int]]
    ) -> Iterator[service_pb2.ApplyRequest]:
        """A message for each piece, its first position and their number; `batch` then stands where they leave it."""
        for number, (first, count) in enumerate(pieces):
            update = self.update if number == 0 else None
            target = batch.target() if update else batch.target(request_id=b"")
            form = types_pb2.ApplyForm.Value(f"APPLY_FORM_{self.form}")
            request = service_pb2.ApplyRequest(target=target, form=form, first_row=first, drafts=self.drafts)
            if self.form == "EDITS":
                request.row_count = count
            else:
                request.logits.CopyFrom(self._tensor(region, first, count))
            if update:
                request.tokens.CopyFrom(message_of(update))
                batch.revision += 1
            yield request

    def fill(self, region: Region) -> None:
        if self.form == "IN_PLACE":
            with region.path.open("r+b") as file:
                file.write(tensor(self.logits).data)

    def read(
        self, region: Region, replies: Sequence[service_pb2.ApplyResponse], pieces: Sequence[tuple[int, int]]
    ) -> torch.Tensor:
        """What the caller has after the replies, in the dtype of the logits."""
        if self.form == "IN_PLACE":
            data = region.path.read_bytes()[: self.logits.nbytes]
            return read_items(data, DATA_TYPES[self.logits.dtype]).view(self.logits.shape)
        result = torch.empty_like(self.logits)
        for reply, (first, count) in zip(replies, pieces, strict=True):
            assert reply.first_row == first
            piece = self.logits[first : first + count]
            assert reply.WhichOneof("result") == self.form.lower()
            result[first : first + count] = self._read_piece(reply, piece)
        return result

    def _read_piece(self, reply: service_pb2.ApplyResponse, logits: torch.Tensor) -> torch.Tensor:
        if self.form == "DENSE":
            return read_tensor(reply.dense.logits)
        return patch(logits, reply.sparse)

    def _tensor(self, region: Region, first: int, count: int) -> types_pb2.Tensor:
        message = tensor(self.logits[first : first + count])
        if self.form == "IN_PLACE":
            row_bytes = self.logits[0].nbytes
            message.shared_memory.region_id = region.region_id
            message.shared_memory.offset = first * row_bytes
        return message


def run_step(wire: Wire, batch: OpenBatch, region: Region, step: Step, pieces: Sequence[tuple[int, int]]) -> Any:
    """The replies to a step, one a piece."""
    step.fill(region)
    return wire.stream("Apply", list(step.requests(batch, region, pieces)))


def check_step(
    wire: Wire, batch: OpenBatch, region: Region, step: Step, pieces: list[tuple[int, int]], plain: PenaltyOrchestrator
) -> None:
    """A step gives what `plain`, which has a row for each position, gives."""
    replies = run_step(wire, batch, region, step, pieces)
    if step.form == "EDITS":
        table = merge_pieces({}, replies)
        assert table == expected_edits(plain)
        edited = edit_reference.apply(table, step.logits, plain.profile.name)
        assert_same_numbers(edited, penalise(plain, step.logits))
    else:
        assert_same_bits(step.read(region, replies, pieces), penalise(plain, step.logits))
    assert {reply.revision for reply in replies} == {batch.revision}


def merge_pieces(known: edit_reference.Table, replies: Sequence[service_pb2.ApplyResponse]) -> edit_reference.Table:
    """What is known of all positions after a step of edits; `known` is what was, where they are a difference."""
    merged = dict(known)
    for reply in replies:
        num_rows = len(reply.edits.repetition) // 4
        places = {key: key[0] - reply.first_row for key in merged}
        there = {(row, key[1]): merged.pop(key) for key, row in places.items() if 0 <= row < num_rows}
        part = edit_reference.merge(there, reply.edits)
        merged.update({(row + reply.first_row, token_id): edit for (row, token_id), edit in part.items()})
    return merged


def expected_edits(plain: PenaltyOrchestrator) -> edit_reference.Table:
    edits = plain.list_edits()
    rows = np.repeat(np.arange(plain.num_rows), np.diff(edits.row_splits)).tolist()
    columns = edits.repetition[rows], edits.frequency_sums, edits.presence[rows], edits.flags.tolist()
    entries = [edit_reference.Edit(*entry) for entry in zip(*columns, strict=True)]
    return dict(zip(zip(rows, edits.token_ids.tolist(), strict=True), entries, strict=True))


def draw_step(data: st.DataObject, batch: Batch, form: str, update: Update | None) -> tuple[list[DraftRow], Step]:
    pool = (0, batch.vocab_size // 2, batch.vocab_size - 1)
    rows = draw_drafts(data.draw, len(batch.rows), pool)
    width, dtype = batch.logits.shape[1], batch.logits.dtype
    logits = draw_logits(data.draw, len(positions(rows)), width, dtype, pool)
    return rows, Step(form, logits, drafts_message(rows), update)


def step_library(state: PenaltyOrchestrator, update: Update | None) -> PenaltyOrchestrator:
    return state if update is None else append(state, update.tokens, update.rollback)
