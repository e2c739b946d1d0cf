"""Penalties the way SGLang keeps them: one fp32 [R, V] tensor a penalty."""

from __future__ import annotations

import torch


class DensePenalties:
    """Per penalty a tensor over the whole vocabulary, extended by scatters and applied to every logit.

    After SGLang 0.5.23's penalizers, in PenaltyLib's documented order. min_new_tokens is left out: its masked addition
    over [R, V] would only add to the time of this side.
    """

    def __init__(self, parameters: torch.Tensor, outputs: torch.Tensor, vocab_size: int) -> None:
        # parameters: fp32 [3, R], repetition, frequency, presence; outputs: int64 [R, L]
        self._repetition, self._frequency, self._presence = (p.unsqueeze(1) for p in parameters)
        zeros = torch.zeros(len(outputs), vocab_size, device=parameters.device)
        self._scales = torch.ones_like(zeros)
        self._frequency_sums = zeros
        self._presence_sums = torch.zeros_like(zeros)
        for token_ids in outputs.T:
            self.accumulate_(token_ids)

    def step_(self, logits: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Accumulate `token_ids` [R], then penalise `logits` [R, V] in their own memory."""
        self.accumulate_(token_ids)
        if logits.dtype == torch.float32:
            self._apply_(logits)
        else:
            # The penalties are fp32. Subtracting them from 16-bit logits in place would round after each one, so
            # the whole tensor goes up to fp32 and comes back once.
            wide = logits.float()
            self._apply_(wide)
            logits.copy_(wide)

    def accumulate_(self, token_ids: torch.Tensor) -> None:
        """Take in one token id a row, [R]."""
        index = token_ids.unsqueeze(1)
        self._scales.scatter_(1, index, self._repetition)
        self._frequency_sums.scatter_add_(1, index, self._frequency)
        self._presence_sums.scatter_(1, index, self._presence)

    def _apply_(self, logits: torch.Tensor) -> None:
        logits.copy_(torch.where(logits < 0, logits * self._scales, logits / self._scales))
        logits.sub_(self._frequency_sums)
        logits.sub_(self._presence_sums)
