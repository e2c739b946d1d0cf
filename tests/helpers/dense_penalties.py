"""The engines' penalties in their dense form: tensors [R, V] of torch fp32, one formula a profile, in its order.

Written down from the formulas, apart from the library, to be compared with it bit by bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitd.sampling import RowStart

_GREATEST = torch.finfo(torch.float32).max
_BANNED = float("-inf")


class _Parameters(NamedTuple):
    """Float32 [R, 1]; a penalty of -0 is as neutral as 0."""

    repetition: torch.Tensor
    frequency: torch.Tensor
    presence: torch.Tensor


def penalise_densely(profile: str, vocab_size: int, rows: Sequence[RowStart], logits: torch.Tensor) -> torch.Tensor:
    """New logits [R, W]: penalised in fp32, rounded once to the dtype of `logits`; the padding is copied."""
    result = logits.clone()
    result[:, :vocab_size] = _FORMULAS[profile](logits[:, :vocab_size].float(), rows).to(logits.dtype)
    return result


def touched_ids(profile: str, row: RowStart) -> set[int]:
    """The ids that a penalty of `row` looks at, whatever it does to them."""
    parameters = row.parameters
    repeats = float(torch.tensor(parameters.repetition_penalty)) != 1
    adds = any(float(torch.tensor(p)) for p in (parameters.frequency_penalty, parameters.presence_penalty))
    touched = set(row.output_token_ids) if repeats or adds else set()
    return touched | set(row.prompt_token_ids) if repeats and profile in ("VLLM", "HF") else touched


def banned_ids(row: RowStart) -> set[int]:
    """The ids that min_new_tokens bans in `row`."""
    too_short = len(row.output_token_ids) < row.parameters.min_new_tokens
    return set(row.parameters.stop_token_ids) if too_short else set()


def mark(ids_of_rows: Sequence[set[int]], width: int) -> torch.Tensor:
    """Bool [R, width]: True at each row's ids."""
    marks = torch.zeros(len(ids_of_rows), width, dtype=torch.bool)
    for row, ids in enumerate(ids_of_rows):
        marks[row, list(ids)] = True
    return marks


def _sglang(logits: torch.Tensor, rows: Sequence[RowStart]) -> torch.Tensor:
    repetitions, frequencies, presences = _scatter_tokens(logits, rows)
    logits = torch.where(logits < 0, logits * repetitions, logits / repetitions)
    logits = logits - frequencies
    logits = logits - presences
    return logits.masked_fill(_banned(logits, rows), _BANNED)


def _sglang_fused(logits: torch.Tensor, rows: Sequence[RowStart]) -> torch.Tensor:
    repetitions, frequencies, presences = _scatter_tokens(logits, rows)
    additive = torch.zeros_like(logits)
    additive = additive - frequencies
    additive = additive - presences
    logits = (logits + additive).masked_fill(_banned(logits, rows), _BANNED)
    return torch.where(logits < 0, logits * repetitions, logits / repetitions)


def _vllm(logits: torch.Tensor, rows: Sequence[RowStart]) -> torch.Tensor:
    parameters = _columns(rows)
    counts = _count(logits, [row.output_token_ids for row in rows])
    in_prompt = _count(logits, [row.prompt_token_ids for row in rows]) > 0
    logits = logits.masked_fill(_banned(logits, rows), _BANNED)
    repetitions = torch.where(in_prompt | (counts > 0), parameters.repetition, 1.0)
    logits = logits * torch.where(logits > 0, 1.0 / repetitions, repetitions)
    logits = logits - parameters.frequency * counts
    return logits - parameters.presence * (counts > 0)


def _hf(logits: torch.Tensor, rows: Sequence[RowStart]) -> torch.Tensor:
    parameters = _columns(rows)
    counts = _count(logits, [row.output_token_ids for row in rows])
    seen = (_count(logits, [row.prompt_token_ids for row in rows]) + counts) > 0
    scaled = torch.stack(
        [_scale(line, row.parameters.repetition_penalty) for line, row in zip(logits, rows, strict=True)]
    )
    logits = torch.where(seen, scaled, logits)
    # The sum stays finite, so that no infinite logit becomes NaN.
    logits = logits - (parameters.frequency * counts).clamp(-_GREATEST, _GREATEST)
    logits = logits - parameters.presence * (counts > 0)
    return logits.masked_fill(_banned(logits, rows), _BANNED)


_FORMULAS: Mapping[str, Callable[[torch.Tensor, Sequence[RowStart]], torch.Tensor]] = {
    "SGLANG": _sglang,
    "SGLANG_FUSED": _sglang_fused,
    "VLLM": _vllm,
    "HF": _hf,
}


def _scale(logits: torch.Tensor, penalty: float) -> torch.Tensor:
    # The penalty is a number here, not a tensor.
    return torch.where(logits < 0, logits * penalty, logits / penalty)


def _scatter_tokens(logits: torch.Tensor, rows: Sequence[RowStart]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The states of repetition, frequency and presence, fed one token at a time."""
    parameters = _columns(rows)
    repetitions, frequencies, presences = torch.ones_like(logits), torch.zeros_like(logits), torch.zeros_like(logits)
    for index, row in enumerate(rows):
        for token_id in torch.tensor(row.output_token_ids, dtype=torch.int64).unsqueeze(1):
            repetitions[index].scatter_(0, token_id, parameters.repetition[index])
            frequencies[index].scatter_add_(0, token_id, parameters.frequency[index])
            presences[index].scatter_(0, token_id, parameters.presence[index])
    return repetitions, frequencies, presences


def _count(logits: torch.Tensor, token_ids: Sequence[Sequence[int]]) -> torch.Tensor:
    """Int64 [R, V]: how often each row has each id."""
    lines = [torch.bincount(torch.tensor(ids, dtype=torch.int64), minlength=logits.shape[1]) for ids in token_ids]
    return torch.stack(lines)


def _banned(logits: torch.Tensor, rows: Sequence[RowStart]) -> torch.Tensor:
    return mark([banned_ids(row) for row in rows], logits.shape[1])


def _columns(rows: Sequence[RowStart]) -> _Parameters:
    parameters = [row.parameters for row in rows]
    return _Parameters(
        _column([p.repetition_penalty for p in parameters]),
        _column([p.frequency_penalty for p in parameters]) + 0.0,
        _column([p.presence_penalty for p in parameters]) + 0.0,
    )


def _column(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).float().unsqueeze(1)
