"""Record what vLLM's offline search finds: `python record_vllm_vectors.py SOURCE...`, wheels or source distributions.

Requests have no ties, so that the vectors hold on any machine; inputs and results alone are written.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
NUM_VECTORS = 120


def record(source: Path) -> tuple[str, list[dict[str, Any]]]:
    """The rule that `source` is recorded for, and its vectors."""
    with tempfile.TemporaryDirectory() as folder:
        engine = VllmSearch(source, Path(folder))
    rule, rng = "VLLM_PROMPT_LENGTH" if engine.counts_prompt else "VLLM", random.Random(source.name)
    vectors = []
    for _ in range(NUM_VECTORS):
        request = VllmRequest.draw(rng, max_eos=1 if engine.counts_prompt else 3, with_ties=False)
        found = request.run_engine(engine)
        vectors.append(
            {
                "request": request.to_json(),
                "token_ids": [beam.token_ids for beam in found],
                "scores": [beam.score for beam in found],
            }
        )
    return rule, vectors


def write(vectors: dict[str, list[dict[str, Any]]]) -> None:
    """One vector a line."""
    rules = [
        f"{json.dumps(rule)}: [\n" + ",\n".join(json.dumps(vector) for vector in found) + "\n]"
        for rule, found in vectors.items()
    ]
    path = TESTS / "parity" / "vectors" / "beam_vllm.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text("{\n" + ",\n".join(rules) + "\n}\n")


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    from helpers.vllm_offline import VllmSearch
    from helpers.vllm_requests import VllmRequest

    write(dict(record(Path(name)) for name in sys.argv[1:]))
