"""Steps with drafts against the real server: every position is its row after its path. Sync and asyncio alike."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.client_drafts import (
    CHAINS,
    CHUNKS,
    COLUMNS,
    DTYPES,
    FORMS,
    PENALISED,
    TREES,
    VOCAB,
    logits_of,
    paths_of,
    process,
    step_to_each,
)
from logitd.client import Drafts, EditTable, InvalidArgumentError, Profile


@pytest.mark.parametrize("chunk_bytes", CHUNKS)
@pytest.mark.parametrize("profile", [Profile.SGLANG, Profile.SGLANG_FUSED, Profile.VLLM, Profile.HF])
@pytest.mark.parametrize("drafts", [CHAINS, TREES], ids=["chains", "trees"])
def test_every_form_gives_each_position_its_own_history(server_target, connect, run, drafts, profile, chunk_bytes):
    token_ids = [[2], [], [4, 4]]

    async def scenario():
        async with connect(server_target, chunk_bytes=chunk_bytes) as client:
            for dtype, form in zip([*DTYPES, *DTYPES], FORMS, strict=False):
                logits = logits_of(drafts.num_positions, dtype)
                expected = await step_to_each(client, PENALISED, token_ids, drafts, logits, profile=profile)
                async with await client.create_batch(PENALISED, vocab_size=VOCAB, profile=profile) as batch:
                    processed = await process(client, batch, form, logits, token_ids, drafts)
                    assert processed.tobytes() == expected.tobytes(), form
                    assert batch.revision == 1
                    outputs = [list(sequence.output_token_ids) for sequence in batch.sequences]
                    assert outputs == [[1, 1, 2], [], [9, 4, 4]]
                    again = await process(client, batch, "apply", logits, drafts=drafts)
                    assert again.tobytes() == expected.tobytes()

    run(scenario)


@pytest.mark.parametrize("profile", [Profile.SGLANG, Profile.SGLANG_FUSED])
def test_relaxed_drafts_repeat_the_committed_state(server_target, connect, run, profile):
    relaxed = Drafts(CHAINS.token_ids, is_relaxed=True)
    logits = logits_of(relaxed.num_positions)

    async def scenario():
        async with connect(server_target) as client:
            nothing = Drafts([[]])
            options = {"vocab_size": VOCAB, "profile": Profile.SGLANG_FUSED}
            expected = []
            for row, of_position in zip(relaxed.rows, logits, strict=True):
                async with await client.create_batch([PENALISED[row]], **options) as batch:
                    expected.append(await batch.apply(of_position[None], drafts=nothing))
            async with await client.create_batch(PENALISED, vocab_size=VOCAB, profile=profile) as batch:
                for form in FORMS:
                    processed = await process(client, batch, form, logits, drafts=relaxed)
                    assert processed.tobytes() == np.concatenate(expected).tobytes(), form

    run(scenario)


def test_ragged_ids_of_any_kind_are_chains(server_target, connect, run):
    logits = logits_of(CHAINS.num_positions)

    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
        ):
            expected = await batch.apply(logits, drafts=CHAINS)
            lists = [list(ids) for ids in CHAINS.token_ids]
            arrays = [np.array(ids, np.int64) for ids in CHAINS.token_ids]
            parents = Drafts(lists, parents=[range(-1, len(ids) - 1) for ids in lists])
            for drafts in (lists, arrays, parents):
                assert (await batch.apply(logits, drafts=drafts)).tobytes() == expected.tobytes()
            square, nine = np.full((3, 2), 5, np.int32), logits_of(9)
            same = await batch.apply(nine, drafts=square)
            assert same.tobytes() == (await batch.apply(nine, drafts=[[5, 5]] * 3)).tobytes()

    run(scenario)


def test_some_positions_are_processed_where_they_lie(server_target, connect, run):
    logits = logits_of(CHAINS.num_positions)

    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
            await client.shared_logits(*logits.shape) as shared,
        ):
            dense = await batch.apply(logits, drafts=CHAINS)
            shared.array[...] = logits
            await batch.apply_inplace(shared, drafts=CHAINS, rows=slice(2, 6))
            assert shared.array.tobytes() == np.concatenate([logits[:2], dense[2:6], logits[6:]]).tobytes()
            patch = await batch.apply_shared(shared, drafts=CHAINS, rows=slice(6, None))
            rest = logits[6:].copy()
            patch.apply_to_inplace(rest)
            assert rest.tobytes() == dense[6:].tobytes()
            with pytest.raises(ValueError, match=r"rows must be some in a row of the 8 .*, got slice\(0, 9"):
                await batch.apply_inplace(shared, drafts=[[1] * 6, [], []])

    run(scenario)


@pytest.mark.parametrize("is_relaxed", [False, True])
@pytest.mark.parametrize("chunk_bytes", [4 * 2**20, 60])
def test_a_table_is_kept_by_differences_while_drafts_are_verified(server_target, connect, run, is_relaxed, chunk_bytes):
    async def scenario():
        async with (
            connect(server_target, chunk_bytes=chunk_bytes) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
        ):
            table, are_full, random = EditTable(), [], np.random.default_rng(4)
            token_ids = None
            for step in range(6):
                chains = [random.integers(0, 9, random.integers(0, 4)) for _ in PENALISED]
                drafts = Drafts(chains, is_relaxed=is_relaxed)
                edits = await batch.edits(token_ids, since=table.revision, drafts=drafts)
                are_full.append(edits.is_full)
                logits = logits_of(drafts.num_positions, seed=step)
                edited = logits.copy()
                table.at_positions(edits).apply_to_inplace(edited)
                assert edited.tobytes() == (await batch.apply(logits, drafts=drafts)).tobytes()
                table.update(edits)
                plain = logits[: len(PENALISED)].copy()
                table.apply_to_inplace(plain)
                assert plain.tobytes() == (await batch.apply(logits[: len(PENALISED)])).tobytes()
                token_ids = [chain[: random.integers(0, len(chain) + 1)] for chain in chains]
            assert are_full == [True] + [False] * 5

    run(scenario)


def test_a_table_takes_only_differences_of_positions_since_its_revision(server_target, connect, run):
    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
        ):
            table, before = EditTable(), EditTable()
            before.update(await batch.edits())
            await batch.accumulate([1, 2, 3])
            table.update(await batch.edits())
            difference = await batch.edits([4, 5, 6], since=1, drafts=CHAINS)
            with pytest.raises(ValueError, match="the first update of a table must be edits in full"):
                EditTable().at_positions(difference)
            with pytest.raises(ValueError, match="must be since revision 0 over 3 rows, got revision 1"):
                before.at_positions(difference)
            with pytest.raises(ValueError, match="only edits in full can be applied, got a difference"):
                difference.apply_to_inplace(logits_of(CHAINS.num_positions))
            whole = table.at_positions(difference)
            with pytest.raises(ValueError, match=r"shape \[8, columns\], got \[3, 43\]"):
                whole.apply_to_inplace(logits_of(3))

    run(scenario)


def next_logits(history):
    """A model: logits by the last two tokens of a history."""
    seed = [VOCAB, *history[-2:]]
    return np.random.default_rng(seed).normal(0, 2, (1, VOCAB)).astype(np.float32)


async def decode_plainly(batch, num_tokens):
    histories, token_ids = [list(sequence.prompt_token_ids) for sequence in batch.sequences], None
    for _ in range(num_tokens):
        logits = np.concatenate([next_logits(history) for history in histories])
        token_ids = (await batch.apply(logits, token_ids)).argmax(axis=1)
        for history, token_id in zip(histories, token_ids.tolist(), strict=True):
            history.append(token_id)
    return [history[-num_tokens:] for history in histories]


async def decode_with_drafts(batch, plain, num_tokens, commit, process_step):
    """Guesses that are right for a while; what is accepted is committed with the next step, or on its own."""
    prompts, random = [list(sequence.prompt_token_ids) for sequence in batch.sequences], np.random.default_rng(1)
    outputs, token_ids, num_steps = [[] for _ in prompts], None, 0
    while min(map(len, outputs)) < num_tokens:
        guesses = [
            [*known[len(output) :][: random.integers(0, 4)], *random.integers(0, VOCAB, random.integers(0, 2)).tolist()]
            if len(output) < num_tokens
            else []
            for known, output in zip(plain, outputs, strict=True)
        ]
        drafts = Drafts(guesses)
        histories = [prompts[row] + outputs[row] + path for row, path in paths_of(drafts)]
        processed = await process_step(np.concatenate(list(map(next_logits, histories))), token_ids, drafts)
        token_ids = [[] for _ in outputs]
        for row, best in zip(drafts.rows.tolist(), processed.argmax(axis=1).tolist(), strict=True):
            taken, guessed = token_ids[row], guesses[row]
            if len(outputs[row]) + len(taken) < num_tokens and taken == guessed[: len(taken)]:
                taken.append(best)
        for output, taken in zip(outputs, token_ids, strict=True):
            output += taken
        num_steps += 1
        if commit == "accumulate":
            await batch.accumulate(token_ids)
            token_ids = None
    return outputs, num_steps


@pytest.mark.parametrize("commit", ["accumulate", "next step"])
@pytest.mark.parametrize("form", FORMS)
def test_the_text_is_that_of_plain_decoding(server_target, connect, run, form, commit):
    """Rows accept none to four tokens a step, and stop at different times: they commit nothing then."""
    num_tokens = 24

    async def scenario():
        async with connect(server_target) as client:
            async with await client.create_batch(PENALISED, vocab_size=VOCAB) as batch:
                plain = await decode_plainly(batch, num_tokens)
            async with await client.create_batch(PENALISED, vocab_size=VOCAB) as batch:

                async def process_step(logits, token_ids, drafts):
                    return await process(client, batch, form, logits, token_ids, drafts)

                outputs, num_steps = await decode_with_drafts(batch, plain, num_tokens, commit, process_step)
                assert outputs == plain
                assert num_steps < num_tokens
                revision = num_steps - (commit == "next step")
                assert batch.revision == revision
                if commit == "accumulate":
                    info = await client.get_batch(batch.batch_id, full=True)
                    committed = [list(sequence.output_token_ids) for sequence in info.sequences]
                    assert committed == [
                        [*sequence.output_token_ids, *tokens] for sequence, tokens in zip(PENALISED, plain, strict=True)
                    ]

    run(scenario)


REFUSED = [
    (Drafts([[1], [2]]), "drafts.row_splits"),
    (Drafts([[1], [2], [3], [4]]), "drafts.row_splits"),
    (Drafts([[1], [], [2, VOCAB]]), "drafts.token_ids[2]"),
    (Drafts([[1], [], [-1]]), "drafts.token_ids[1]"),
    (Drafts([[1], [], [2, 3]], parents=[[-1], [], [-1, 1]]), "drafts.parents[2]"),
    (Drafts([[1], [], []], parents=[[0], [], []]), "drafts.parents[0]"),
    (Drafts([[1], [], []], parents=[[-2], [], []]), "drafts.parents[0]"),
    (Drafts([[1], [], []], is_relaxed=True), "drafts.mode"),
]


@pytest.mark.parametrize(("drafts", "field"), REFUSED)
def test_what_the_server_refuses_changes_nothing(server_target, connect, run, drafts, field):
    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB, profile=Profile.HF) as batch,
            await client.shared_logits(8, COLUMNS) as shared,
        ):
            steps = [
                lambda: batch.apply(logits_of(drafts.num_positions), [1, 2, 3], drafts=drafts),
                lambda: batch.apply_sparse(logits_of(drafts.num_positions), [1, 2, 3], drafts=drafts),
                lambda: batch.apply_shared(shared, [1, 2, 3], drafts=drafts),
                lambda: batch.apply_inplace(shared, [1, 2, 3], drafts=drafts),
                lambda: batch.edits([1, 2, 3], drafts=drafts),
            ]
            for step in steps:
                with pytest.raises(InvalidArgumentError) as caught:
                    await step()
                assert [violation.field for violation in caught.value.field_violations] == [field]
                assert (batch.revision, batch.has_unanswered_step) == (0, False)
            await batch.apply(logits_of(CHAINS.num_positions), [1, 2, 3], drafts=CHAINS)
            assert batch.revision == 1

    run(scenario)


def test_more_logits_than_positions_are_refused(server_target, connect, run):
    async def scenario():
        async with (
            connect(server_target) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
        ):
            with pytest.raises(ValueError, match="logits must have 8 rows, those of the drafts' positions, got 9"):
                await batch.apply(logits_of(CHAINS.num_positions + 1), drafts=CHAINS)

    run(scenario)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Drafts([1, 2]), TypeError, "drafts must be a flat list of integers for each sequence, got 1"),
        (lambda: Drafts([[[1]], [[2]]]), TypeError, r"a flat list of integers for each sequence, got \[\[1\]\]"),
        (lambda: Drafts([[1]], parents=[-1]), TypeError, "parents must be a flat list of integers .*, got -1"),
        (lambda: Drafts([[1.5]]).to_proto(), TypeError, "drafts must be a flat list of integers, got float64"),
        (lambda: Drafts([[2**31]]).to_proto(), ValueError, "drafts must fit into int32"),
        (lambda: Drafts([[1]], parents=[["a"]]).to_proto(), TypeError, "parents must be a flat list of integers"),
        (lambda: Drafts([[1]], parents=[[]]).to_proto(), ValueError, "parents must be as many as the drafts of each"),
        (lambda: Drafts([[1], []], parents=[[-1]]).to_proto(), ValueError, "parents must be as many as the drafts"),
    ],
)
def test_drafts_of_a_wrong_kind_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
