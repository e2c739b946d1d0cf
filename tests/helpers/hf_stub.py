"""Random requests for Transformers' own `generate` and for the HF rule, on a model that is a hash of the sequence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from helpers.beam_stub import StubModel
from helpers.generated import GeneratedBeam, beams_of
from logitd.sampling.beam import BeamParameters, EarlyStopping
from logitd.sampling.parameters import PenaltyParameters

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

_EARLY_STOPPING = {EarlyStopping.FALSE: False, EarlyStopping.TRUE: True, EarlyStopping.NEVER: "never"}


class StubEngine(PreTrainedModel, GenerationMixin):
    """What `generate` asks of a model, over a `StubModel`."""

    config_class = PretrainedConfig
    main_input_name = "input_ids"
    _supports_cache_class = False

    def __init__(self, model: StubModel, dtype: torch.dtype) -> None:
        super().__init__(PretrainedConfig(vocab_size=model.vocab_size))
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
        return CausalLMOutput(logits=logits[:, None, :])


class Generated(NamedTuple):
    """The beams of one request, best first, and how often the engine called the model."""

    beams: list[GeneratedBeam]
    num_steps: int


@dataclass(frozen=True)
class HfRequest:
    """One request and its model."""

    model: StubModel
    prompt: tuple[int, ...]
    beam: BeamParameters
    penalties: PenaltyParameters

    @classmethod
    def draw(cls, rng: random.Random, vocab_size: int) -> HfRequest:
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
        return cls(model, prompt, beam, penalties)

    def without_ties(self) -> HfRequest:
        """The same but for its logits, of which no two are equal and none is -inf."""
        return replace(self, model=replace(self.model, step=0.0, banned=0.0))

    def with_other_prompt(self, rng: random.Random) -> HfRequest:
        """The same but for a prompt as long."""
        return replace(self, prompt=tuple(rng.randrange(self.model.vocab_size) for _ in self.prompt))

    def generate(self, dtype: torch.dtype) -> Generated:
        """What the engine returns."""
        (beams,), num_steps = self._run([self.prompt], dtype)
        return Generated(beams, num_steps)

    def generate_batch(self, prompts: Sequence[tuple[int, ...]], dtype: torch.dtype) -> list[list[GeneratedBeam]]:
        """What the engine returns for prompts of one length in one batch."""
        return self._run(prompts, dtype)[0]

    def _run(self, prompts: Sequence[tuple[int, ...]], dtype: torch.dtype) -> tuple[list[list[GeneratedBeam]], int]:
        engine, beam, length = StubEngine(self.model, dtype), self.beam, len(prompts[0])
        config = GenerationConfig(
            num_beams=beam.width,
            max_new_tokens=beam.max_new_tokens,
            length_penalty=beam.length_penalty,
            early_stopping=_EARLY_STOPPING[beam.early_stopping],
            eos_token_id=list(beam.eos_token_ids) or None,
            pad_token_id=self.prompt[0] % 2 or None,
            num_return_sequences=beam.max_hypotheses,
            repetition_penalty=self.penalties.repetition_penalty,
            min_new_tokens=self.penalties.min_new_tokens or None,
            use_cache=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        mask = torch.ones(len(prompts), length, dtype=torch.long)
        output = engine.generate(torch.tensor(prompts), attention_mask=mask, generation_config=config)
        beams, count = beams_of(output, length), beam.max_hypotheses
        own = [beams[start : start + count] for start in range(0, len(beams), count)]
        # The engine numbers rows over its batch.
        first_rows = range(0, len(prompts) * beam.width, beam.width)
        found = [[one.from_row(first) for one in group] for group, first in zip(own, first_rows, strict=True)]
        return found, engine.num_steps
