"""The search of vLLM 0.33 (`entrypoints/generate/beam_search/offline.py`), one request at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from logitd.sampling.beam.candidates import RowCandidates, row_candidates
from logitd.sampling.beam.hypothesis import FinishReason, Hypothesis
from logitd.sampling.beam.log_probs import RowLogProbs, penalise_logits
from logitd.sampling.beam.parameters import BeamParameters, EarlyStopping
from logitd.sampling.beam.pool import Pool, PoolSlot
from logitd.sampling.beam.rule import Beam, BeamRule, Outcome, RequestState, make_hypothesis
from logitd.sampling.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from logitd.sampling.orchestrator import PenaltyOrchestrator


class _Ranked(NamedTuple):
    """A finished hypothesis, or the beam that becomes one if it ranks high enough."""

    score: float
    slot: PoolSlot | None
    beam: Beam | None
    reason: FinishReason


class VllmRule(BeamRule):
    """score = sum / generated length ** length_penalty, the EOS counted; sums are float64.

    Every EOS among each beam's own best ``2 * width`` tokens finishes; the best others live on. There is no early
    stop, and live beams join the finished ones at the end. Ties fall as in the offline search, which sorts stably;
    those of the online one (`numpy.argpartition`) are not reproduced. The engine's list of finished beams grows
    without bound; here the best `width` are kept, which is all that it ever returns.
    """

    name = "VLLM"
    penalty_profile = "VLLM"
    checkpoint_tag = 2
    min_width = 1

    def score(self, running_sum: float, length: int, parameters: BeamParameters, *, has_eos: bool) -> float:
        """The normalised score of `length` generated tokens, `has_eos` if the last is an EOS."""
        return running_sum / self._divisor(length, parameters, has_eos)

    def _divisor(self, length: int, parameters: BeamParameters, has_eos: bool) -> float:
        return float(max(length, 1) ** parameters.length_penalty)

    def _validate_own(
        self, parameters: BeamParameters, vocab_size: int, has_penalties: bool, allow_penalty_extension: bool
    ) -> None:
        if 2 * parameters.width > vocab_size:
            rule = f"must be at most vocab_size / 2 ({vocab_size // 2}) under {self.name}"
            raise ParameterError("width", rule, parameters.width)
        if parameters.early_stopping is not EarlyStopping.FALSE:
            rule = f"must be FALSE under {self.name}, which has no early stop"
            raise ParameterError("early_stopping", rule, parameters.early_stopping.name)
        if has_penalties and not allow_penalty_extension:
            rule = f"need the extension flag under {self.name}, whose search has none"
            raise ParameterError("penalties", rule, "penalties without it")
        self._validate_divisor(parameters)

    def _validate_divisor(self, parameters: BeamParameters) -> None:
        try:
            greatest = self._divisor(parameters.max_new_tokens, parameters, has_eos=False)
        except OverflowError:
            greatest = math.inf
        if not 0 < greatest < math.inf:
            rule = "must keep the greatest length ** length_penalty finite and above 0"
            raise ParameterError("length_penalty", rule, parameters.length_penalty)

    def log_probs(self, logits: torch.Tensor, penalties: PenaltyOrchestrator | None) -> RowLogProbs:
        return penalise_logits(logits, penalties)

    def start_pool(self, parameters: BeamParameters, hypotheses: tuple[Hypothesis, ...]) -> Pool:
        return tuple(PoolSlot(hypothesis.score, hypothesis) for hypothesis in hypotheses)

    def is_pool(self, parameters: BeamParameters, pool: Pool) -> bool:
        return len(pool) <= parameters.width and all(slot.hypothesis is not None for slot in pool)

    def step(self, states: Sequence[RequestState], rows: RowLogProbs) -> list[Outcome]:
        parts = rows.split(len(state.beams) for state in states)
        return [self._step_one(state, part) for state, part in zip(states, parts, strict=True)]

    def _step_one(self, state: RequestState, rows: RowLogProbs) -> Outcome:
        parameters, length = state.parameters, state.length + 1
        found = row_candidates(rows, 2 * parameters.width)
        candidates = _extend_all(state, found)
        if not any(beam.score > -math.inf for beam in candidates):
            return Outcome((), state.pool, FinishReason.NO_CANDIDATE)
        eos = frozenset(parameters.eos_token_ids)
        ended = [beam for beam in candidates if _last_token(beam) in eos]
        going = [beam for beam in candidates if _last_token(beam) not in eos]
        pool = self._merge(parameters, state.pool, ended, length, FinishReason.EOS)
        live = self._best(parameters, going, length)
        if length < parameters.max_new_tokens:
            return Outcome(live, pool, None if live else FinishReason.RULE)
        pool = self._merge(parameters, pool, live, length, FinishReason.LENGTH)
        return Outcome((), pool, FinishReason.LENGTH)

    def join_live(self, state: RequestState, reason: FinishReason) -> Pool:
        return self._merge(state.parameters, state.pool, state.beams, state.length, reason)

    def _best(self, parameters: BeamParameters, beams: list[Beam], length: int) -> tuple[Beam, ...]:
        divisor = self._divisor(length, parameters, has_eos=False)
        ranked = sorted(beams, key=lambda beam: beam.score / divisor, reverse=True)
        return tuple(ranked[: parameters.width])

    def _merge(
        self,
        parameters: BeamParameters,
        pool: Pool,
        beams: list[Beam] | tuple[Beam, ...],
        length: int,
        reason: FinishReason,
    ) -> Pool:
        """The best `width` of the pool and of beams that end now, earlier ones first where scores are equal."""
        divisor = self._divisor(length, parameters, has_eos=reason is FinishReason.EOS)
        ranked = [_Ranked(slot.score, slot, None, reason) for slot in pool]
        ranked += [_Ranked(beam.score / divisor, None, beam, reason) for beam in beams]
        ranked.sort(key=lambda entry: entry.score, reverse=True)
        return tuple(_settle(parameters, entry) for entry in ranked[: parameters.width])


def _extend_all(state: RequestState, found: list[RowCandidates]) -> list[Beam]:
    return [
        state.extend(row, token_id, state.beams[row].score + log_prob, log_prob)
        for row, candidates in enumerate(found)
        for token_id, log_prob in zip(candidates.token_ids, candidates.log_probs, strict=True)
    ]


def _last_token(beam: Beam) -> int:
    assert beam.tip is not None
    return beam.tip.token_id


def _settle(parameters: BeamParameters, entry: _Ranked) -> PoolSlot:
    if entry.slot is not None:
        return entry.slot
    assert entry.beam is not None
    beam = entry.beam
    return PoolSlot(entry.score, make_hypothesis(parameters, beam, entry.score, beam.score, entry.reason))
