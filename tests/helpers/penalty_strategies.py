"""Batches for property-based tests: parameters, histories and logits, the awkward ones included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from hypothesis import strategies as st
from logitd.sampling import PenaltyOrchestrator, PenaltyParameters, RowStart

if TYPE_CHECKING:
    from collections.abc import Sequence

PROFILES = ("SGLANG", "SGLANG_FUSED", "VLLM", "HF")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SMALL_VOCABULARIES = (1, 2, 7, 100)
LARGE_VOCABULARIES = (32_001, 151_936, 262_144)

# The greatest repetition penalty, and the greatest magnitude of frequency and presence.
_RANGES = {"SGLANG": (2.0, 2.0), "SGLANG_FUSED": (2.0, 2.0), "VLLM": (3e38, 2.0), "HF": (3e38, 3e38)}
_EXTREME_REPETITIONS = (1e-45, 2.0**-126, 1e-20, 1 + 1e-9, 1e20, 3e38)
_EXTREME_ADDITIVES = (-0.0, 1e-45, -1e-45, 1e-20, 1e20, -1e20, 3e38, -3e38)
_AWKWARD_LOGITS = (
    *(float("-inf"), float("inf"), float("nan"), 0.0, -0.0, 1.0, -1.0),
    *(65504.0, -65504.0, 3e38, -3e38, 1e-45, -1e-45, 6e-8, -2.0**-126),
)


@dataclass(frozen=True)
class Batch:
    """Rows, and logits [R, W] with W >= vocab_size."""

    profile: str
    vocab_size: int
    rows: tuple[RowStart, ...]
    logits: torch.Tensor

    def open(self) -> PenaltyOrchestrator:
        return PenaltyOrchestrator.create(self.profile, self.vocab_size, self.rows)


def token_pools(vocab_size: int) -> st.SearchStrategy[list[int]]:
    """A few ids, the first and the last of the vocabulary among them, so that tokens repeat at any size."""
    ids = st.lists(st.integers(0, vocab_size - 1), max_size=5)
    return ids.map(lambda drawn: [0, vocab_size - 1, *drawn])


def histories(pool: Sequence[int], max_size: int = 12) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.sampled_from(pool), max_size=max_size).map(tuple)


def parameters(profile: str, pool: Sequence[int], *, moderate: bool = False) -> st.SearchStrategy[PenaltyParameters]:
    """Parameters in the profile's range, one in four neutral; moderate ones overflow nothing."""
    most_repetition, most_additive = _RANGES[profile]
    repetitions = st.floats(0.05, 2.0) if moderate else st.floats(2.0**-149, most_repetition)
    additives = st.floats(-2.0, 2.0) if moderate else st.floats(-most_additive, most_additive)
    if not moderate:
        repetitions |= st.sampled_from([r for r in _EXTREME_REPETITIONS if r <= most_repetition])
        additives |= st.sampled_from([a for a in _EXTREME_ADDITIVES if abs(a) <= most_additive])
    asked = st.builds(
        PenaltyParameters,
        repetition_penalty=st.just(1.0) | st.sampled_from((0.5, 1.1, 1.3, 2.0)) | repetitions,
        frequency_penalty=st.just(0.0) | st.sampled_from((-2.0, -0.7, 0.1, 1.1)) | additives,
        presence_penalty=st.just(0.0) | st.sampled_from((-2.0, -0.3, 0.2, 2.0)) | additives,
        min_new_tokens=st.just(0) | st.integers(0, 15),
        stop_token_ids=st.lists(st.sampled_from(pool), max_size=4).map(tuple),
    )
    return st.one_of(asked, asked, asked, st.just(PenaltyParameters()))


def row_starts(profile: str, pool: Sequence[int], *, moderate: bool = False) -> st.SearchStrategy[RowStart]:
    return st.builds(
        RowStart,
        parameters=parameters(profile, pool, moderate=moderate),
        prompt_token_ids=histories(pool),
        output_token_ids=histories(pool),
    )


@st.composite
def logits_of(
    draw: st.DrawFn, num_rows: int, width: int, dtype: torch.dtype, pool: Sequence[int], *, moderate: bool = False
) -> torch.Tensor:
    """Normal logits [num_rows, width], with awkward values at ids of the pool."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits = torch.from_numpy(random.normal(0, 5, (num_rows, width)).astype(np.float32)).to(dtype)
    special = st.sampled_from(_AWKWARD_LOGITS[:7] if moderate else _AWKWARD_LOGITS)
    places = st.tuples(st.integers(0, num_rows - 1), st.sampled_from(pool))
    for place, value in draw(st.dictionaries(places, special, max_size=8)).items() if num_rows else ():
        logits[place] = value
    return logits


@st.composite
def batches(
    draw: st.DrawFn,
    profile: str | None = None,
    vocab_size: int | None = None,
    dtype: torch.dtype | None = None,
    *,
    max_rows: int = 4,
    moderate: bool = False,
) -> Batch:
    """A batch, of the profile, vocabulary and dtype that are given or of any; heads may be padded."""
    profile = profile or draw(st.sampled_from(PROFILES))
    vocab_size = vocab_size or draw(st.sampled_from(SMALL_VOCABULARIES))
    dtype = dtype or draw(st.sampled_from(DTYPES))
    pool = draw(token_pools(vocab_size))
    rows = draw(st.lists(row_starts(profile, pool, moderate=moderate), min_size=1, max_size=max_rows))
    width = vocab_size + draw(st.sampled_from((0, 0, 1, 63)))
    logits = draw(logits_of(len(rows), width, dtype, pool, moderate=moderate))
    logits[:, vocab_size:] = draw(st.sampled_from((0.0, float("-inf"), float("nan"), 5.0)))
    return Batch(profile, vocab_size, tuple(rows), logits)
