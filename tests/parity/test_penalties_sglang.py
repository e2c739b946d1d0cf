"""The SGLANG profiles and relaxed drafts against SGLang's own penalty library, bit for bit.

Its code runs from the wheel that `make parity` fetches, or from what LOGITD_SGLANG_SOURCES lists.
"""

from __future__ import annotations

import random
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from helpers.engine_files import find_sources, version_of
from helpers.penalty_parity import ParityBatch, assert_same_penalised, draw_logits, draw_row
from helpers.sglang_penalties import SglangPenalties
from helpers.tensors import assert_same_bits, assert_same_values
from logitd.client import Drafts as ClientDrafts
from logitd.client import Penalties, Sequence
from logitd.sampling import DraftMode, Drafts, PenaltyOrchestrator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers.sglang_penalties import SglangState
    from logitd.client import Client
    from logitd.sampling import RowStart

SOURCES = find_sources("sglang")
NUM_BATCHES = 150
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=SOURCES, ids=[source.name for source in SOURCES])
def source(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(scope="module")
def sglang(source: Path, tmp_path_factory: pytest.TempPathFactory) -> SglangPenalties:
    return SglangPenalties(source, tmp_path_factory.mktemp("sglang"))


def draw_batches(sglang: SglangPenalties) -> Iterator[tuple[ParityBatch, SglangState, random.Random]]:
    """Batches of up to three that were merged, whose outputs have lengths of their own."""
    rng = random.Random(5)
    for _ in range(NUM_BATCHES):
        vocab_size = rng.choice([5, 32, 300])
        groups = [draw_group(rng, vocab_size) for _ in range(rng.randint(1, 3))]
        rows = tuple(row for group in groups for row in group)
        batch = ParityBatch(rows, draw_logits(rng, len(rows), vocab_size))
        yield batch, sglang.open(vocab_size, groups), rng


def draw_group(rng: random.Random, vocab_size: int) -> list[RowStart]:
    length = rng.choice([0, 1, 5, 12])
    return [draw_row(rng, vocab_size, length, most_repetition=2.0) for _ in range(rng.randint(1, 3))]


def penalise(profile: str, batch: ParityBatch) -> torch.Tensor:
    result = batch.logits.clone()
    PenaltyOrchestrator.create(profile, batch.vocab_size, batch.rows).apply_inplace(result)
    return result


def test_the_documented_order_is_the_profile_sglang(sglang: SglangPenalties) -> None:
    """Where a row of the batch asks for min_new_tokens, it adds 0 to all that is not banned: -0 may become 0."""
    for batch, theirs, _ in draw_batches(sglang):
        adds_zeros = any(row.parameters.min_new_tokens for row in batch.rows)
        check = assert_same_values if adds_zeros else partial(assert_same_penalised, rows=batch.rows)
        check(penalise("SGLANG", batch), theirs.apply_in_order(batch.logits))


def test_what_is_served_is_the_profile_sglang_fused(sglang: SglangPenalties) -> None:
    for batch, theirs, _ in draw_batches(sglang):
        assert_same_penalised(penalise("SGLANG_FUSED", batch), theirs.apply_as_served(batch.logits), batch.rows)


@pytest.mark.parametrize("profile", ["SGLANG", "SGLANG_FUSED"])
def test_relaxed_drafts_are_its_repeated_rows(sglang: SglangPenalties, profile: str) -> None:
    for batch, theirs, rng in draw_batches(sglang):
        repeat, num_rows = rng.randint(1, 8), len(batch.rows)
        logits = draw_logits(rng, num_rows * repeat, batch.vocab_size)
        token_ids = rng.choices(range(batch.vocab_size), k=num_rows * (repeat - 1))
        splits = [row * (repeat - 1) for row in range(num_rows + 1)]
        drafts = Drafts.create(token_ids, splits, num_rows=num_rows, vocab_size=batch.vocab_size)
        state = PenaltyOrchestrator.create(profile, batch.vocab_size, batch.rows)
        ours = logits.clone()
        state.with_drafts(drafts, DraftMode.SGLANG_RELAXED).apply_inplace(ours)
        rows = [row for row in batch.rows for _ in range(repeat)]
        assert_same_penalised(ours, theirs.apply_repeated(logits, repeat), rows)


def test_relaxed_drafts_of_a_server_are_its_repeated_rows(sglang: SglangPenalties, client: Client) -> None:
    rng = random.Random(7)
    rows = [draw_row(rng, 300, 12, most_repetition=2.0) for _ in range(5)]
    logits = draw_logits(rng, 4 * len(rows), 300)
    expected = sglang.open(300, [rows]).apply_repeated(logits, 4)
    sequences = [
        Sequence(
            penalties=Penalties(
                row.parameters.repetition_penalty,
                row.parameters.frequency_penalty,
                row.parameters.presence_penalty,
                row.parameters.min_new_tokens,
            ),
            stop_token_ids=row.parameters.stop_token_ids,
            output_token_ids=row.output_token_ids,
        )
        for row in rows
    ]
    drafts = ClientDrafts([rng.choices(range(300), k=3) for _ in rows], is_relaxed=True)
    with client.create_batch(sequences, vocab_size=300) as batch:
        ours = torch.from_numpy(batch.apply(logits.numpy(), drafts=drafts))
    assert_same_penalised(ours, expected, [row for row in rows for _ in range(4)])


def test_exact_drafts_are_not_its_repeated_rows(sglang: SglangPenalties) -> None:
    """The flag tells two things apart: a draft that the first position does not count, the second does."""
    rows = [draw_row(random.Random(1), 32, 0, most_repetition=2.0)]
    logits = torch.ones(2, 32)
    state = PenaltyOrchestrator.create("SGLANG_FUSED", 32, rows)
    exact, relaxed = (logits.clone() for _ in range(2))
    drafts = Drafts.create([7], num_rows=1, vocab_size=32)
    state.with_drafts(drafts).apply_inplace(exact)
    state.with_drafts(drafts, DraftMode.SGLANG_RELAXED).apply_inplace(relaxed)
    theirs = sglang.open(32, [rows]).apply_repeated(logits, 2)
    assert_same_bits(relaxed, theirs)
    assert (exact != theirs).nonzero().tolist() == [[1, 7]]


def test_the_version_is_the_one_that_the_contract_names(source: Path) -> None:
    named = {
        version
        for path in ("proto/logitd/v1/types.proto", "README.md")
        for version in re.findall(r"SGLang (\d+\.\d+\.\d+)", (REPOSITORY / path).read_text())
    }
    assert named == {version_of(source)}
