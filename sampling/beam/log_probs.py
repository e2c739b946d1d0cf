"""From a step's logits to the log-probabilities that a rule sums, penalties included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from logitd.sampling.beam.block_topk import block_maxima
from logitd.sampling.beam.errors import LogitsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from logitd.sampling.orchestrator import PenaltyOrchestrator
    from logitd.sampling.patches import Patch

_NOT_A_NUMBER = "must not be NaN or +inf, penalties included"


@dataclass(frozen=True, slots=True)
class Overwritten:
    """Log-probabilities that penalties replaced.

    Attributes
    ----------
    keys : int64 [N], ascending
        row * vocab_size + token id.
    log_probs : float32 [N]
        What stood there before.
    """

    keys: NDArray[np.int64]
    log_probs: NDArray[np.float32]

    def restore(self, keys: NDArray[np.int64], values: NDArray[np.float32]) -> NDArray[np.float32]:
        """`values`, found at `keys`, with what stood there before the penalties."""
        if len(self.keys) == 0:
            return values
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.log_probs[places], values)


@dataclass(frozen=True, slots=True)
class RowLogProbs:
    """The log-probabilities of some rows of a step.

    Attributes
    ----------
    values : torch.Tensor, float32 [R, V]
        What the rule sums; rows without a finite logit are all -inf.
    logits : torch.Tensor, float32 [R, V]
        What they were computed from.
    first_row : int
        Where these rows start among the step's rows, by which `overwritten` is numbered.
    maxima : torch.Tensor or None, float32 [R, N]
        The greatest of `values` in each block (`block_topk`), where they are of use.
    overwritten : Overwritten or None
        What penalties replaced in `values`.
    """

    values: torch.Tensor
    logits: torch.Tensor
    first_row: int = 0
    maxima: torch.Tensor | None = None
    overwritten: Overwritten | None = None

    def part(self, first: int, last: int) -> RowLogProbs:
        """Rows [first, last)."""
        maxima = None if self.maxima is None else self.maxima[first:last]
        return RowLogProbs(
            self.values[first:last], self.logits[first:last], self.first_row + first, maxima, self.overwritten
        )

    def split(self, counts: Iterable[int]) -> Iterator[RowLogProbs]:
        """Consecutive parts of so many rows each."""
        first = 0
        for count in counts:
            yield self.part(first, first + count)
            first += count

    def plain(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Float32 [...]: log-probabilities without penalties at (rows, token_ids), int64 [...]."""
        vocab_size = self.values.shape[1]
        places = rows * vocab_size + token_ids
        flat = self.values.reshape(-1)
        values = flat[torch.from_numpy(places).to(flat.device)].cpu().numpy()
        if self.overwritten is None:
            return values
        return self.overwritten.restore(places + self.first_row * vocab_size, values)


def penalise_log_probs(logits: torch.Tensor, penalties: PenaltyOrchestrator | None) -> RowLogProbs:
    """Log-softmax in fp32, then penalties, not renormalised, as Transformers 5.24 orders them.

    Raises
    ------
    LogitsError
        A logit is NaN or +inf.
    """
    # logits: [R, V] float32
    values = _log_softmax(logits)
    if penalties is None:
        return RowLogProbs(values, logits, maxima=block_maxima(values))
    patch = penalties.compute_patch(values)
    places = _flat_places(patch, values.shape[1])
    flat, at = values.view(-1), torch.from_numpy(places).to(values.device)
    before = flat[at].cpu().numpy()
    flat[at] = patch.values.to(values.device)
    return RowLogProbs(values, logits, maxima=block_maxima(values), overwritten=Overwritten(places, before))


def penalise_logits(logits: torch.Tensor, penalties: PenaltyOrchestrator | None) -> RowLogProbs:
    """Penalties on the logits, then log-softmax in fp32; vLLM's sampler order, which its beam search lacks.

    Raises
    ------
    LogitsError
        A logit, after penalties, is NaN or +inf.
    """
    # logits: [R, V] float32
    if penalties is not None:
        patch = penalties.compute_patch(logits)
        logits = logits.clone(memory_format=torch.contiguous_format)
        places = torch.from_numpy(_flat_places(patch, logits.shape[1])).to(logits.device)
        logits.view(-1)[places] = patch.values.to(logits.device)
    values = _log_softmax(logits)
    return RowLogProbs(values, logits, maxima=block_maxima(values))


def _log_softmax(logits: torch.Tensor) -> torch.Tensor:
    values = torch.log_softmax(logits, dim=-1)
    # One NaN or +inf makes its whole row NaN, as does a row of -inf: one column tells.
    for row in torch.isnan(values[:, 0]).nonzero().flatten().tolist():
        _check_dead(logits[row], row)
        values[row] = -torch.inf
    return values


def _check_dead(row_logits: torch.Tensor, row: int) -> None:
    bad = (torch.isnan(row_logits) | (row_logits == torch.inf)).nonzero().flatten().tolist()
    if bad:
        raise LogitsError(_NOT_A_NUMBER, row_logits[bad[0]].item(), row, bad[0])


def _flat_places(patch: Patch, vocab_size: int) -> NDArray[np.int64]:
    first = np.arange(len(patch.row_splits) - 1, dtype=np.int64) * vocab_size
    return np.repeat(first, np.diff(patch.row_splits)) + patch.token_ids
