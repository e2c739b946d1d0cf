"""vLLM's own penalty functions, called on the CPU."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from helpers.engine_files import EngineFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logitd.sampling import RowStart

_FILES = ("vllm/_custom_ops.py", "vllm/model_executor/layers/utils.py", "vllm/v1/sample/ops/penalties.py")


def _pad(rows: Sequence[Sequence[int]], pad: int, **_: Any) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], dtype=torch.int64).view(len(rows), width)


_NAMES = {
    "init_logger": lambda name: None,
    "current_platform": SimpleNamespace(import_kernels=lambda: None),
    "direct_register_custom_op": lambda *_, **__: None,
    "make_tensor_with_pad": _pad,
    "PIN_MEMORY": False,
}


class VllmPenalties:
    """The functions of one version."""

    def __init__(self, source: Path, folder: Path) -> None:
        """Load them from `source`; `folder` receives its files."""
        self._files = EngineFiles(source, folder, _FILES, _NAMES)
        with self._files.importable():
            importlib.import_module("vllm._custom_ops")
            self._apply = importlib.import_module("vllm.v1.sample.ops.penalties").apply_all_penalties

    def apply(self, rows: Sequence[RowStart], logits: torch.Tensor) -> torch.Tensor:
        """The penalised logits [rows, vocab_size], fp32."""
        parameters = [row.parameters for row in rows]
        with self._files.importable():
            return self._apply(
                logits.clone(),
                _pad([row.prompt_token_ids for row in rows], logits.shape[1]),
                torch.tensor([each.presence_penalty for each in parameters]),
                torch.tensor([each.frequency_penalty for each in parameters]),
                torch.tensor([each.repetition_penalty for each in parameters]),
                [list(row.output_token_ids) for row in rows],
            )
