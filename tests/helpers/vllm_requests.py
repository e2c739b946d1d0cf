"""Random requests for vLLM's search and for the rules that reproduce it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.beam_stub import Decoder, StubModel
from helpers.client_search import run_searches
from logitd.client import Beam, Sequence
from logitd.sampling.beam import BeamParameters, BeamSearch, RequestStart

if TYPE_CHECKING:
    import random

    from helpers.client_search import SearchEnd
    from helpers.vllm_offline import Found, VllmSearch
    from logitd.client import Client


@dataclass(frozen=True)
class VllmRequest:
    """One request and its model."""

    model: StubModel
    prompt: tuple[int, ...]
    width: int
    max_new_tokens: int
    length_penalty: float

    @classmethod
    def draw(cls, rng: random.Random, *, max_eos: int, with_ties: bool, vocab_size: int | None = None) -> VllmRequest:
        """A random request; every axis has its edge values."""
        width = rng.randint(1, 8)
        vocab_size = vocab_size or rng.choice([2 * width, 2 * width + 1, 32, 300, rng.randint(2 * width, 300)])
        eos = tuple(rng.randrange(vocab_size) for _ in range(rng.randint(0, max_eos)))
        model = StubModel(
            seed=rng.randrange(2**31),
            vocab_size=vocab_size,
            scale=rng.choice([0.5, 2.0, 6.0]),
            step=rng.choice([0.0, 0.25, 1.0]) if with_ties else 0.0,
            banned=rng.choice([0.0, 0.0, 0.3, 0.9]) if with_ties else 0.0,
            eos_token_ids=eos,
            eos_bias=rng.choice([0.0, 2.0, 5.0]),
        )
        prompt = tuple(rng.randrange(vocab_size) for _ in range(rng.randint(1, 6)))
        length_penalty = rng.choice([-1.0, 0.0, 1.0, 2.0, rng.uniform(-1, 2)])
        return cls(model, prompt, width, rng.choice([1, 2, *range(3, 13)]), length_penalty)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> VllmRequest:
        """What `to_json` wrote."""
        model = fields.pop("model")
        model["eos_token_ids"] = tuple(model["eos_token_ids"])
        return cls(model=StubModel(**model), prompt=tuple(fields.pop("prompt")), **fields)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def run_engine(self, engine: VllmSearch) -> list[Found]:
        """What the engine finds."""
        return engine.run(
            self.model,
            self.prompt,
            width=self.width,
            max_new_tokens=self.max_new_tokens,
            length_penalty=self.length_penalty,
            eos_token_ids=self.model.eos_token_ids,
        )

    @property
    def parameters(self) -> BeamParameters:
        """As the library takes it."""
        return BeamParameters(
            self.width,
            self.max_new_tokens,
            self.length_penalty,
            eos_token_ids=self.model.eos_token_ids,
            prompt_length=len(self.prompt),
            return_token_log_probs=True,
        )

    def run_rule(self, rule: str) -> Decoder:
        """The library's search."""
        search = BeamSearch.start(rule, self.model.vocab_size, [RequestStart(self.parameters)])
        return Decoder(search, [self.model], [self.prompt]).run()

    def run_server(self, client: Client, rule: str) -> SearchEnd:
        """The same search through the client."""
        sequence = Sequence(
            self.prompt,
            None,
            self.max_new_tokens,
            self.model.eos_token_ids,
            beam=Beam(self.width, self.length_penalty, return_token_log_probs=True),
        )
        with client.create_beam_batch([sequence], vocab_size=self.model.vocab_size, beam_rule=rule) as batch:
            found = run_searches(
                batch, {"0": self.prompt}, lambda rows: np.stack([self.model(row.history) for row in rows])
            )
        return found["0"]
