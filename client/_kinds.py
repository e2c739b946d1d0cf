"""What the batches of each kind know beside what both do. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitd.client._apply_steps import DenseStep, SparseStep, split_rows
from logitd.client._arrays import check_kind
from logitd.client._drafts import as_drafts
from logitd.client._logits import InlineLogits, LogitsSource, SharedRows
from logitd.client._session import BatchSession
from logitd.client._shared import SharedMemory
from logitd.client._steps import most_tokens

if TYPE_CHECKING:
    from collections import abc

    import numpy.typing as npt

    from logitd.client._beam_history import BeamHistory
    from logitd.client._config import ClientConfig
    from logitd.client._drafts import AnyDrafts, Drafts
    from logitd.client._penalty_history import PenaltyHistory
    from logitd.client._steps import StepTokens
    from logitd.client._types import BeamStep, RowLayout, SearchStep

_ROW_BYTES, _EDIT_BYTES, _ID_BYTES = 12, 9, 4
"""Of edits: row splits, repetition, presence; token id, frequency sum, flags; the token id alone."""


class PenaltySession(BatchSession):
    """Of a penalty batch."""

    history: PenaltyHistory

    def _rows_in(self, shared: SharedMemory, rows: slice | None, drafts: Drafts | None) -> SharedRows:
        check_kind("shared", shared, SharedMemory, "shared logits")
        whole = slice(0, self._num_rows if drafts is None else drafts.num_positions)
        if rows is None:
            return SharedRows(shared, whole)
        check_kind("rows", rows, slice, "a slice")
        start, stop, step = rows.indices(whole.stop)
        return SharedRows(shared, slice(start, stop, step))

    def _inline(self, logits: npt.ArrayLike, chunk_bytes: int, drafts: Drafts | None) -> InlineLogits:
        # The server sees chunks, which may be any rows, and counts the tokens with the first of them.
        source = InlineLogits(logits, chunk_bytes)
        wanted, what = (self._num_rows, "batch") if drafts is None else (drafts.num_positions, "drafts' positions")
        if source.num_rows != wanted:
            raise ValueError(f"logits must have {wanted} rows, those of the {what}, got {source.num_rows}")
        return source

    def _dense_step(
        self,
        logits: npt.ArrayLike,
        token_ids: StepTokens | None,
        drafts: AnyDrafts | None,
        out: npt.NDArray[Any] | None,
        config: ClientConfig,
    ) -> DenseStep:
        made = as_drafts(drafts)
        source = self._inline(logits, min(config.chunk_bytes, config.most_reply_bytes), made)
        return DenseStep(source, token_ids, made, out)

    def _sparse_step(
        self, source: LogitsSource, token_ids: StepTokens | None, drafts: Drafts | None, config: ClientConfig
    ) -> SparseStep:
        # A patch has an id and a value for every edit, which can be more than the logits that it is of.
        edit_bytes = _ID_BYTES + source.dtype.itemsize
        if source.num_rows * (_ROW_BYTES + edit_bytes * source.num_columns) > config.most_reply_bytes:
            most = min(self._most_edits_of_a_row(token_ids, drafts), source.num_columns)
            source.limit_rows(max(1, config.most_reply_bytes // (_ROW_BYTES + edit_bytes * most)))
        return SparseStep(source, token_ids, drafts)

    def _edit_ranges(self, token_ids: StepTokens | None, drafts: Drafts | None, config: ClientConfig) -> list[slice]:
        num_rows, added = self._num_rows, most_tokens(token_ids)
        most = min(config.chunk_bytes, config.most_reply_bytes)
        if drafts is None and _ROW_BYTES * num_rows + _EDIT_BYTES * self.history.most_edits_in_all(added) <= most:
            return [slice(0, num_rows)]
        return split_rows([_ROW_BYTES + _EDIT_BYTES * count for count in self._most_edits(added, drafts)], most)

    def _most_edits_of_a_row(self, token_ids: StepTokens | None, drafts: Drafts | None) -> int:
        added = most_tokens(token_ids)
        if drafts is None:
            return self.history.most_edits_of_a_row(added)
        return max(self._most_edits(added, drafts), default=0)

    def _most_edits(self, added: int, drafts: Drafts | None) -> list[int]:
        # Of each row, or of each position of drafts.
        counts = self.history.most_edits(added)
        if drafts is None:
            return counts
        return [counts[row] + len(drafts.token_ids[row]) for row in drafts.rows.tolist() if row < len(counts)]


class BeamSession(BatchSession):
    """Of a beam batch."""

    history: BeamHistory

    def _logits_of(self, logits: npt.ArrayLike | SharedMemory, chunk_bytes: int) -> LogitsSource:
        if isinstance(logits, SharedMemory):
            return SharedRows(logits, slice(0, self._num_rows))
        return InlineLogits(logits, chunk_bytes)


class SearchResults:
    """Gathers the last step of each search."""

    def __init__(self, rows: abc.Iterable[RowLayout]) -> None:
        self._last: dict[str, SearchStep | None] = {row.sequence_id: None for row in rows}

    def take(self, step: BeamStep) -> None:
        """Looks for searches that ended."""
        self._last.update({search.sequence_id: search for search in step.searches if search.is_done})

    def in_order(self) -> tuple[SearchStep, ...]:
        """What was found, in the order of the rows."""
        return tuple(search for search in self._last.values() if search is not None)
