"""Edits: what to do to logits that never leave the caller, part by part, and a reference of doing it.

The formulas are those of the message Edits in `proto/logitd/v1/service.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from logitd.client._arrays import check_places, data_type_of, from_bfloat16, to_bfloat16
from logitd.client._types import Profile

if TYPE_CHECKING:
    from collections import abc
    from collections.abc import Callable

    import numpy.typing as npt

_IS_SEEN, _IS_OUTPUT, _IS_BANNED = 1, 2, 4
_ROW_SHIFT = 32
"""Keys of a table are `row << 32 | token id`."""


@dataclass(frozen=True, slots=True, eq=False)
class Edits:
    """What a batch's state does to the logits of its R rows: N entries."""

    row_splits: npt.NDArray[np.int32]
    """[R + 1]: entries row_splits[i] to row_splits[i + 1] - 1 belong to row i."""
    token_ids: npt.NDArray[np.int32]
    """[N], ascending within a row."""
    repetition: npt.NDArray[np.float32]
    """[R]: r, the repetition penalty."""
    presence: npt.NDArray[np.float32]
    """[R]: P, the presence penalty."""
    frequency_sums: npt.NDArray[np.float32]
    """[N]: F, the accumulated frequency penalty."""
    flags: npt.NDArray[np.uint8]
    """[N]: bit 0, the id is counted; bit 1, it is in the output; bit 2, it is banned. 0: it has no edit any more."""
    is_full: bool
    """Everything, not a difference."""
    revision: int
    """The batch's revision that they are of."""
    profile: str
    """The batch's, whose formula it is."""
    base_revision: int | None = None
    """Where they are a difference, since when."""
    position_rows: npt.NDArray[np.int64] | None = None
    """Of a step with drafts: the batch's row of each of its positions, which are the rows here."""
    is_relaxed: bool = False
    """Of a step with relaxed drafts: the formula is that of SGLANG_FUSED."""

    @property
    def row_indices(self) -> npt.NDArray[np.int64]:
        """[N]: the row of each entry."""
        return np.repeat(np.arange(len(self.repetition)), np.diff(self.row_splits))

    def apply_to_inplace(self, logits: npt.NDArray[Any]) -> None:
        """Edits `logits`, [R, columns] in float32, float16, or uint16 for the bits of bfloat16.

        Bit for bit what `apply` gives. The work is float32, rounded once; untouched items keep their bits. ValueError
        for a difference, which is merged into an `EditTable` first.
        """
        if not self.is_full:
            raise ValueError("only edits in full can be applied, got a difference: merge it into an EditTable")
        check_places(logits, len(self.repetition), self.token_ids)
        data_type_of(logits.dtype)
        acts = np.flatnonzero(self.flags & (_IS_SEEN | _IS_BANNED))
        places = self.row_indices[acts], self.token_ids[acts]
        logits[places] = _round(self._edit(_widen(logits[places]), acts, places[0]), logits.dtype)

    def gather(self, rows: npt.NDArray[np.int64]) -> Edits:
        """The edits of some rows, in this order, repeats allowed."""
        lengths = np.diff(self.row_splits)[rows]
        splits = np.concatenate(([0], np.cumsum(lengths)))
        entries = np.repeat(self.row_splits[rows] - splits[:-1], lengths) + np.arange(splits[-1])
        return replace(
            self,
            row_splits=splits.astype(np.int32),
            token_ids=self.token_ids[entries],
            repetition=self.repetition[rows],
            presence=self.presence[rows],
            frequency_sums=self.frequency_sums[entries],
            flags=self.flags[entries],
            position_rows=None,
        )

    def _edit(
        self, values: npt.NDArray[np.float32], acts: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        # values, acts, rows: [n], the logits of the entries `acts`, and their rows
        flags = self.flags[acts]
        # A product: of a negative penalty it leaves -0, which turns a logit of -0 into 0, as it is in the engines.
        presence = self.presence[rows] * ((flags & _IS_OUTPUT) != 0).astype(np.float32)
        formula = _FORMULAS.get(Profile.SGLANG_FUSED if self.is_relaxed else self.profile)
        if formula is None:
            raise ValueError(f"profile must be one of {', '.join(_FORMULAS)}, got {self.profile!r}")
        with np.errstate(all="ignore"):
            edited = formula(values, self.repetition[rows], self.frequency_sums[acts], presence)
        edited = np.where(flags & _IS_SEEN, edited, values)
        return np.where(flags & _IS_BANNED, np.float32(-np.inf), edited)


class EditTable:
    """The edits of a batch in full, kept up to date by differences.

        table = EditTable()
        ...
        table.update(batch.edits(token_ids, since=table.revision))
        table.apply_to_inplace(logits)

    Only the entries of the last tokens cross the wire then. Where the batch has no difference to give (at first, after
    a filter or a merge), `edits` answers in full and the table starts over.
    """

    def __init__(self) -> None:
        self._last: Edits | None = None
        self._keys = np.empty(0, np.int64)
        self._sums = np.empty(0, np.float32)
        self._flags = np.empty(0, np.uint8)

    @property
    def revision(self) -> int | None:
        """The batch's revision that the table stands at; None before the first update."""
        return None if self._last is None else self._last.revision

    def update(self, edits: Edits) -> None:
        """Takes edits in full, or a difference since `revision`; ValueError for another difference.

        Of edits of drafts it takes those of the committed ends, which are the batch's own.
        """
        if edits.position_rows is not None:
            edits = replace(edits.gather(np.unique(edits.position_rows, return_index=True)[1]), is_relaxed=False)
        keys = (edits.row_indices << _ROW_SHIFT) | edits.token_ids
        if edits.is_full:
            self._keys, self._sums, self._flags = keys, edits.frequency_sums, edits.flags
        else:
            self._check_base(edits, num_rows=len(edits.repetition))
            self._replace(keys, edits)
        self._last = edits

    def full(self) -> Edits:
        """All edits at `revision`; ValueError before the first update."""
        last = self._checked_last()
        rows = np.arange(len(last.repetition) + 1, dtype=np.int64)
        return Edits(
            row_splits=self._keys.searchsorted(rows << _ROW_SHIFT).astype(np.int32),
            token_ids=(self._keys & 0xFFFFFFFF).astype(np.int32),
            repetition=last.repetition,
            presence=last.presence,
            frequency_sums=self._sums,
            flags=self._flags,
            is_full=True,
            revision=last.revision,
            profile=last.profile,
            is_relaxed=last.is_relaxed,
        )

    def at_positions(self, edits: Edits) -> Edits:
        """The edits of drafts' positions in full; of a difference since `revision`, so that `update` comes after.

        edits = batch.edits(accepted, since=table.revision, drafts=drafts)
        table.at_positions(edits).apply_to_inplace(logits)
        table.update(edits)
        """
        if edits.is_full or edits.position_rows is None:
            return edits
        self._check_base(edits, num_rows=len(self._checked_last().repetition))
        table = EditTable()
        table.update(self.full().gather(edits.position_rows))
        table.update(replace(edits, position_rows=None))
        return table.full()

    def apply_to_inplace(self, logits: npt.NDArray[Any]) -> None:
        """As `Edits.apply_to_inplace`."""
        self.full().apply_to_inplace(logits)

    def _check_base(self, edits: Edits, num_rows: int) -> None:
        last = self._checked_last()
        if (edits.base_revision, num_rows) != (last.revision, len(last.repetition)):
            rule = f"a difference must be since revision {last.revision} over {len(last.repetition)} rows"
            raise ValueError(f"{rule}, got revision {edits.base_revision}, {num_rows} rows")

    def _checked_last(self) -> Edits:
        if self._last is None:
            raise ValueError("the first update of a table must be edits in full, got none")
        return self._last

    def _replace(self, keys: npt.NDArray[np.int64], edits: Edits) -> None:
        # keys: [n], ascending and distinct, of the entries of `edits`
        places = self._keys.searchsorted(keys)
        is_known = np.zeros(len(keys), np.bool_)
        inside = places < len(self._keys)
        is_known[inside] = self._keys[places[inside]] == keys[inside]
        known, new = places[is_known], ~is_known
        sums, flags = self._sums.copy(), self._flags.copy()
        sums[known], flags[known] = edits.frequency_sums[is_known], edits.flags[is_known]
        self._keys = np.insert(self._keys, places[new], keys[new])
        self._sums = np.insert(sums, places[new], edits.frequency_sums[new])
        self._flags = np.insert(flags, places[new], edits.flags[new])
        if not edits.flags.all():
            kept = self._flags != 0
            self._keys, self._sums, self._flags = self._keys[kept], self._sums[kept], self._flags[kept]


def join_edits(parts: abc.Sequence[Edits]) -> Edits:
    """The edits of consecutive rows, all of one revision and kind, as one."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([np.diff(part.row_splits) for part in parts])
    return Edits(
        row_splits=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        token_ids=np.concatenate([part.token_ids for part in parts]),
        repetition=np.concatenate([part.repetition for part in parts]),
        presence=np.concatenate([part.presence for part in parts]),
        frequency_sums=np.concatenate([part.frequency_sums for part in parts]),
        flags=np.concatenate([part.flags for part in parts]),
        is_full=parts[0].is_full,
        revision=parts[0].revision,
        profile=parts[0].profile,
        base_revision=parts[0].base_revision,
        position_rows=_join_positions([part.position_rows for part in parts]),
        is_relaxed=parts[0].is_relaxed,
    )


def _join_positions(parts: abc.Sequence[npt.NDArray[np.int64] | None]) -> npt.NDArray[np.int64] | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if present else None


def _by_sign(values: Any, repetition: Any, frequency: Any, presence: Any) -> Any:
    scaled = np.where(values < 0, values * repetition, values / repetition)
    return scaled - frequency - presence


def _fused(values: Any, repetition: Any, frequency: Any, presence: Any) -> Any:
    shifted = values + ((np.float32(0) - frequency) - presence)
    return np.where(shifted < 0, shifted * repetition, shifted / repetition)


def _by_reciprocal(values: Any, repetition: Any, frequency: Any, presence: Any) -> Any:
    scaled = np.where(values > 0, values * (np.float32(1) / repetition), values * repetition)
    return scaled - frequency - presence


# Each over float32 [n]: the logits, r, F and P.
_FORMULAS: dict[str, Callable[..., Any]] = {
    Profile.SGLANG: _by_sign,
    Profile.SGLANG_FUSED: _fused,
    Profile.VLLM: _by_reciprocal,
    Profile.HF: _by_sign,
}


def _widen(items: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return from_bfloat16(items) if items.dtype.kind == "u" else items.astype(np.float32)


def _round(values: npt.NDArray[np.float32], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.kind == "u":
        return to_bfloat16(values)
    with np.errstate(over="ignore"):
        return values.astype(dtype)
