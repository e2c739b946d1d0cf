"""Finished hypotheses and live beams as a caller sees them."""

from __future__ import annotations

import enum
import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The HF rule starts every beam but the first at -1e9, which no sum of log-probabilities comes near.
FILLER_SUM = -1e8
KEY_BYTES = 8


class FinishReason(enum.Enum):
    """Why a hypothesis or a search ended."""

    EOS = "its last token is one of the request's EOS ids"
    LENGTH = "max_new_tokens was reached"
    REQUESTED = "the caller asked for it"
    NO_CANDIDATE = "no live row had a finite candidate (searches only)"
    RULE = "no live beam can improve the pool, by the rule (searches only)"


@dataclass(frozen=True, slots=True, eq=False)
class Hypothesis:
    """A finished sequence.

    Attributes
    ----------
    token_ids : int32 [N]
        The generated tokens, a final EOS included.
    score : float
        By which the rule ranks: the running sum over a power of the length.
    running_sum : float
        The sum as the rule has it, penalties included.
    log_prob_sum : float
        The plain sum of log-probabilities, in float64.
    finish_reason : FinishReason
        EOS, LENGTH or REQUESTED.
    parent_chain : int32 [N]
        For each token the row of its request, in that step's message, that it continued; -1 where a rebuilt
        search was not told.
    token_log_probs : float64 [N] or None
        The plain log-probability of each token, where asked for.
    """

    token_ids: NDArray[np.int32]
    score: float
    running_sum: float
    log_prob_sum: float
    finish_reason: FinishReason
    parent_chain: NDArray[np.int32]
    token_log_probs: NDArray[np.float64] | None = None

    @property
    def is_filler(self) -> bool:
        """Whether the rule took this candidate only to fill the width: it descends from a dead beam."""
        return self.running_sum < FILLER_SUM

    def key(self) -> bytes:
        """Eight bytes that stand for this hypothesis in a checkpoint.

        Hypotheses with the same tokens, parents and sum are interchangeable.
        """
        digest = hashlib.blake2b(struct.pack("<d", self.running_sum), digest_size=KEY_BYTES)
        digest.update(self.token_ids.astype("<i4").tobytes())
        digest.update(self.parent_chain.astype("<i4").tobytes())
        return digest.digest()


@dataclass(frozen=True, slots=True, eq=False)
class LiveBeam:
    """A beam that goes on.

    Attributes
    ----------
    token_ids : int32 [N]
        The generated tokens so far.
    score : float
        The running sum as the rule has it, penalties included; below -1e8 it only fills the width.
    log_prob_sum : float or None
        The plain sum of log-probabilities; None stands for `score`.
    parent_chain : int32 [N] or None
        As in `Hypothesis`; None where the caller did not keep it.
    token_log_probs : float64 [N] or None
        Needed where hypotheses carry them.
    """

    token_ids: NDArray[np.int32]
    score: float
    log_prob_sum: float | None = None
    parent_chain: NDArray[np.int32] | None = None
    token_log_probs: NDArray[np.float64] | None = None
