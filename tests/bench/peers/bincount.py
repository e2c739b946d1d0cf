"""Penalties the way vLLM computes them: counts over the whole vocabulary, made anew from the histories at each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from peers.inputs import Histories, Parameters


class BincountPenalties:
    """Padded histories, and per step two int64 [R, V + 1] counts of them, masks, and three passes over the logits.

    After the torch path of vLLM 0.33. The histories lie in one padded tensor that a step extends in place, which
    spares this side the conversion from lists.
    """

    def __init__(self, parameters: Parameters, histories: Histories, vocab_size: int, device: torch.device) -> None:
        def column(values: object) -> torch.Tensor:
            return torch.as_tensor(values, device=device).unsqueeze(1)

        self._vocab_size = vocab_size
        self._repetition, self._frequency = column(parameters.repetition), column(parameters.frequency)
        self._presence = column(parameters.presence)
        self._prompts = torch.as_tensor(histories.prompts, device=device)
        # The id beyond the vocabulary is the padding, counted in a column of its own.
        outputs = torch.as_tensor(histories.outputs, device=device)
        self._outputs = torch.nn.functional.pad(outputs, (0, 1), value=vocab_size)
        short_rows = (parameters.min_new_tokens > 0).nonzero()[0]
        self._banned = (
            torch.as_tensor(short_rows, device=device).unsqueeze(1),
            torch.as_tensor(parameters.stop_token_ids[short_rows], device=device),
        )

    def step_(self, logits: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Append `token_ids` [R], each time in the same place, then penalise `logits` [R, V] in their own memory."""
        self._outputs[:, -1] = token_ids
        # The engine samples from its fp32 copy of 16-bit logits; here they go back, as they do on our side.
        wide = logits.to(torch.float32)
        wide[self._banned] = float("-inf")
        in_prompt = self._count(self._prompts) > 0
        counts = self._count(self._outputs)
        in_output = counts > 0
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
