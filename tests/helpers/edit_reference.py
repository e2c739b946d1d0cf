"""Edits as a decoder with its logits elsewhere uses them, written from the comments of the contract alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from helpers.wire import read_ints

if TYPE_CHECKING:
    from logitd.v1 import service_pb2

COUNTED, IN_OUTPUT, BANNED = 1, 2, 4


class Edit(NamedTuple):
    """What to do to one logit."""

    repetition: float
    frequency_sum: float
    presence: float
    flags: int


Table = dict[tuple[int, int], Edit]


def merge(known: Table, message: service_pb2.Edits) -> Table:
    """What is known after a reply: by (row, token id)."""
    merged = {} if message.is_full else dict(known)
    splits, ids = read_ints(message.row_splits), read_ints(message.token_ids)
    repetition, presence = np.frombuffer(message.repetition, "<f4"), np.frombuffer(message.presence, "<f4")
    sums, flags = np.frombuffer(message.frequency_sums, "<f4"), np.frombuffer(message.flags, np.uint8)
    for row in range(len(splits) - 1):
        assert ids[splits[row] : splits[row + 1]] == sorted(set(ids[splits[row] : splits[row + 1]]))
        for entry in range(splits[row], splits[row + 1]):
            edit = Edit(repetition[row], sums[entry], presence[row], int(flags[entry]))
            merged[row, ids[entry]] = edit
            if edit.flags == 0:
                del merged[row, ids[entry]]
    return merged


def apply(table: Table, logits: torch.Tensor, profile: str) -> torch.Tensor:
    """The logits after the edits, each computed in fp32 and rounded once."""
    result = logits.clone()
    with np.errstate(all="ignore"):
        for (row, token_id), edit in table.items():
            result[row, token_id] = torch.tensor(
                _apply(edit, np.float32(logits[row, token_id].float().item()), profile)
            )
    return result


def _apply(edit: Edit, logit: np.float32, profile: str) -> np.float32:
    if edit.flags & BANNED:
        return np.float32(-np.inf)
    if not edit.flags & COUNTED:
        return logit
    presence = edit.presence * np.float32(bool(edit.flags & IN_OUTPUT))
    if profile == "SGLANG_FUSED":
        logit = logit + ((np.float32(0) - edit.frequency_sum) - presence)
        return _scale(edit.repetition, logit)
    if profile == "VLLM":
        logit = logit * (np.float32(1) / edit.repetition) if logit > 0 else logit * edit.repetition
    else:
        logit = _scale(edit.repetition, logit)
    return (logit - edit.frequency_sum) - presence


def _scale(repetition: np.float32, logit: np.float32) -> np.float32:
    return logit * repetition if logit < 0 else logit / repetition
