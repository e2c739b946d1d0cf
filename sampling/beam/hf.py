"""The search of Transformers 5.24 (`GenerationMixin._beam_search`), one request at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitd.sampling.beam.candidates import Candidates, joint_candidates, top_k
from logitd.sampling.beam.errors import LogitsError
from logitd.sampling.beam.hypothesis import FinishReason, Hypothesis
from logitd.sampling.beam.log_probs import RowLogProbs, penalise_log_probs
from logitd.sampling.beam.parameters import BeamParameters, EarlyStopping
from logitd.sampling.beam.pool import Pool, PoolSlot
from logitd.sampling.beam.rule import BeamRule, Outcome, RequestState, make_hypothesis
from logitd.sampling.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from numpy.typing import NDArray

    from logitd.sampling.beam.rule import Beam
    from logitd.sampling.orchestrator import PenaltyOrchestrator

# Stands for "not a beam", "not finished" and "not eligible" alike; added, never assigned, as the engine does.
_DEAD = np.float32(-1e9)


class HfRule(BeamRule):
    """score = sum / generated length ** length_penalty, the EOS counted; a pool of `width`.

    Sums are float32. Of the ``max(2, 1 + number of EOS ids) * width`` best candidates those that end and rank below
    `width` enter the pool; the best that do not end live on. Penalties act on log-probabilities.
    """

    name = "HF"
    penalty_profile = "HF"
    checkpoint_tag = 1
    min_width = 2

    def _validate_own(
        self, parameters: BeamParameters, vocab_size: int, has_penalties: bool, allow_penalty_extension: bool
    ) -> None:
        if num_candidates(parameters) > parameters.width * vocab_size:
            rule = "needs max(2, 1 + number of EOS ids) * width to be at most width * vocab_size under HF"
            raise ParameterError("width", rule, parameters.width)
        if not _is_usable(_divisor(parameters.max_new_tokens, parameters)):
            rule = "must keep max_new_tokens ** length_penalty finite and above 0 in float32"
            raise ParameterError("length_penalty", rule, parameters.length_penalty)

    def validate_row_count(self, parameters: BeamParameters, row_count: int) -> None:
        if row_count != parameters.width:
            raise ParameterError("live_beams", f"must be width ({parameters.width}) beams under HF", row_count)

    def log_probs(self, logits: torch.Tensor, penalties: PenaltyOrchestrator | None) -> RowLogProbs:
        return penalise_log_probs(logits, penalties)

    def start_pool(self, parameters: BeamParameters, hypotheses: tuple[Hypothesis, ...]) -> Pool:
        filled = tuple(PoolSlot(hypothesis.score, hypothesis) for hypothesis in hypotheses)
        return filled + (PoolSlot(float(_DEAD), None),) * (parameters.width - len(hypotheses))

    def is_pool(self, parameters: BeamParameters, pool: Pool) -> bool:
        return len(pool) == parameters.width

    def step(self, state: RequestState, rows: RowLogProbs) -> Outcome:
        parameters, length = state.parameters, state.length + 1
        found = joint_candidates(rows, _sums(state), num_candidates(parameters))
        if not found.scores[0] < np.inf:
            raise LogitsError("must keep running sums below +inf in float32, penalties included", found.scores[0])
        if found.scores[0] == -np.inf:
            return Outcome((), state.pool, FinishReason.NO_CANDIDATE)
        beams = _extend_all(state, found, rows)
        ends = _ends(found, parameters, length)
        live_scores = found.scores + ends.astype(np.float32) * _DEAD
        live = tuple(
            beams[place]._replace(score=float(live_scores[place])) for place in top_k(live_scores, parameters.width)
        )
        pool = _merge(state, beams, found.scores, ends, length)
        return Outcome(live, pool, _stop_reason(parameters, length, live, pool, ends))

    def join_live(self, state: RequestState, reason: FinishReason) -> Pool:
        scores = np.array([beam.score for beam in state.beams], np.float32)
        ends = np.ones(len(scores), np.bool_)
        return _merge(state, state.beams, scores, ends, state.length, reason)


def num_candidates(parameters: BeamParameters) -> int:
    """How many continuations a step looks at; counts EOS ids as listed."""
    return max(2, 1 + len(parameters.eos_token_ids)) * parameters.width


def hf_score(running_sum: np.float32, length: int, parameters: BeamParameters) -> float:
    """The normalised score of `length` generated tokens, computed in float32."""
    return float(_normalise(np.float32(running_sum), length, parameters))


def _normalise(sums: Any, length: int, parameters: BeamParameters) -> Any:
    # Sums of dead beams overflow under strongly negative length penalties, as they do in the engine.
    with np.errstate(over="ignore"):
        return sums / _divisor(length, parameters)


def _divisor(length: int, parameters: BeamParameters) -> np.float32:
    try:
        power = float(length) ** parameters.length_penalty
    except OverflowError:
        power = np.inf
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(power)


def _is_usable(divisor: np.float32) -> bool:
    return bool(0 < divisor < np.inf)


def _sums(state: RequestState) -> NDArray[np.float32]:
    # A new request's one row stands for `width` equal ones, all dead but the first.
    sums = np.full(state.parameters.width, _DEAD, np.float32)
    sums[: len(state.beams)] = [beam.score for beam in state.beams]
    return sums


def _extend_all(state: RequestState, found: Candidates, rows: RowLogProbs) -> tuple[Beam, ...]:
    log_probs = rows.plain(found.rows, found.token_ids)
    columns = (found.rows, found.token_ids, found.scores, log_probs)
    return tuple(state.extend(*candidate) for candidate in zip(*(c.tolist() for c in columns), strict=True))


def _ends(found: Candidates, parameters: BeamParameters, length: int) -> NDArray[np.bool_]:
    if length >= parameters.max_new_tokens:
        return np.ones(len(found.token_ids), np.bool_)
    eos = frozenset(parameters.eos_token_ids)
    return np.array([token_id in eos for token_id in found.token_ids.tolist()], np.bool_)


def _merge(
    state: RequestState,
    beams: tuple[Beam, ...],
    sums: NDArray[np.float32],
    ends: NDArray[np.bool_],
    length: int,
    reason: FinishReason | None = None,
) -> Pool:
    """The best `width` of the old pool and the candidates, of which only those that end in the first `width` count."""
    parameters = state.parameters
    counts = ends & (np.arange(len(sums)) < parameters.width)
    scores = _normalise(sums, length, parameters) + (~counts).astype(np.float32) * _DEAD
    old = np.array([slot.score for slot in state.pool], np.float32)

    def fill(place: int) -> PoolSlot:
        # A candidate that does not count can still outrank an empty slot, and is then as empty.
        score = float(scores[place])
        if not counts[place]:
            return PoolSlot(score, None)
        why = reason or _reason(beams[place], parameters)
        return PoolSlot(score, make_hypothesis(parameters, beams[place], score, float(sums[place]), why))

    order = top_k(np.concatenate((old, scores)), parameters.width)
    return tuple(_pick(state.pool, place, fill) for place in order)


def _pick(pool: Pool, place: int, fill: Callable[[int], PoolSlot]) -> PoolSlot:
    return pool[place] if place < len(pool) else fill(place - len(pool))


def _reason(beam: Beam, parameters: BeamParameters) -> FinishReason:
    assert beam.tip is not None
    return FinishReason.EOS if beam.tip.token_id in parameters.eos_token_ids else FinishReason.LENGTH


def _stop_reason(
    parameters: BeamParameters, length: int, live: tuple[Beam, ...], pool: Pool, ends: NDArray[np.bool_]
) -> FinishReason | None:
    if length >= parameters.max_new_tokens:
        return FinishReason.LENGTH
    is_full = all(slot.hypothesis is not None for slot in pool)
    stops_full = is_full and parameters.early_stopping is EarlyStopping.TRUE
    if ends.all() or stops_full or not _is_improvable(parameters, length, live[0], pool):
        return FinishReason.RULE
    return None


def _is_improvable(parameters: BeamParameters, length: int, best: Beam, pool: Pool) -> bool:
    """Whether the best live beam, at the length that the mode assumes, beats the worst of any slot."""
    if parameters.early_stopping is EarlyStopping.NEVER and parameters.length_penalty > 0:
        length = parameters.max_new_tokens
    bound = _normalise(np.float32(best.score), length, parameters)
    worst = np.float32(min(slot.score for slot in pool))
    return any(bound > (_DEAD if slot.hypothesis is None else worst) for slot in pool)
