"""The HF profile against Transformers' own processors on logits, bit for bit, one row of a batch each."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from logitd.sampling.orchestrator import PenaltyOrchestrator, RowStart
from logitd.sampling.parameters import PenaltyParameters

transformers = pytest.importorskip("transformers")

NUM_BATCHES = 200
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def draw_row(rng: random.Random, vocab_size: int) -> RowStart:
    """A random row; repeated ids, an empty output and a neutral penalty among them."""
    parameters = PenaltyParameters(
        repetition_penalty=rng.choice([1.0, 1.3, 0.7, 1e-3, 50.0, rng.uniform(0.5, 2)]),
        min_new_tokens=rng.choice([0, 3, 12]),
        stop_token_ids=tuple(rng.sample(range(vocab_size), rng.randint(1, 3))),
    )
    prompt, output = ([rng.randrange(vocab_size) for _ in range(rng.randint(least, 12))] for least in (1, 0))
    return RowStart(parameters, prompt, output)


def draw_logits(rng: random.Random, rows: int, vocab_size: int, dtype: torch.dtype) -> torch.Tensor:
    """Values of all sizes, zeros of both signs and -inf among them."""
    generator = np.random.default_rng(rng.randrange(2**31))
    logits = generator.standard_normal((rows, vocab_size)) * rng.choice([0.01, 4.0, 500.0])
    special = generator.random(logits.shape)
    for share, value in ((0.15, 0.0), (0.1, -0.0), (0.05, -np.inf)):
        logits[special < share] = value
    return torch.from_numpy(logits).to(dtype)


def process(row: RowStart, logits: torch.Tensor) -> torch.Tensor:
    """What the engine's processors make of one row, in the order in which `generate` has them."""
    parameters, tokens = row.parameters, torch.tensor([[*row.prompt_token_ids, *row.output_token_ids]])
    repetition = transformers.RepetitionPenaltyLogitsProcessor(parameters.repetition_penalty)
    min_new_tokens = transformers.MinNewTokensLengthLogitsProcessor(
        len(row.prompt_token_ids), parameters.min_new_tokens, list(parameters.stop_token_ids)
    )
    return min_new_tokens(tokens, repetition(tokens, logits[None]))[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_logit_has_the_processors_bits(dtype: torch.dtype) -> None:
    rng = random.Random(0)
    for _ in range(NUM_BATCHES):
        vocab_size = rng.choice([5, 32, 300])
        rows = [draw_row(rng, vocab_size) for _ in range(rng.randint(1, 4))]
        logits = draw_logits(rng, len(rows), vocab_size, dtype)
        expected = torch.stack([process(row, values) for row, values in zip(rows, logits, strict=True)])
        PenaltyOrchestrator.create("HF", vocab_size, rows).apply_inplace(logits)
        bits = torch.int32 if dtype == torch.float32 else torch.int16
        assert torch.equal(logits.view(bits), expected.view(bits))
