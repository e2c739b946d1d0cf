"""The HF rule on a real model, through a running server, against the same model's own `generate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("transformers")

from helpers.client_search import SearchEnd
from helpers.parity_prompts import PROMPTS
from helpers.smollm2 import Decode, Divergence, Recording, Replay, Task, load_models
from logitd.client import Beam, Sequence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitd.client import Client
    from logitd.client.demo.llm import SmolModel, SmolSession

# Fetching and converting the model counts as the first test's.
pytestmark = pytest.mark.timeout(600)

MAX_NEW_TOKENS = 32


class Recorded(NamedTuple):
    """A prompt's run of `generate`."""

    task: Task
    recording: Recording


@pytest.fixture(scope="module")
def models() -> tuple[SmolModel, Any]:
    return load_models()


# Beams of the first end at different lengths, those of the second all at the greatest.
@pytest.fixture(scope="module", params=["capital", "baker"])
def recorded(request: pytest.FixtureRequest, models: tuple[SmolModel, Any]) -> Recorded:
    decoder, engine = models
    task = Task(tuple(decoder.encode(PROMPTS[request.param])), MAX_NEW_TOKENS)
    return Recorded(task, task.record(engine))


def check(end: SearchEnd, recording: Recording) -> None:
    """Assert the same beams in the same order, by the same way, in as many steps."""
    assert [h.token_ids.tolist() for h in end.hypotheses] == [beam.token_ids for beam in recording.beams]
    assert [h.parent_chain.tolist() for h in end.hypotheses] == [beam.parent_chain for beam in recording.beams]
    assert end.num_steps == recording.num_steps


def test_recorded_logits_give_the_same_bits(client: Client, models: tuple[SmolModel, Any], recorded: Recorded) -> None:
    task, recording = recorded
    end = task.search(client, models[1], "HF", Replay(recording.logits))
    check(end, recording)
    assert [np.float32(h.score) for h in end.hypotheses] == [beam.score for beam in recording.beams]


def search_live(
    client: Client, task: Task, eos_token_id: int, session: Decode | SmolSession, logits: NDArray[np.float32]
) -> SearchEnd:
    """Search with a decoder that keeps its cache in order by `parent_rows`; `logits` begin with the prompt's."""
    sequence = Sequence(task.prompt, None, task.max_new_tokens, [eos_token_id], beam=Beam(task.width))
    logits, num_steps = logits[:1], 1
    with client.create_beam_batch([sequence], vocab_size=logits.shape[1]) as batch:
        while not (step := batch.beam_step(logits)).is_done:
            logits = session.step(step.parent_rows.tolist(), step.token_ids.tolist())
            num_steps += 1
    return SearchEnd(step.searches[0].hypotheses, num_steps)


def test_cache_that_follows_parent_rows_gives_the_same_bits(
    client: Client, models: tuple[SmolModel, Any], recorded: Recorded
) -> None:
    (_, engine), (task, recording) = models, recorded
    session = Decode(engine)
    logits = session.start([task.prompt] * task.width)
    end = search_live(client, task, engine.config.eos_token_id, session, logits)
    check(end, recording)
    assert [np.float32(h.score) for h in end.hypotheses] == [beam.score for beam in recording.beams]


def test_demos_decoder_finds_the_same_beams(client: Client, models: tuple[SmolModel, Any], recorded: Recorded) -> None:
    """It computes the prompt once, in one row, and its logits differ from the engine's in their last bits."""
    (decoder, _), (task, recording) = models, recorded
    session = decoder.session()
    end = search_live(client, task, decoder.eos_token_id, session, session.start(task.prompt))
    check(end, recording)
    assert [h.score for h in end.hypotheses] == pytest.approx([beam.score for beam in recording.beams], rel=1e-5)


def test_history_that_was_not_recorded_is_a_divergence(
    client: Client, models: tuple[SmolModel, Any], recorded: Recorded
) -> None:
    task, recording = recorded
    longest = max(recording.logits, key=len)
    logits = {history: row for history, row in recording.logits.items() if history != longest}
    message = rf"a beam of {len(longest)} tokens was not recorded: rank \d, .* from the next candidate"
    with pytest.raises(Divergence, match=message):
        task.search(client, models[1], "HF", Replay(logits))
