"""The step of the BeamStep stream. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitd.client import _convert as convert
from logitd.client import _types as types
from logitd.client._arrays import are_below, doubles_from_bytes, ids_from_bytes
from logitd.client._beam_history import BeamHistory
from logitd.client._exceptions import ProtocolError
from logitd.client._messages import parse
from logitd.client._steps import Receipt, Step
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from collections import abc

    from logitd.client._history import History
    from logitd.client._logits import LogitsSource


class BeamSearchStep(Step[types.BeamStep]):
    """The next beams come back."""

    method = "BeamStep"
    # The server drops the chunks of a step whose stream ends.
    answers_stand = False

    def __init__(self, logits: LogitsSource, finish: abc.Iterable[str]) -> None:
        super().__init__(logits.num_messages, is_mutation=True, target=service_pb2.StepTarget())
        self._logits = logits
        self.memory = logits.memory
        self._finish = [finish] if isinstance(finish, str) else list(finish)
        self._step: types.BeamStep | None = None

    def message(self, index: int) -> bytes:
        is_last, rows = index == self.num_messages - 1, self._logits.rows(index)
        request = service_pb2.BeamStepRequest(
            target=self.target,
            first_row=rows.start,
            has_more_chunks=not is_last,
            finish_sequence_ids=self._finish if is_last else (),
        )
        head = request.SerializeToString()
        return self._logits.append_to(head, service_pb2.BeamStepRequest.LOGITS_FIELD_NUMBER, rows)

    def keep(self) -> None:
        self._logits.keep()

    def record(self, history: History[Any]) -> None:
        assert isinstance(history, BeamHistory)
        history.advance(self.result())

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
        self._step = read_beam_step(response, self._logits.num_rows)
        return Receipt(response.revision, response.draining, is_commit=True, rows=self._step.rows)

    def result(self) -> types.BeamStep:
        assert self._step is not None
        return self._step


def read_beam_step(response: service_pb2.BeamStepResponse, num_rows: int) -> types.BeamStep:
    """The next beams after a step of `num_rows` rows."""
    rows = convert.rows_from_proto(response.rows)
    parents, ids = ids_from_bytes(response.parent_rows), ids_from_bytes(response.token_ids)
    scores = doubles_from_bytes(response.scores)
    lengths = {len(parents), len(ids), len(scores), sum(row.row_count for row in rows)}
    if len(lengths) != 1:
        raise ProtocolError(f"a BeamStep reply has arrays of different lengths: {sorted(lengths)}")
    if not are_below(parents, num_rows):
        raise ProtocolError(f"a BeamStep reply has parent rows {parents.min()} to {parents.max()} of {num_rows}")
    searches = tuple(convert.search_step_from_proto(search) for search in response.searches)
    going = [(search.sequence_id, len(search.log_prob_sums)) for search in searches if not search.is_done]
    if going != [(row.sequence_id, row.row_count) for row in rows]:
        raise ProtocolError("a BeamStep reply has other rows than those of the searches that go on")
    return types.BeamStep(parents, ids, scores, rows, searches)
