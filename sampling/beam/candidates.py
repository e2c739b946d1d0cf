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
    scores : float32 [..., K]
        Running sums.
    rows : int64 [..., K]
        The row of the request that each continues.
    token_ids : int64 [..., K]
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
        For each request `width` rows, or the one of a new request, which stands for all its beams.
    sums : float32 [..., width]
        Of one request, or of several.
    """
    width = sums.shape[-1]
    find = _joint_topk
    if can_select(rows.maxima, width * rows.values.shape[1], count):
        find = _joint_topk_of_blocks
    scores, own_rows, token_ids = find(rows, sums.reshape(-1, width), count)
    shape = (*sums.shape[:-1], count)
    return Candidates(scores.reshape(shape), own_rows.reshape(shape), token_ids.reshape(shape))


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


def top_k(scores: NDArray[np.float32], count: int) -> list[list[int]]:
    """The places of the `count` greatest of each row, [S, K], in the order, ties included, that `torch.topk` has."""
    found: list[list[int]] = torch.topk(torch.from_numpy(scores), count).indices.tolist()
    return found


def _joint_topk(rows: RowLogProbs, sums: NDArray[np.float32], count: int) -> Candidates:
    # log_probs: [S * R, V], sums: [S, width], R = width or 1
    log_probs, num_requests = rows.values, len(sums)
    num_rows, vocab_size = log_probs.shape[0] // num_requests, log_probs.shape[1]
    running = torch.from_numpy(sums).to(log_probs.device)
    scores, places = torch.topk(
        (log_probs.view(num_requests, num_rows, vocab_size) + running[:, :, None]).view(num_requests, -1), count
    )
    parents, token_ids = np.divmod(places.cpu().numpy(), vocab_size)
    return Candidates(scores.cpu().numpy(), np.minimum(parents, num_rows - 1), token_ids)


def _joint_topk_of_blocks(rows: RowLogProbs, sums: NDArray[np.float32], count: int) -> Candidates:
    # sums: [S, width]
    assert rows.maxima is not None
    num_requests = len(sums)
    maxima = rows.maxima.numpy().reshape(num_requests, -1, rows.maxima.shape[1])
    num_rows, num_blocks = maxima.shape[1:]
    # Rounding keeps order: the greatest sum of a block is the sum of its greatest item.
    greatest = (maxima + sums[:, :, None]).reshape(num_requests, -1)
    chosen, is_used = _list_chosen(select_blocks(greatest, count))
    parents, blocks = np.divmod(chosen, num_blocks)
    own_rows = np.minimum(parents, num_rows - 1)
    request = np.arange(num_requests)[:, None]
    items = take_blocks(rows.values, request * num_rows + own_rows, blocks)
    items += sums[request, parents][:, :, None]
    items[~is_used] = -np.inf
    scores, places = torch.topk(torch.from_numpy(items).view(num_requests, -1), count)
    block, column = np.divmod(places.numpy(), BLOCK)
    return Candidates(scores.numpy(), own_rows[request, block], blocks[request, block] * BLOCK + column)


def _row_topk_of_blocks(
    log_probs: torch.Tensor, maxima: NDArray[np.float32], count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    blocks, is_used = _list_chosen(select_blocks(maxima, count))
    items = take_blocks(log_probs, np.arange(len(maxima))[:, None], blocks)
    items[~is_used] = -np.inf
    values, places = torch.topk(torch.from_numpy(items).view(len(maxima), -1), count)
    block = torch.from_numpy(blocks).gather(1, places // BLOCK)
    return values, block * BLOCK + places % BLOCK


def _list_chosen(chosen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """[S, M]: the places chosen in each row, and which of them are: rows choose differently many.

    The others stand behind and must hold nothing, so that the order of ties does not change.
    """
    num_chosen = chosen.sum(axis=1)
    is_used = np.arange(num_chosen.max()) < num_chosen[:, None]
    places = np.zeros(is_used.shape, np.int64)
    places[is_used] = np.nonzero(chosen)[1]
    return places, is_used


def _sample_first(candidates: RowCandidates, row_logits: torch.Tensor) -> RowCandidates:
    token_ids, log_probs = candidates
    if log_probs[0] == -np.inf:
        return RowCandidates([], [])
    if len(log_probs) < 2 or log_probs[0] != log_probs[1]:
        return candidates
    sample = int(row_logits.argmax())
    others = [(t, value) for t, value in zip(token_ids, log_probs, strict=True) if t != sample]
    return RowCandidates([sample, *(t for t, _ in others)], [log_probs[0], *(value for _, value in others)])
