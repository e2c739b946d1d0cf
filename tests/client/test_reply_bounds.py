"""No reply is asked for that is greater than a reply may be, without a server."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from logitd.client import Sequence
from logitd.client import _messages as messages
from logitd.client._config import ClientConfig
from logitd.client._drafts import Drafts
from logitd.client._kinds import PenaltySession
from logitd.client._logits import InlineLogits
from logitd.client._penalty_history import PenaltyHistory
from logitd.client._steps import write_tokens
from logitd.client._types import BatchInfo, RowLayout
from logitd.v1 import service_pb2

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st

VOCAB = 40
BESIDE_ARRAYS = 1024
IDS = st.integers(0, VOCAB - 1)


class Followed:
    """A session, and the ids that each row of it can have an edit for."""

    def __init__(self, outputs):
        sequences = [Sequence(prompt_token_ids=[1, 2], eos_token_ids=[3], output_token_ids=ids) for ids in outputs]
        request = messages.create_request("PENALTY", sequences, messages.BatchOptions(VOCAB, None, None, None))
        rows = tuple(RowLayout(str(row), row, 1) for row in range(len(outputs)))
        info = BatchInfo("b", bytes(16), 0, "PENALTY", VOCAB, "HF", None, False, rows, (), 0.0)
        self.session = PenaltySession(info, PenaltyHistory.of(request, info))
        self.ids = [{1, 2, 3, *ids} for ids in outputs]

    def count(self, tokens):
        update = service_pb2.TokenUpdate()
        write_tokens(update, tokens, None)
        self.session.history.count(update)
        self.add(tokens)

    def add(self, tokens):
        for ids, new in zip(self.ids, tokens, strict=True):
            ids.update([new] if isinstance(new, int) else new)

    def positions(self, drafts):
        """Of each position of drafts, the ids that can have an edit there."""
        for ids, chain in zip(self.ids, drafts, strict=True):
            yield from (ids | set(chain[:length]) for length in range(len(chain) + 1))


@st.composite
def steps(draw):
    """A session after some steps, the tokens and drafts of the next one, and the ids of its rows with them."""
    num_rows = draw(st.integers(1, 5))

    def of_each_row(one):
        return draw(st.lists(one, min_size=num_rows, max_size=num_rows))

    updates = st.one_of(st.just(IDS), st.just(st.lists(IDS, max_size=4)))
    followed = Followed(of_each_row(st.lists(IDS, max_size=30)))
    for one in draw(st.lists(updates, max_size=3)):
        for _ in range(draw(st.sampled_from([1, 1, 70]))):
            followed.count(of_each_row(one))
    one, drafts = draw(st.none() | updates), None
    tokens = None if one is None else of_each_row(one)
    followed.add(tokens or [[]] * num_rows)
    rows = followed.ids
    if draw(st.booleans()):
        drafts = of_each_row(st.lists(IDS, max_size=3))
        rows = list(followed.positions(drafts))
    return followed.session, tokens, None if drafts is None else Drafts(drafts), rows


def config(reply_bytes, chunk_bytes=10**6):
    return ClientConfig("unix:x", None, None, None, None, reply_bytes + BESIDE_ARRAYS, chunk_bytes, True, 1.0)


@given(steps(), st.integers(1, 3000), st.integers(1, 3000))
def test_edits_fit_into_their_replies(step, reply_bytes, chunk_bytes):
    session, tokens, drafts, rows = step
    ranges = session._edit_ranges(tokens, drafts, config(reply_bytes, chunk_bytes))
    assert list(itertools.chain.from_iterable(rows[part] for part in ranges)) == rows
    for part in ranges:
        size = sum(12 + 9 * len(ids) for ids in rows[part])
        assert size <= min(reply_bytes, chunk_bytes) or part.stop - part.start == 1


@given(steps(), st.integers(1, 3000), st.sampled_from([np.float32, np.float16]))
def test_a_patch_fits_into_its_reply(step, reply_bytes, dtype):
    session, tokens, drafts, rows = step
    source = InlineLogits(np.zeros((len(rows), VOCAB), dtype), 10**6)
    session._sparse_step(source, tokens, drafts, config(reply_bytes))
    parts = [rows[source.rows(index)] for index in range(source.num_messages)]
    assert list(itertools.chain.from_iterable(parts)) == rows
    for part in parts:
        size = sum(12 + (4 + source.dtype.itemsize) * len(ids) for ids in part)
        assert size <= reply_bytes or len(part) == 1


@given(steps(), st.integers(0, 5))
def test_the_greatest_and_the_sum_are_those_of_the_rows(step, added):
    history = step[0].history
    each = history.most_edits(added)
    assert history.most_edits_of_a_row(added) == max(each)
    assert history.most_edits_in_all(added) == sum(each)


def test_what_fits_is_one_message():
    session = Followed([[4, 5, 6], [7]]).session
    exact = 2 * 12 + 9 * (6 + 4)
    assert session._edit_ranges(None, None, config(exact)) == [slice(0, 2)]
    assert session._edit_ranges(None, None, config(exact - 1)) == [slice(0, 1), slice(1, 2)]
    assert session._edit_ranges([8, 9], None, config(exact)) == [slice(0, 1), slice(1, 2)]
