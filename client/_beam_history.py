"""What a beam search has been through. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logitd.client import _convert as convert
from logitd.client import _types as types
from logitd.client._exceptions import ProtocolError
from logitd.client._history import History, KeptSequence, effective_sequences, renamed

if TYPE_CHECKING:
    import numpy.typing as npt

    from logitd.v1 import service_pb2, types_pb2


class _Link(NamedTuple):
    """A token of a beam; beams that share a prefix share its links."""

    before: _Link | None
    token_id: int
    parent: int
    """The row, within the search, that it continued."""
    log_prob: float


class _Beam(NamedTuple):
    tip: _Link | None
    score: float
    log_prob_sum: float


@dataclass(frozen=True, slots=True)
class BeamSequence(KeptSequence):
    """A search: immutable, each step makes the next one."""

    message: types_pb2.Sequence
    """As it was created, without its beams."""
    beams: tuple[_Beam, ...] = ()
    """Empty before the first step, which one row stands for."""
    pool: tuple[types.Hypothesis, ...] = ()
    """What entered the pool; what can no longer be in it may be missing."""
    checkpoint: bytes = b""

    @classmethod
    def of(cls, message: types_pb2.Sequence) -> BeamSequence:
        """A search as it is created, anew or under way."""
        state = convert.search_state_from_proto(message)
        bare = renamed(message, message.sequence_id)
        bare.ClearField("beams")
        if state is None:
            return cls(bare)
        return cls(bare, tuple(_beam_of(beam) for beam in state.live_beams), state.pool, state.checkpoint)

    @property
    def sequence_id(self) -> str:
        return self.message.sequence_id

    @property
    def row_count(self) -> int:
        """Its rows in the next step."""
        return max(1, len(self.beams))

    def fork(self, sequence_id: str) -> BeamSequence:
        return replace(self, message=renamed(self.message, sequence_id))

    def to_proto(self) -> types_pb2.Sequence:
        message = renamed(self.message, self.sequence_id)
        if self.beams:
            live = tuple(_unroll(beam, self.message.beam.return_token_log_probs) for beam in self.beams)
            state = types.BeamSearchState(live, self.pool, self.checkpoint)
            message.beams.CopyFrom(convert.search_state_to_proto(state))
        return message

    def advance(
        self, step: types.BeamStep, rows: types.RowLayout, search: types.SearchStep, first_row: int
    ) -> BeamSequence:
        """The search after a step of the batch, in which its rows began at `first_row`."""
        places = slice(rows.first_row, rows.first_row + rows.row_count)
        parents = (step.parent_rows[places] - first_row).tolist()
        ids, scores = step.token_ids[places].tolist(), step.scores[places].tolist()
        log_probs = search.token_log_probs.tolist() or [0.0] * len(ids)
        tips = [beam.tip for beam in self.beams] or [None]
        links = (
            _Link(tips[parent], token_id, parent, log_prob)
            for parent, token_id, log_prob in zip(parents, ids, log_probs, strict=True)
        )
        beams = tuple(map(_Beam, links, scores, search.log_prob_sums.tolist()))
        pool = _prune(self.pool + search.entered, self.message.beam.width)
        return BeamSequence(self.message, beams, pool, search.checkpoint)


class BeamHistory(History[BeamSequence]):
    """Of a beam batch."""

    @classmethod
    def of(cls, request: service_pb2.CreateBatchRequest, info: types.BatchInfo) -> BeamHistory:
        """Of a batch that was just created."""
        return cls(request, [BeamSequence.of(message) for message in effective_sequences(request, info)])

    def advance(self, step: types.BeamStep) -> None:
        """Every search takes the next beams; those that ended are gone."""
        sequences, first_rows, first_row = self.sequences, {}, 0
        for sequence in sequences:
            first_rows[sequence.sequence_id] = first_row
            first_row += sequence.row_count
        rows = {row.sequence_id: row for row in step.rows}
        searches = {search.sequence_id: search for search in step.searches}
        if searches.keys() != first_rows.keys():
            raise ProtocolError("a BeamStep reply must tell of every search of the batch once")
        self._sequences = [
            sequence.advance(step, rows[name], searches[name], first_rows[name])
            for sequence in sequences
            if (name := sequence.sequence_id) in rows
        ]


def _prune(pool: tuple[types.Hypothesis, ...], width: int) -> tuple[types.Hypothesis, ...]:
    # A pool holds the `width` best; which of those that are equal to its last one does not follow from the scores.
    if len(pool) <= 2 * width:
        return pool
    worst = sorted((hypothesis.score for hypothesis in pool), reverse=True)[width - 1]
    return tuple(hypothesis for hypothesis in pool if hypothesis.score >= worst)


def _beam_of(beam: types.LiveBeam) -> _Beam:
    length = len(beam.token_ids)
    parents = beam.parent_chain.tolist() or [-1] * length
    log_probs = beam.token_log_probs.tolist() or [0.0] * length
    tip = None
    for token_id, parent, log_prob in zip(beam.token_ids.tolist(), parents, log_probs, strict=True):
        tip = _Link(tip, token_id, parent, log_prob)
    return _Beam(tip, beam.score, beam.log_prob_sum)


def _unroll(beam: _Beam, has_log_probs: bool) -> types.LiveBeam:
    links, link = [], beam.tip
    while link is not None:
        links.append(link)
        link = link.before
    links.reverse()
    log_probs: npt.NDArray[np.float64] = np.array([link.log_prob for link in links] if has_log_probs else [])
    return types.LiveBeam(
        token_ids=np.array([link.token_id for link in links], np.int32),
        score=beam.score,
        log_prob_sum=beam.log_prob_sum,
        token_log_probs=log_probs,
        parent_chain=np.array([link.parent for link in links], np.int32),
    )
