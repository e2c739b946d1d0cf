"""Edits against the dense form of the real server, bit by bit; and the table that merges differences."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from logitd.client import Client, Edits, EditTable, Penalties, Sequence, to_bfloat16

pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st

VOCAB = 9
PROFILES = ["SGLANG", "SGLANG_FUSED", "VLLM", "HF"]
AWKWARD = [-np.inf, np.inf, 0.0, *[-0.0] * 5, 1.0, -1.0, 65504.0, -65504.0, 3e38, -3e38, 1e-45, -6e-8]

ids = st.lists(st.integers(0, VOCAB - 1), max_size=6)
additive = st.sampled_from([None, 0.0, -0.0, 0.1, 2.0, -0.7, -2.0])
penalties = st.none() | st.builds(
    Penalties,
    repetition_penalty=st.sampled_from([None, 1.0, 1e-45, 0.3, 1.3, 2.0]),
    frequency_penalty=additive,
    presence_penalty=additive,
    min_new_tokens=st.sampled_from([None, 2, 7]),
)
rows = st.lists(
    st.builds(
        Sequence,
        prompt_token_ids=ids,
        penalties=penalties,
        max_new_tokens=st.just(100),
        eos_token_ids=ids,
        output_token_ids=ids,
    ),
    min_size=1,
    max_size=3,
)
thorough = settings(derandomize=True, deadline=None, max_examples=25, print_blob=True)


def draw_logits(data, num_rows, dtype):
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    logits = random.normal(0, 5, (num_rows, VOCAB + 2)).astype(np.float32)
    places = random.random(logits.shape) < 0.5
    logits[places] = random.choice(np.array(AWKWARD, np.float32), places.sum())
    with np.errstate(over="ignore"):
        return to_bfloat16(logits) if dtype == "uint16" else logits.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint16"])
@pytest.mark.parametrize("profile", PROFILES)
def test_edits_applied_here_give_the_bits_of_dense(server_target, profile, dtype):
    with Client(server_target) as client:

        @thorough
        @given(st.data())
        def check(data):
            sequences = data.draw(rows)
            logits = draw_logits(data, len(sequences), dtype)
            with client.create_batch(sequences, vocab_size=VOCAB, profile=profile) as batch:
                table, since_start = EditTable(), None
                for step in range(3):
                    token_ids = data.draw(st.lists(ids, min_size=len(sequences), max_size=len(sequences)))
                    table.update(batch.edits(token_ids, since=table.revision))
                    if step == 0:
                        since_start = EditTable()
                        since_start.update(batch.edits())
                    dense = batch.apply(logits)
                    for edits in (table, batch.edits()):
                        edited = logits.copy()
                        edits.apply_to_inplace(edited)
                        assert edited.tobytes() == dense.tobytes()
                since_start.update(batch.edits(since=since_start.revision))
                assert np.array_equal(since_start.full().flags, table.full().flags)
                assert np.array_equal(since_start.full().token_ids, table.full().token_ids)

        check()


@pytest.mark.parametrize("profile", PROFILES)
def test_every_penalty_edits_every_awkward_logit_as_dense_does(server_target, profile):
    repetitions, additives = [None, 1e-45, 0.3, 1.3, 2.0], [None, 0.1, 2.0, -0.7, -2.0]
    asked = [Penalties(*values) for values in itertools.product(repetitions, additives, additives)]
    columns, seen = len(AWKWARD), range(0, len(AWKWARD), 2)
    # Every other id is in the prompt alone, for the profiles that count it; the last one is banned.
    sequences = [
        Sequence(range(columns), each, 99, [columns - 1], output_token_ids=[*seen, *seen, *seen[:4]]) for each in asked
    ]
    sequences[0] = replace(sequences[0], penalties=Penalties(min_new_tokens=90))
    logits = np.array([AWKWARD] * len(asked), np.float32)
    with Client(server_target) as client:
        batch = client.create_batch(sequences, vocab_size=columns, profile=profile)
        edits = batch.edits()
        with np.errstate(over="ignore"):
            kinds = [logits, logits.astype(np.float16), to_bfloat16(logits)]
        for kind in kinds:
            edited = kind.copy()
            edits.apply_to_inplace(edited)
            assert edited.tobytes() == batch.apply(kind).tobytes()
        batch.delete()


@pytest.mark.parametrize("chunk_bytes", [4 * 2**20, 60])
def test_differences_lead_to_the_whole_also_over_filter_merge_and_rollback(server_target, connect, run, chunk_bytes):
    penalised = Penalties(1.2, 0.3, 0.5, min_new_tokens=3)
    given_sequences = [
        Sequence([1], penalised, eos_token_ids=[7], stop_token_ids=[8], sequence_id=name) for name in "abc"
    ]

    async def scenario():
        async with connect(server_target, chunk_bytes=chunk_bytes) as client:
            batch = await client.create_batch(given_sequences, vocab_size=VOCAB, profile="HF")
            other = await client.create_batch(
                [Sequence([2], penalised, sequence_id="d")], vocab_size=VOCAB, profile="HF"
            )
            table, are_full = EditTable(), []

            async def follow(token_ids=None):
                edits = await batch.edits(token_ids, since=table.revision)
                are_full.append(edits.is_full)
                assert edits.revision == batch.revision
                table.update(edits)
                whole, merged = await batch.edits(), table.full()
                for name in ("row_splits", "token_ids", "repetition", "presence", "frequency_sums", "flags"):
                    assert np.array_equal(getattr(whole, name), getattr(merged, name)), name

            await follow()
            await follow([3, 4, 5])
            await follow([3, 3, 3])
            await batch.accumulate([[], [1], [2]], rollback=[1, 0, 2])
            await follow()
            await batch.filter(["c", "a", ("a", "fork")])
            await follow()
            await follow([[6, 6], [], [5]])
            await batch.merge(other)
            await follow()
            await follow([1, 2, 3, 4])
            assert are_full == [True, False, False, False, True, False, True, False]
            await batch.delete()

    run(scenario)


def test_an_unknown_base_is_answered_in_full(server_target, connect, run):
    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch([Sequence(penalties=Penalties(2.0))], vocab_size=VOCAB) as batch,
        ):
            await batch.accumulate([1])
            for since in (99, -5):
                edits = await batch.edits(since=since)
                assert (edits.is_full, edits.base_revision, edits.token_ids.tolist()) == (True, None, [1])
            edits = await batch.edits([2], since=1)
            assert (edits.is_full, edits.base_revision, edits.revision) == (False, 1, 2)
            assert edits.token_ids.tolist() == [2]

    run(scenario)


def test_large_edits_come_in_several_replies(server_target, connect, run):
    columns, num_rows = 130_000, 4

    async def scenario():
        outputs = [np.random.default_rng(row).permutation(columns) for row in range(num_rows)]
        sequences = [
            Sequence(penalties=Penalties(1.5), output_token_ids=ids, max_new_tokens=131_072) for ids in outputs
        ]
        async with (
            connect(server_target, max_message_bytes=4 * 2**20) as client,  # of 4.7 MB in all
            await client.create_batch(sequences, vocab_size=columns) as batch,
        ):
            edits = await batch.edits()
            assert edits.row_splits.tolist() == [columns * row for row in range(num_rows + 1)]
            assert np.array_equal(edits.token_ids, np.tile(np.arange(columns), num_rows))

    run(scenario)


def edits_of(splits, token_ids, flags, revision, base=None):
    size, num_rows = len(token_ids), len(splits) - 1
    return Edits(
        np.array(splits, np.int32),
        np.array(token_ids, np.int32),
        np.full(num_rows, 2, np.float32),
        np.zeros(num_rows, np.float32),
        np.arange(size, dtype=np.float32),
        np.array(flags, np.uint8),
        base is None,
        revision,
        "SGLANG",
        base,
    )


def test_a_table_replaces_adds_and_drops_entries():
    table = EditTable()
    table.update(edits_of([0, 2, 3], [1, 5, 2], [3, 4, 3], 4))
    table.update(edits_of([0, 3, 5], [0, 1, 5, 2, 8], [3, 7, 0, 0, 3], 6, base=4))
    full = table.full()
    assert (full.row_splits.tolist(), full.token_ids.tolist()) == ([0, 2, 3], [0, 1, 8])
    assert (full.flags.tolist(), full.frequency_sums.tolist()) == ([3, 7, 3], [0, 1, 4])
    assert (table.revision, full.revision, full.is_full) == (6, 6, True)
    table.update(edits_of([0, 0], [], [], 7))
    assert len(table.full().token_ids) == 0


def test_a_table_takes_only_differences_since_its_revision():
    table = EditTable()
    difference = edits_of([0, 1], [1], [3], 6, base=4)
    with pytest.raises(ValueError, match="the first update of a table must be edits in full"):
        table.update(difference)
    with pytest.raises(ValueError, match="in full, got none"):
        table.full()
    table.update(edits_of([0, 0], [], [], 5))
    with pytest.raises(ValueError, match=r"since revision 5 over 1 rows, got revision 4, 1 rows"):
        table.update(difference)


def test_only_whole_edits_of_a_known_profile_fit_logits():
    whole = edits_of([0, 1], [1], [3], 6)
    with pytest.raises(ValueError, match=r"\[1, columns\], got \[2, 3\]"):
        whole.apply_to_inplace(np.zeros((2, 3), np.float32))
    with pytest.raises(TypeError, match="got float64"):
        whole.apply_to_inplace(np.zeros((1, 3)))
    with pytest.raises(ValueError, match="got a difference"):
        edits_of([0, 1], [1], [3], 6, base=4).apply_to_inplace(np.zeros((1, 3), np.float32))
    unknown = Edits(*(getattr(whole, name) for name in whole.__slots__[:8]), "NEWER")
    with pytest.raises(ValueError, match=r"profile must be one of SGLANG, .* got 'NEWER'"):
        unknown.apply_to_inplace(np.zeros((1, 3), np.float32))
