"""The search of Transformers 5.24 (`GenerationMixin._beam_search`), one request at a time."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from logitd.sampling.beam.candidates import joint_candidates, top_k
from logitd.sampling.beam.errors import LogitsError
from logitd.sampling.beam.hypothesis import FinishReason, Hypothesis
from logitd.sampling.beam.log_probs import RowLogProbs, penalise_log_probs
from logitd.sampling.beam.parameters import BeamParameters, EarlyStopping
from logitd.sampling.beam.pool import Pool, PoolSlot
from logitd.sampling.beam.rule import BeamRule, Outcome, RequestState, make_hypothesis
from logitd.sampling.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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

    def step(self, states: Sequence[RequestState], rows: RowLogProbs) -> list[Outcome]:
        groups = [list(group) for _, group in groupby(states, key=_shape)]
        parts = rows.split(len(group) * len(group[0].beams) for group in groups)
        return [outcome for group, part in zip(groups, parts, strict=True) for outcome in _step_alike(group, part)]

    def join_live(self, state: RequestState, reason: FinishReason) -> Pool:
        scores = np.array([[beam.score for beam in state.beams]], np.float32)
        ranking = _rank([state], [state.length], scores, np.ones(scores.shape, np.bool_))

        def end(place: int, score: float) -> Hypothesis:
            beam = state.beams[place]
            return make_hypothesis(state.parameters, beam, score, beam.score, reason)

        return ranking.merge(0, state.pool, end)


def num_candidates(parameters: BeamParameters) -> int:
    """How many continuations a step looks at; counts EOS ids as listed."""
    return max(2, 1 + len(parameters.eos_token_ids)) * parameters.width


def _divide(sums: Any, divisors: Any) -> Any:
    # Sums of dead beams overflow under strongly negative length penalties, as they do in the engine.
    with np.errstate(over="ignore"):
        return sums / divisors


def _divisor(length: int, parameters: BeamParameters) -> np.float32:
    try:
        power = float(length) ** parameters.length_penalty
    except OverflowError:
        power = np.inf
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(power)


def _is_usable(divisor: np.float32) -> bool:
    return bool(0 < divisor < np.inf)


def _sums(states: Sequence[RequestState]) -> NDArray[np.float32]:
    # A new request's one row stands for `width` equal ones, all dead but the first.
    scores = np.array([[beam.score for beam in state.beams] for state in states], np.float32)
    sums = np.full((len(states), states[0].parameters.width), _DEAD, np.float32)
    sums[:, : scores.shape[1]] = scores
    return sums


def _shape(state: RequestState) -> tuple[int, int, int]:
    """Requests with the same one take the same steps together."""
    return len(state.beams), state.parameters.width, num_candidates(state.parameters)


def _step_alike(states: list[RequestState], rows: RowLogProbs) -> list[Outcome]:
    """One step of S requests of one shape: all of their K candidates in arrays [S, K]."""
    _, width, count = _shape(states[0])
    found = joint_candidates(rows, _sums(states), count)
    _check_sums(found.scores[:, 0])
    lengths = [state.length + 1 for state in states]
    ends = np.array([_ends(*row) for row in zip(states, lengths, found.token_ids.tolist(), strict=True)])
    live_scores = found.scores + ends.astype(np.float32) * _DEAD
    live_places = top_k(live_scores, width)
    ranking = _rank(states, lengths, found.scores, ends)
    log_probs = rows.plain(found.rows + np.arange(len(states))[:, None] * len(states[0].beams), found.token_ids)
    columns = (found.rows, found.token_ids, log_probs, found.scores, live_scores)
    extensions = map(_Extensions, states, *(column.tolist() for column in columns))
    return [
        _conclude(extension, live_places[index], ranking, index, ends[index].all())
        for index, extension in enumerate(extensions)
    ]


class _Extensions(NamedTuple):
    """A request and its candidates, of which few become beams."""

    state: RequestState
    rows: list[int]
    token_ids: list[int]
    log_probs: list[float]
    sums: list[float]
    live_scores: list[float]

    def live(self, place: int) -> Beam:
        """The beam that lives on."""
        return self.state.extend(
            self.rows[place], self.token_ids[place], self.live_scores[place], self.log_probs[place]
        )

    def end(self, place: int, score: float) -> Hypothesis:
        """The hypothesis that it ends as."""
        parameters, total = self.state.parameters, self.sums[place]
        beam = self.state.extend(self.rows[place], self.token_ids[place], total, self.log_probs[place])
        is_eos = self.token_ids[place] in parameters.eos_token_ids
        reason = FinishReason.EOS if is_eos else FinishReason.LENGTH
        return make_hypothesis(parameters, beam, score, total, reason)


class _Ranking(NamedTuple):
    """How S pools and the K candidates of each rank together.

    Attributes
    ----------
    order : [S][width]
        Places among the pool's slots and then the candidates, best first.
    scores : [S][K]
        Of the candidates.
    counts : [S][K]
        Whether a candidate ends and is among the first `width`.
    """

    order: list[list[int]]
    scores: list[list[float]]
    counts: list[list[bool]]

    def merge(self, index: int, pool: Pool, end: Callable[[int, float], Hypothesis]) -> Pool:
        """The next pool of a request; `end` makes a hypothesis of a candidate and its score."""
        if self.order[index] == list(range(len(pool))):
            return pool
        scores, counts = self.scores[index], self.counts[index]

        def fill(place: int) -> PoolSlot:
            # A candidate that does not count can still outrank an empty slot, and is then as empty.
            return PoolSlot(scores[place], end(place, scores[place]) if counts[place] else None)

        return tuple(pool[place] if place < len(pool) else fill(place - len(pool)) for place in self.order[index])


def _rank(
    states: Sequence[RequestState], lengths: Sequence[int], sums: NDArray[np.float32], ends: NDArray[np.bool_]
) -> _Ranking:
    # sums, ends: [S, K]
    width = states[0].parameters.width
    counts = ends & (np.arange(sums.shape[1]) < width)
    divisors = np.array([_divisor(length, state.parameters) for length, state in zip(lengths, states, strict=True)])
    scores = _divide(sums, divisors[:, None]) + (~counts).astype(np.float32) * _DEAD
    old = np.array([[slot.score for slot in state.pool] for state in states], np.float32)
    order = top_k(np.concatenate((old, scores), axis=1), width)
    return _Ranking(order, scores.tolist(), counts.tolist())


def _conclude(extensions: _Extensions, live_places: list[int], ranking: _Ranking, index: int, all_end: bool) -> Outcome:
    state = extensions.state
    if extensions.sums[0] == -np.inf:
        return Outcome((), state.pool, FinishReason.NO_CANDIDATE)
    live = tuple(map(extensions.live, live_places))
    pool = ranking.merge(index, state.pool, extensions.end)
    return Outcome(live, pool, _stop_reason(state.parameters, state.length + 1, live[0], pool, all_end))


def _check_sums(greatest: NDArray[np.float32]) -> None:
    for value in greatest[~(greatest < np.inf)]:
        raise LogitsError("must keep running sums below +inf in float32, penalties included", value)


def _ends(state: RequestState, length: int, token_ids: list[int]) -> list[bool]:
    if length >= state.parameters.max_new_tokens:
        return [True] * len(token_ids)
    eos = frozenset(state.parameters.eos_token_ids)
    return [token_id in eos for token_id in token_ids]


def _stop_reason(parameters: BeamParameters, length: int, best: Beam, pool: Pool, all_end: bool) -> FinishReason | None:
    if length >= parameters.max_new_tokens:
        return FinishReason.LENGTH
    is_full = all(slot.hypothesis is not None for slot in pool)
    stops_full = is_full and parameters.early_stopping is EarlyStopping.TRUE
    if all_end or stops_full or not _is_improvable(parameters, length, best, pool):
        return FinishReason.RULE
    return None


def _is_improvable(parameters: BeamParameters, length: int, best: Beam, pool: Pool) -> bool:
    """Whether the best live beam, at the length that the mode assumes, beats the worst of any slot."""
    if parameters.early_stopping is EarlyStopping.NEVER and parameters.length_penalty > 0:
        length = parameters.max_new_tokens
    bound = _divide(np.float32(best.score), _divisor(length, parameters))
    worst = np.float32(min(slot.score for slot in pool))
    return any(bound > (_DEAD if slot.hypothesis is None else worst) for slot in pool)
