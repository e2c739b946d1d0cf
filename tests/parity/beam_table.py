"""How many beams of Transformers' `generate` each rule gives back on a real model; writes build/parity.json.

SmolLM2-135M in fp32 on the CPU, 8 prompts with and without their trailing newline, 4 beams, 64 and 128 new tokens. The
logits of each `generate` are recorded by the history that they follow. The HF rule searches through a running server
on the recording alone, where a history that is not in it is a divergence; the VLLM rules go their own ways on the
same model. A run that was interrupted goes on with the next prompt.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from helpers.parity_prompts import PROMPTS
from helpers.smollm2 import Divergence, LiveLogits, Replay, Task, load_models
from logitd.client import Client
from logitd.client.demo.server import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers.client_search import History
    from helpers.generated import GeneratedBeam
    from logitd.client import Hypothesis

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "build" / "parity.json"
DONE = ROOT / "build" / "parity" / "prompts.jsonl"
# The greatest first: its recording serves the searches with fewer.
TOKENS = (128, 64)
VLLM_RULES = ("VLLM", "VLLM_PROMPT_LENGTH")
# vLLM against Transformers, of 32 beams, as the pull request that changed its score reports them after it and before:
# TinyLlama-1.1B-Chat in fp16 and other prompts.
PUBLISHED = {
    (True, 64): {"VLLM": 30, "VLLM_PROMPT_LENGTH": 24},
    (True, 128): {"VLLM": 29, "VLLM_PROMPT_LENGTH": 21},
    (False, 64): {"VLLM": 22, "VLLM_PROMPT_LENGTH": 2},
    (False, 128): {"VLLM": 11, "VLLM_PROMPT_LENGTH": 2},
}


def main() -> None:
    torch.set_num_threads(1)
    results = read_done()
    decoder, model = load_models()
    with running_server() as server, Client(server.target) as client:
        server.wait_until_ready(client)
        for name, has_newline in [(name, flag) for name in PROMPTS for flag in (True, False)]:
            if any((result["prompt"], result["has_newline"]) == (name, has_newline) for result in results):
                continue
            text = PROMPTS[name] if has_newline else PROMPTS[name].removesuffix("\n")
            for result in compare(client, model, tuple(decoder.encode(text))):
                results.append({"prompt": name, "has_newline": has_newline} | result)
                print(results[-1], flush=True)
            DONE.parent.mkdir(parents=True, exist_ok=True)
            DONE.write_text("".join(json.dumps(result) + "\n" for result in results))
    rows = summarise(results)
    OUTPUT.write_text(json.dumps({"rows": rows, "prompts": results}, indent=1) + "\n")
    DONE.unlink()
    print(format_table(rows))


def read_done() -> list[dict[str, Any]]:
    """What an interrupted run has left."""
    return [json.loads(line) for line in DONE.read_text().splitlines()] if DONE.exists() else []


def compare(client: Client, model: Any, prompt: History) -> Iterator[dict[str, Any]]:
    """One result for each number of tokens."""
    live = LiveLogits(model)
    for max_new_tokens in TOKENS:
        task = Task(prompt, max_new_tokens)
        recording = task.record(model)
        live.recorded = recording.logits | live.recorded
        result: dict[str, Any] = {
            "prompt_tokens": len(prompt),
            "new_tokens": max_new_tokens,
            "lengths": [len(beam.token_ids) for beam in recording.beams],
            "steps": recording.num_steps,
        }
        try:
            end = task.search(client, model, "HF", Replay(recording.logits))
            is_same_number = end.num_steps == recording.num_steps
            result["HF"] = count_equal(recording.beams, end.hypotheses) | {"same_number_of_steps": is_same_number}
        except Divergence as divergence:
            result["HF"] = count_equal(recording.beams, ()) | {"divergence": str(divergence)}
        for rule in VLLM_RULES:
            result[rule] = count_equal(recording.beams, task.search(client, model, rule, live).hypotheses)
        yield result


def count_equal(beams: list[GeneratedBeam], hypotheses: tuple[Hypothesis, ...]) -> dict[str, int]:
    """How many beams came back in their place: their tokens, the best one's, the bits of their scores."""
    pairs = list(zip(beams, hypotheses, strict=False))
    are_equal = [beam.token_ids == hypothesis.token_ids.tolist() for beam, hypothesis in pairs]
    return {
        "beams": sum(are_equal),
        "best": int(are_equal[:1] == [True]),
        "scores": sum(bool(beam.score == np.float32(hypothesis.score)) for beam, hypothesis in pairs),
    }


def summarise(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sums over all prompts."""
    rows = []
    for (has_newline, new_tokens), published in PUBLISHED.items():
        group = [r for r in results if (r["has_newline"], r["new_tokens"]) == (has_newline, new_tokens)]
        row = {"has_newline": has_newline, "new_tokens": new_tokens, "num_prompts": len(group)}
        for rule in ("HF", *VLLM_RULES):
            row[rule] = {key: sum(result[rule][key] for result in group) for key in ("beams", "best", "scores")}
        rows.append(row | {"published": published})
    return rows


def format_table(rows: list[dict[str, Any]]) -> str:
    """In markdown: beams equal to those of `generate`, and best beams in brackets."""
    titles = (
        "trailing newline · new tokens",
        "`HF`",
        "`VLLM`",
        "`VLLM_PROMPT_LENGTH`",
        "vLLM 0.33 (published)",
        "vLLM 0.32 (published)",
    )
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in rows:
        prompts = row["num_prompts"]
        cells = [f"{row[rule]['beams']}/{4 * prompts} ({row[rule]['best']}/{prompts})" for rule in ("HF", *VLLM_RULES)]
        cells += [f"{row['published'][rule]}/32" for rule in VLLM_RULES]
        label = f"{'with' if row['has_newline'] else 'without'} · {row['new_tokens']}"
        lines.append(f"| {' | '.join([label, *cells])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
