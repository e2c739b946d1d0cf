"""Steps with drafts whose replies, batches and servers are lost: their results are those of an undisturbed step."""

from __future__ import annotations

import threading

import grpc
import pytest

from helpers.client_drafts import CHAINS, CHUNKS, FORMS, PENALISED, VOCAB, logits_of, process
from logitd.client import EditTable, RefillNeededError
from logitd.v1 import service_pb2


@pytest.mark.parametrize("lost", [1, 2, 4])
@pytest.mark.parametrize("form", ["apply", "apply_sparse", "edits"])
def test_a_lost_reply_is_asked_for_again(lossy, connect, run, form, lost):
    """The first message commits, the others, of which there are three more where they carry logits, only read."""
    token_ids, logits = [[2], [], [4, 4]], logits_of(CHAINS.num_positions)

    async def scenario():
        async with connect(lossy.target, chunk_bytes=CHUNKS[1] if form != "edits" else 60) as client:
            async with await client.create_batch(PENALISED, vocab_size=VOCAB) as batch:
                expected = await batch.apply(logits, token_ids, drafts=CHAINS)
            async with await client.create_batch(PENALISED, vocab_size=VOCAB) as batch:
                lossy.drop_in = lost
                processed = await process(client, batch, form, logits, token_ids, CHAINS)
                assert processed.tobytes() == expected.tobytes()
                assert batch.revision == 1
                info = await client.get_batch(batch.batch_id, full=True)
                assert [list(s.output_token_ids) for s in info.sequences] == [[1, 1, 2], [], [9, 4, 4]]

    run(scenario)


def restart(server):
    """Kills a server and starts it again meanwhile."""
    server.kill()
    starting = threading.Thread(target=server.start)
    starting.start()
    return starting


def test_a_server_that_dies_is_not_noticed(own_server, connect, run):
    token_ids, logits = [[2], [], [4, 4]], logits_of(CHAINS.num_positions)

    async def scenario():
        async with connect(own_server.target, chunk_bytes=CHUNKS[1]) as client:
            batches = [await client.create_batch(PENALISED, vocab_size=VOCAB) for _ in FORMS]
            for batch in batches:
                await batch.accumulate([[1, 2], [3], []])
            async with await client.create_batch(PENALISED, vocab_size=VOCAB) as batch:
                await batch.accumulate([[1, 2], [3], []])
                expected = await batch.apply(logits, token_ids, drafts=CHAINS)
            starting = restart(own_server)
            for form, batch in zip(FORMS, batches, strict=True):
                processed = await process(client, batch, form, logits, token_ids, CHAINS)
                assert processed.tobytes() == expected.tobytes(), form
                assert batch.revision == 2
                info = await client.get_batch(batch.batch_id, full=True)
                assert [list(s.output_token_ids) for s in info.sequences] == [[1, 1, 1, 2, 2], [3], [9, 4, 4]]
                await batch.delete()
            starting.join()

    run(scenario)


def forget_after(lossy, message, batch_id):
    """Lets the server lose a batch once it has answered a message, from 0 on, of the steps that apply."""
    deletion = service_pb2.DeleteBatchRequest(batch_id=batch_id).SerializeToString()
    script = lossy.script["Apply"]

    def forwarding(number, answer):
        def forward(request, context):
            try:
                reply = answer(request, context)
            except grpc.RpcError as error:
                context.set_trailing_metadata(error.trailing_metadata())
                context.abort(error.code(), error.details())
            if number == message:
                lossy.script["DeleteBatch"].pop(0)(deletion, context)
            return reply

        return forward

    script[:] = [forwarding(number, answer) for number, answer in enumerate(script)]


@pytest.mark.parametrize("message", [0, 1])
@pytest.mark.parametrize("form", ["apply", "apply_sparse", "edits"])
def test_a_batch_that_is_lost_between_the_messages_of_a_step_is_rebuilt(lossy, connect, run, form, message):
    """What the first message committed is in the history from which the others get their batch."""
    token_ids, logits = [[2], [], [4, 4]], logits_of(CHAINS.num_positions)

    async def scenario():
        async with connect(lossy.target, chunk_bytes=CHUNKS[1] if form != "edits" else 60) as client:
            async with await client.create_batch(PENALISED, vocab_size=VOCAB) as batch:
                await batch.accumulate([[1], [], []])
                expected = await batch.apply(logits, token_ids, drafts=CHAINS)
            async with await client.create_batch(PENALISED, vocab_size=VOCAB) as batch:
                before = batch.uid
                await batch.accumulate([[1], [], []])
                forget_after(lossy, message, batch.batch_id)
                processed = await process(client, batch, form, logits, token_ids, CHAINS)
                assert processed.tobytes() == expected.tobytes()
                assert (batch.revision, batch.uid != before) == (2, True)
                info = await client.get_batch(batch.batch_id, full=True)
                assert [list(s.output_token_ids) for s in info.sequences] == [[1, 1, 1, 2], [], [9, 4, 4]]

    run(scenario)


def test_a_table_goes_on_after_a_restart(own_server, connect, run):
    logits = logits_of(CHAINS.num_positions)

    async def scenario():
        async with (
            connect(own_server.target) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
        ):
            table, token_ids = EditTable(), None
            for step in range(5):
                if step == 3:  # the rebuilt batch has no difference to give since before this
                    await batch.accumulate([[9], [9], []])
                starting = restart(own_server) if step in (2, 3) else None
                edits = await batch.edits(token_ids, since=table.revision, drafts=CHAINS)
                if starting is not None:
                    starting.join()
                assert edits.is_full == (step in (0, 3))
                edited = logits.copy()
                table.at_positions(edits).apply_to_inplace(edited)
                assert edited.tobytes() == (await batch.apply(logits, drafts=CHAINS)).tobytes()
                table.update(edits)
                token_ids = [[3, 3], [], [6]]

    run(scenario)


def test_without_a_refill_a_lost_step_in_place_is_the_callers(own_server, connect, run):
    logits = logits_of(CHAINS.num_positions)

    async def scenario():
        async with (
            connect(own_server.target) as client,
            await client.create_batch(PENALISED, vocab_size=VOCAB) as batch,
            await client.shared_logits(*logits.shape) as shared,
        ):
            starting = restart(own_server)
            with pytest.raises(RefillNeededError):
                await batch.apply_inplace(shared, [1, 2, 3], drafts=CHAINS)
            shared.array[...] = logits
            await batch.retry(refilled=True)
            starting.join()
            assert shared.array.tobytes() == (await batch.apply(logits, drafts=CHAINS)).tobytes()
            assert batch.revision == 1

    run(scenario)
