"""Drafts for tests, and what each of their positions is: a row after the tokens of a path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from helpers.penalty_strategies import Draw, draw_ids
from helpers.wire import ints
from logitd.sampling import Drafts
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logitd.sampling import PenaltyOrchestrator

_DRAFTS = st.binary(max_size=5)


@dataclass(frozen=True)
class DraftRow:
    """One row's drafts; `parents` None is a chain."""

    token_ids: tuple[int, ...]
    parents: tuple[int, ...] | None = None

    def parent(self, index: int) -> int:
        return index - 1 if self.parents is None else self.parents[index]

    def paths(self) -> Iterator[tuple[int, ...]]:
        """The tokens on the path of each position, the committed end's first."""
        known: list[tuple[int, ...]] = [()]
        for index, token_id in enumerate(self.token_ids):
            known.append((*known[self.parent(index) + 1], token_id))
        yield from known


def draw_drafts(draw: Draw, num_rows: int, pool: Sequence[int]) -> list[DraftRow]:
    """0 to 5 drafts a row, all rows chains or all trees."""
    rows = [DraftRow(draw_ids(draw, pool, _DRAFTS)) for _ in range(num_rows)]
    if draw(st.booleans()):
        return rows
    return [
        DraftRow(row.token_ids, tuple(draw(st.integers(-1, index - 1)) for index in range(len(row.token_ids))))
        for row in rows
    ]


def make_drafts(rows: Sequence[DraftRow], vocab_size: int) -> Drafts:
    return Drafts.create(*_flatten(rows), num_rows=len(rows), vocab_size=vocab_size)


def drafts_message(rows: Sequence[DraftRow]) -> service_pb2.DraftTokens:
    token_ids, splits, parents = _flatten(rows)
    return service_pb2.DraftTokens(
        token_ids=ints(*token_ids), row_splits=ints(*splits), parents=None if parents is None else ints(*parents)
    )


def _flatten(rows: Sequence[DraftRow]) -> tuple[list[int], list[int], list[int] | None]:
    # Token ids, row splits, and parents where a row has them.
    token_ids = [token_id for row in rows for token_id in row.token_ids]
    splits: list[int] = np.cumsum([0, *(len(row.token_ids) for row in rows)]).tolist()
    has_parents = any(row.parents is not None for row in rows)
    parents = [row.parent(index) for row in rows for index in range(len(row.token_ids))] if has_parents else None
    return token_ids, splits, parents


def positions(rows: Sequence[DraftRow]) -> list[tuple[int, tuple[int, ...]]]:
    """The row and the path of every position."""
    return [(index, path) for index, row in enumerate(rows) for path in row.paths()]


def step_to(state: PenaltyOrchestrator, row: int, path: Sequence[int]) -> PenaltyOrchestrator:
    """One row alone, after it output a path token by token."""
    state = state.filter([row])
    for token_id in path:
        state = state.accumulate([token_id])
    return state


def stack_positions(state: PenaltyOrchestrator, rows: Sequence[DraftRow]) -> PenaltyOrchestrator:
    """A state with a row for every position, each stepped there token by token."""
    places = positions(rows)
    result = step_to(state, *places[0])
    for row, path in places[1:]:
        result = result.merge(step_to(state, row, path))
    return result
