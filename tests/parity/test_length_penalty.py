"""With a prompt of 590 tokens `length_penalty` decides the best beam, but under the older score, which counts it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from helpers.client_search import run_searches
from logitd.client import Beam, Sequence
from logitd.sampling.beam import BeamParameters
from logitd.sampling.parameters import PenaltyParameters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from helpers.vllm_offline import VllmSearch
    from logitd.client import Client

VOCAB_SIZE = 1024
EOS, WORD = 0, 1
PROMPT = (WORD,) * 590
SHORT, LONG = 16, 64
LENGTH_PENALTIES = (0.0, 0.5, 1.0, 1.5, 2.0)
WINNERS = {"HF": [16, 16, 64, 64, 64], "VLLM": [16, 16, 64, 64, 64], "VLLM_PROMPT_LENGTH": [16] * 5}


class Answers:
    """Says one word after the other; its answer may end after 16 tokens, at a cost that 64 tokens together exceed."""

    vocab_size = VOCAB_SIZE

    def __call__(self, history: tuple[int, ...]) -> NDArray[np.float32]:
        """Float32 [V]."""
        may_end = len(history) - len(PROMPT) + 1 == SHORT
        probabilities = np.full(VOCAB_SIZE, 0.1 / VOCAB_SIZE)
        probabilities[[EOS, WORD]] = (0.3, 0.6) if may_end else (1e-9, 0.75)
        return np.log(probabilities).astype(np.float32)

    def rows(self, histories: Iterable[Iterable[int]]) -> torch.Tensor:
        """Float32 [R, V]."""
        return torch.from_numpy(np.stack([self(tuple(history)) for history in histories]))


def search(client: Client, rule: str, length_penalty: float) -> int:
    """The length of the best beam."""
    sequence = Sequence(PROMPT, None, LONG, [EOS], beam=Beam(2, length_penalty))
    with client.create_beam_batch([sequence], vocab_size=VOCAB_SIZE, beam_rule=rule) as batch:
        found = run_searches(batch, {"0": PROMPT}, lambda rows: np.stack([Answers()(row.history) for row in rows]))
    return len(found["0"].hypotheses[0].token_ids)


@pytest.mark.parametrize("rule", WINNERS)
def test_length_of_the_best_beam(client: Client, rule: str) -> None:
    assert [search(client, rule, value) for value in LENGTH_PENALTIES] == WINNERS[rule]


def test_length_of_transformers_best_beam() -> None:
    pytest.importorskip("transformers")
    from helpers.hf_stub import HfRequest

    beams = [BeamParameters(2, LONG, value, eos_token_ids=(EOS,)) for value in LENGTH_PENALTIES]
    found = [HfRequest(Answers(), PROMPT, beam, PenaltyParameters()).generate(torch.float32) for beam in beams]
    assert [len(generated.beams[0].token_ids) for generated in found] == WINNERS["HF"]


def test_length_of_vllms_best_beam(vllm: VllmSearch) -> None:
    asked = {"width": 2, "max_new_tokens": LONG, "eos_token_ids": (EOS,)}
    found = [vllm.run(Answers(), PROMPT, length_penalty=value, **asked) for value in LENGTH_PENALTIES]
    expected = WINNERS["VLLM_PROMPT_LENGTH" if vllm.counts_prompt else "VLLM"]
    assert [len(beams[0].token_ids) for beams in found] == expected
