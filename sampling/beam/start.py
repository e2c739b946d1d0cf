"""How a request begins: anew, or from where an earlier search of it was."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from logitd.sampling.beam.chain import link_up, unroll
from logitd.sampling.beam.checkpoint import restore_pool, save_pool
from logitd.sampling.beam.hypothesis import LiveBeam
from logitd.sampling.beam.pool import hypotheses_of
from logitd.sampling.beam.rule import Beam, RequestState
from logitd.sampling.errors import ParameterError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitd.sampling.beam.hypothesis import Hypothesis
    from logitd.sampling.beam.parameters import BeamParameters
    from logitd.sampling.beam.pool import Pool
    from logitd.sampling.beam.rule import BeamRule


@dataclass(frozen=True, slots=True, eq=False)
class RequestStart:
    """One request of a search.

    Attributes
    ----------
    live_beams : tuple of LiveBeam
        In row order, all of one length; empty for a new request.
    pool : tuple of Hypothesis
        Every hypothesis that entered the pool, or those still in it, in any order. Without a checkpoint they are
        the pool, at most `width`.
    checkpoint : bytes
        From the last step's result; empty where there is none.
    """

    parameters: BeamParameters
    live_beams: tuple[LiveBeam, ...] = ()
    pool: tuple[Hypothesis, ...] = ()
    checkpoint: bytes = b""


def begin(rule: BeamRule, vocab_size: int, start: RequestStart) -> RequestState:
    """The state of a request whose parameters were validated; the same bits as where it was left.

    Raises
    ------
    ParameterError
        The live beams, the pool or the checkpoint break a rule or do not belong together.
    """
    parameters = start.parameters
    if not start.live_beams:
        return _begin_anew(rule, start)
    rule.validate_row_count(parameters, len(start.live_beams))
    length = len(start.live_beams[0].token_ids)
    if not 1 <= length < parameters.max_new_tokens:
        rule_text = f"must have 1 to max_new_tokens - 1 ({parameters.max_new_tokens - 1}) tokens"
        raise ParameterError("live_beams[0].token_ids", rule_text, f"{length} tokens")
    beams = tuple(
        _begin_beam(beam, length, vocab_size, parameters, f"live_beams[{row}]")
        for row, beam in enumerate(start.live_beams)
    )
    return RequestState(parameters, length, beams, _begin_pool(rule, vocab_size, start, length))


def describe(rule: BeamRule, state: RequestState) -> RequestStart:
    """The start that begins where `state` is."""
    if state.length == 0:
        return RequestStart(state.parameters)
    beams = tuple(_describe_beam(state.parameters, beam) for beam in state.beams)
    return RequestStart(state.parameters, beams, hypotheses_of(state.pool), save_pool(rule, state.pool))


def _begin_anew(rule: BeamRule, start: RequestStart) -> RequestState:
    if start.pool or start.checkpoint:
        field = "pool" if start.pool else "checkpoint"
        raise ParameterError(field, "must be empty without live beams", "a value")
    return RequestState(start.parameters, 0, (Beam(None, 0.0, 0.0),), rule.start_pool(start.parameters, ()))


def _begin_beam(beam: LiveBeam, length: int, vocab_size: int, parameters: BeamParameters, field: str) -> Beam:
    _validate_tokens(beam.token_ids, length, length, vocab_size, f"{field}.token_ids")
    parents = np.full(length, -1, np.int32) if beam.parent_chain is None else beam.parent_chain
    _validate_length(parents, length, f"{field}.parent_chain")
    log_probs = _log_probs_of(beam.token_log_probs, length, parameters, f"{field}.token_log_probs")
    log_prob_sum = beam.score if beam.log_prob_sum is None else beam.log_prob_sum
    _validate_sum(beam.score, f"{field}.score")
    _validate_sum(log_prob_sum, f"{field}.log_prob_sum")
    tip = link_up(zip(beam.token_ids.tolist(), parents.tolist(), log_probs.tolist(), strict=True))
    return Beam(tip, beam.score, log_prob_sum)


def _begin_pool(rule: BeamRule, vocab_size: int, start: RequestStart, length: int) -> Pool:
    parameters = start.parameters
    for index, hypothesis in enumerate(start.pool):
        field = f"pool[{index}]"
        _validate_tokens(hypothesis.token_ids, 1, length, vocab_size, f"{field}.token_ids")
        _validate_length(hypothesis.parent_chain, len(hypothesis.token_ids), f"{field}.parent_chain")
        _log_probs_of(hypothesis.token_log_probs, len(hypothesis.token_ids), parameters, f"{field}.token_log_probs")
        _validate_sum(hypothesis.score, f"{field}.score")
        _validate_sum(hypothesis.running_sum, f"{field}.running_sum")
        _validate_sum(hypothesis.log_prob_sum, f"{field}.log_prob_sum")
    if start.checkpoint:
        return restore_pool(rule, parameters, start.pool, start.checkpoint)
    if len(start.pool) > parameters.width:
        rule_text = f"must be at most width ({parameters.width}) hypotheses without a checkpoint"
        raise ParameterError("pool", rule_text, len(start.pool))
    best_first = sorted(start.pool, key=lambda hypothesis: hypothesis.score, reverse=True)
    return rule.start_pool(parameters, tuple(best_first))


def _describe_beam(parameters: BeamParameters, beam: Beam) -> LiveBeam:
    chain = unroll(beam.tip)
    return LiveBeam(
        chain.token_ids,
        beam.score,
        beam.log_prob_sum,
        chain.parent_rows,
        chain.log_probs if parameters.return_token_log_probs else None,
    )


def _log_probs_of(
    given: NDArray[np.float64] | None, length: int, parameters: BeamParameters, field: str
) -> NDArray[np.float64]:
    if given is None and parameters.return_token_log_probs:
        raise ParameterError(field, "must be given where hypotheses carry them", None)
    log_probs = np.zeros(length) if given is None else given
    _validate_length(log_probs, length, field)
    return log_probs


def _validate_tokens(
    token_ids: NDArray[np.int32], min_length: int, max_length: int, vocab_size: int, field: str
) -> None:
    if not min_length <= len(token_ids) <= max_length:
        rule_text = f"must have {min_length} to {max_length} tokens"
        raise ParameterError(field, rule_text, f"{len(token_ids)} tokens")
    outside = np.flatnonzero((token_ids < 0) | (token_ids >= vocab_size))
    if len(outside):
        index = int(outside[0])
        raise ParameterError(f"{field}[{index}]", f"must be in [0, {vocab_size})", int(token_ids[index]))


def _validate_length(array: NDArray[np.int32] | NDArray[np.float64], length: int, field: str) -> None:
    if len(array) != length:
        raise ParameterError(field, f"must have one value a token ({length})", f"{len(array)} values")


def _validate_sum(value: float, field: str) -> None:
    if math.isnan(value) or value == math.inf:
        raise ParameterError(field, "must not be NaN or +inf", value)
