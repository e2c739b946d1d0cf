"""Which continuations a rule looks at in a step, in its engine's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from logitd.sampling.beam.block_topk import BLOCK, can_select, select_blocks, take_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitd.sampling.beam.log_probs import RowLogProbs


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


def joint_candidates(rows: RowLogProbs, sums: NDArray[np.float32], count: int) -> Candidates:
    """The `count` greatest sums over all beams, by the operations and in the order of ties of Transformers 5.24.

    Parameters
    ----------
    rows : RowLogProbs
        `width` rows, or the one of a new request, which stands for all its beams.
    sums : float32 [width]
    """
    if rows.maxima is not None and can_select(rows.maxima, len(sums) * rows.values.shape[1], count):
        return _joint_candidates_of_blocks(rows.values, rows.maxima.numpy(), sums, count)
    # log_probs: [R, V], R = width or 1
    log_probs = rows.values
    vocab_size = log_probs.shape[1]
    running = torch.from_numpy(sums).to(log_probs.device)
    scores, places = torch.topk((log_probs + running[:, None]).view(1, -1), count)
    found = places[0].cpu().numpy()
    parents = np.minimum(found // vocab_size, log_probs.shape[0] - 1)
    return Candidates(scores[0].cpu().numpy(), parents, found % vocab_size)


def row_candidates(rows: RowLogProbs, count: int) -> list[RowCandidates]:
    """Each row's own `count` greatest log-probabilities in the order in which vLLM 0.33 lists them.

    The engine lists the greedy sample first, then `topk`. Where logits tie at the top the sample may be another token
    than the first of `topk`, and with more than `count` of them one that `topk` lacks. A row without a finite
    logit has none.
    """
    if rows.maxima is not None and can_select(rows.maxima, rows.values.shape[1], count):
        values, token_ids = _row_topk_of_blocks(rows.values, rows.maxima.numpy(), count)
    else:
        values, token_ids = torch.topk(rows.values, count)
    return [
        _sample_first(RowCandidates(row_ids, row_values), rows.logits[row])
        for row, (row_ids, row_values) in enumerate(zip(token_ids.tolist(), values.tolist(), strict=True))
    ]


def top_k(scores: NDArray[np.float32], count: int) -> list[int]:
    """The places of the `count` greatest scores in the order, ties included, that `torch.topk` has on the CPU."""
    found: list[int] = torch.topk(torch.from_numpy(scores)[None], count).indices[0].tolist()
    return found


def _joint_candidates_of_blocks(
    log_probs: torch.Tensor, maxima: NDArray[np.float32], sums: NDArray[np.float32], count: int
) -> Candidates:
    # Rounding keeps order: the greatest sum of a block is the sum of its greatest item.
    greatest = (maxima + sums[:, None]).reshape(1, -1)
    parents, blocks = np.divmod(np.flatnonzero(select_blocks(greatest, count)), maxima.shape[1])
    items = take_blocks(log_probs, np.minimum(parents, len(maxima) - 1), blocks) + sums[parents, None]
    scores, places = torch.topk(torch.from_numpy(items).view(1, -1), count)
    block, column = np.divmod(places[0].numpy(), BLOCK)
    rows = np.minimum(parents[block], len(maxima) - 1)
    return Candidates(scores[0].numpy(), rows, blocks[block] * BLOCK + column)


def _row_topk_of_blocks(
    log_probs: torch.Tensor, maxima: NDArray[np.float32], count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    chosen = select_blocks(maxima, count)
    # Rows choose differently many blocks: pad with ones that hold nothing, behind all others.
    num_chosen = chosen.sum(axis=1)
    is_used = np.arange(num_chosen.max()) < num_chosen[:, None]
    blocks = np.zeros(is_used.shape, np.int64)
    blocks[is_used] = np.nonzero(chosen)[1]
    items = take_blocks(log_probs, np.arange(len(maxima))[:, None], blocks)
    items[~is_used] = -np.inf
    values, places = torch.topk(torch.from_numpy(items).view(len(maxima), -1), count)
    block = torch.from_numpy(blocks).gather(1, places // BLOCK)
    return values, block * BLOCK + places % BLOCK


def _sample_first(candidates: RowCandidates, row_logits: torch.Tensor) -> RowCandidates:
    token_ids, log_probs = candidates
    if log_probs[0] == -np.inf:
        return RowCandidates([], [])
    if len(log_probs) < 2 or log_probs[0] != log_probs[1]:
        return candidates
    sample = int(row_logits.argmax())
    others = [(t, value) for t, value in zip(token_ids, log_probs, strict=True) if t != sample]
    return RowCandidates([sample, *(t for t, _ in others)], [log_probs[0], *(value for _, value in others)])
