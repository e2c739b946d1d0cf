"""What a client does when its server dies, comes back, or does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compat.caller import opened, refused, settle
from compat.walks_beams import Decoder, options_of, searches_of
from compat.walks_penalties import COLUMNS, SEQUENCES, TOKENS, VOCAB, logits_of

from logitd.client import Client, EditTable, StepTimeoutError

if TYPE_CHECKING:
    from compat.caller import Caller

STEP_TIMEOUT = 2.0
_MOST_RETRIES = 15


async def undisturbed(caller: Caller, notes: dict[str, Any]) -> None:
    """Decoders of every kind side by side."""
    await _decode(caller, notes, restart_at=None)


async def restarted(caller: Caller, notes: dict[str, Any]) -> None:
    """The same while the server dies: nothing shows."""
    await _decode(caller, notes, restart_at=2)


async def _decode(caller: Caller, notes: dict[str, Any], restart_at: int | None) -> None:
    searches = searches_of("HF")
    async with (
        caller.connect() as client,
        opened(client.create_batch(SEQUENCES, vocab_size=VOCAB, batch_id="decode")) as batch,
        opened(client.create_batch(SEQUENCES, vocab_size=VOCAB, batch_id="decode-edits")) as edited,
        opened(client.create_batch(SEQUENCES, vocab_size=VOCAB, batch_id="decode-shared")) as sharing,
        opened(client.create_beam_batch(searches, **options_of("HF", "decode-beams"))) as beams,
        opened(client.shared_logits(3, COLUMNS)) as memory,
    ):
        table, decoder = EditTable(), Decoder(searches)
        await settle(batch.accumulate(TOKENS))
        for step in range(4):

            def fill(step: int = step) -> None:
                memory.array[...] = logits_of(step)

            fill()
            if step == restart_at:
                caller.ask("restart")
            token_ids = [step, step + 1, 6]
            found = notes[str(step)] = [await settle(batch.apply(logits_of(step), token_ids))]
            table.update(await settle(edited.edits(token_ids, since=table.revision)))
            await settle(sharing.apply_inplace(memory, token_ids, refill=fill))
            found += [table.full().frequency_sums, table.full().flags, memory.array.copy()]
            found.append(await decoder.step(beams))
        notes["state"] = [batch.revision, batch.sequences, beams.revision, beams.sequences]


async def retries(caller: Caller, notes: dict[str, Any]) -> None:
    """Steps that were not answered in time are retried, and counted once."""
    searches = searches_of("HF")
    async with (
        caller.connect(recover=False, step_timeout=STEP_TIMEOUT) as client,
        opened(client.create_batch(SEQUENCES, vocab_size=VOCAB, batch_id="retries")) as batch,
        opened(client.create_beam_batch(searches, **options_of("HF", "retries-beams"))) as beams,
    ):
        await settle(batch.accumulate(TOKENS))
        decoder = Decoder(searches)
        await decoder.step(beams)
        caller.ask("pause")
        notes["timeout"] = await refused(lambda: batch.apply(logits_of(1), [6, 7, 8]))
        notes["beam timeout"] = await refused(lambda: beams.beam_step(decoder.logits()))
        notes["unanswered"] = [batch.has_unanswered_step, beams.has_unanswered_step]
        caller.ask("go_on")
        notes["retried"] = [await _retried(batch), batch.revision, batch.sequences]
        notes["beam retried"] = [await _retried(beams), beams.revision]


async def _retried(batch: Any) -> Any:
    for _ in range(_MOST_RETRIES):
        try:
            return await settle(batch.retry())
        except StepTimeoutError:
            continue
    raise AssertionError("no retry was answered")


async def forgotten(caller: Caller, notes: dict[str, Any]) -> None:
    """Without recovery the client is told of a server that died, and of what the next one does not know."""
    async with caller.connect(recover=False) as client:
        batch = await settle(client.create_batch(SEQUENCES, vocab_size=VOCAB, batch_id="forgotten"))
        await settle(batch.accumulate(TOKENS))
        async with opened(client.shared_logits(3, COLUMNS)) as memory:
            memory.array[...] = logits_of(1)
            caller.ask("kill")
            died = await refused(lambda: batch.accumulate([1, 2, 3]))
            # What the transport says of a broken connection depends on the moment.
            notes["died"] = died["kinds"]
            caller.ask("start")
            await settle(client.wait_until_ready(30))
            notes["retry"] = await refused(batch.retry)
            notes["kept"] = batch.sequences
            async with opened(client.create_batch(batch.sequences, vocab_size=VOCAB, batch_id="forgotten")) as rebuilt:
                notes["rebuilt"] = await settle(rebuilt.apply(logits_of(1), [1, 2, 3]))
                notes["registered again"] = await settle(rebuilt.apply_shared(memory))
        with Client("unix:/nonexistent/socket") as lost:
            notes["no server"] = (await refused(lost.capabilities))["kinds"]
            notes["no server in time"] = (await refused(lambda: lost.wait_until_ready(0.2)))["kinds"]


FAULT_WALKS = [undisturbed, restarted, retries, forgotten]
