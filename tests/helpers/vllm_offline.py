"""vLLM's own offline beam search, run on a stub model.

Only the search's few files are loaded, and the engine below them is `_StubEngine`.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from helpers.engine_files import EngineFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from helpers.beam_stub import StubModel

_FILES = (
    "vllm/logprobs.py",
    "vllm/entrypoints/generate/beam_search/utils.py",
    "vllm/entrypoints/generate/beam_search/offline.py",
)
_NAMES = {
    "tokens_input": lambda token_ids, **_: token_ids,
    "init_logger": lambda module_name: SimpleNamespace(warning=lambda text: None),
}


class Found(NamedTuple):
    """One returned beam: generated tokens, running sum, normalised score, plain log-probability of each token."""

    token_ids: list[int]
    running_sum: float
    score: float
    token_log_probs: list[float]


class VllmSearch:
    """The offline search of one version."""

    def __init__(self, source: Path, folder: Path) -> None:
        """Load it from `source`; `folder` receives its files."""
        with EngineFiles(source, folder, _FILES, _NAMES, ["tqdm"]).importable():
            self._offline = importlib.import_module("vllm.entrypoints.generate.beam_search.offline")
            self._logprob = importlib.import_module("vllm.logprobs").Logprob
        self._offline.SamplingParams = _SamplingParams
        self._offline.tqdm = iter
        if hasattr(self._offline, "get_beam_search_eos_token_ids"):
            self._offline.get_beam_search_eos_token_ids = lambda config, eos: {*config["eos_token_id"]}

    @property
    def counts_prompt(self) -> bool:
        """Whether this version's score has the prompt in its divisor (up to 0.32)."""
        return not hasattr(self._offline, "get_beam_search_eos_token_ids")

    def run(
        self,
        model: StubModel,
        prompt: Sequence[int],
        *,
        width: int,
        max_new_tokens: int,
        length_penalty: float,
        eos_token_ids: Sequence[int],
    ) -> list[Found]:
        """What the engine returns, best first."""
        engine = self._engine(model, eos_token_ids)
        parameters = SimpleNamespace(
            beam_width=width,
            max_tokens=max_new_tokens,
            temperature=0.0,
            ignore_eos=not eos_token_ids,
            length_penalty=length_penalty,
            structured_outputs=None,
            skip_special_tokens=True,
            configure_logprobs=lambda sampling, config: None,
        )
        (output,) = engine.beam_search([tuple(prompt)], parameters)
        eos = eos_token_ids[0] if eos_token_ids else None
        key = self._offline.create_sort_beams_key_function(*([eos] if self.counts_prompt else []), length_penalty)
        return [self._describe(beam, len(prompt), key(beam)) for beam in output.sequences]

    def _engine(self, model: StubModel, eos_token_ids: Sequence[int]) -> Any:
        bases = (_StubEngine, self._offline.BeamSearchOfflineMixin)
        return type("Engine", bases, {})(model, self._logprob, eos_token_ids)

    @staticmethod
    def _describe(beam: Any, prompt_length: int, score: float) -> Found:
        generated = beam.tokens[prompt_length:]
        log_probs = [entry[token_id].logprob for entry, token_id in zip(beam.logprobs, generated, strict=True)]
        return Found(generated, beam.cum_logprob, score, log_probs)


class _SamplingParams:
    """The fields of a request that the search reads back."""

    logprob_token_ids = None

    def __init__(self, *, logprobs: int, **_: Any) -> None:
        self.logprobs = logprobs


class _StubEngine:
    """What the search asks of the engine: the log-probabilities of the next token, listed as the engine lists them."""

    def __init__(self, model: StubModel, logprob: Any, eos_token_ids: Sequence[int]) -> None:
        self._model = model
        self._logprob = logprob
        tokenizer = SimpleNamespace(
            eos_token_id=eos_token_ids[0] if eos_token_ids else None,
            decode=lambda token_ids, skip_special_tokens: "",
        )
        self.renderer = SimpleNamespace(get_tokenizer=lambda: tokenizer)
        processor = SimpleNamespace(
            resolve_watermarking=lambda parameters: None,
            vllm_config=None,
            generation_config_fields={"eos_token_id": list(eos_token_ids)},
        )
        self.llm_engine = SimpleNamespace(input_processor=processor)

    def _preprocess_cmpl(self, prompts: list[tuple[int, ...]]) -> list[dict[str, Any]]:
        return [{"type": "token", "prompt_token_ids": list(prompt)} for prompt in prompts]

    def _lora_request_to_seq(self, request: None, count: int) -> list[None]:
        return [None] * count

    def _priority_to_seq(self, priority: None, count: int) -> list[int]:
        return [0] * count

    def _params_to_seq(self, params: _SamplingParams, count: int) -> list[_SamplingParams]:
        return [params] * count

    def _render_and_run_requests(
        self, prompts: Iterator[list[int]], params: list[_SamplingParams], **_: Any
    ) -> list[SimpleNamespace]:
        logits = self._model.rows(prompts)
        log_probs = logits.log_softmax(dim=-1, dtype=torch.float32)
        values, token_ids = log_probs.topk(params[0].logprobs)
        samples = logits.argmax(dim=-1)
        return [
            self._answer(row, int(samples[row]), token_ids[row].tolist(), values[row].tolist(), log_probs)
            for row in range(len(logits))
        ]

    def _answer(
        self, row: int, sample: int, token_ids: list[int], values: list[float], log_probs: torch.Tensor
    ) -> SimpleNamespace:
        listed = {sample: self._logprob(float(log_probs[row, sample]))}
        listed.update({t: self._logprob(value) for t, value in zip(token_ids, values, strict=True)})
        return SimpleNamespace(outputs=[SimpleNamespace(logprobs=[listed], finish_reason=None)])
