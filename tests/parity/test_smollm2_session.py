"""The demo's real model: decoding with kept keys and values equals decoding without them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers")

from logitd.client.demo.llm import DEFAULT_PROMPT, SHORT_PROMPT, SmolModel, load_smollm2
from logitd.client.demo.models import repeated_fraction

# Fetching and converting the model may count as the first test's.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def model() -> SmolModel:
    return load_smollm2()


def test_vocabulary_and_end_tokens(model: SmolModel) -> None:
    assert model.vocab_size == 49_152
    assert model.encode("<|im_end|>") == [model.eos_token_id]
    text = "Gravity is what keeps café tables down."
    assert model.decode([*model.encode(text), model.eos_token_id]) == text


def test_rows_of_unequal_length_do_not_disturb_each_other(model: SmolModel) -> None:
    rows = [model.encode(text) for text in ("Gravity is", "The cat sat on the mat. The cat", "Once")]
    together = model.next_logits_batch(rows)
    assert together.shape == (3, model.vocab_size)
    assert together.dtype == np.float32
    for row, logits in zip(rows, together, strict=True):
        np.testing.assert_allclose(model.next_logits(row), logits, atol=1e-3)


def test_a_session_that_reorders_equals_full_forward_passes(model: SmolModel) -> None:
    session = model.session()
    prompt = model.encode(DEFAULT_PROMPT)
    logits = session.start(prompt, rows=2)
    histories = [list(prompt), list(prompt)]
    for parents in ([0, 1, 1, 0], [3, 0, 0, 2], [1, 1], [1, 0, 1]):
        # Different tokens in rows of one parent, so that a wrong order of the cache shows.
        tokens = [int(np.argsort(logits[p])[-1 - 3 * i]) for i, p in enumerate(parents)]
        logits = session.step(parents, tokens)
        histories = [[*histories[p], token] for p, token in zip(parents, tokens, strict=True)]
        expected = model.next_logits_batch(histories)
        np.testing.assert_allclose(logits, expected, atol=1e-3)
        np.testing.assert_array_equal(logits.argmax(axis=1), expected.argmax(axis=1))


def test_a_session_starts_afresh_and_refuses_wrong_arguments(model: SmolModel) -> None:
    session = model.session()
    session.start(model.encode("Once upon a"), rows=3)
    again = session.start(model.encode("Gravity is"))
    np.testing.assert_allclose(again[0], model.next_logits(model.encode("Gravity is")), atol=1e-3)
    with pytest.raises(ValueError, match="one parent and one token, got 1 and 2"):
        session.step([0], [1, 2])
    with pytest.raises(ValueError, match="at least one token, got none"):
        session.start([])
    with pytest.raises(ValueError, match=r"at least one token, got lengths \[1, 0\]"):
        model.next_logits_batch([[1], []])


def greedy(model: SmolModel, prompt: str, length: int) -> list[int]:
    session = model.session()
    logits = session.start(model.encode(prompt))
    output = [int(logits[0].argmax())]
    while len(output) < length and output[-1] != model.eos_token_id:
        output.append(int(session.step([0], output[-1:])[0].argmax()))
    return output


def test_greedy_text_loops_from_the_default_prompt(model: SmolModel) -> None:
    output = greedy(model, DEFAULT_PROMPT, 40)
    assert len(output) == 40
    assert repeated_fraction(output) > 0.6


def test_greedy_text_ends_early_from_the_short_prompt(model: SmolModel) -> None:
    assert len(greedy(model, SHORT_PROMPT, 40)) < 24
