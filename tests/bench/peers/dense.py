"""Penalties the way SGLang keeps them: one fp32 [R, V] tensor a penalty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from peers.inputs import Histories, Parameters


class DensePenalties:
    """Per penalty a tensor over the whole vocabulary, extended by scatters and applied to every logit.

    After the penalizers of SGLang 0.5.23, in PenaltyLib's documented order.
    """

    def __init__(self, parameters: Parameters, histories: Histories, vocab_size: int, device: torch.device) -> None:
        def column(values: object) -> torch.Tensor:
            return torch.as_tensor(values, device=device).unsqueeze(1)

        num_rows = len(histories.outputs)
        self._repetition, self._frequency = column(parameters.repetition), column(parameters.frequency)
        self._presence, self._min_new_tokens = column(parameters.presence), column(parameters.min_new_tokens)
        self._lengths = torch.zeros(num_rows, 1, dtype=torch.int64, device=device)
        self._scales = torch.ones(num_rows, vocab_size, device=device)
        self._frequency_sums = torch.zeros_like(self._scales)
        self._presence_sums = torch.zeros_like(self._scales)
        stop_token_ids = torch.as_tensor(parameters.stop_token_ids, device=device)
        self._bans = torch.zeros_like(self._scales).scatter_(1, stop_token_ids, float("-inf"))
        for token_ids in torch.as_tensor(histories.outputs, device=device).T:
            self._accumulate_(token_ids)

    def step_(self, logits: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Accumulate `token_ids` [R], then penalise `logits` [R, V] in their own memory."""
        self._accumulate_(token_ids)
        if logits.dtype == torch.float32:
            self._apply_(logits)
        else:
            # The penalties are fp32. Subtracting them from 16-bit logits in place would round after each one, so
            # the whole tensor goes up to fp32 and comes back once.
            wide = logits.float()
            self._apply_(wide)
            logits.copy_(wide)

    def _accumulate_(self, token_ids: torch.Tensor) -> None:
        index = token_ids.unsqueeze(1)
        self._scales.scatter_(1, index, self._repetition)
        self._frequency_sums.scatter_add_(1, index, self._frequency)
        self._presence_sums.scatter_(1, index, self._presence)
        self._lengths += 1

    def _apply_(self, logits: torch.Tensor) -> None:
        logits.copy_(torch.where(logits < 0, logits * self._scales, logits / self._scales))
        logits.sub_(self._frequency_sums)
        logits.sub_(self._presence_sums)
        logits.add_(torch.where(self._lengths < self._min_new_tokens, self._bans, 0.0))
