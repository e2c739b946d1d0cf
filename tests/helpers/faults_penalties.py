"""A penalty batch of a random run beside its model, which has nothing but the parameters and the token lists."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from helpers import edit_reference
from helpers.dense_penalties import banned_ids, mark, penalise_densely, touched_ids
from helpers.faults_caller import Caller, Remembered, check_creation, check_is_gone, misdirect
from helpers.faults_random import (
    MAX_NEW_TOKENS,
    draw_arrangement,
    draw_logits,
    draw_pieces,
    draw_row,
    draw_update,
    one_in,
)
from helpers.tensors import assert_same_numbers
from helpers.wire import creation, patch, read_ints, read_tensor, tensor
from helpers.wire_batches import profile_number, sequence_of
from helpers.wire_updates import Update, message_of
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from helpers.wire import OpenBatch

MAX_ROWS = 10
_DENSE, _SPARSE = types_pb2.APPLY_FORM_DENSE, types_pb2.APPLY_FORM_SPARSE
_IN_PLACE, _EDITS = types_pb2.APPLY_FORM_IN_PLACE, types_pb2.APPLY_FORM_EDITS


class PenaltyModel:
    """Every method does one thing to the batch and to the model, or sees it refused."""

    kind = "PENALTY"

    def __init__(self, caller: Caller, profile: str, vocab_size: int, name: str) -> None:
        self._caller, self._random = caller, caller.random
        self.profile, self.vocab_size = profile, vocab_size
        self.rows = [draw_row(self._random) for _ in range(self._random.randint(1, 4))]
        self.names = [f"{name}-{number}" for number in range(len(self.rows))]
        self._open()

    def _open(self) -> None:
        sequences = [sequence_of(name, row) for name, row in zip(self.names, self.rows, strict=True)]
        for sequence in sequences:
            sequence.max_new_tokens = MAX_NEW_TOKENS
        self._creation = creation(
            *sequences,
            vocab_size=self.vocab_size,
            profile=profile_number(self.profile),
            kind=types_pb2.BATCH_KIND_PENALTY,
        )
        self.live: OpenBatch = self._caller.wire.open(self._creation)
        self.sent = Remembered(self._caller)
        self._table: edit_reference.Table = {}
        self._table_revision: int | None = None

    def create_again(self) -> None:
        check_creation(self._caller, self._creation, self.live)

    def accumulate(self) -> None:
        update = draw_update(self._random, self.rows)
        message = self._accumulate_message(update)
        self._commit("Accumulate", message, update, self._caller.ask("Accumulate", message))

    def apply(self) -> None:
        """A step in one or more pieces of rows, in the forms that answer for logits."""
        update = draw_update(self._random, self.rows) if one_in(self._random, 2) else None
        logits = draw_logits(self._random, len(self.rows), self.vocab_size)
        for number, (first_row, count) in enumerate(draw_pieces(self._random, len(self.rows))):
            form = self._random.choice((_DENSE, _SPARSE, _IN_PLACE))
            message = self._apply_message(form, logits[first_row : first_row + count], first_row)
            if update is not None and number == 0:
                message.tokens.CopyFrom(message_of(update))
            reply = self._caller.ask("Apply", message)
            if update is not None and number == 0:
                self._commit("Apply", message, update, reply)
            self._check_apply(reply, logits, first_row, count)

    def apply_edits(self) -> None:
        update = draw_update(self._random, self.rows) if one_in(self._random, 2) else None
        message = service_pb2.ApplyRequest(target=self.live.target(), form=_EDITS)
        if update is not None:
            message.tokens.CopyFrom(message_of(update))
        if self._table_revision is not None and not one_in(self._random, 4):
            message.edits_since_revision = self._table_revision
        reply = self._caller.ask("Apply", message)
        if update is not None:
            self._commit("Apply", message, update, reply)
        self._check_edits(reply)

    def send_out_of_order(self) -> None:
        """Two steps on one stream: swapped they are refused, twice each they count once each."""
        updates = [draw_update(self._random, self.rows)]
        updates.append(draw_update(self._random, advanced(self.rows, updates[0])))
        first, second = (self._accumulate_message(update) for update in updates)
        second.target.expected_revision += 1
        self._caller.refuse("Accumulate", second, "REVISION_MISMATCH")
        replies = self._caller.send("Accumulate", first, first, second, second)
        assert [reply.revision - self.live.revision for reply in replies] == [1, 1, 2, 2]
        for message, update, reply in zip((first, second), updates, replies[::2], strict=True):
            self._commit("Accumulate", message, update, reply)
        self._caller.refuse("Accumulate", first, "REVISION_MISMATCH")

    def filter(self, fresh: str) -> None:
        arrangement = draw_arrangement(self._random, self.names, MAX_ROWS, fresh)
        message = service_pb2.FilterBatchRequest(target=self.live.target())
        for place, name in arrangement:
            message.sequences.add(sequence_id=self.names[place], new_sequence_id=name)
        reply = self._caller.ask("FilterBatch", message)
        self.rows = [self.rows[place] for place, _ in arrangement]
        self.names = [name for _, name in arrangement]
        self._take_layout("FilterBatch", message, reply)

    def merge(self, other: PenaltyModel) -> None:
        """The other batch is gone then."""
        message = service_pb2.MergeBatchesRequest(target=self.live.target(), source=other.live.target(request_id=b""))
        if set(self.names) & set(other.names) or self.profile != other.profile or self.vocab_size != other.vocab_size:
            self._caller.refuse("MergeBatches", message, "BATCHES_DIFFER")
            return
        reply = self._caller.ask("MergeBatches", message)
        check_is_gone(self._caller, other.live)
        self.rows, self.names = self.rows + other.rows, self.names + other.names
        other.names = []
        self._take_layout("MergeBatches", message, reply)

    def retry(self) -> None:
        """The last mutation again, an Apply with other logits as it happens."""
        if (retried := self.sent.retry_last()) is None:
            return
        method, message, first, again = retried
        if method != "Apply":
            assert again == first
        elif message.form == _EDITS:
            self._check_edits(again)
        else:
            logits = draw_logits(self._random, len(self.rows), self.vocab_size)
            message.form, message.first_row = _SPARSE, 0
            message.logits.CopyFrom(tensor(logits))
            self._check_apply(self._caller.ask("Apply", message), logits, 0, len(self.rows))

    def be_refused(self, others: list[OpenBatch]) -> None:
        """Right messages with a wrong name, wrong messages, and a call for batches of the other kind."""
        update = draw_update(self._random, self.rows)
        message = self._accumulate_message(update)
        misdirect(self._caller, self.live, "Accumulate", message, others)
        wrong = self._random.choice(self._wrong_updates(update))
        self._caller.refuse("Accumulate", self._accumulate_message(wrong), "INVALID_FIELD")
        step = service_pb2.BeamStepRequest(target=self.live.target(), finish_sequence_ids=self.names)
        self._caller.refuse("BeamStep", step, "WRONG_BATCH_KIND")

    def check_state(self) -> None:
        batch = self.live.describe()
        assert (batch.uid, batch.revision) == (self.live.uid, self.live.revision)
        assert [sequence.sequence_id for sequence in batch.sequences] == self.names
        outputs = [tuple(read_ints(sequence.output_token_ids)) for sequence in batch.sequences]
        assert outputs == [tuple(row.output_token_ids) for row in self.rows]

    def rebuild(self) -> None:
        """Lost and created anew from the history, as after a restart of the server."""
        self.delete()
        self._open()

    def delete(self) -> None:
        request = service_pb2.DeleteBatchRequest(batch_id=self.live.batch_id, uid=self.live.uid)
        self._caller.ask("DeleteBatch", request)
        self._caller.refuse("DeleteBatch", request, "BATCH_NOT_FOUND")

    def _accumulate_message(self, update: Update) -> service_pb2.AccumulateRequest:
        return service_pb2.AccumulateRequest(target=self.live.target(), tokens=message_of(update))

    def _apply_message(self, form: int, logits: torch.Tensor, first_row: int) -> service_pb2.ApplyRequest:
        in_region = form == _IN_PLACE or (form == _SPARSE and one_in(self._random, 3))
        values = self._caller.region.write(logits) if in_region else tensor(logits)
        return service_pb2.ApplyRequest(target=self.live.target(), form=form, first_row=first_row, logits=values)

    def _wrong_updates(self, update: Update) -> list[Update]:
        rest: list[list[int]] = [[] for _ in self.rows[1:]]
        longest = len(self.rows[0].output_token_ids)
        return [
            update._replace(tokens=[*update.tokens[:-1], [self.vocab_size]]),
            update._replace(tokens=[*update.tokens[:-1], [-1]]),
            Update([longest + 1, *(0 for _ in rest)], [[0], *rest]),
            Update([0] * len(self.rows), [[0] * (MAX_NEW_TOKENS + 1 - longest), *rest]),
        ]

    def _commit(self, method: str, message: Any, update: Update, reply: Any) -> None:
        assert reply.revision == self.live.revision + 1
        self.live.revision = reply.revision
        self.rows = advanced(self.rows, update)
        self.sent.add(method, message, reply)

    def _take_layout(self, method: str, message: Any, reply: Any) -> None:
        assert reply.revision == self.live.revision + 1
        self.live.revision = reply.revision
        layout = [(row.sequence_id, row.first_row, row.row_count) for row in reply.rows]
        assert layout == [(name, row, 1) for row, name in enumerate(self.names)]
        self.sent.add(method, message, reply)

    def _check_apply(self, reply: Any, logits: torch.Tensor, first_row: int, count: int) -> None:
        assert (reply.revision, reply.first_row) == (self.live.revision, first_row)
        part = slice(first_row, first_row + count)
        expected = self._expect(logits)[part]
        match reply.WhichOneof("result"):
            case "dense":
                actual = read_tensor(reply.dense.logits)
            case "sparse":
                actual = patch(logits[part], reply.sparse)
            case _:
                actual = self._caller.region.read(logits[part])
        assert_same_numbers(actual, expected)

    def _check_edits(self, reply: Any) -> None:
        assert reply.revision == self.live.revision
        self._table = edit_reference.merge(self._table, reply.edits)
        self._table_revision = reply.revision
        logits = draw_logits(self._random, len(self.rows), self.vocab_size)
        assert_same_numbers(edit_reference.apply(self._table, logits, self.profile), self._expect(logits))

    def _expect(self, logits: torch.Tensor) -> torch.Tensor:
        # The dense result at every touched or banned id, the input everywhere else.
        dense = penalise_densely(self.profile, self.vocab_size, self.rows, logits)
        edited = [touched_ids(self.profile, row) | banned_ids(row) for row in self.rows]
        return torch.where(mark(edited, logits.shape[1]), dense, logits)


def advanced(rows: list[Any], update: Update) -> list[Any]:
    """The rows after a token update."""
    return [
        replace(row, output_token_ids=(*row.output_token_ids[: len(row.output_token_ids) - dropped], *tokens))
        for row, dropped, tokens in zip(rows, update.rollback, update.tokens, strict=True)
    ]
