"""A decoder over the client that keeps each row's whole token sequence, so that any model can answer for a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from logitd.client import BeamBatch, Hypothesis

History: TypeAlias = tuple[int, ...]


class LiveRow(NamedTuple):
    """A row whose logits are wanted: its search, the tokens so far with the prompt, the running score."""

    sequence_id: str
    history: History
    score: float


class SearchEnd(NamedTuple):
    """What a search found, and in how many steps."""

    hypotheses: tuple[Hypothesis, ...]
    num_steps: int


def run_searches(
    batch: BeamBatch, prompts: Mapping[str, History], logits_of: Callable[[list[LiveRow]], NDArray[Any]]
) -> dict[str, SearchEnd]:
    """Step a new batch to its end; `prompts` and the result are by sequence id, `logits_of` gives [rows, columns]."""
    ends: dict[str, SearchEnd] = {}
    rows = [LiveRow(owner, prompts[owner], 0.0) for owner in _owners(batch)]
    num_steps = 0
    while rows:
        step = batch.beam_step(logits_of(rows))
        num_steps += 1
        ends |= {s.sequence_id: SearchEnd(s.hypotheses, num_steps) for s in step.searches if s.is_done}
        columns = (_owners(batch), step.parent_rows.tolist(), step.token_ids.tolist(), step.scores.tolist())
        rows = [
            LiveRow(owner, (*rows[parent].history, token_id), score)
            for owner, parent, token_id, score in zip(*columns, strict=True)
        ]
    return ends


def _owners(batch: BeamBatch) -> list[str]:
    return [row.sequence_id for row in batch.rows for _ in range(row.row_count)]
