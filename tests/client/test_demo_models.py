"""The demo's embedded model: a true distribution, a faithful tokenizer, and text that loops without penalties."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np
import pytest

from logitd.client.demo.models import repeated_fraction
from logitd.client.demo.ngram import DEFAULT_PROMPT, SHORT_PROMPT, NgramModel, load_ngram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Choose = Callable[[npt.NDArray[np.float32], Sequence[int]], int]

SMALL_TEXT = "a b a b a c.\n\nb a."


@pytest.fixture(scope="module")
def model() -> NgramModel:
    return load_ngram()


@pytest.fixture(scope="module")
def paragraphs() -> list[str]:
    text = files("logitd.client.demo").joinpath("corpus.txt").read_text(encoding="utf-8")
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def generate(model: NgramModel, prompt: str, length: int, choose: Choose) -> list[int]:
    """What `choose` adds to the prompt, up to `length` tokens or the end of the paragraph."""
    prompt_ids = model.encode(prompt)
    output: list[int] = []
    while len(output) < length and model.eos_token_id not in output:
        output.append(choose(model.next_logits([*prompt_ids, *output]), output))
    return output


def greedily(logits: npt.NDArray[np.float32], output: Sequence[int]) -> int:
    return int(logits.argmax())


def greedily_with_presence_penalty(logits: npt.NDArray[np.float32], output: Sequence[int]) -> int:
    penalised = logits.copy()
    penalised[sorted(set(output))] -= 1.0
    return int(penalised.argmax())


def test_vocabulary_is_some_thousand_tokens_with_eos_inside(model: NgramModel) -> None:
    assert 2_000 < model.vocab_size < 5_000
    assert 0 <= model.eos_token_id < model.vocab_size


@pytest.mark.parametrize("history", ["", "Alice", "said the Mock", "Queen Gryphon telescope", "of the\n\n"])
def test_probabilities_sum_to_one_and_none_is_zero(model: NgramModel, history: str) -> None:
    logits = model.next_logits(model.encode(history))
    assert logits.shape == (model.vocab_size,)
    assert logits.dtype == np.float32
    assert np.isfinite(logits).all()
    assert np.exp(logits.astype(np.float64)).sum() == pytest.approx(1.0, abs=1e-5)


def test_probability_follows_the_discounting_formula() -> None:
    model = NgramModel(SMALL_TEXT, order=2, discount=0.5)
    a, b = model.encode("a b")
    # Of 12 tokens of 5 kinds, a stands 4 times: before b twice, before "c" and "." once; b thrice.
    vocabulary, total, kinds = 5, 12, 5
    unigram_b = (3 - 0.5) / total + 0.5 * kinds / total / vocabulary
    expected = (2 - 0.5) / 4 + 0.5 * 3 / 4 * unigram_b
    assert np.exp(model.next_logits([a])[b]) == pytest.approx(expected, rel=1e-6)


def test_only_the_last_words_of_a_history_count(model: NgramModel) -> None:
    long, short = model.encode("Alice thought that the Mock Turtle"), model.encode("the Mock Turtle")
    np.testing.assert_array_equal(model.next_logits(long), model.next_logits(short))
    assert not np.array_equal(model.next_logits(short), model.next_logits(model.encode("the White Rabbit")))


def test_every_paragraph_of_the_corpus_survives_encode_and_decode(model: NgramModel, paragraphs: list[str]) -> None:
    assert len(paragraphs) > 500
    for paragraph in paragraphs:
        assert model.decode(model.encode(paragraph)) == paragraph


def test_end_of_paragraph_is_the_eos_token(model: NgramModel, paragraphs: list[str]) -> None:
    text = "\n\n".join(paragraphs[:3])
    token_ids = model.encode(text)
    assert token_ids.count(model.eos_token_id) == 2
    assert model.decode(token_ids) == text


def test_typewriter_marks_are_read_as_printed_ones(model: NgramModel) -> None:
    typed = model.encode('"I don\u2019t know--" said the King, "what?"')
    assert model.decode(typed) == "“I don't know—” said the King, “what?”"


def test_an_unknown_word_is_refused_by_name(model: NgramModel) -> None:
    assert model.encode("ALICE") == model.encode("Alice")
    with pytest.raises(ValueError, match="must occur in the corpus, got 'gpu'"):
        model.encode("Alice said gpu")


def test_greedy_text_loops_and_a_presence_penalty_ends_the_loop(model: NgramModel) -> None:
    looping = generate(model, DEFAULT_PROMPT, 48, greedily)
    assert len(looping) == 48
    assert repeated_fraction(looping) > 0.7
    penalised = generate(model, DEFAULT_PROMPT, 48, greedily_with_presence_penalty)
    assert len(penalised) >= 8
    assert repeated_fraction(penalised) < 0.05


def test_greedy_text_from_the_short_prompt_ends_at_once(model: NgramModel) -> None:
    assert model.decode(generate(model, SHORT_PROMPT, 48, greedily)) == ".\n\n"


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [([], 0.0), ([1, 2], 0.0), ([1, 2, 3, 4], 0.0), ([1, 2, 1, 2, 1, 2], 0.5), ([7] * 10, 7 / 8)],
)
def test_repeated_fraction_counts_trigrams_seen_before(token_ids: list[int], expected: float) -> None:
    assert repeated_fraction(token_ids) == pytest.approx(expected)


def test_a_session_follows_its_parents(model: NgramModel) -> None:
    session = model.session()
    prompt = model.encode("The White")
    started = session.start(prompt, rows=2)
    np.testing.assert_array_equal(started, model.next_logits_batch([prompt, prompt]))

    rabbit, queen, said, was, king = model.encode("Rabbit Queen said was King")
    session.step([0, 1], [rabbit, queen])
    logits = session.step([1, 0, 1], [said, was, king])
    histories = [[*prompt, queen, said], [*prompt, rabbit, was], [*prompt, queen, king]]
    np.testing.assert_array_equal(logits, model.next_logits_batch(histories))


def test_a_session_starts_afresh_and_refuses_unequal_lengths(model: NgramModel) -> None:
    session = model.session()
    session.start(model.encode("Alice"), rows=3)
    again = session.start(model.encode("The Queen"))
    np.testing.assert_array_equal(again, model.next_logits_batch([model.encode("The Queen")]))
    with pytest.raises(ValueError, match="one parent and one token, got 1 and 2"):
        session.step([0], [1, 2])
