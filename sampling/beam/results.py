"""What a step of a batch returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from logitd.sampling.beam.checkpoint import save_pool
from logitd.sampling.beam.pool import entered, hypotheses_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitd.sampling.beam.hypothesis import FinishReason, Hypothesis
    from logitd.sampling.beam.rule import Beam, BeamRule, Outcome, RequestState


@dataclass(frozen=True, slots=True, eq=False)
class RequestStep:
    """What happened to one request; L live beams go on, none when it ended.

    Attributes
    ----------
    index : int
        The request's place in the batch before the step.
    parents : int32 [L]
        The row, among the request's own, that each next live beam continues.
    token_ids : int32 [L]
        The token that it appends.
    scores : float64 [L]
        Its running sum as the rule has it, penalties included; below -1e8 it only fills the width.
    log_prob_sums : float64 [L]
        Its plain sum of log-probabilities.
    token_log_probs : float64 [L]
        The plain log-probability of the appended token.
    entered : tuple of Hypothesis
        What entered the pool, best first.
    finish_reason : FinishReason or None
        Why the search ended; None where it goes on.
    hypotheses : tuple of Hypothesis
        When it ended: the best, best first, `num_return_sequences` at most. There may be fewer, or none.
    checkpoint : bytes
        The rule's private state, for a `RequestStart`; empty when the search ended.
    """

    index: int
    parents: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    scores: NDArray[np.float64]
    log_prob_sums: NDArray[np.float64]
    token_log_probs: NDArray[np.float64]
    entered: tuple[Hypothesis, ...]
    finish_reason: FinishReason | None
    hypotheses: tuple[Hypothesis, ...]
    checkpoint: bytes

    @property
    def is_done(self) -> bool:
        """Whether the search ended."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True, eq=False)
class BatchStep:
    """What a step made of a batch; L live rows over M requests go on.

    Attributes
    ----------
    parent_rows : int32 [L]
        For each live row of the next step the row of this step, numbered over the batch's rows as they were before it,
        that it continues. Gather caches by it, then append `token_ids`.
    token_ids : int32 [L]
        Empty when requests were finished without a step.
    scores : float64 [L]
        Running sums as the rule has them.
    row_splits : int64 [M + 1]
        Rows [row_splits[i], row_splits[i + 1]) are those of the i-th request that goes on.
    remaining : tuple of M ints
        Which requests those are, by their place before the step.
    requests : tuple of RequestStep
        Every request that took part, in the order before the step.
    """

    parent_rows: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    scores: NDArray[np.float64]
    row_splits: NDArray[np.int64]
    remaining: tuple[int, ...]
    requests: tuple[RequestStep, ...]


def going_on(rule: BeamRule, index: int, state: RequestState, outcome: Outcome) -> RequestStep:
    """The result of a request that lives on."""
    return _result(index, outcome.beams, state, outcome, (), save_pool(rule, outcome.pool))


def ended(index: int, state: RequestState, outcome: Outcome) -> RequestStep:
    """The result of a request whose search is over."""
    best = hypotheses_of(outcome.pool[: state.parameters.max_hypotheses])
    return _result(index, (), state, outcome, best, b"")


def _result(
    index: int,
    beams: tuple[Beam, ...],
    state: RequestState,
    outcome: Outcome,
    hypotheses: tuple[Hypothesis, ...],
    checkpoint: bytes,
) -> RequestStep:
    tips = [beam.tip for beam in beams if beam.tip is not None]
    return RequestStep(
        index=index,
        parents=np.array([tip.parent_row for tip in tips], np.int32),
        token_ids=np.array([tip.token_id for tip in tips], np.int32),
        scores=np.array([beam.score for beam in beams], np.float64),
        log_prob_sums=np.array([beam.log_prob_sum for beam in beams], np.float64),
        token_log_probs=np.array([tip.log_prob for tip in tips], np.float64),
        entered=entered(state.pool, outcome.pool),
        finish_reason=outcome.finish_reason,
        hypotheses=hypotheses,
        checkpoint=checkpoint,
    )
