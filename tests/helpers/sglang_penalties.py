"""SGLang's own penalty library and what its scheduler does with it, called."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from helpers.engine_files import EngineFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logitd.sampling import RowStart

_LIBRARY = "sglang/srt/sampling/penaltylib"
_FILES = (
    f"{_LIBRARY}/__init__.py",
    f"{_LIBRARY}/orchestrator.py",
    f"{_LIBRARY}/frequency_penalty.py",
    f"{_LIBRARY}/min_new_tokens.py",
    f"{_LIBRARY}/presence_penalty.py",
    f"{_LIBRARY}/repetition_penalty.py",
    "sglang/srt/sampling/sampling_batch_info.py",
)
_NAMES = {
    "is_pin_memory_available": lambda device: False,
    "get_compiler_backend": lambda: "eager",
    # There its code is not compiled.
    "is_npu": lambda: True,
}
# The set that the engine gives has no order; in this one the penalties are documented.
_PENALIZERS = (
    "BatchedRepetitionPenalizer",
    "BatchedFrequencyPenalizer",
    "BatchedPresencePenalizer",
    "BatchedMinNewTokensPenalizer",
)


@dataclass(eq=False)
class _ScheduledBatch:
    """What the library asks of the engine's batch."""

    reqs: list[SimpleNamespace]
    device: str = "cpu"


class SglangPenalties:
    """The code of one version."""

    def __init__(self, source: Path, folder: Path) -> None:
        """Load it from `source`; `folder` receives its files."""
        self._files = EngineFiles(source, folder, _FILES, _NAMES)
        with self._files.importable():
            self._library = importlib.import_module("sglang.srt.sampling.penaltylib")
            self._info = importlib.import_module("sglang.srt.sampling.sampling_batch_info").SamplingBatchInfo

    def open(self, vocab_size: int, groups: Sequence[Sequence[RowStart]]) -> SglangState:
        """The state of the rows of all groups, merged; those of a group have outputs of one length."""
        (first, batch), *others = [self._open_group(vocab_size, rows) for rows in groups]
        for orchestrator, other in others:
            first.merge(orchestrator)
            batch.reqs += other.reqs
        return SglangState(self._files, self._info, first, batch)

    def _open_group(self, vocab_size: int, rows: Sequence[RowStart]) -> tuple[Any, _ScheduledBatch]:
        batch = _ScheduledBatch([_request(row) for row in rows])
        penalizers = [getattr(self._library, name) for name in _PENALIZERS]
        orchestrator = self._library.BatchedPenalizerOrchestrator(vocab_size, batch, penalizers)
        outputs = torch.tensor([list(row.output_token_ids) for row in rows])
        for token_ids in outputs.T:
            orchestrator.cumulate_output_tokens(token_ids.long())
        return orchestrator, batch


@dataclass(frozen=True)
class SglangState:
    """The engine's state of some rows; all of it works on copies of logits [rows, vocab_size] in fp32."""

    _files: EngineFiles
    _info: Any
    _orchestrator: Any
    # The orchestrator only has a weak reference to it.
    _batch: _ScheduledBatch

    def apply_in_order(self, logits: torch.Tensor) -> torch.Tensor:
        """One penalty after the other, in the documented order."""
        result = logits.clone()
        self._orchestrator.apply(result)
        return result

    def apply_repeated(self, logits: torch.Tensor, repeat: int) -> torch.Tensor:
        """What a verify step does to the positions of all rows, `repeat` each."""
        result = logits.clone()
        with self._files.importable():
            self._orchestrator.apply(result, repeat=repeat)
        return result

    def apply_as_served(self, logits: torch.Tensor) -> torch.Tensor:
        """What the scheduler sums up for a step, and the sampler then does with it."""
        info = self._info(
            *(torch.ones(len(logits), 1) for _ in range(4)),
            *(False for _ in range(5)),
            vocab_size=logits.shape[1],
            penalizer_orchestrator=self._orchestrator,
            device="cpu",
        ).copy_for_forward()
        result = logits.clone()
        info.apply_logits_bias(result)
        return result


def _request(row: RowStart) -> SimpleNamespace:
    parameters = row.parameters
    sampling = SimpleNamespace(
        repetition_penalty=parameters.repetition_penalty,
        frequency_penalty=parameters.frequency_penalty,
        presence_penalty=parameters.presence_penalty,
        min_new_tokens=parameters.min_new_tokens,
        stop_token_ids=set(parameters.stop_token_ids),
    )
    tokenizer = SimpleNamespace(additional_stop_token_ids=None, eos_token_id=None)
    return SimpleNamespace(sampling_params=sampling, eos_token_ids=None, tokenizer=tokenizer)
