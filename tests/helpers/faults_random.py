"""Random batches, tokens and logits for runs of thousands of operations, where hypothesis would be too slow."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from helpers.penalty_strategies import DTYPES
from helpers.wire import ints
from helpers.wire_batches import penalties_of
from helpers.wire_updates import Update
from logitd.sampling import PenaltyParameters, RowStart
from logitd.sampling.beam import BeamParameters, EarlyStopping
from logitd.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

SMALL_VOCABULARY = 50
# Rows of it are beyond the 16 KiB up to which a message's logits are parsed and not viewed.
LARGE_VOCABULARY = 5_003
MAX_NEW_TOKENS = 200
_AWKWARD = (float("-inf"), float("inf"), 0.0, -0.0, 65504.0, -65504.0, 1e-45)
_SHARE_AWKWARD = 0.05
EOS = 7
_PROMPT = (1, 2, 2)

Item = TypeVar("Item")


def one_in(random: Random, number: int) -> bool:
    return random.randrange(number) == 0


def draw_tokens(random: Random, most: int = 3) -> tuple[int, ...]:
    """Few ids in all, so that they repeat; the last of the small vocabulary among them."""
    return tuple(random.choice((0, 1, 2, 7, 31, SMALL_VOCABULARY - 1)) for _ in range(random.randint(0, most)))


def draw_row(random: Random) -> RowStart:
    """A sequence whose parameters every profile takes, one in four neutral."""
    if one_in(random, 4):
        return RowStart(PenaltyParameters(), draw_tokens(random), draw_tokens(random))
    parameters = PenaltyParameters(
        repetition_penalty=random.choice((1.0, 1.3, 0.7, random.uniform(0.1, 2.0))),
        frequency_penalty=random.choice((0.0, 0.1, random.uniform(-2.0, 2.0))),
        presence_penalty=random.choice((0.0, -0.3, random.uniform(-2.0, 2.0))),
        min_new_tokens=random.choice((0, 0, 3, 12)),
        stop_token_ids=draw_tokens(random),
    )
    return RowStart(parameters, draw_tokens(random, 5), draw_tokens(random, 5))


def draw_update(random: Random, rows: Sequence[RowStart]) -> Update:
    """Up to three tokens dropped and up to three appended, or just one appended."""
    if one_in(random, 2):
        return Update([0] * len(rows), [[random.randrange(SMALL_VOCABULARY)] for _ in rows])
    rollback = [random.randint(0, min(3, len(row.output_token_ids))) for row in rows]
    return Update(rollback, [list(draw_tokens(random)) for _ in rows])


def draw_logits(random: Random, num_rows: int, vocab_size: int) -> torch.Tensor:
    """Logits of any type, [num_rows, vocab_size and maybe padding]."""
    generator = np.random.default_rng(random.getrandbits(64))
    shape = (num_rows, vocab_size + random.choice((0, 0, 3)))
    values = generator.normal(0, 4, shape).astype(np.float32)
    awkward = generator.random(shape) < _SHARE_AWKWARD
    values[awkward] = generator.choice(_AWKWARD, int(awkward.sum()))
    return torch.from_numpy(values).to(random.choice(DTYPES))


def draw_pieces(random: Random, num_rows: int) -> list[tuple[int, int]]:
    """All rows once, in one or more pieces in any order, each as its first row and its number of rows."""
    cuts = sorted(random.sample(range(1, num_rows), random.randrange(num_rows))) if one_in(random, 2) else []
    edges = [0, *cuts, num_rows]
    pieces = [(first, last - first) for first, last in pairwise(edges)]
    random.shuffle(pieces)
    return pieces


def draw_arrangement(random: Random, names: Sequence[str], most: int, fresh: str) -> list[tuple[int, str]]:
    """Which sequences stay, in which order and under which names; some are forked. At least one."""
    places = random.choices(range(len(names)), k=random.randint(1, min(most, len(names) + 1)))
    taken: set[str] = set()
    arrangement = []
    for number, place in enumerate(places):
        name = f"{fresh}-{number}" if names[place] in taken or one_in(random, 6) else names[place]
        taken.add(name)
        arrangement.append((place, name))
    return arrangement


def draw_search(random: Random, rule: str) -> tuple[BeamParameters, RowStart]:
    """A search as the library takes it, one in three with penalties."""
    width = random.randint(2, 4)
    most = random.randint(2, 9)
    parameters = BeamParameters(
        width=width,
        max_new_tokens=most,
        length_penalty=random.choice((1.0, 0.0, 0.7, 2.0)),
        early_stopping=random.choice(list(EarlyStopping)) if rule == "HF" else EarlyStopping.FALSE,
        eos_token_ids=random.choice(((), (EOS,), (EOS, 3))),
        num_return_sequences=random.randint(1, width),
        prompt_length=len(_PROMPT),
        return_token_log_probs=one_in(random, 2),
    )
    stops = parameters.eos_token_ids
    asked = PenaltyParameters(random.choice((1.3, 0.8)), 0.4, -0.25, random.randint(0, most), stops)
    penalties = asked if one_in(random, 3) else PenaltyParameters(stop_token_ids=stops)
    return parameters, RowStart(penalties, _PROMPT)


def search_message(sequence_id: str, parameters: BeamParameters, row: RowStart) -> types_pb2.Sequence:
    """The same as a message."""
    beam = types_pb2.BeamParameters(
        width=parameters.width,
        length_penalty=parameters.length_penalty,
        early_stopping=types_pb2.EarlyStopping.Value(f"EARLY_STOPPING_{parameters.early_stopping.name}"),
        num_return_sequences=parameters.num_return_sequences,
        return_token_log_probs=parameters.return_token_log_probs,
    )
    return types_pb2.Sequence(
        sequence_id=sequence_id,
        prompt_token_ids=ints(*row.prompt_token_ids),
        penalties=penalties_of(row.parameters),
        max_new_tokens=parameters.max_new_tokens,
        eos_token_ids=parameters.eos_token_ids,
        beam=beam,
    )


def draw_beam_logits(random: Random, num_rows: int, vocab_size: int) -> torch.Tensor:
    """Logits [num_rows, vocab_size], rounded so that values tie; some are banned."""
    generator = np.random.default_rng(random.getrandbits(64))
    values = np.round(generator.normal(0, 3, (num_rows, vocab_size)) * 4) / 4
    values[generator.random(values.shape) < random.choice((0.0, 0.2, 0.95))] = -np.inf
    return torch.from_numpy(values.astype(np.float32)).to(random.choice(DTYPES))
