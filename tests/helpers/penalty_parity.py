"""Batches that an engine's own penalties are compared on, as any Python has them, and how they are compared."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from helpers.tensors import assert_same_bits, assert_same_values
from logitd.sampling import PenaltyParameters, RowStart

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence


@dataclass(frozen=True)
class ParityBatch:
    """Rows, and logits [rows, vocab_size] in fp32."""

    rows: tuple[RowStart, ...]
    logits: torch.Tensor

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[1]

    def to_json(self) -> dict[str, Any]:
        return {"rows": [_row_to_json(row) for row in self.rows], "logits": tensor_to_json(self.logits)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ParityBatch:
        return cls(tuple(map(_row_from_json, data["rows"])), tensor_from_json(data["logits"]))


def draw_row(rng: random.Random, vocab_size: int, num_output: int, *, most_repetition: float) -> RowStart:
    """Any parameters in the ranges of both engines, neutral ones among them; ids repeat."""
    parameters = PenaltyParameters(
        repetition_penalty=rng.choice([1.0, 1.3, 0.7, 1e-3, 2.0, rng.uniform(0.05, most_repetition)]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.1, -0.7, 2.0, rng.uniform(-2, 2)]),
        presence_penalty=rng.choice([0.0, 0.0, 0.3, -0.25, -2.0, rng.uniform(-2, 2)]),
        min_new_tokens=rng.choice([0, 0, 3, 12]),
        stop_token_ids=tuple(rng.sample(range(vocab_size), rng.randint(1, 3))),
    )
    pool = rng.sample(range(vocab_size), min(vocab_size, 6))
    prompt = tuple(rng.choices(range(vocab_size), k=rng.randint(0, 9)))
    return RowStart(parameters, prompt, tuple(rng.choices(pool, k=num_output)))


def draw_logits(rng: random.Random, num_rows: int, vocab_size: int) -> torch.Tensor:
    """Values of all sizes, zeros of both signs and -inf among them."""
    generator = np.random.default_rng(rng.randrange(2**31))
    logits = generator.standard_normal((num_rows, vocab_size)) * rng.choice([0.01, 4.0, 500.0])
    special = generator.random(logits.shape)
    for share, value in ((0.15, 0.0), (0.1, -0.0), (0.05, -np.inf)):
        logits[special < share] = value
    return torch.from_numpy(logits.astype(np.float32))


def assert_same_penalised(actual: torch.Tensor, expected: torch.Tensor, rows: Sequence[RowStart]) -> None:
    """Equal bits where a row that asks for something has seen an id, equal values everywhere.

    Elsewhere an engine adds or subtracts 0, which may turn -0 into 0.
    """
    assert_same_values(actual, expected)
    for row, values, others in zip(rows, actual, expected, strict=True):
        if not is_neutral(row.parameters):
            seen = list(row.output_token_ids)
            assert_same_bits(values[seen], others[seen])


def is_neutral(parameters: PenaltyParameters) -> bool:
    asked = parameters.repetition_penalty, parameters.frequency_penalty, parameters.presence_penalty
    return asked == (1, 0, 0)


def tensor_to_json(values: torch.Tensor) -> list[str]:
    """Each row's bytes in hexadecimal, little-endian."""
    return [row.numpy().astype("<f4").tobytes().hex() for row in values]


def tensor_from_json(rows: Sequence[str]) -> torch.Tensor:
    return torch.from_numpy(np.stack([np.frombuffer(bytes.fromhex(row), "<f4") for row in rows]).astype(np.float32))


def dump_lines(cases: Sequence[dict[str, Any]]) -> str:
    """A JSON list, an item a line."""
    return "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]"


def _row_to_json(row: RowStart) -> dict[str, Any]:
    asked = row.parameters
    return {
        "penalties": [asked.repetition_penalty, asked.frequency_penalty, asked.presence_penalty],
        "prompt": list(row.prompt_token_ids),
        "output": list(row.output_token_ids),
    }


def _row_from_json(data: dict[str, Any]) -> RowStart:
    return RowStart(PenaltyParameters(*data["penalties"]), tuple(data["prompt"]), tuple(data["output"]))
