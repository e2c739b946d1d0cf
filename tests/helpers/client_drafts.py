"""Sequences, drafts and steps of every form for tests of the client, and the plain steps to compare them with."""

from __future__ import annotations

import numpy as np

from logitd.client import Drafts, Penalties, Sequence, to_bfloat16

VOCAB = 40
COLUMNS = VOCAB + 3
EOS = 0
PENALISED = [
    Sequence([7, 8], Penalties(1.3, 0.5, -0.25, 5), 100, [EOS], sequence_id="a", output_token_ids=[1, 1]),
    Sequence([3], Penalties(frequency_penalty=0.75, presence_penalty=-0.5), 100, sequence_id="b"),
    Sequence([], Penalties(1.9, min_new_tokens=2), 100, [EOS], [6], sequence_id="c", output_token_ids=[9]),
]
# A repeated id, the end of the text before it may come, no draft at all, and two that follow the same one.
CHAINS = Drafts([[3, 3, EOS], [], [6, 1]])
TREES = Drafts([[3, 3, EOS, 1], [5], []], parents=[[-1, 0, 0, -1], [-1], []])
DTYPES = ["float32", "float16", "uint16"]
# All positions in one message, or some whose rows' positions are split.
CHUNKS = [4 * 2**20, 2 * COLUMNS * 4]
FORMS = ["apply", "apply_sparse", "apply_shared", "apply_inplace", "edits"]


def logits_of(num_rows, dtype="float32", seed=0):
    logits = np.random.default_rng(seed).normal(0, 3, (num_rows, COLUMNS)).astype(np.float32)
    return to_bfloat16(logits) if dtype == "uint16" else logits.astype(dtype)


def paths_of(drafts):
    """Row and tokens of each position."""
    for row, ids in enumerate(drafts.token_ids):
        known = [[]]
        for index, token_id in enumerate(ids):
            parent = index - 1 if drafts.parents is None else drafts.parents[row][index]
            known.append([*known[parent + 1], token_id])
        yield from ((row, path) for path in known)


async def step_to_each(client, sequences, token_ids, drafts, logits, **options):
    """What plain steps give, of which each goes along the path of one position."""
    processed = []
    for (row, path), of_position in zip(paths_of(drafts), logits, strict=True):
        async with await client.create_batch([sequences[row]], vocab_size=VOCAB, **options) as batch:
            for token_id in [*token_ids[row], *path]:
                await batch.accumulate([token_id])
            processed.append(await batch.apply(of_position[None]))
    return np.concatenate(processed)


async def process(client, batch, form, logits, token_ids=None, drafts=None, **options):
    """The processed logits, whatever the form."""
    result = logits.copy()
    if form == "apply":
        return await batch.apply(logits, token_ids, drafts=drafts)
    if form == "apply_sparse":
        (await batch.apply_sparse(logits, token_ids, drafts=drafts)).apply_to_inplace(result)
    elif form == "edits":
        (await batch.edits(token_ids, drafts=drafts)).apply_to_inplace(result)
    else:
        async with await client.shared_logits(*logits.shape, logits.dtype) as shared:

            def fill():
                shared.array[...] = logits

            fill()
            if form == "apply_inplace":
                await batch.apply_inplace(shared, token_ids, drafts=drafts, refill=fill, **options)
                result[...] = shared.array
            else:
                patch = await batch.apply_shared(shared, token_ids, drafts=drafts, **options)
                assert shared.array.tobytes() == logits.tobytes()
                patch.apply_to_inplace(result)
    return result
