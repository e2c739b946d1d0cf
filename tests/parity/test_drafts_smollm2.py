"""Greedy speculative decoding of a real model through the service: the tokens are those of plain greedy decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

pytest.importorskip("transformers")

from logitd.client import Penalties, Sequence
from logitd.client.demo.decoding import Decoded
from logitd.client.demo.llm import DEFAULT_PROMPT, SmolModel, load_smollm2
from logitd.client.demo.speculation import LookupDrafter, check_same_text, decode_with_drafts

if TYPE_CHECKING:
    from collections.abc import Sequence as AnySequence

    from logitd.client import Client

NUM_TOKENS = 64
# The text neither loops nor ends, and the drafts' own counts decide about some of its tokens.
PENALTIES = Penalties(1.2, 0.1, 0.2, min_new_tokens=NUM_TOKENS)
# A pass over several tokens rounds otherwise than a pass over one. No two best logits may be as near as that.
NOISE = 1e-3

# Fetching and converting the model may count as the first test's.
pytestmark = pytest.mark.timeout(600)


class Plain(NamedTuple):
    """A text, and the least distance of a chosen logit from the second best."""

    token_ids: list[int]
    least_distance: float


@pytest.fixture(scope="module")
def model() -> SmolModel:
    return load_smollm2()


@pytest.fixture(scope="module")
def plain(client: Client, model: SmolModel) -> Plain:
    prompt_ids, session, token_ids, distances = model.encode(DEFAULT_PROMPT), model.session(), [], []
    sequence = Sequence(prompt_ids, PENALTIES, NUM_TOKENS, eos_token_ids=[model.eos_token_id])
    logits = session.start(prompt_ids)
    with client.create_batch([sequence], vocab_size=model.vocab_size) as batch:
        while True:
            processed = batch.apply(logits, token_ids[-1:] or None)[0]
            second, best = np.partition(processed, -2)[-2:]
            distances.append(float(best - second))
            token_ids.append(int(processed.argmax()))
            if len(token_ids) == NUM_TOKENS:
                return Plain(token_ids, min(distances))
            logits = session.step([0], token_ids[-1:])


class Oracle:
    """Knows the text, and is wrong every `period` tokens."""

    def __init__(self, prompt_length: int, text: AnySequence[int], period: int) -> None:
        self._prompt_length, self._text, self._period = prompt_length, text, period

    def draft(self, history: AnySequence[int], count: int) -> list[int]:
        start = len(history) - self._prompt_length
        return [
            token_id + (place % self._period == 0)
            for place, token_id in enumerate(self._text[start : start + count], start)
        ]


def test_the_text_has_no_ties(plain: Plain) -> None:
    assert plain.least_distance > 10 * NOISE


@pytest.mark.parametrize("num_drafts", range(1, 9))
def test_the_tokens_are_those_of_plain_decoding(
    client: Client, model: SmolModel, plain: Plain, num_drafts: int
) -> None:
    oracle = Oracle(len(model.encode(DEFAULT_PROMPT)), plain.token_ids, period=7)
    result = decode_with_drafts(client, model, oracle, DEFAULT_PROMPT, PENALTIES, NUM_TOKENS, num_drafts)
    check_same_text(result.output, Decoded(plain.token_ids, ended=False))
    assert max(result.num_accepted) == min(num_drafts, 6)
    assert len(result.num_accepted) < NUM_TOKENS


def test_the_tokens_are_those_of_plain_decoding_whatever_is_drafted(
    client: Client, model: SmolModel, plain: Plain
) -> None:
    result = decode_with_drafts(client, model, LookupDrafter(), DEFAULT_PROMPT, PENALTIES, NUM_TOKENS, 4)
    check_same_text(result.output, Decoded(plain.token_ids, ended=False))
    assert min(result.num_accepted) == 0


def test_a_session_that_takes_tokens_back_equals_full_forward_passes(model: SmolModel) -> None:
    session, prompt = model.session(), model.encode(DEFAULT_PROMPT)
    session.start(prompt)
    wrong, right = model.encode(" was happy today."), model.encode(" had a hat")
    np.testing.assert_allclose(session.extend(wrong)[-1], model.next_logits([*prompt, *wrong]), atol=NOISE)
    logits = session.extend(right, num_dropped=len(wrong) - 1)
    histories = [[*prompt, wrong[0], *right[:length]] for length in range(1, len(right) + 1)]
    np.testing.assert_allclose(logits, model.next_logits_batch(histories), atol=NOISE)
    session.start(prompt, rows=2)
    with pytest.raises(ValueError, match="only a single row can be extended, got 2"):
        session.extend(right)
