"""Record what vLLM's penalty functions do: `python record_vllm_penalties.py WHEEL`; inputs and results alone."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[1]
NUM_BATCHES = 48


def record(source: Path) -> str:
    """The vectors, a batch a line."""
    with tempfile.TemporaryDirectory() as folder:
        engine = VllmPenalties(source, Path(folder))
    rng, batches = random.Random(0), []
    for _ in range(NUM_BATCHES):
        vocab_size = rng.choice([5, 9])
        rows = tuple(draw_row(rng, vocab_size, rng.randint(0, 9), most_repetition=20) for _ in range(rng.randint(1, 3)))
        batch = ParityBatch(rows, draw_logits(rng, len(rows), vocab_size))
        penalised = engine.apply(rows, batch.logits)
        batches.append({**batch.to_json(), "penalised": tensor_to_json(penalised)})
    return f'{{"version": "{version_of(source)}", "batches": {dump_lines(batches)}}}\n'


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    from helpers.engine_files import version_of
    from helpers.penalty_parity import ParityBatch, draw_logits, draw_row, dump_lines, tensor_to_json
    from helpers.vllm_penalties import VllmPenalties

    vectors = record(Path(sys.argv[1]))
    (TESTS / "parity" / "vectors" / "penalties_vllm.json").write_text(vectors, encoding="utf-8")
