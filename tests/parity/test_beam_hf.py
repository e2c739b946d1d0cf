"""The HF rule against Transformers' own `generate`, on a model that is a hash of the token sequence.

Three requests of one batch, in the library and through a running server, are compared with three calls of `generate`:
the same sequences, order, score bits, parents and number of steps.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from helpers.beam_stub import Decoder
from helpers.client_search import run_searches
from helpers.hf_stub import HfRequest
from logitd.client import Beam, Penalties, Sequence, to_bfloat16
from logitd.sampling.beam import BeamSearch, RequestStart
from logitd.sampling.orchestrator import PenaltyOrchestrator, RowStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from helpers.client_search import LiveRow
    from helpers.generated import GeneratedBeam
    from logitd.client import Client

BATCH_SIZE = 3
NUM_REQUESTS = 1_200
PER_TEST = 60
PADDING = 3
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)
VOCAB_SIZES = (5, 6, 8, 17, 64, 300)
# From 8192 on candidates are found by blocks.
LARGE_VOCAB_SIZES = (8192, 8193, 9000, 8300)
# The engine's pool slots start at this score, and a candidate that did not end may move one by an ulp.
UNFILLED = -1e9 + 64


class Found:
    """A request's hypotheses, of the library or of the client alike, and in how many steps they were found."""

    def __init__(self, hypotheses: Iterable[Any], num_steps: int) -> None:
        self.hypotheses = list(hypotheses)
        self.num_steps = num_steps

    def check(self, beams: list[GeneratedBeam]) -> None:
        """Assert that the engine returned the same.

        It also returns pool slots that nothing finished filled, at -1e9; the rule never does.
        """
        ours = list(self.hypotheses)
        for beam in beams:
            is_next = ours and ours[0].token_ids.tolist() == beam.token_ids and ours[0].score == beam.score
            if beam.score <= UNFILLED and not is_next:
                continue
            mine = ours.pop(0)
            assert mine.token_ids.tolist() == beam.token_ids
            assert mine.score == float(beam.score)
            # A new request's one row stands for all of the engine's.
            assert mine.parent_chain.tolist() == [0, *beam.parent_chain[1:]]
        assert not ours


def search_in_library(requests: list[HfRequest], dtype: torch.dtype) -> list[Found]:
    """The requests in one batch, whose logits have padding columns."""
    vocab_size = requests[0].model.vocab_size
    rows = [RowStart(request.penalties, request.prompt) for request in requests]
    penalties = PenaltyOrchestrator.create("HF", vocab_size, rows)
    search = BeamSearch.start("HF", vocab_size, [RequestStart(request.beam) for request in requests], penalties)
    models, prompts = [request.model for request in requests], [request.prompt for request in requests]
    decoder = Decoder(search, models, prompts, dtype=dtype, padding=PADDING).run()
    return [Found(decoder.results[i].hypotheses, decoder.num_steps[i]) for i in range(len(requests))]


def search_in_server(client: Client, requests: list[HfRequest], dtype: torch.dtype) -> list[Found]:
    """The same through the client, on one stream."""
    vocab_size = requests[0].model.vocab_size
    prompts = {str(index): request.prompt for index, request in enumerate(requests)}
    with client.create_beam_batch([as_sequence(request) for request in requests], vocab_size=vocab_size) as batch:
        ends = run_searches(batch, prompts, logits_of(requests, dtype))
    return [Found(*ends[name]) for name in prompts]


def as_sequence(request: HfRequest) -> Sequence:
    beam, penalties = request.beam, request.penalties
    return Sequence(
        request.prompt,
        Penalties(penalties.repetition_penalty, min_new_tokens=penalties.min_new_tokens),
        beam.max_new_tokens,
        beam.eos_token_ids,
        beam=Beam(
            beam.width,
            beam.length_penalty,
            beam.early_stopping.name,
            beam.num_return_sequences,
            beam.return_token_log_probs,
        ),
    )


def logits_of(requests: list[HfRequest], dtype: torch.dtype) -> Callable[[list[LiveRow]], NDArray[Any]]:
    """Logits as numpy has them, with padding columns of NaN; bfloat16 travels as its bits."""

    def answer(rows: list[LiveRow]) -> NDArray[Any]:
        logits = np.stack([requests[int(row.sequence_id)].model(row.history) for row in rows])
        padded = np.pad(logits, ((0, 0), (0, PADDING)), constant_values=np.nan)
        return to_bfloat16(padded) if dtype == torch.bfloat16 else torch.from_numpy(padded).to(dtype).numpy()

    return answer


def draw_batches(rng: random.Random, vocab_sizes: Iterable[int]) -> Iterator[tuple[list[HfRequest], torch.dtype]]:
    for vocab_size in vocab_sizes:
        yield [HfRequest.draw(rng, vocab_size) for _ in range(BATCH_SIZE)], rng.choice(DTYPES)


def check(client: Client, rng: random.Random, vocab_sizes: Iterable[int]) -> None:
    for requests, dtype in draw_batches(rng, vocab_sizes):
        founds = zip(search_in_library(requests, dtype), search_in_server(client, requests, dtype), strict=True)
        for request, ours in zip(requests, founds, strict=True):
            generated = request.generate(dtype)
            for found in ours:
                found.check(generated.beams)
                assert found.num_steps == generated.num_steps


@pytest.mark.parametrize("seed", range(NUM_REQUESTS // PER_TEST))
def test_every_beam_is_the_engines(client: Client, seed: int) -> None:
    rng = random.Random(seed)
    count = PER_TEST // BATCH_SIZE
    check(client, rng, [rng.choice([*VOCAB_SIZES, rng.randint(5, 300)]) for _ in range(count)])


def test_every_beam_is_the_engines_where_candidates_are_found_by_blocks(client: Client) -> None:
    check(client, random.Random(0), LARGE_VOCAB_SIZES * 5)


def test_a_batch_of_the_engine_finds_the_same_where_nothing_ties(client: Client) -> None:
    """Its batch goes on ranking the pool of a request that is done, so that two equal scores may change places."""
    rng = random.Random(1)
    for _ in range(60):
        # With fewer tokens than candidates dead beams come in, which tie.
        first = HfRequest.draw(rng, rng.choice([64, 300])).without_ties()
        requests = [first.with_other_prompt(rng) for _ in range(BATCH_SIZE)]
        founds = search_in_server(client, requests, torch.float32)
        batch = first.generate_batch([request.prompt for request in requests], torch.float32)
        for found, beams in zip(founds, batch, strict=True):
            found.check(beams)
