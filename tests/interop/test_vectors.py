"""The golden vectors are what a server answers today, and what they hold fits together."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from interop.make_vectors import VECTORS, Exchange, make_vectors, read_vectors, to_text
from interop.toy import BEAM_SCALE, PROMPTS, STEPS, VOCAB_SIZE, advance, logits_of, prompt_states, read_ints

from helpers.wire import METHODS
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SHAPE = (len(PROMPTS), VOCAB_SIZE)


@pytest.fixture(scope="module")
def scenarios() -> dict[str, list[Exchange]]:
    return {name: list(group) for name, group in groupby(read_vectors(), lambda exchange: exchange.scenario)}


def test_a_server_gives_the_golden_vectors_again(tmp_path: Path) -> None:
    made, kept = make_vectors(tmp_path), read_vectors()
    assert len(made) == len(kept)
    drifted = [f"{theirs.scenario}: {theirs.rpc}" for mine, theirs in zip(made, kept, strict=True) if mine != theirs]
    assert not drifted, "make_vectors.py writes the file anew"
    assert to_text(made) == VECTORS.read_text()


def test_every_rpc_and_every_form_is_there(scenarios: dict[str, list[Exchange]]) -> None:
    exchanges = [exchange for group in scenarios.values() for exchange in group]
    assert {exchange.rpc for exchange in exchanges} == set(METHODS)
    forms = {_request(exchange).form for exchange in exchanges if exchange.rpc == "Apply"}
    assert forms == set(types_pb2.ApplyForm.values())


def test_every_form_of_the_toy_decode_comes_to_the_same_logits(scenarios: dict[str, list[Exchange]]) -> None:
    dense, sparse, edits = (_applies(scenarios[name]) for name in ("dense", "sparse", "edits"))
    assert len(dense) == len(sparse) == len(edits) == STEPS
    for (request, reply), (_, patch), (_, recipe) in zip(dense, sparse, edits, strict=True):
        sent, processed = _array(request.logits), _array(reply.dense.logits)
        np.testing.assert_array_equal(_patched(sent, patch.sparse), processed, strict=True)
        profile = types_pb2.PENALTY_PROFILE_SGLANG
        np.testing.assert_array_equal(_edited(sent, recipe.edits, profile), processed, strict=True)


def test_the_toy_decode_loops_without_penalties_and_not_with_them(scenarios: dict[str, list[Exchange]]) -> None:
    replies = [_array(reply.dense.logits).argmax(axis=1) for _, reply in _applies(scenarios["dense"])]
    with_penalties, without = np.array(replies).T.tolist()
    assert len(set(with_penalties)) == STEPS
    assert set(without[1:]) == {12, 23}


@pytest.mark.parametrize("profile", ["sglang", "sglang_fused", "vllm", "hf"])
def test_the_formula_of_edits_gives_the_bits_of_dense(scenarios: dict[str, list[Exchange]], profile: str) -> None:
    exchanges = scenarios[f"profile_{profile}"]
    _, created = _pair(exchanges[0])
    (request, dense), (_, edits) = _applies(exchanges)
    edited = _edited(_array(request.logits), edits.edits, created.batch.profile)
    assert edited.tobytes() == dense.dense.logits.data


def test_no_tie_decides_the_toy_beams(scenarios: dict[str, list[Exchange]]) -> None:
    steps = [_pair(exchange) for exchange in scenarios["beams"] if exchange.rpc == "BeamStep"]
    for (_, before), (request, _) in pairwise(steps):
        sums = np.frombuffer(before.scores, "<f8")[:, None] + _log_probs(_array(request.logits))
        for first, stop in ((0, 4), (4, 6)):
            best = np.sort(sums[first:stop], axis=None)[::-1][: 2 * (stop - first) + 1]
            assert len(set(best.tolist())) == len(best)


def test_the_logits_of_the_toy_beams_follow_from_the_replies(scenarios: dict[str, list[Exchange]]) -> None:
    steps = [_pair(exchange) for exchange in scenarios["beams"] if exchange.rpc == "BeamStep"]
    assert {h.finish_reason for _, reply in steps for s in reply.searches for h in s.hypotheses} == {
        types_pb2.FINISH_REASON_EOS,
        types_pb2.FINISH_REASON_LENGTH,
    }
    states = prompt_states()
    for request, reply in steps:
        np.testing.assert_array_equal(_array(request.logits), logits_of(states, BEAM_SCALE))
        parents = [states[row] for row in read_ints(reply.parent_rows)]
        states = advance(parents, read_ints(reply.token_ids))


def _request(exchange: Exchange) -> Any:
    return getattr(service_pb2, f"{exchange.rpc}Request").FromString(exchange.request)


def _pair(exchange: Exchange) -> tuple[Any, Any]:
    return _request(exchange), getattr(service_pb2, f"{exchange.rpc}Response").FromString(exchange.reply)


def _applies(exchanges: list[Exchange]) -> list[tuple[Any, Any]]:
    return [_pair(exchange) for exchange in exchanges if exchange.rpc == "Apply"]


def _array(tensor: types_pb2.Tensor) -> NDArray[np.float32]:
    return np.frombuffer(tensor.data, "<f4").reshape(*tensor.shape)


def _log_probs(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    # logits: [R, V], so far apart that all of the probability is the best one's
    return logits - logits.max(axis=1, keepdims=True)


def _entries(splits: bytes) -> list[tuple[int, int]]:
    """The row and the number of each entry."""
    edges = read_ints(splits)
    return [(row, entry) for row in range(len(edges) - 1) for entry in range(edges[row], edges[row + 1])]


def _patched(logits: NDArray[np.float32], patch: service_pb2.SparsePatch) -> NDArray[np.float32]:
    result, ids, values = logits.copy(), read_ints(patch.token_ids), np.frombuffer(patch.values, "<f4")
    for row, entry in _entries(patch.row_splits):
        result[row, ids[entry]] = values[entry]
    return result


def _edited(logits: NDArray[np.float32], edits: service_pb2.Edits, profile: int) -> NDArray[np.float32]:
    """The formulas of the proto, an entry at a time."""
    result, ids, sums = logits.copy(), read_ints(edits.token_ids), np.frombuffer(edits.frequency_sums, "<f4")
    repetition, presence = np.frombuffer(edits.repetition, "<f4"), np.frombuffer(edits.presence, "<f4")
    for row, entry in _entries(edits.row_splits):
        place, flags = (row, ids[entry]), edits.flags[entry]
        if flags & 4:
            result[place] = -np.inf
        elif flags & 1:
            once = presence[row] * np.float32(flags >> 1 & 1)
            result[place] = _formula(profile, result[place], repetition[row], sums[entry], once)
    return result


def _formula(profile: int, logit: np.float32, r: np.float32, f: np.float32, p: np.float32) -> np.float32:
    if profile == types_pb2.PENALTY_PROFILE_SGLANG_FUSED:
        logit = logit + ((np.float32(0) - f) - p)
        return logit * r if logit < 0 else logit / r
    if profile == types_pb2.PENALTY_PROFILE_VLLM:
        return (logit * (np.float32(1) / r) if logit > 0 else logit * r) - f - p
    return (logit * r if logit < 0 else logit / r) - f - p
