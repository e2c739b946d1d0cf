"""The penalties in plain float64, a row at a time, and how far fp32 work may be from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitd.sampling import RowStart

_FP32_STEP = 2.0**-23
# Parameters and results may be smaller than fp32 can tell from 0.
_FP32_UNDERFLOW = 2.0**-140


class ExactRow(NamedTuple):
    """Float64 [V] each: the result, and the greatest error of fp32 work on finite results."""

    logits: NDArray[np.float64]
    tolerance: NDArray[np.float64]


def penalise_exactly(profile: str, row: RowStart, logits: NDArray[np.float64]) -> ExactRow:
    """`logits` [V] after all penalties of `row`, whose parameters must be moderate: nothing overflows fp32."""
    p = row.parameters
    counts = np.bincount(np.asarray(row.output_token_ids, np.int64), minlength=len(logits))
    prompt = np.bincount(np.asarray(row.prompt_token_ids, np.int64), minlength=len(logits))
    scaled_ids = counts + prompt > 0 if profile in ("VLLM", "HF") else counts > 0
    subtracted = p.frequency_penalty * counts + p.presence_penalty * (counts > 0)
    if profile == "SGLANG_FUSED":
        result = _scale(logits - subtracted, p.repetition_penalty, scaled_ids)
    else:
        result = _scale(logits, p.repetition_penalty, scaled_ids) - subtracted
    if len(row.output_token_ids) < p.min_new_tokens:
        result[list(p.stop_token_ids)] = -np.inf
    return ExactRow(result, _tolerance(row, logits, counts))


def _scale(logits: NDArray[np.float64], penalty: float, ids: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.where(ids, np.where(logits < 0, logits * penalty, logits / penalty), logits)


def _tolerance(row: RowStart, logits: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """A rounding error for every operation, of the greatest size that any term can have."""
    p = row.parameters
    terms = np.abs(logits) + np.abs(p.frequency_penalty) * counts + np.abs(p.presence_penalty)
    scale = max(p.repetition_penalty, 1 / p.repetition_penalty)
    tolerance: NDArray[np.float64] = (6 + counts) * _FP32_STEP * terms * scale + _FP32_UNDERFLOW
    return tolerance
