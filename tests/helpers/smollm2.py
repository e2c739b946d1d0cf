"""Beam searches on SmolLM2-135M: Transformers' own, recorded, and the server's on the same logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig, LogitsProcessor, LogitsProcessorList

from helpers.client_search import run_searches
from helpers.generated import beams_of
from logitd.client import Beam, Sequence
from logitd.client.demo.llm import load_smollm2, model_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from helpers.client_search import History, LiveRow, SearchEnd
    from helpers.generated import GeneratedBeam
    from logitd.client import Client
    from logitd.client.demo.llm import SmolModel


class Divergence(AssertionError):
    """A search went where the recorded run had not been."""


class Recording(NamedTuple):
    """A run of `generate`: its beams, how often it called the model, and the last logits, float32 [V], by history."""

    beams: list[GeneratedBeam]
    num_steps: int
    logits: dict[History, NDArray[np.float32]]


@dataclass(frozen=True)
class Task:
    """A prompt, and how to continue it."""

    prompt: History
    max_new_tokens: int
    width: int = 4

    def record(self, model: Any) -> Recording:
        """Run `generate`, which keeps keys and values."""
        recorder = _Recorder()
        config = GenerationConfig(
            num_beams=self.width,
            num_return_sequences=self.width,
            max_new_tokens=self.max_new_tokens,
            eos_token_id=model.config.eos_token_id,
            pad_token_id=model.config.eos_token_id,
            return_dict_in_generate=True,
            output_scores=True,
        )
        with model.register_forward_hook(recorder.hear), torch.inference_mode():
            output = model.generate(
                torch.tensor([self.prompt]),
                attention_mask=torch.ones(1, len(self.prompt), dtype=torch.long),
                generation_config=config,
                logits_processor=LogitsProcessorList([recorder]),
            )
        return Recording(beams_of(output, len(self.prompt)), recorder.num_steps, recorder.logits)

    def search(
        self, client: Client, model: Any, rule: str, logits_of: Callable[[list[LiveRow]], NDArray[np.float32]]
    ) -> SearchEnd:
        """Search through the server."""
        eos = [model.config.eos_token_id]
        sequence = Sequence(self.prompt, None, self.max_new_tokens, eos, beam=Beam(self.width))
        with client.create_beam_batch([sequence], vocab_size=model.config.vocab_size, beam_rule=rule) as batch:
            (end,) = run_searches(batch, {"0": self.prompt}, logits_of).values()
        return end


class _Recorder(LogitsProcessor):
    """Hears the model's outputs and sees, as a processor that changes nothing, whose they are."""

    def __init__(self) -> None:
        self.logits: dict[History, NDArray[np.float32]] = {}
        self.num_steps = 0
        self._last = torch.empty(0)

    def hear(self, model: Any, arguments: Any, output: Any) -> None:
        self.num_steps += 1
        self._last = output.logits[:, -1].clone()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        # input_ids: [width, L], scores: [width, V]
        for history, logits in zip(input_ids.tolist(), self._last.numpy(), strict=True):
            # In the first step every row is the prompt, and only the first is alive.
            self.logits.setdefault(tuple(history), logits)
        return scores


class Replay:
    """Recorded logits; a history that is not among them is a `Divergence`."""

    def __init__(self, recorded: Mapping[History, NDArray[np.float32]]) -> None:
        self._recorded = recorded
        self._previous: list[LiveRow] = []

    def __call__(self, rows: list[LiveRow]) -> NDArray[np.float32]:
        """Float32 [R, V]."""
        for row in rows:
            if row.history not in self._recorded:
                raise Divergence(self._describe(row))
        self._previous = rows
        return np.stack([self._recorded[row.history] for row in rows])

    def _describe(self, row: LiveRow) -> str:
        """Where the beam ranked among all candidates, and how far the nearest other was."""
        histories = [parent.history for parent in self._previous]
        logits = torch.from_numpy(np.stack([self._recorded[history] for history in histories]))
        sums = logits.log_softmax(dim=-1).numpy() + np.array([[r.score] for r in self._previous], np.float32)
        place = histories.index(row.history[:-1]) * sums.shape[1] + row.history[-1]
        others = np.delete(sums, place) - sums.flat[place]
        rank, gap = int((others > 0).sum()), float(np.abs(others).min())
        return f"a beam of {len(row.history)} tokens was not recorded: rank {rank}, {gap:.1e} from the next candidate"


class Decode:
    """Rows that the model continues from kept keys and values.

    Its passes have the shapes of `generate`'s where it starts with as many rows as beams, and then the same bits.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._cache: Any = None

    def start(self, rows: list[History]) -> NDArray[np.float32]:
        """Logits [R, V] after rows of one length."""
        self._cache = DynamicCache(config=self._model.config)
        return self._append(rows)

    def step(self, parent_rows: list[int], token_ids: list[int]) -> NDArray[np.float32]:
        """Logits [R, V] after new rows: row `parent_rows[i]` and `token_ids[i]`."""
        self._cache.reorder_cache(torch.tensor(parent_rows))
        return self._append([(token_id,) for token_id in token_ids])

    def _append(self, tokens: list[History]) -> NDArray[np.float32]:
        with torch.inference_mode():
            output = self._model(input_ids=torch.tensor(tokens), cache=self._cache, logits_to_keep=1)
        logits: NDArray[np.float32] = output.logits[:, -1].numpy()
        return logits


class LiveLogits:
    """Recorded logits where there are any, else the model's own, which are then recorded too."""

    def __init__(self, model: Any) -> None:
        self.recorded: dict[History, NDArray[np.float32]] = {}
        self._decode = Decode(model)
        self._decoded: list[History] = []

    def __call__(self, rows: list[LiveRow]) -> NDArray[np.float32]:
        """Float32 [R, V]."""
        histories = [row.history for row in rows]
        if not all(history in self.recorded for history in histories):
            for history, logits in zip(histories, self._compute(histories), strict=True):
                self.recorded.setdefault(history, logits)
        return np.stack([self.recorded[history] for history in histories])

    def _compute(self, histories: list[History]) -> NDArray[np.float32]:
        before, self._decoded = self._decoded, histories
        parents = [history[:-1] for history in histories]
        if all(parent in before for parent in parents):
            return self._decode.step([before.index(parent) for parent in parents], [h[-1] for h in histories])
        return self._decode.start(histories)


def load_models() -> tuple[SmolModel, Any]:
    """The model as the demo has it, and as Transformers has it."""
    decoder = load_smollm2()
    return decoder, AutoModelForCausalLM.from_pretrained(model_folder(), local_files_only=True).eval()
