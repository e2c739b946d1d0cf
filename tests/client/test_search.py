"""Whole searches, for a decoder that gives logits. Sync and asyncio alike."""

from __future__ import annotations

import numpy as np
import pytest

from logitd.client import AsyncClient, Beam, Penalties, Sequence

VOCAB = 30
EOS = 0
SEARCHES = [
    Sequence([1, 2], Penalties(1.5), 7, [EOS], beam=Beam(3), sequence_id="long"),
    Sequence([3], None, 2, [EOS], beam=Beam(2, num_return_sequences=1), sequence_id="short"),
    Sequence([4, 4, 4], None, 5, [EOS], beam=Beam(4), sequence_id="wide"),
]


class Decoder:
    """Its logits are a hash of the whole row, so that a wrong parent shows at once."""

    def __init__(self, prompts, shared=None):
        self.rows = [tuple(prompt) for prompt in prompts]
        self.num_calls = 0
        self._shared = shared

    def __call__(self, parent_rows, token_ids):
        self.num_calls += 1
        assert (parent_rows is None) == (token_ids is None) == (self.num_calls == 1)
        if parent_rows is not None:
            pairs = zip(parent_rows, token_ids, strict=True)
            self.rows = [(*self.rows[parent], int(token_id)) for parent, token_id in pairs]
        logits = np.stack([np.random.default_rng(row).normal(0, 2, VOCAB).astype(np.float32) for row in self.rows])
        logits[:, EOS] += 2
        if self._shared is None:
            return logits
        self._shared.array[: len(logits)] = logits
        return self._shared

    async def call(self, parent_rows, token_ids):
        return self(parent_rows, token_ids)


async def step_by_step(batch, decoder):
    hypotheses, parent_rows, token_ids = {}, None, None
    while batch.rows:
        step = await batch.beam_step(decoder(parent_rows, token_ids))
        hypotheses |= {search.sequence_id: search.hypotheses for search in step.searches if search.is_done}
        parent_rows, token_ids = step.parent_rows, step.token_ids
    return hypotheses


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_search_runs_to_its_end(server_target, connect, run, is_shared):
    prompts = [search.prompt_token_ids for search in SEARCHES]

    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_beam_batch(SEARCHES, vocab_size=VOCAB) as batch,
            await client.create_beam_batch(SEARCHES, vocab_size=VOCAB) as other,
            await client.shared_logits(9, VOCAB) as shared,
        ):
            decoder = Decoder(prompts, getattr(shared, "_inner", shared) if is_shared else None)
            results = await batch.search(decoder.call if connect is AsyncClient else decoder)
            expected = await step_by_step(other, Decoder(prompts))
        assert [result.sequence_id for result in results] == ["long", "short", "wide"]
        assert [len(result.hypotheses) for result in results] == [3, 1, 4]
        assert all(result.is_done for result in results)
        assert results[1].finish_reason == "LENGTH"
        assert decoder.num_calls == batch.revision > 2
        for result in results:
            for got, wanted in zip(result.hypotheses, expected[result.sequence_id], strict=True):
                assert (got.token_ids.tolist(), got.score) == (wanted.token_ids.tolist(), wanted.score)

    run(scenario)


def test_an_error_of_the_decoder_leaves_the_search_where_it_stood(server_target, connect, run):
    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_beam_batch(SEARCHES[:1], vocab_size=VOCAB) as batch,
        ):
            decoder = Decoder([[1, 2]])

            def failing(parent_rows, token_ids):
                if decoder.num_calls == 2:
                    raise KeyError("model")
                return decoder(parent_rows, token_ids)

            async def failing_too(parent_rows, token_ids):
                return failing(parent_rows, token_ids)

            with pytest.raises(KeyError, match="model"):
                await batch.search(failing_too if connect is AsyncClient else failing)
            assert (batch.revision, batch.has_unanswered_step) == (2, False)
            assert batch.rows[0].row_count == 3

    run(scenario)
