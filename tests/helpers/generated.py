"""What Transformers' `generate` returns, in plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np


class GeneratedBeam(NamedTuple):
    """A returned beam: its output, a final EOS included, its score in fp32, and the row that each token continued."""

    token_ids: list[int]
    score: np.float32
    parent_chain: list[int]

    def from_row(self, first: int) -> GeneratedBeam:
        """The same with its rows numbered from `first` on."""
        return self._replace(parent_chain=[row - first for row in self.parent_chain])


def beams_of(output: Any, prompt_length: int) -> list[GeneratedBeam]:
    """The beams of an output that has scores, best first."""
    chains, scores = output.beam_indices.numpy(), output.sequences_scores.numpy()
    beams = []
    for chain, tokens, score in zip(chains, output.sequences.numpy(), scores, strict=True):
        length = int((chain >= 0).sum())
        token_ids = tokens[prompt_length : prompt_length + length].tolist()
        beams.append(GeneratedBeam(token_ids, score, chain[:length].tolist()))
    return beams
