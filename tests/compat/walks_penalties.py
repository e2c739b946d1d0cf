"""What a client does with penalty batches."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from compat.caller import listed, opened, plain, refused, settle

from logitd.client import EditTable, Penalties, Sequence, to_bfloat16

if TYPE_CHECKING:
    from compat.caller import Caller

VOCAB = 20
COLUMNS = 22  # two of them padding
SEQUENCES = [
    Sequence([1, 2, 2], Penalties(1.3, 0.5, -0.25, 4), 100, [0, 5], [3], sequence_id="a"),
    Sequence([4], Penalties(frequency_penalty=0.1, presence_penalty=0.7), sequence_id="b"),
    Sequence([], None, 50, [0], output_token_ids=[7], sequence_id="c"),
]
TOKENS = [[4, 4], [5], []]
PROFILES = ("SGLANG", "SGLANG_FUSED", "VLLM", "HF")
DTYPES = ("float32", "float16", "uint16")


def logits_of(*key: int, rows: int = 3, columns: int = COLUMNS, dtype: str = "float32") -> Any:
    """Logits [rows, columns] that depend on `key` alone."""
    logits = np.random.default_rng(key).normal(0, 3, (rows, columns)).astype(np.float32)
    return to_bfloat16(logits) if dtype == "uint16" else logits.astype(dtype)


def described(info: Any) -> dict[str, Any]:
    """A batch as the server tells it, but for its random uid."""
    return plain(info) | {"uid": len(info.uid)}


async def steps(caller: Caller, notes: dict[str, Any]) -> None:
    """Accumulate, rollback, and Apply dense and sparse, in every profile and type, whole and in chunks of a row."""
    for profile in PROFILES:
        for dtype in DTYPES:
            async with caller.connect() as client, caller.connect(chunk_bytes=COLUMNS * 4) as chunking:
                found = notes[f"{profile} {dtype}"] = await _step(client, profile, dtype)
                assert plain(await _step(chunking, profile, dtype)) == plain(found)


async def _step(client: Any, profile: str, dtype: str) -> list[Any]:
    creation, found = {"vocab_size": VOCAB, "profile": profile, "batch_id": "steps"}, []
    async with opened(client.create_batch(SEQUENCES, **creation)) as batch:
        logits = logits_of(1, dtype=dtype)
        await settle(batch.accumulate(TOKENS))
        found.append(await settle(batch.apply(logits)))
        found.append(await settle(batch.apply(logits, [6, 7, 6])))
        found.append(await settle(batch.apply_sparse(logits, [[6], [8, 9], [6, 6]])))
        await settle(batch.accumulate([[1], [], [2, 3]], rollback=[2, 0, 1]))
        found.append(await settle(batch.apply(logits)))
        patch = await settle(batch.apply_sparse(logits))
        patched = logits.copy()
        patch.apply_to_inplace(patched)
        assert patched.tobytes() == found[-1].tobytes()
        found += [batch.revision, batch.rows, batch.sequences, batch.draining, described(batch.info)]
    return found


async def shared(caller: Caller, notes: dict[str, Any]) -> None:
    """Logits in memory that both sides have: a memory file, and a named one."""
    for name, options in {"memory": {}, "named": {"shared_memory_dir": caller.memory_dir}}.items():
        found = notes[name] = []
        async with (
            caller.connect() as client,
            opened(client.create_batch(SEQUENCES, vocab_size=VOCAB, batch_id="shared")) as batch,
            opened(client.shared_logits(4, COLUMNS, **options)) as memory,
        ):
            memory.array[...] = logits_of(2, rows=4)
            found.append(await settle(batch.apply_shared(memory, TOKENS)))
            found.append(await settle(batch.apply_shared(memory, rows=slice(1, 3))))
            found.append(memory.array.copy())
            await settle(batch.apply_inplace(memory, [6, 7, 8]))
            found.append(memory.array.copy())
            memory.array[...] = logits_of(3, rows=4)
            await settle(batch.apply_inplace(memory, rows=slice(0, 2)))
            found += [memory.array.copy(), batch.revision]


async def edits(caller: Caller, notes: dict[str, Any]) -> None:
    """Edits in full and as differences, merged in a table and applied here."""
    for profile in PROFILES:
        found = notes[profile] = []
        creation = {"vocab_size": VOCAB, "profile": profile, "batch_id": "edits"}
        async with caller.connect() as client, opened(client.create_batch(SEQUENCES, **creation)) as batch:
            table = EditTable()
            for step, token_ids in enumerate([TOKENS, [6, 7, 6], [[], [7, 8], [1]]]):
                found.append(await settle(batch.edits(token_ids, since=table.revision)))
                table.update(found[-1])
                logits = logits_of(step)
                table.apply_to_inplace(logits)
                assert logits.tobytes() == (await settle(batch.apply(logits_of(step)))).tobytes()
            found += [logits, await settle(batch.edits())]


async def membership(caller: Caller, notes: dict[str, Any]) -> None:
    """Filter with forks, merge, and what is left."""
    async with (
        caller.connect(route="one") as client,
        opened(client.create_batch(SEQUENCES, vocab_size=VOCAB, batch_id="target")) as batch,
    ):
        await settle(batch.accumulate(TOKENS))
        notes["filtered"] = await settle(batch.filter(["c", "a", ("a", "fork")]))
        notes["after"] = await settle(batch.apply(logits_of(4), [6, 7, 8]))
        late = [Sequence([9], Penalties(2.0), sequence_id="late")]
        other = await settle(client.create_batch(late, vocab_size=VOCAB, batch_id="source"))
        await settle(other.accumulate([[3, 3]]))
        notes["merged"] = await settle(batch.merge(other))
        notes["together"] = await settle(batch.apply(logits_of(5, rows=4), [1, 2, 3, 4]))
        notes["state"] = [batch.revision, batch.sequences]
        notes["view"] = described(await settle(client.get_batch("target", full=True)))
        notes["gone"] = await refused(lambda: client.get_batch("source"))


async def batches(caller: Caller, notes: dict[str, Any]) -> None:
    """What there is to be told of batches, and a rebuild from it."""
    async with caller.connect() as client:
        options = {"vocab_size": VOCAB, "profile": "HF", "create_key": b"k" * 16}
        batch = await settle(client.create_batch(SEQUENCES, batch_id="first", **options))
        again = await settle(client.create_batch(SEQUENCES, batch_id="first", **options))
        assert again.uid == batch.uid
        await settle(batch.accumulate(TOKENS))
        for name in ("second", "third"):
            await settle(client.create_batch([Sequence()], vocab_size=VOCAB, batch_id=name))
        notes["basic"] = described(await settle(client.get_batch("first", uid=batch.uid)))
        full = await settle(client.get_batch("first", full=True))
        notes["full"] = described(full)
        for page_size in (None, 1, 2):
            notes[f"page {page_size}"] = [
                described(info) for info in await listed(client.list_batches(page_size=page_size))
            ]
        expected = await settle(batch.apply(logits_of(6)))
        await settle(batch.delete())
        async with opened(client.create_batch(full.sequences, vocab_size=VOCAB, profile="HF")) as rebuilt:
            notes["rebuilt"] = await settle(rebuilt.apply(logits_of(6)))
            assert notes["rebuilt"].tobytes() == expected.tobytes()
        await settle(client.delete_batch("second"))
        await settle(client.delete_batch("third"))
        await settle(client.delete_batch("third", allow_missing=True))


async def capabilities(caller: Caller, notes: dict[str, Any]) -> None:
    """What a server says of itself; `told` may grow from release to release."""
    async with caller.connect() as client:
        ready = await settle(client.wait_until_ready(10))
        told = dataclasses.asdict(await settle(client.capabilities()))
        assert told.pop("instance_id") == ready.instance_id != ""
        notes["told"] = told


async def refusals(caller: Caller, notes: dict[str, Any]) -> None:
    """Each class of errors that a right client can meet while its server is well."""
    async with (
        caller.connect() as client,
        opened(client.create_batch(SEQUENCES, vocab_size=VOCAB, batch_id="errors")) as batch,
        opened(client.create_batch(SEQUENCES, vocab_size=VOCAB + 1, batch_id="errors-wide")) as wide,
    ):

        async def note(name: str, action: Any) -> None:
            notes[name] = await refused(action)

        def create(sequence: Sequence, count: int = 1, **options: Any) -> Any:
            return client.create_batch([sequence] * count, **{"vocab_size": VOCAB, "batch_id": "errors-new"} | options)

        stale = type(batch)(client, batch.info, batch.history)
        await settle(batch.accumulate(TOKENS))
        await note("revision", lambda: stale.accumulate(TOKENS))
        await note("token", lambda: batch.accumulate([0, VOCAB, 1]))
        await note("rollback", lambda: batch.accumulate([1, 2, 3], rollback=[99, 0, 0]))
        await note("unknown sequence", lambda: batch.filter(["nobody"]))
        await note("penalty", lambda: create(Sequence(penalties=Penalties(repetition_penalty=-1.0))))
        await note("profile", lambda: create(Sequence(penalties=Penalties(frequency_penalty=3.0)), profile="VLLM"))
        await note("taken", lambda: create(Sequence(), batch_id="errors"))
        await note("limit of rows", lambda: create(Sequence(), count=1000))
        await note("limit of state", lambda: create(Sequence(max_new_tokens=2_000_000_000)))
        await note("unknown batch", lambda: client.get_batch("never-was"))
        await note("unknown deletion", lambda: client.delete_batch("never-was"))
        await note("other life", lambda: client.get_batch("errors", uid=bytes(16)))
        await note("differ", lambda: batch.merge(wide))
        notes["state"] = [batch.revision, batch.has_unanswered_step, await settle(batch.apply(logits_of(1)))]


PENALTY_WALKS = [steps, shared, edits, membership, batches, capabilities, refusals]
