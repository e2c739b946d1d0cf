"""The HF rule against Transformers' own `generate`, on a model that is a hash of the token sequence.

Three requests of one batch are compared with three calls of `generate`: the same sequences, order, score bits, parents
and number of steps.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from helpers.beam_stub import Decoder, StubModel
from logitd.sampling.beam import BeamParameters, BeamSearch, EarlyStopping, RequestStart
from logitd.sampling.orchestrator import PenaltyOrchestrator, RowStart
from logitd.sampling.parameters import PenaltyParameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitd.sampling.beam import Hypothesis

transformers = pytest.importorskip("transformers")

BATCH_SIZE = 3
NUM_CONFIGURATIONS = 1_200
PER_TEST = 60
# The engine's pool slots start at this score, and a candidate that did not end may move one by an ulp.
UNFILLED = -1e9 + 64
ENGINE_EARLY_STOPPING = {EarlyStopping.FALSE: False, EarlyStopping.TRUE: True, EarlyStopping.NEVER: "never"}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    # Waking a second thread costs more than these small tensors do, many times more on a busy machine.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class StubEngine(transformers.PreTrainedModel, transformers.GenerationMixin):
    """What `generate` asks of a model, over a `StubModel`."""

    config_class = transformers.PretrainedConfig
    main_input_name = "input_ids"
    _supports_cache_class = False

    def __init__(self, model: StubModel, dtype: torch.dtype) -> None:
        super().__init__(transformers.PretrainedConfig(vocab_size=model.vocab_size))
        self.anchor = torch.nn.Parameter(torch.zeros(1))
        self.model = model
        self.logits_dtype = dtype
        self.num_steps = 0

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, attention_mask: Any = None, **_: Any
    ) -> dict[str, torch.Tensor]:
        return {"input_ids": input_ids}

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        self.num_steps += 1
        logits = self.model.rows(input_ids.tolist()).to(self.logits_dtype)
        return transformers.modeling_outputs.CausalLMOutput(logits=logits[:, None, :])


@dataclass(frozen=True)
class Configuration:
    """One request and its model."""

    model: StubModel
    prompt: tuple[int, ...]
    beam: BeamParameters
    penalties: PenaltyParameters

    @property
    def pad_token_id(self) -> int | None:
        return self.model.seed % 2 or None


def draw(rng: random.Random, vocab_size: int) -> Configuration:
    """A random request; every axis has its edge values."""
    num_eos = rng.randint(0, min(3, vocab_size - 1))
    eos = tuple(rng.randrange(vocab_size) for _ in range(num_eos))
    width, max_new_tokens = rng.randint(2, 8), rng.choice([1, 2, *range(3, 13)])
    model = StubModel(
        seed=rng.randrange(2**31),
        vocab_size=vocab_size,
        scale=rng.choice([0.5, 2.0, 6.0]),
        step=rng.choice([0.0, 0.0, 0.25, 1.0]),
        banned=rng.choice([0.0, 0.0, 0.3, 0.9]),
        eos_token_ids=eos,
        eos_bias=rng.choice([0.0, 2.0, 5.0]),
    )
    beam = BeamParameters(
        width=width,
        max_new_tokens=max_new_tokens,
        length_penalty=rng.choice([-1.0, 0.0, 1.0, 2.0, rng.uniform(-1, 2)]),
        early_stopping=rng.choice(list(EarlyStopping)),
        eos_token_ids=eos,
        num_return_sequences=rng.randint(1, width),
        return_token_log_probs=True,
    )
    penalties = PenaltyParameters(
        repetition_penalty=rng.choice([1.0, 1.0, 1.3, 0.7, rng.uniform(0.5, 2)]),
        min_new_tokens=rng.choice([0, 0, rng.randint(0, max_new_tokens)]),
        stop_token_ids=eos,
    )
    prompt = tuple(rng.randrange(vocab_size) for _ in range(rng.randint(1, 6)))
    return Configuration(model, prompt, beam, penalties)


def generate(configuration: Configuration, dtype: torch.dtype) -> tuple[Any, int]:
    """What the engine returns, and how often it called the model."""
    engine, beam, penalties = StubEngine(configuration.model, dtype), configuration.beam, configuration.penalties
    output = engine.generate(
        torch.tensor([configuration.prompt]),
        attention_mask=torch.ones(1, len(configuration.prompt), dtype=torch.long),
        generation_config=transformers.GenerationConfig(
            num_beams=beam.width,
            max_new_tokens=beam.max_new_tokens,
            length_penalty=beam.length_penalty,
            early_stopping=ENGINE_EARLY_STOPPING[beam.early_stopping],
            eos_token_id=list(beam.eos_token_ids) or None,
            pad_token_id=configuration.pad_token_id,
            num_return_sequences=beam.max_hypotheses,
            repetition_penalty=penalties.repetition_penalty,
            min_new_tokens=penalties.min_new_tokens or None,
            use_cache=False,
            return_dict_in_generate=True,
            output_scores=True,
        ),
    )
    return output, engine.num_steps


def search(configurations: list[Configuration], dtype: torch.dtype) -> Decoder:
    """The same requests in one batch, whose logits have padding columns."""
    vocab_size = configurations[0].model.vocab_size
    rows = [RowStart(c.penalties, c.prompt) for c in configurations]
    started = BeamSearch.start(
        "HF",
        vocab_size,
        [RequestStart(c.beam) for c in configurations],
        PenaltyOrchestrator.create("HF", vocab_size, rows),
    )
    return Decoder(
        started, [c.model for c in configurations], [c.prompt for c in configurations], dtype=dtype, padding=3
    ).run()


def compare(configuration: Configuration, hypotheses: tuple[Hypothesis, ...], output: Any) -> None:
    """Assert that both found the same.

    The engine also returns pool slots that nothing finished filled, at -1e9; the library never does.
    """
    start, ours = len(configuration.prompt), list(hypotheses)
    chains = output.beam_indices.numpy()
    scores = output.sequences_scores.numpy()
    for chain, tokens, score in zip(chains, output.sequences.numpy(), scores, strict=True):
        length = int((chain >= 0).sum())
        theirs = tokens[start : start + length].tolist()
        if score <= UNFILLED and not (ours and ours[0].token_ids.tolist() == theirs and ours[0].score == score):
            continue
        mine = ours.pop(0)
        assert mine.token_ids.tolist() == theirs
        assert np.float32(mine.score) == score
        assert mine.parent_chain.tolist()[1:] == chain[1:length].tolist()
    assert not ours


@pytest.mark.parametrize("seed", range(NUM_CONFIGURATIONS // PER_TEST))
def test_every_beam_is_the_engines(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([5, 6, 8, 17, 64, 300, rng.randint(5, 300)]) for _ in range(PER_TEST // BATCH_SIZE)]
    check(rng, sizes)


def test_every_beam_is_the_engines_where_candidates_are_found_by_blocks() -> None:
    check(random.Random(0), [8192, 8193, 9000, 8300] * 5)


def check(rng: random.Random, vocab_sizes: list[int]) -> None:
    for vocab_size in vocab_sizes:
        configurations = [draw(rng, vocab_size) for _ in range(BATCH_SIZE)]
        dtype = rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
        decoder = search(configurations, dtype)
        for number, configuration in enumerate(configurations):
            output, num_steps = generate(configuration, dtype)
            compare(configuration, decoder.results[number].hypotheses, output)
            assert decoder.num_steps[number] == num_steps
