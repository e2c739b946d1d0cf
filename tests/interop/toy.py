"""The decode that the samples run: a model of integers, two sequences with penalties, two beam searches.

Every sample has the same model and the same settings, so that its messages can be compared with the golden vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

VOCAB_SIZE = 32
EOS = 2
STEPS = 12
PROMPTS = ((4, 7), (1, 7))
PENALTY_SCALE = 1 / 512
"""Logits within 10 of zero."""
BEAM_SCALE = 128.0
"""exp(-128) is 0 in fp32, so that every log-softmax is exact, and the scores have the same bits on every machine."""


def advance(states: Iterable[int], token_ids: Iterable[int]) -> list[int]:
    """What the model keeps of each row after one more token: its cache."""
    return [(3 * state + token_id + 1) % 43 for state, token_id in zip(states, token_ids, strict=True)]


def prompt_states() -> list[int]:
    states = [0 for _ in PROMPTS]
    for token_ids in zip(*PROMPTS, strict=True):
        states = advance(states, token_ids)
    return states


def logits_of(states: Sequence[int], scale: float) -> NDArray[np.float32]:
    """Logits [R, V] of rows in these states: exact in fp32, and no two of a row are equal."""
    rows = np.array(states)[:, None]
    ids = np.arange(VOCAB_SIZE)
    numbers = (3121 * rows + 1789 * ids + 523 * rows * ids + 7) % 10007 - 5003
    return np.asarray(numbers * scale, np.float32)


def ints(*values: int) -> bytes:
    """The bytes of an int32 array."""
    return np.array(values, "<i4").tobytes()


def read_ints(data: bytes) -> list[int]:
    return np.frombuffer(data, "<i4").tolist()


def tensor(logits: NDArray[np.float32]) -> types_pb2.Tensor:
    return types_pb2.Tensor(data_type=types_pb2.DATA_TYPE_FP32, shape=logits.shape, data=logits.tobytes())


def penalty_batch() -> service_pb2.CreateBatchRequest:
    """One sequence with every penalty, one with none."""
    first, second = PROMPTS
    penalties = types_pb2.PenaltyParameters(
        repetition_penalty=1.5, frequency_penalty=0.25, presence_penalty=0.5, min_new_tokens=4
    )
    return service_pb2.CreateBatchRequest(
        vocab_size=VOCAB_SIZE,
        sequences=[
            types_pb2.Sequence(
                sequence_id="0",
                prompt_token_ids=ints(*first),
                penalties=penalties,
                max_new_tokens=STEPS,
                eos_token_ids=[EOS],
            ),
            types_pb2.Sequence(sequence_id="1", prompt_token_ids=ints(*second), max_new_tokens=STEPS),
        ],
    )


def beam_batch() -> service_pb2.CreateBatchRequest:
    """Searches of 4 and of 2 beams."""
    return service_pb2.CreateBatchRequest(
        vocab_size=VOCAB_SIZE,
        kind=types_pb2.BATCH_KIND_BEAM,
        sequences=[
            types_pb2.Sequence(
                sequence_id=str(number),
                prompt_token_ids=ints(*prompt),
                max_new_tokens=STEPS,
                eos_token_ids=[EOS],
                beam=types_pb2.BeamParameters(width=width),
            )
            for number, (prompt, width) in enumerate(zip(PROMPTS, (4, 2), strict=True))
        ],
    )
