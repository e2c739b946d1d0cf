"""The searches in plain Python and float64, one request at a time, for data without ties or dead beams."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logitd.sampling.beam import EarlyStopping

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from logitd.sampling.beam import BeamParameters


class Reference(NamedTuple):
    """A finished hypothesis."""

    token_ids: list[int]
    score: float
    running_sum: float


class Result(NamedTuple):
    """What a search finds, and in how many steps."""

    hypotheses: list[Reference]
    num_steps: int


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """In float64, by the definition."""
    wide = logits.astype(np.float64)
    return wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())


def search_hf(log_probs: Callable[[tuple[int, ...]], NDArray[np.float64]], parameters: BeamParameters) -> Result:
    """Transformers' search; `log_probs` maps the tokens generated so far to those of the next, penalties included."""
    width, eos, length_penalty = parameters.width, parameters.eos_token_ids, parameters.length_penalty
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    pool: list[Reference] = []
    for length in range(1, parameters.max_new_tokens + 1):
        candidates = _expand(beams, log_probs)[: max(2, 1 + len(eos)) * width]
        is_last = length == parameters.max_new_tokens
        for total, tokens in candidates[:width]:
            if is_last or tokens[-1] in eos:
                pool.append(Reference(list(tokens), total / length**length_penalty, total))
        pool = sorted(pool, key=lambda found: -found.score)[:width]
        beams = [candidate for candidate in candidates if candidate[1][-1] not in eos][:width]
        is_never = parameters.early_stopping is EarlyStopping.NEVER and length_penalty > 0
        bound = beams[0][0] / (parameters.max_new_tokens if is_never else length) ** length_penalty
        is_full = len(pool) == width
        stops = is_full and (parameters.early_stopping is EarlyStopping.TRUE or bound <= pool[-1].score)
        if is_last or stops:
            break
    return Result(pool[: parameters.max_hypotheses], length)


def search_vllm(
    log_probs: Callable[[tuple[int, ...]], NDArray[np.float64]],
    parameters: BeamParameters,
    divisor: Callable[[int, bool], float],
) -> Result:
    """vLLM's search; `divisor` maps generated length and whether an EOS is last to what a sum is divided by."""
    width, eos = parameters.width, parameters.eos_token_ids
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[Reference] = []
    for length in range(1, parameters.max_new_tokens + 1):
        own = [candidate for beam in beams for candidate in _expand([beam], log_probs)[: 2 * width]]
        ended = [candidate for candidate in own if candidate[1][-1] in eos]
        finished += [Reference(list(tokens), total / divisor(length, True), total) for total, tokens in ended]
        beams = sorted((c for c in own if c[1][-1] not in eos), key=lambda candidate: -candidate[0])[:width]
        if not beams:
            break
    finished += [Reference(list(tokens), total / divisor(length, False), total) for total, tokens in beams]
    return Result(sorted(finished, key=lambda found: -found.score)[: parameters.max_hypotheses], length)


def _expand(
    beams: Sequence[tuple[float, tuple[int, ...]]], log_probs: Callable[[tuple[int, ...]], NDArray[np.float64]]
) -> list[tuple[float, tuple[int, ...]]]:
    candidates = [
        (total + value, (*tokens, token_id))
        for total, tokens in beams
        for token_id, value in enumerate(log_probs(tokens).tolist())
    ]
    return sorted(candidates, key=lambda candidate: -candidate[0])
