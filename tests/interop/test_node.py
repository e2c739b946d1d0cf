"""The Node sample, llama.cpp with a real model: what it got is what the Python client and the library get."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from interop.conversations import reply_of, request_of
from interop.recorder import Recording, recording
from interop.replay import (
    array_of,
    assert_client_finds_the_same_beams,
    assert_client_gets_the_same,
    assert_library_finds_the_same_beams,
    tokens_of,
)
from interop.toolchains import REPOSITORY, ROOT, needs, run
from interop.toy import read_ints

from logitd.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interop.make_vectors import Exchange

    from helpers.live_server import LiveServer

pytestmark = pytest.mark.timeout(900)

NODE = ROOT / "node"
MODEL = REPOSITORY / "build" / "interop" / "SmolLM2-135M-Instruct.Q4_1.gguf"
NUM_TOKENS = 64
NUM_BEAMS = 4


@pytest.fixture(scope="module")
def installed() -> None:
    needs("node", files=(NODE / "node_modules",))


@pytest.fixture(scope="module")
def decoded(
    installed: None, server: LiveServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Recording, list[str]]]:
    """One run of the sample: what it said to the server, and what it printed."""
    needs("node", files=(MODEL,))
    with recording(server.address, tmp_path_factory.mktemp("recorder")) as spoken:
        lines = run("node", str(NODE / "decoder.js"), spoken.target, str(MODEL)).splitlines()
        yield spoken, lines


@pytest.fixture(scope="module")
def batches(decoded: tuple[Recording, list[str]]) -> list[list[Exchange]]:
    """Without penalties, then with them dense, sparse and as edits, then the beams."""
    return decoded[0].batches()


@pytest.fixture(scope="module")
def client(server: LiveServer) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


@pytest.mark.usefixtures("installed")
def test_the_golden_vectors_hold_without_a_server() -> None:
    assert "# fail 0" in run("node", "--test", "--test-reporter=tap", cwd=NODE)


def test_each_decode_has_its_steps(batches: list[list[Exchange]]) -> None:
    rpcs = [[exchange.rpc for exchange in batch] for batch in batches]
    assert rpcs[:-1] == [["CreateBatch", *["Apply"] * NUM_TOKENS, "DeleteBatch"]] * 4
    assert rpcs[-1][1:-1] == ["BeamStep"] * NUM_TOKENS
    forms = [{reply_of(e).WhichOneof("result") for e in batch[1:-1]} for batch in batches[:-1]]
    assert forms == [{"dense"}, {"dense"}, {"sparse"}, {"edits"}]


def test_the_text_loops_without_penalties_and_not_with_them(batches: list[list[Exchange]]) -> None:
    shares = [_repeated_share(tokens_of(batch)) for batch in batches[:-1]]
    assert shares[0] > 0.5
    assert max(shares[1:]) < 0.1


def test_all_forms_decode_the_same(decoded: tuple[Recording, list[str]], batches: list[list[Exchange]]) -> None:
    dense, sparse, edits = (tokens_of(batch) for batch in batches[1:4])
    assert dense == sparse == edits
    texts = [line.partition(": ")[2] for line in decoded[1]]
    assert texts[1] == texts[2] == texts[3] != texts[0]


@pytest.mark.parametrize(("place", "logits_from"), [(0, 0), (1, 1), (2, 2), (3, 2)])
def test_the_python_client_gets_the_same_replies(
    client: Client, batches: list[list[Exchange]], place: int, logits_from: int
) -> None:
    # Logits that stay with the decoder are those of the decode that sent them: its tokens are the same.
    logits = [array_of(request_of(e).logits) for e in batches[logits_from] if e.rpc == "Apply"]
    assert_client_gets_the_same(client, batches[place], logits)


def test_the_python_client_finds_the_same_beams(client: Client, batches: list[list[Exchange]]) -> None:
    assert_client_finds_the_same_beams(client, batches[-1])


def test_the_library_finds_the_same_beams(decoded: tuple[Recording, list[str]], batches: list[list[Exchange]]) -> None:
    assert_library_finds_the_same_beams(batches[-1])
    assert sum(line.startswith("beam ") for line in decoded[1]) == NUM_BEAMS


def test_the_caches_followed_the_beams(batches: list[list[Exchange]]) -> None:
    """One pass from a fresh cache gives the score of a finished beam: every row continued its own parent."""
    steps = [reply_of(exchange) for exchange in batches[-1] if exchange.rpc == "BeamStep"]
    assert any(read_ints(step.parent_rows) != list(range(NUM_BEAMS)) for step in steps[1:-1])
    best, *_, worst = steps[-1].searches[0].hypotheses
    prompt = read_ints(request_of(batches[-1][0]).sequences[0].prompt_token_ids)
    task = {"prompt": prompt, "outputs": [read_ints(hypothesis.token_ids) for hypothesis in (best, worst)]}
    scores = json.loads(run("node", str(NODE / "rescore.js"), str(MODEL), stdin=json.dumps(task)))
    assert scores == pytest.approx([best.score, worst.score], abs=0.01)


def _repeated_share(token_ids: list[int]) -> float:
    """The share of 3-grams that were there before."""
    grams = list(zip(token_ids, token_ids[1:], token_ids[2:], strict=False))
    return 1 - len(set(grams)) / len(grams)
