"""Batches for property-based tests: parameters, histories and logits, the awkward ones included."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeVar

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
    *(float("-inf"), float("inf"), float("nan"), 0.0, -0.0, -0.0, 1.0, -1.0),
    *(65504.0, -65504.0, 3e38, -3e38, 1e-45, -1e-45, 6e-8, -(2.0**-126)),
)
# Those before the huge and the tiny.
_NUM_MODERATE = 8


@dataclass(frozen=True)
class Batch:
    """Rows, and logits [R, W] with W >= vocab_size."""

    profile: str
    vocab_size: int
    rows: tuple[RowStart, ...]
    logits: torch.Tensor

    def open(self) -> PenaltyOrchestrator:
        return PenaltyOrchestrator.create(self.profile, self.vocab_size, self.rows)


_Drawn = TypeVar("_Drawn")


class Draw(Protocol):
    """How a composite strategy and a test with `st.data()` both draw."""

    def __call__(self, strategy: st.SearchStrategy[_Drawn], /) -> _Drawn: ...


# One draw a history or stop set: a byte chooses an id of the pool. Drawing ids one by one takes most of a test's time.
_HISTORIES = st.binary(max_size=12)
_STOP_SETS = st.binary(max_size=4)
_SEEDS = st.integers(0, 2**32 - 1)
_PADDINGS = st.sampled_from(((0, 0.0), (0, 0.0), (1, 5.0), (63, 0.0), (63, float("-inf")), (2, float("nan"))))


@cache
def parameters(profile: str, *, moderate: bool = False) -> st.SearchStrategy[PenaltyParameters]:
    """Parameters in the profile's range without stop ids, one in four neutral; moderate ones overflow nothing."""
    most_repetition, most_additive = _RANGES[profile]
    if moderate:
        repetitions, additives = st.floats(0.05, 2.0), st.floats(-2.0, 2.0)
    else:
        extreme_repetitions = [r for r in _EXTREME_REPETITIONS if r <= most_repetition]
        extreme_additives = [a for a in _EXTREME_ADDITIVES if abs(a) <= most_additive]
        repetitions = st.floats(2.0**-149, most_repetition) | st.sampled_from(extreme_repetitions)
        additives = st.floats(-most_additive, most_additive) | st.sampled_from(extreme_additives)
    asked = st.builds(
        PenaltyParameters,
        repetition_penalty=st.sampled_from((1.0, 1.0, 0.5, 1.1, 1.3, 2.0)) | repetitions,
        frequency_penalty=st.sampled_from((0.0, 0.0, -2.0, -0.7, 0.1, 1.1)) | additives,
        presence_penalty=st.sampled_from((0.0, 0.0, -2.0, -0.3, 0.2, 2.0)) | additives,
        min_new_tokens=st.sampled_from((0, 1, 5, 13)),
    )
    return st.one_of(asked, asked, asked, st.just(PenaltyParameters()))


def draw_pool(draw: Draw, vocab_size: int) -> tuple[int, ...]:
    """A few ids, the first and the last of the vocabulary among them, so that tokens repeat at any size."""
    random = np.random.default_rng(draw(_SEEDS))
    return (0, vocab_size - 1, *random.integers(0, vocab_size, 4).tolist())


def draw_ids(draw: Draw, pool: Sequence[int], choices: st.SearchStrategy[bytes] = _HISTORIES) -> tuple[int, ...]:
    return tuple(pool[choice % len(pool)] for choice in draw(choices))


def draw_row(draw: Draw, profile: str, pool: Sequence[int], *, moderate: bool = False) -> RowStart:
    asked = draw(parameters(profile, moderate=moderate))
    with_stops = replace(asked, stop_token_ids=draw_ids(draw, pool, _STOP_SETS))
    return RowStart(with_stops, draw_ids(draw, pool), draw_ids(draw, pool))


def draw_logits(
    draw: Draw, num_rows: int, width: int, dtype: torch.dtype, pool: Sequence[int], *, moderate: bool = False
) -> torch.Tensor:
    """Normal logits [num_rows, width], one in three ids of the pool with an awkward value instead."""
    random = np.random.default_rng(draw(_SEEDS))
    logits = torch.from_numpy(random.normal(0, 5, (num_rows, width)).astype(np.float32))
    awkward = _AWKWARD_LOGITS[:_NUM_MODERATE] if moderate else _AWKWARD_LOGITS
    for row in range(num_rows):
        for token_id in pool:
            if random.integers(3) == 0:
                logits[row, token_id] = random.choice(awkward)
    return logits.to(dtype)


@st.composite
def batches(
    draw: st.DrawFn,
    profile: str | None = None,
    vocab_size: int | None = None,
    dtype: torch.dtype | None = None,
    *,
    min_rows: int = 1,
    max_rows: int = 4,
    moderate: bool = False,
) -> Batch:
    """A batch, of the profile, vocabulary and dtype that are given or of any; heads may be padded."""
    profile = profile or draw(st.sampled_from(PROFILES))
    vocab_size = vocab_size or draw(st.sampled_from(SMALL_VOCABULARIES))
    dtype = dtype or draw(st.sampled_from(DTYPES))
    pool = draw_pool(draw, vocab_size)
    rows = [draw_row(draw, profile, pool, moderate=moderate) for _ in range(draw(st.integers(min_rows, max_rows)))]
    num_padding, padding = draw(_PADDINGS)
    logits = draw_logits(draw, len(rows), vocab_size + num_padding, dtype, pool, moderate=moderate)
    logits[:, vocab_size:] = padding
    return Batch(profile, vocab_size, tuple(rows), logits)
