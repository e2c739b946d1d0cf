"""The demo's speculative decoding: what its drafters guess, and that a service which says otherwise is caught."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from logitd.client import Client, Penalties
from logitd.client.demo.decoding import CheckError, Decoded, decode_greedily
from logitd.client.demo.ngram import DEFAULT_PROMPT, SHORT_PROMPT, NgramModel, load_ngram
from logitd.client.demo.speculation import LookupDrafter, ModelDrafter, check_same_text, decode_with_drafts

PENALTIES = [Penalties(), Penalties(1.3), Penalties(1.2, 0.3, -0.2, 12), Penalties(min_new_tokens=15)]


@pytest.fixture(scope="module")
def model() -> NgramModel:
    return load_ngram()


class Oracle:
    """Knows the text, and is wrong every now and then."""

    def __init__(self, prompt_length, text, wrong):
        self._prompt_length, self._text, self._wrong = prompt_length, text, wrong

    def draft(self, history, count):
        start = len(history) - self._prompt_length
        return [
            token_id + 1 if place in self._wrong else token_id
            for place, token_id in enumerate(self._text[start : start + count], start)
        ]


@pytest.mark.parametrize("num_drafts", range(1, 9))
def test_the_text_is_that_of_plain_decoding(server_target, model, num_drafts):
    with Client(server_target) as client:
        for prompt in (DEFAULT_PROMPT, SHORT_PROMPT):
            plain = decode_greedily(client, model, prompt, PENALTIES, 40)
            prompt_length = len(model.encode(prompt))
            for penalties, output in zip(PENALTIES, plain.outputs, strict=True):
                oracle = Oracle(prompt_length, [*output.token_ids, model.eos_token_id], wrong={3, 4, 11})
                for drafter in (ModelDrafter(model.shortened(2)), LookupDrafter(), oracle):
                    result = decode_with_drafts(client, model, drafter, prompt, penalties, 40, num_drafts)
                    check_same_text(result.output, output)
                    num_tokens = len(output.token_ids) + output.ended
                    assert sum(result.num_accepted) + len(result.num_accepted) == num_tokens
                    assert max(result.num_accepted) <= num_drafts


def test_drafts_that_are_right_are_all_accepted(server_target, model):
    with Client(server_target) as client:
        (output,) = decode_greedily(client, model, DEFAULT_PROMPT, [Penalties(1.3)], 21).outputs
        oracle = Oracle(len(model.encode(DEFAULT_PROMPT)), output.token_ids, wrong=())
        result = decode_with_drafts(client, model, oracle, DEFAULT_PROMPT, Penalties(1.3), 21, 4)
    assert result.num_accepted == [0, 4, 4, 4, 4]


class Service:
    """A client whose batches answer with the logits, and then with `change` of them."""

    def __init__(self, change):
        self._change = change

    @contextlib.contextmanager
    def create_batch(self, sequences, *, vocab_size):
        yield self

    def apply(self, logits, token_ids, *, drafts=None):
        return logits if drafts is None else self._change(logits)


def test_a_service_whose_drafts_lead_elsewhere_is_caught(model):
    honest, wrong = Service(np.copy), Service(lambda logits: -logits)
    (plain,) = decode_greedily(honest, model, DEFAULT_PROMPT, [Penalties()], 12).outputs
    drafter = ModelDrafter(model.shortened(2))
    for service, is_caught in ((honest, False), (wrong, True)):
        result = decode_with_drafts(service, model, drafter, DEFAULT_PROMPT, Penalties(), 12, 3)
        expectation = pytest.raises(CheckError, match="from token 0 on") if is_caught else contextlib.nullcontext()
        with expectation:
            check_same_text(result.output, plain)


@pytest.mark.parametrize(
    ("ours", "place"), [(Decoded([1, 2, 9], False), 2), (Decoded([1, 2], True), 2), (Decoded([1, 2, 3], True), 3)]
)
def test_the_first_token_that_differs_is_told(ours, place):
    with pytest.raises(CheckError, match=f"got another one from token {place} on"):
        check_same_text(ours, Decoded([1, 2, 3], False))


@pytest.mark.parametrize(
    ("history", "count", "drafts"),
    [
        ([1, 2, 3, 9, 2, 3], 3, [9, 2, 3]),
        ([1, 2, 3, 9, 2, 3], 1, [9]),
        ([5, 7, 5, 8, 5], 2, [8, 5]),
        ([1, 2, 3, 4, 2, 3, 5, 1, 2, 3], 2, [4, 2]),
        ([4, 4], 4, [4]),
        ([1, 2, 3], 4, []),
        ([1], 4, []),
        ([1, 1, 1], 0, []),
    ],
)
def test_a_lookup_guesses_what_followed_the_longest_end_that_stood_before(history, count, drafts):
    assert LookupDrafter().draft(history, count) == drafts


def test_a_shortened_model_looks_at_shorter_contexts(model):
    small = model.shortened(2)
    assert small.vocab_size == model.vocab_size
    history = model.encode("said the Mock Turtle")
    assert np.array_equal(small.next_logits(history), small.next_logits(history[-1:]))
    assert not np.array_equal(small.next_logits(history), model.next_logits(history))
    assert model.shortened(9).next_logits(history).tobytes() == model.next_logits(history).tobytes()
    text = ModelDrafter(small).draft(history, 3)
    assert text == [int(small.next_logits([*history, *text[:length]]).argmax()) for length in range(3)]


def test_a_session_of_one_row_is_extended_and_taken_back(model):
    session, prompt = model.session(), model.encode("Alice looked at the")
    session.start(prompt)
    first = session.extend([5, 6, 7])
    assert np.array_equal(first, model.next_logits_batch([[*prompt, 5], [*prompt, 5, 6], [*prompt, 5, 6, 7]]))
    second = session.extend([8, 9], num_dropped=2)
    assert np.array_equal(second, model.next_logits_batch([[*prompt, 5, 8], [*prompt, 5, 8, 9]]))
    session.start(prompt, rows=2)
    with pytest.raises(ValueError, match="only a single row can be extended, got 2"):
        session.extend([1])
