"""What a client does with beam batches. Their logits are a hash of the row, so that a wrong beam shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from compat.caller import opened, plain, refused, settle
from compat.walks_penalties import described

from logitd.client import Beam, Penalties, Sequence

if TYPE_CHECKING:
    from compat.caller import Caller

VOCAB = 20
EOS = 0
RULES = {"HF": "NEVER", "VLLM": None, "VLLM_PROMPT_LENGTH": None}


def searches_of(rule: str) -> list[Sequence]:
    """Three searches, one of them with penalties, of different widths and lengths."""
    wide = Beam(4, length_penalty=0.7, early_stopping=RULES[rule], return_token_log_probs=True)
    return [
        Sequence([1, 2], Penalties(1.5), 6, [EOS], beam=Beam(3, num_return_sequences=2), sequence_id="a"),
        Sequence([3, 3, 3], None, 8, [EOS], beam=wide, sequence_id="b"),
        Sequence([4], None, 9, [EOS], beam=Beam(2), sequence_id="c"),
    ]


def options_of(rule: str, batch_id: str) -> dict[str, Any]:
    return {"vocab_size": VOCAB, "beam_rule": rule, "allow_penalty_extension": rule != "HF", "batch_id": batch_id}


class Decoder:
    """Follows the rows of a batch from their prompts."""

    def __init__(self, searches: list[Sequence]) -> None:
        self.rows = [tuple(search.prompt_token_ids) for search in searches]

    def follow(self, parent_rows: Any, token_ids: Any) -> None:
        pairs = zip(parent_rows, token_ids, strict=True)
        self.rows = [(*self.rows[parent], int(token_id)) for parent, token_id in pairs]

    def logits(self) -> Any:
        logits = np.stack([np.random.default_rng(row).normal(0, 2, VOCAB).astype(np.float32) for row in self.rows])
        logits[:, EOS] += 1
        return logits

    def __call__(self, parent_rows: Any, token_ids: Any) -> Any:
        if parent_rows is not None:
            self.follow(parent_rows, token_ids)
        return self.logits()

    async def step(self, batch: Any, **options: Any) -> Any:
        step = await settle(batch.beam_step(self.logits(), **options))
        self.follow(step.parent_rows, step.token_ids)
        return step


async def beam_steps(caller: Caller, notes: dict[str, Any]) -> None:
    """Every step of each rule to the end, one search finished early; whole and in chunks of a row."""
    for rule in RULES:
        async with caller.connect() as client, caller.connect(chunk_bytes=VOCAB * 4) as chunking:
            notes[rule] = await _finish(client, rule)
            assert plain(await _finish(chunking, rule)) == plain(notes[rule])


async def _finish(client: Any, rule: str) -> list[Any]:
    searches, found = searches_of(rule), []
    async with opened(client.create_beam_batch(searches, **options_of(rule, "beams"))) as batch:
        decoder = Decoder(searches)
        while batch.rows:
            found.append(await decoder.step(batch, finish=["c"] if len(found) == 3 else []))
        return [*found, batch.revision, described(batch.info)]


async def beam_searches(caller: Caller, notes: dict[str, Any]) -> None:
    """Whole searches, with logits sent and in shared memory."""
    for rule in RULES:
        searches = searches_of(rule)
        async with caller.connect() as client:
            async with opened(client.create_beam_batch(searches, **options_of(rule, "search"))) as batch:
                notes[rule] = await settle(batch.search(caller.callback(Decoder(searches))))
            async with (
                opened(client.create_beam_batch(searches, **options_of(rule, "search"))) as batch,
                opened(client.shared_logits(9, VOCAB)) as memory,
            ):
                results = await settle(batch.search(caller.callback(_into(memory, Decoder(searches)))))
                assert plain(results) == plain(notes[rule])


def _into(memory: Any, decoder: Decoder) -> Any:
    def fill(parent_rows: Any, token_ids: Any) -> Any:
        logits = decoder(parent_rows, token_ids)
        memory.array[: len(logits)] = logits
        return memory

    return fill


async def beam_rebuilds(caller: Caller, notes: dict[str, Any]) -> None:
    """A search under way goes on from its full view, and from what the client keeps."""
    for rule in RULES:
        searches, creation = searches_of(rule), options_of(rule, "rebuild")
        async with caller.connect() as client:
            async with opened(client.create_beam_batch(searches, **creation)) as batch:
                decoder = Decoder(searches)
                for _ in range(3):
                    await decoder.step(batch)
                view = await settle(client.get_batch("rebuild", full=True))
                kept = batch.sequences
            notes[rule] = [described(view), kept]
            logits = decoder.logits()
            for sequences in (view.sequences, kept):
                async with opened(client.create_beam_batch(sequences, **creation)) as rebuilt:
                    notes[rule].append(await settle(rebuilt.beam_step(logits)))


async def beam_membership(caller: Caller, notes: dict[str, Any]) -> None:
    """Searches are filtered and merged with their beams."""
    first, second, third = searches_of("HF")
    async with (
        caller.connect(route="one") as client,
        opened(client.create_beam_batch([first, second], **options_of("HF", "beams-target"))) as batch,
    ):
        other = await settle(client.create_beam_batch([third], **options_of("HF", "beams-source")))
        decoder, other_decoder = Decoder([first, second]), Decoder([third])
        await decoder.step(batch)
        await other_decoder.step(other)
        notes["filtered"] = await settle(batch.filter(["b", ("b", "fork")]))
        notes["merged"] = await settle(batch.merge(other))
        decoder.rows = [*decoder.rows[3:], *decoder.rows[3:], *other_decoder.rows]
        notes["steps"] = [await decoder.step(batch) for _ in range(2)]
        notes["sequences"] = batch.sequences


async def beam_refusals(caller: Caller, notes: dict[str, Any]) -> None:
    """Errors that only beams know."""
    searches = searches_of("HF")
    async with (
        caller.connect() as client,
        opened(client.create_beam_batch(searches, **options_of("HF", "beams"))) as batch,
        opened(client.create_batch([Sequence()] * 3, vocab_size=VOCAB, batch_id="plain")) as other,
    ):
        wrong = type(other)(client, batch.info, other.history)
        broken = np.full((3, VOCAB), np.nan, np.float32)
        notes["kind"] = await refused(lambda: wrong.accumulate([1, 2, 3]))
        notes["not a number"] = await refused(lambda: batch.beam_step(broken))
        notes["nobody"] = await refused(lambda: batch.beam_step(Decoder(searches).logits(), finish=["nobody"]))
        narrow = [Sequence(beam=Beam(1), max_new_tokens=3)]
        notes["width"] = await refused(lambda: client.create_beam_batch(narrow, **options_of("HF", "narrow")))
        extension = options_of("VLLM", "extension") | {"allow_penalty_extension": False}
        notes["extension"] = await refused(lambda: client.create_beam_batch(searches_of("VLLM"), **extension))
        notes["revision"] = batch.revision


BEAM_WALKS = [beam_steps, beam_searches, beam_rebuilds, beam_membership, beam_refusals]
