"""Which continuations a rule looks at in a step, in its engine's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Candidates(NamedTuple):
    """The best continuations of a request's rows together, best first.

    Attributes
    ----------
    scores : float32 [K]
        Running sums.
    rows : int64 [K]
        The row that each continues.
    token_ids : int64 [K]
    """

    scores: NDArray[np.float32]
    rows: NDArray[np.int64]
    token_ids: NDArray[np.int64]


class RowCandidates(NamedTuple):
    """The best continuations of one row, in the engine's order."""

    token_ids: list[int]
    log_probs: list[float]


def joint_candidates(log_probs: torch.Tensor, sums: NDArray[np.float32], count: int) -> Candidates:
    """The `count` greatest sums over all beams, by the operations and in the order of ties of Transformers 5.24.

    A new request has one row that stands for all its beams.
    """
    # log_probs: [R, V] float32, R = width or 1; sums: [width]
    vocab_size = log_probs.shape[1]
    running = torch.from_numpy(sums).to(log_probs.device)
    scores, places = torch.topk((log_probs + running[:, None]).view(1, -1), count)
    found = places[0].cpu().numpy()
    rows = np.minimum(found // vocab_size, log_probs.shape[0] - 1)
    return Candidates(scores[0].cpu().numpy(), rows, found % vocab_size)


def row_candidates(log_probs: torch.Tensor, logits: torch.Tensor, count: int) -> list[RowCandidates]:
    """Each row's own `count` greatest log-probabilities in the order in which vLLM 0.33 lists them.

    The engine lists the greedy sample first, then `topk`. Where logits tie at the top the sample may be another token
    than the first of `topk`, and with more than `count` of them one that `topk` lacks. A row without a finite
    logit has none.
    """
    # log_probs, logits: [R, V] float32
    values, token_ids = torch.topk(log_probs, count)
    found = [
        RowCandidates(row_ids, row_values)
        for row_ids, row_values in zip(token_ids.tolist(), values.tolist(), strict=True)
    ]
    return [_sample_first(candidates, logits[row]) for row, candidates in enumerate(found)]


def top_k(scores: NDArray[np.float32], count: int) -> list[int]:
    """The places of the `count` greatest scores in the order, ties included, that `torch.topk` has on the CPU."""
    found: list[int] = torch.topk(torch.from_numpy(scores)[None], count).indices[0].tolist()
    return found


def _sample_first(candidates: RowCandidates, row_logits: torch.Tensor) -> RowCandidates:
    token_ids, log_probs = candidates
    if log_probs[0] == -np.inf:
        return RowCandidates([], [])
    if len(log_probs) < 2 or log_probs[0] != log_probs[1]:
        return candidates
    sample = int(row_logits.argmax())
    others = [(t, value) for t, value in zip(token_ids, log_probs, strict=True) if t != sample]
    return RowCandidates([sample, *(t for t, _ in others)], [log_probs[0], *(value for _, value in others)])
