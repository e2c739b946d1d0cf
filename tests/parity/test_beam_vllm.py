"""The VLLM rules against vLLM's own offline search, on a model that is a hash of the token sequence.

Version 0.33 or newer is compared with VLLM, up to 0.32 with VLLM_PROMPT_LENGTH, where the engine's code is there
(`engine_files.find_sources`); the vectors that `record_vllm_vectors.py` wrote from both are always replayed, in the
library and through a running server.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from helpers.vllm_requests import VllmRequest
from logitd.sampling.beam import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helpers.vllm_offline import Found, VllmSearch
    from logitd.client import Client

VECTORS = Path(__file__).parent / "vectors" / "beam_vllm.json"
NUM_REQUESTS = 1_200
PER_TEST = 60


@pytest.mark.parametrize("seed", range(NUM_REQUESTS // PER_TEST))
def test_every_beam_is_the_engines(vllm: VllmSearch, client: Client, seed: int) -> None:
    check(vllm, client, random.Random(seed), [None] * PER_TEST)


def test_every_beam_is_the_engines_where_candidates_are_found_by_blocks(vllm: VllmSearch, client: Client) -> None:
    check(vllm, client, random.Random(0), [8192, 8193, 9000, 8300] * 8)


def check(vllm: VllmSearch, client: Client, rng: random.Random, vocab_sizes: Sequence[int | None]) -> None:
    # The older version looks at one EOS id.
    rule, max_eos = ("VLLM_PROMPT_LENGTH", 1) if vllm.counts_prompt else ("VLLM", 3)
    for vocab_size in vocab_sizes:
        request = VllmRequest.draw(rng, max_eos=max_eos, with_ties=True, vocab_size=vocab_size)
        result = request.run_rule(rule).results[0]
        theirs = request.run_engine(vllm)
        for ours in (result.hypotheses, request.run_server(client, rule).hypotheses):
            if result.finish_reason is FinishReason.NO_CANDIDATE:
                # The engine goes on to max_new_tokens with beams at -inf.
                compare([h for h in ours if h.score > -math.inf], [f for f in theirs if f.score > -math.inf])
            else:
                compare(ours, theirs)


def compare(ours: Sequence[Any], theirs: Sequence[Found]) -> None:
    """Assert the same beams, to the bit; hypotheses of the library and of the client are alike."""
    assert [h.token_ids.tolist() for h in ours] == [f.token_ids for f in theirs]
    assert [h.score for h in ours] == [f.score for f in theirs]
    assert [h.running_sum for h in ours] == [f.running_sum for f in theirs]
    assert [h.token_log_probs.tolist() for h in ours] == [f.token_log_probs for f in theirs]


@pytest.mark.parametrize("rule", ["VLLM", "VLLM_PROMPT_LENGTH"])
def test_recorded_beams_come_back(client: Client, rule: str) -> None:
    vectors = json.loads(VECTORS.read_text())[rule]
    assert len(vectors) >= 100
    for vector in vectors:
        request = VllmRequest.from_json(vector["request"])
        for hypotheses in (request.run_rule(rule).results[0].hypotheses, request.run_server(client, rule).hypotheses):
            assert [h.token_ids.tolist() for h in hypotheses] == vector["token_ids"]
            assert [h.score for h in hypotheses] == pytest.approx(vector["scores"], rel=1e-5)
