"""Penalties the way vLLM computes them: counts over the whole vocabulary, made anew from the histories at each step."""

from __future__ import annotations

import torch


class BincountPenalties:
    """Padded histories, and per step two int64 [R, V + 1] counts of them, masks, and three passes over the logits.

    After vLLM 0.33's torch path. The histories live in one padded tensor that a step extends in place, which spares
    this side the conversion from lists.
    """

    def __init__(self, parameters: torch.Tensor, prompts: torch.Tensor, outputs: torch.Tensor, vocab_size: int) -> None:
        # parameters: fp32 [3, R], repetition, frequency, presence; prompts: int64 [R, P]; outputs: int64 [R, L]
        self._repetition, self._frequency, self._presence = (p.unsqueeze(1) for p in parameters)
        self._prompts = prompts
        # The id beyond the vocabulary is the padding, counted in a column of its own.
        self._outputs = torch.nn.functional.pad(outputs, (0, 1), value=vocab_size)
        self._vocab_size = vocab_size

    def step_(self, logits: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Append `token_ids` [R], each step in the same column, then penalise `logits` [R, V] in their own memory."""
        self._outputs[:, -1] = token_ids
        in_prompt = self._count(self._prompts) > 0
        counts = self._count(self._outputs)
        in_output = counts > 0
        # The engine samples from a fp32 copy of 16-bit logits; here they go back, as they do on our side.
        wide = logits.to(torch.float32)
        penalties = torch.where(in_prompt | in_output, self._repetition, 1.0)
        wide *= torch.where(wide > 0, 1.0 / penalties, penalties)
        wide -= self._frequency * counts
        wide -= self._presence * in_output
        if wide is not logits:
            logits.copy_(wide)

    def _count(self, token_ids: torch.Tensor) -> torch.Tensor:
        # token_ids: [R, L] -> [R, V]
        counts = token_ids.new_zeros(len(token_ids), self._vocab_size + 1)
        counts.scatter_add_(1, token_ids, torch.ones_like(token_ids))
        return counts[:, : self._vocab_size]
