"""What a sample said and got, said again by the Python client, and its beams found again by the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from interop.conversations import reply_of, request_of
from interop.toy import read_ints

from logitd.client import Beam, Client, Penalties, Sequence
from logitd.sampling.beam import BeamParameters, BeamSearch, RequestStart

if TYPE_CHECKING:
    from interop.make_vectors import Exchange
    from numpy.typing import NDArray

    from logitd.client import PenaltyBatch
    from logitd.v1 import types_pb2

_PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty", "min_new_tokens")


def array_of(tensor: types_pb2.Tensor) -> NDArray[np.float32]:
    """Float32 [R, V]."""
    return np.frombuffer(tensor.data, "<f4").reshape(tuple(tensor.shape))


def tokens_of(batch: list[Exchange]) -> list[int]:
    """The token ids that a decode of one sequence sent: all but the last."""
    requests = [request_of(exchange) for exchange in batch if exchange.rpc == "Apply"]
    return [token_id for request in requests for token_id in read_ints(request.tokens.token_ids)]


def assert_client_gets_the_same(client: Client, batch: list[Exchange], logits: list[NDArray[np.float32]]) -> None:
    """A decode in one form, step by step; `logits` are each step's, [1, V]."""
    creation = request_of(batch[0])
    steps = [(request_of(exchange), reply_of(exchange)) for exchange in batch if exchange.rpc == "Apply"]
    with client.create_batch(_sequences(creation), vocab_size=creation.vocab_size) as again:
        for (request, reply), step_logits in zip(steps, logits, strict=True):
            _assert_same_step(again, request, reply, step_logits)


def _assert_same_step(again: PenaltyBatch, request: Any, reply: Any, logits: NDArray[np.float32]) -> None:
    token_ids = read_ints(request.tokens.token_ids) or None
    match reply.WhichOneof("result"):
        case "dense":
            assert again.apply(logits, token_ids=token_ids).tobytes() == reply.dense.logits.data
        case "sparse":
            patch = again.apply_sparse(logits, token_ids=token_ids)
            for name in ("row_splits", "token_ids", "values"):
                assert getattr(patch, name).tobytes() == getattr(reply.sparse, name)
        case "edits":
            edits = again.edits(token_ids)
            for name in ("row_splits", "token_ids", "repetition", "presence", "frequency_sums", "flags"):
                assert getattr(edits, name).tobytes() == getattr(reply.edits, name)
    assert again.revision == reply.revision


def assert_client_finds_the_same_beams(client: Client, batch: list[Exchange]) -> None:
    creation = request_of(batch[0])
    with client.create_beam_batch(_sequences(creation), vocab_size=creation.vocab_size) as again:
        for request, reply in _beam_steps(batch):
            step = again.beam_step(array_of(request.logits))
            for name in ("parent_rows", "token_ids", "scores"):
                assert getattr(step, name).tobytes() == getattr(reply, name)
            for mine, theirs in zip(step.searches, reply.searches, strict=True):
                assert mine.checkpoint == theirs.checkpoint
                _assert_same_hypotheses(mine.hypotheses, theirs.hypotheses)


def assert_library_finds_the_same_beams(batch: list[Exchange]) -> None:
    """By the HF rule, without a server."""
    creation = request_of(batch[0])
    (sequence,) = creation.sequences
    parameters = BeamParameters(
        width=sequence.beam.width,
        max_new_tokens=sequence.max_new_tokens,
        eos_token_ids=tuple(sequence.eos_token_ids),
    )
    search = BeamSearch.start("HF", creation.vocab_size, [RequestStart(parameters)])
    for request, reply in _beam_steps(batch):
        search, step = search.step(torch.from_numpy(array_of(request.logits).copy()))
        assert list(step.parent_rows) == read_ints(reply.parent_rows)
        assert list(step.token_ids) == read_ints(reply.token_ids)
        assert list(step.scores) == np.frombuffer(reply.scores, "<f8").tolist()
        _assert_same_hypotheses(step.requests[0].hypotheses, reply.searches[0].hypotheses)
    assert reply.searches[0].is_done


def _beam_steps(batch: list[Exchange]) -> list[tuple[Any, Any]]:
    return [(request_of(exchange), reply_of(exchange)) for exchange in batch if exchange.rpc == "BeamStep"]


def _assert_same_hypotheses(mine: Any, theirs: Any) -> None:
    for one, other in zip(mine, theirs, strict=True):
        assert list(one.token_ids) == read_ints(other.token_ids)
        assert (one.score, one.running_sum) == (other.score, other.running_sum)


def _sequences(creation: Any) -> list[Sequence]:
    return [_sequence(message) for message in creation.sequences]


def _sequence(message: types_pb2.Sequence) -> Sequence:
    set_penalties = [name for name in _PENALTIES if message.penalties.HasField(name)]
    return Sequence(
        prompt_token_ids=read_ints(message.prompt_token_ids),
        penalties=Penalties(**{name: getattr(message.penalties, name) for name in set_penalties}),
        max_new_tokens=message.max_new_tokens,
        eos_token_ids=list(message.eos_token_ids),
        beam=Beam(message.beam.width) if message.HasField("beam") else None,
        sequence_id=message.sequence_id,
    )
