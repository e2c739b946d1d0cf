"""The penalties of a batch: one immutable state, and the verbs that make the next one from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from logitd.sampling.checks import check_integers, check_logits, check_row_splits, check_token_ids
from logitd.sampling.draft_state import DraftState
from logitd.sampling.drafts import DraftMode
from logitd.sampling.edit_list import list_edits
from logitd.sampling.edits import Arithmetic, Edits
from logitd.sampling.entries import Layer
from logitd.sampling.errors import ParameterError
from logitd.sampling.history import Histories, History
from logitd.sampling.layered_table import LayeredTable
from logitd.sampling.parameters import PenaltyParameters
from logitd.sampling.patches import PatchMaker
from logitd.sampling.penalties import PENALTIES
from logitd.sampling.penalties.frequency import extend_sums
from logitd.sampling.penalties.min_new_tokens import find_banned
from logitd.sampling.profiles import PROFILES, PenaltyName, Profile
from logitd.sampling.rows import RowParameters
from logitd.sampling.token_table import TokenTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from logitd.sampling.backends.base import Logits
    from logitd.sampling.drafts import Drafts
    from logitd.sampling.edit_list import EditList
    from logitd.sampling.patches import Patch


_NO_KEYS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class RowStart:
    """A row as a batch takes it in.

    Attributes
    ----------
    prompt_token_ids : integers
        Used by the profiles in which repetition counts the prompt.
    output_token_ids : integers
        The output so far, for a rebuild; the state is a function of it.
    """

    parameters: PenaltyParameters = field(default_factory=PenaltyParameters)
    prompt_token_ids: ArrayLike = ()
    output_token_ids: ArrayLike = ()


class PenaltyOrchestrator:
    """The penalty state of R rows. Immutable: each verb returns the next state and leaves this one as it is.

    Memory and time follow the distinct tokens that the rows have seen, never the vocabulary. Rows whose parameters
    are neutral have no entries at all, and nothing is kept for a penalty that no row asks for.
    """

    def __init__(
        self,
        profile: Profile,
        rows: RowParameters,
        table: LayeredTable,
        histories: Histories,
        output_lengths: NDArray[np.int64],
        touched: NDArray[np.int64] = _NO_KEYS,
        arithmetic: Arithmetic | None = None,
    ) -> None:
        self.profile = profile
        self._rows = rows
        self._table = table
        self._histories = histories
        self._output_lengths = output_lengths
        self._touched = touched
        # The same for all states of the same rows, one after the other.
        self._arithmetic = arithmetic or Arithmetic(profile, rows)

    @classmethod
    def create(cls, profile: str, vocab_size: int, rows: Sequence[RowStart]) -> PenaltyOrchestrator:
        """A state of these rows, whatever history they come with.

        Raises `ParameterError` for an unknown profile, a parameter out of the profile's range, or a token id outside
        [0, vocab_size); the field starts with ``rows[i]``.
        """
        if profile not in PROFILES:
            raise ParameterError("profile", f"must be one of {', '.join(PROFILES)}", profile)
        chosen = PROFILES[profile]
        prompts, outputs = [], []
        for index, row in enumerate(rows):
            try:
                row.parameters.validate(chosen, vocab_size)
                prompts.append(check_token_ids("prompt_token_ids", row.prompt_token_ids, vocab_size))
                outputs.append(check_token_ids("output_token_ids", row.output_token_ids, vocab_size))
            except ParameterError as error:
                raise error.within(f"rows[{index}]") from None
        parameters = RowParameters.of([row.parameters for row in rows])
        empty = cls._empty(chosen, parameters, vocab_size)._count_prompts(prompts)
        full = empty._append(np.concatenate([*outputs, np.empty(0, np.int32)]), [len(o) for o in outputs])
        return full._replace(LayeredTable(full._table.fold()))

    @property
    def num_rows(self) -> int:
        """R."""
        return self._rows.num_rows

    @property
    def vocab_size(self) -> int:
        """The real columns of the logits."""
        return self._table.vocab_size

    @property
    def output_lengths(self) -> NDArray[np.int64]:
        """Int64 [R]: the output tokens of each row; not to be changed."""
        return self._output_lengths

    @property
    def num_bytes(self) -> int:
        """Bytes of the entries and the histories."""
        return self._table.num_bytes + self._histories.num_bytes

    def output_token_ids(self, row: int) -> NDArray[np.int32]:
        """Int32 [length]: the output of one row; a copy."""
        return self._histories.to_array(row)

    def accumulate(
        self, token_ids: ArrayLike, row_splits: ArrayLike | None = None, *, rollback: ArrayLike | None = None
    ) -> PenaltyOrchestrator:
        """The state after each row dropped its last tokens and then output others.

        Parameters
        ----------
        token_ids : integers [N], each in [0, vocab_size)
        row_splits : integers [R + 1], optional
            Tokens [row_splits[i], row_splits[i + 1]) go to row i; by default one to each row.
        rollback : integers [R], optional
            How many output tokens each row drops first. The result is as if they had never come, to the bit.

        Raises
        ------
        ParameterError
            A wrong length, an id out of range, a rollback beyond the output.
        """
        ids = check_token_ids("token_ids", token_ids, self.vocab_size)
        lengths = check_row_splits(row_splits, len(ids), self.num_rows)
        if rollback is None:
            return self._append(ids, lengths)
        counts = self._check_rollback(rollback)
        dropped = self._dropped_keys(counts)
        return self._drop(counts, dropped)._append(ids, lengths, dropped)

    @property
    def touched(self) -> NDArray[np.int64]:
        """The keys of all entries that the `accumulate` that made this state has changed.

        Int64, ascending and distinct, ``row * vocab_size + token id``. Bans that began or ended are not among them.
        """
        return self._touched

    def list_edits(
        self,
        since: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
        *,
        first_row: int = 0,
        num_rows: int | None = None,
    ) -> EditList:
        """What this state does to logits that stay elsewhere, part by part.

        Parameters
        ----------
        since : (touched, output_lengths), optional
            Only what changed since an earlier state: what was `touched` on the way from it, and its
            `output_lengths`. By default everything.
        first_row, num_rows : int
            The rows to list; by default all from the first on.
        """
        only = None
        if since is not None:
            only, output_lengths = since
            before = find_banned(self._rows, output_lengths, self.vocab_size)
            if len(before) or len(self._banned):
                only = np.union1d(only, np.setxor1d(before, self._banned, assume_unique=True))
        edits = list_edits(self._rows, self._table, self._banned, only)
        return edits.slice_rows(first_row, self.num_rows - first_row if num_rows is None else num_rows)

    def filter(self, rows: ArrayLike) -> PenaltyOrchestrator:
        """The state of these rows, in this order. A row that is named twice is forked."""
        chosen = check_integers("rows", rows).reshape(-1)
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < self.num_rows):
            raise ParameterError("rows", f"must be in [0, {self.num_rows})", chosen.tolist())
        return PenaltyOrchestrator(
            self.profile,
            self._rows.gather(chosen),
            LayeredTable(self._table.fold().gather(chosen)),
            self._histories.gather(chosen.tolist()),
            self._output_lengths[chosen],
        )._release_unneeded()

    def merge(self, other: PenaltyOrchestrator) -> PenaltyOrchestrator:
        """The state of these rows and then the other's; profile and vocabulary must be the same."""
        if (self.profile, self.vocab_size) != (other.profile, other.vocab_size):
            mine, theirs = (self.profile.name, self.vocab_size), (other.profile.name, other.vocab_size)
            raise ParameterError("other", f"must have profile and vocabulary {mine}", theirs)
        return PenaltyOrchestrator(
            self.profile,
            self._rows.concatenate(other._rows),
            LayeredTable(self._table.fold().concatenate(other._table.fold())),
            self._histories.concatenate(other._histories),
            np.concatenate((self._output_lengths, other._output_lengths)),
        )

    def apply_inplace(self, logits: Logits, *, first_row: int = 0) -> None:
        """Penalise rows of logits in their own memory.

        Parameters
        ----------
        logits : tensor [n, W], W >= vocab_size; fp32, fp16 or bf16; any device, any strides
            Rows first_row to first_row + n - 1 of the batch. Columns from vocab_size on are padding and stay as they
            are, as do all columns that no penalty touches. Work is fp32, rounded once to the dtype; -inf stays -inf.
            A contiguous numpy array will do as well, in which bf16 is the uint16 of its bits.
        """
        check_logits(logits, first_row, self.num_rows, self.vocab_size, is_written=True)
        self._edits.apply_inplace(logits, first_row)

    def compute_patch(self, logits: Logits, *, first_row: int = 0) -> Patch:
        """What `apply_inplace` would change in `logits`, as it takes them; they stay as they are."""
        check_logits(logits, first_row, self.num_rows, self.vocab_size)
        return self.patch_maker.compute_patch(logits, first_row)

    def with_drafts(self, drafts: Drafts, mode: DraftMode = DraftMode.EXACT) -> DraftState:
        """What this state does to the logits of drafts' positions; nothing of them is counted here.

        Raises `ParameterError` for a mode that the profile does not have.
        """
        return DraftState(self.profile, self._rows, self._table, self._output_lengths, drafts, mode)

    @cached_property
    def patch_maker(self) -> PatchMaker:
        """What this state would write into logits, entry by entry."""
        return PatchMaker(self._arithmetic, self._rows, self._table.fold(), self._banned)

    @cached_property
    def _edits(self) -> Edits:
        layers = [Layer(self._rows, table) for table in self._table.layers]
        return Edits(self._arithmetic, layers, self._banned)

    @cached_property
    def _banned(self) -> NDArray[np.int64]:
        return find_banned(self._rows, self._output_lengths, self.vocab_size)

    @classmethod
    def _empty(cls, profile: Profile, rows: RowParameters, vocab_size: int) -> PenaltyOrchestrator:
        table = TokenTable.empty(
            vocab_size,
            rows.num_rows,
            has_sums=PENALTIES[PenaltyName.FREQUENCY].is_required(rows),
            has_prompt=_needs_prompt(profile, rows),
        )
        histories = Histories(tuple(History() for _ in range(rows.num_rows)))
        return cls(profile, rows, LayeredTable(table), histories, np.zeros(rows.num_rows, np.int64))

    def _count_prompts(self, prompts: list[NDArray[np.int32]]) -> PenaltyOrchestrator:
        table = self._table.fold()
        if table.in_prompt is None:
            return self
        counted = np.flatnonzero(self._rows.repetition != 1).tolist()
        keys = [np.unique(prompts[row]).astype(np.int64) + row * self.vocab_size for row in counted]
        table, _ = table.open_entries(np.concatenate([*keys, _NO_KEYS]))
        table = table.replace(in_prompt=np.ones(len(table.keys), np.bool_))
        # Frequency times a count of 0 has the sign that a rollback to nothing leaves as well.
        nothing = np.zeros(len(table.keys), np.int32)
        return self._replace(self._add_occurrences(LayeredTable(table), table.keys, nothing))

    def _append(
        self, token_ids: NDArray[np.int32], lengths: list[int] | None, dropped: NDArray[np.int64] = _NO_KEYS
    ) -> PenaltyOrchestrator:
        keys, repeats = self._count_keys(token_ids, lengths)
        table = self._add_occurrences(self._table, keys, repeats)
        touched = np.union1d(keys, dropped) if len(dropped) else keys
        if lengths is None:
            return self._replace(table, self._histories.append(token_ids), self._output_lengths + 1, touched)
        ids, stops = token_ids.tolist(), np.cumsum([0, *lengths]).tolist()
        histories = self._histories.extend([ids[start:stop] for start, stop in pairwise(stops)])
        return self._replace(table, histories, self._output_lengths + np.array(lengths, np.int64), touched)

    def _count_keys(
        self, token_ids: NDArray[np.int32], lengths: list[int] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32] | int]:
        # The distinct keys of the rows that are counted, and how often each comes.
        if lengths is None:
            counted = self._rows.counted
            return counted * self.vocab_size + token_ids[counted], 1
        rows = np.repeat(np.arange(self.num_rows), lengths)
        is_counted = self._rows.is_counted[rows]
        keys, repeats = np.unique(rows[is_counted] * self.vocab_size + token_ids[is_counted], return_counts=True)
        return keys, repeats.astype(np.int32)

    def _add_occurrences(
        self, table: LayeredTable, keys: NDArray[np.int64], increments: NDArray[np.int32] | int
    ) -> LayeredTable:
        recent, places = table.open_entries(keys)
        before = recent.counts[places]
        recent.counts[places] = before + increments
        if recent.sums is not None:
            penalties = self._rows.frequency[keys // self.vocab_size]
            recent.sums[places] = extend_sums(self.profile, recent.sums[places], before, increments, penalties)
        return table.replace_recent(recent)

    def _drop(self, rollback: list[int], dropped: NDArray[np.int64]) -> PenaltyOrchestrator:
        histories = self._histories.drop_last(rollback)
        distinct, repeats = np.unique(dropped, return_counts=True)
        table = self._remove_occurrences(distinct, repeats.astype(np.int32))
        return self._replace(table, histories, self._output_lengths - np.array(rollback, np.int64))

    def _dropped_keys(self, rollback: list[int]) -> NDArray[np.int64]:
        keys = [
            self._histories.last(row, rollback[row]).astype(np.int64) + row * self.vocab_size
            for row in self._rows.counted.tolist()
            if rollback[row]
        ]
        return np.concatenate([*keys, _NO_KEYS])

    def _remove_occurrences(self, keys: NDArray[np.int64], decrements: NDArray[np.int32]) -> LayeredTable:
        # What is left is added up from nothing, so that the sums have the bits that they had on the way up.
        table = self._table.fold()
        places = table.find(keys)
        remaining = table.counts[places] - decrements
        counts = table.counts.copy()
        counts[places] = 0
        sums = None if table.sums is None else table.sums.copy()
        if sums is not None:
            sums[places] = 0
        emptied = LayeredTable(table.replace(counts=counts, sums=sums))
        return LayeredTable(self._add_occurrences(emptied, keys, remaining).fold().drop_unseen())

    def _release_unneeded(self) -> PenaltyOrchestrator:
        no_sums = not PENALTIES[PenaltyName.FREQUENCY].is_required(self._rows)
        no_prompt = not _needs_prompt(self.profile, self._rows)
        return self._replace(LayeredTable(self._table.fold().without(sums=no_sums, in_prompt=no_prompt)))

    def _replace(
        self,
        table: LayeredTable,
        histories: Histories | None = None,
        output_lengths: NDArray[np.int64] | None = None,
        touched: NDArray[np.int64] = _NO_KEYS,
    ) -> PenaltyOrchestrator:
        return PenaltyOrchestrator(
            self.profile,
            self._rows,
            table,
            self._histories if histories is None else histories,
            self._output_lengths if output_lengths is None else output_lengths,
            touched,
            self._arithmetic,
        )

    def _check_rollback(self, rollback: ArrayLike) -> list[int]:
        counts = check_integers("rollback", rollback)
        if counts.shape != (self.num_rows,):
            raise ParameterError("rollback", f"must have shape ({self.num_rows},), one count a row", counts.shape)
        wrong = np.flatnonzero((counts < 0) | (counts > self._output_lengths))
        if len(wrong):
            row = int(wrong[0])
            rule = f"must be in [0, {self._output_lengths[row]}], the row's output"
            raise ParameterError(f"rollback[{row}]", rule, int(counts[row]))
        result: list[int] = counts.tolist()
        return result


def _needs_prompt(profile: Profile, rows: RowParameters) -> bool:
    return profile.counts_prompt and PENALTIES[PenaltyName.REPETITION].is_required(rows)
