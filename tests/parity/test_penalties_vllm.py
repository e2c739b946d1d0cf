"""The VLLM profile against vLLM's own penalty functions on the CPU, bit for bit.

They run where their code is there (`engine_files.find_sources`); what `record_vllm_penalties.py` wrote of them is
always replayed.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from helpers.engine_files import find_sources
from helpers.penalty_parity import ParityBatch, assert_same_penalised, draw_logits, draw_row, tensor_from_json
from helpers.vllm_penalties import VllmPenalties
from logitd.sampling import Drafts, PenaltyOrchestrator, RowStart

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCES = find_sources("vllm")
NUM_BATCHES = 200
REPOSITORY = Path(__file__).parents[2]
RECORDED = json.loads((Path(__file__).parent / "vectors" / "penalties_vllm.json").read_text())


@pytest.fixture(scope="module", params=SOURCES, ids=[source.name for source in SOURCES])
def vllm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VllmPenalties:
    return VllmPenalties(request.param, tmp_path_factory.mktemp("vllm"))


def ban(rows: Sequence[RowStart], logits: torch.Tensor) -> torch.Tensor:
    """The logits after min_new_tokens, which that engine has before its penalties."""
    result = logits.clone()
    for row, values in zip(rows, result, strict=True):
        if len(row.output_token_ids) < row.parameters.min_new_tokens:
            values[list(row.parameters.stop_token_ids)] = -torch.inf
    return result


def test_every_logit_has_its_bits(vllm: VllmPenalties) -> None:
    rng = random.Random(3)
    for _ in range(NUM_BATCHES):
        vocab_size = rng.choice([5, 32, 300])
        rows = [draw_row(rng, vocab_size, rng.randint(0, 12), most_repetition=20) for _ in range(rng.randint(1, 5))]
        logits = draw_logits(rng, len(rows), vocab_size)
        ours = logits.clone()
        PenaltyOrchestrator.create("VLLM", vocab_size, rows).apply_inplace(ours)
        assert_same_penalised(ours, vllm.apply(rows, ban(rows, logits)), rows)


def test_draft_positions_are_its_rows_with_the_drafts_in_their_output(vllm: VllmPenalties) -> None:
    rng = random.Random(4)
    for _ in range(NUM_BATCHES // 4):
        rows = [draw_row(rng, 32, rng.randint(0, 12), most_repetition=20) for _ in range(rng.randint(1, 3))]
        chains = [rng.choices(range(32), k=rng.randint(0, 5)) for _ in rows]
        positions = [
            RowStart(row.parameters, row.prompt_token_ids, (*row.output_token_ids, *chain[:depth]))
            for row, chain in zip(rows, chains, strict=True)
            for depth in range(len(chain) + 1)
        ]
        logits = draw_logits(rng, len(positions), 32)
        ours, splits = logits.clone(), [sum(map(len, chains[:row])) for row in range(len(chains) + 1)]
        drafts = Drafts.create([t for chain in chains for t in chain], splits, num_rows=len(rows), vocab_size=32)
        PenaltyOrchestrator.create("VLLM", 32, rows).with_drafts(drafts).apply_inplace(ours)
        assert_same_penalised(ours, vllm.apply(positions, ban(positions, logits)), positions)


def test_recorded_logits_come_back() -> None:
    assert len(RECORDED["batches"]) >= 40
    for data in RECORDED["batches"]:
        batch = ParityBatch.from_json(data)
        ours = batch.logits.clone()
        PenaltyOrchestrator.create("VLLM", batch.vocab_size, batch.rows).apply_inplace(ours)
        assert_same_penalised(ours, tensor_from_json(data["penalised"]), batch.rows)


def test_the_recorded_version_is_the_one_that_the_readme_names() -> None:
    named = re.findall(r"vLLM (\d+\.\d+), offline", (REPOSITORY / "README.md").read_text())
    assert [RECORDED["version"].rpartition(".")[0]] == named
