"""The penalty parameters of a batch's rows, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from logitd.sampling.parameters import to_float32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from logitd.sampling.parameters import PenaltyParameters


@dataclass(frozen=True)
class RowParameters:
    """Immutable columns over R rows.

    Attributes
    ----------
    repetition, frequency, presence : float32 [R]
        Rounded to fp32, in which all work is done.
    min_new_tokens : int64 [R]
    stop_token_ids : tuple of R int64 arrays
        Each distinct and ascending; empty where nothing is ever banned.
    """

    repetition: NDArray[np.float32]
    frequency: NDArray[np.float32]
    presence: NDArray[np.float32]
    min_new_tokens: NDArray[np.int64]
    stop_token_ids: tuple[NDArray[np.int64], ...]

    @classmethod
    def of(cls, parameters: Sequence[PenaltyParameters]) -> RowParameters:
        """The columns of validated parameters."""
        return cls(
            repetition=_column([p.repetition_penalty for p in parameters]),
            frequency=_column([p.frequency_penalty for p in parameters]),
            presence=_column([p.presence_penalty for p in parameters]),
            min_new_tokens=np.array([p.min_new_tokens for p in parameters], np.int64),
            stop_token_ids=tuple(_stop_set(p) for p in parameters),
        )

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.repetition)

    @cached_property
    def is_counted(self) -> NDArray[np.bool_]:
        """Bool [R]: whether a row has a penalty that depends on which tokens were seen."""
        is_counted: NDArray[np.bool_] = (self.repetition != 1) | (self.frequency != 0) | (self.presence != 0)
        return is_counted

    @cached_property
    def counted(self) -> NDArray[np.int64]:
        """Int64, ascending: the rows that are counted."""
        return np.flatnonzero(self.is_counted)

    @cached_property
    def has_repetition(self) -> bool:
        """Whether any row has a repetition penalty."""
        return bool((self.repetition != 1).any())

    @cached_property
    def has_boosting_repetition(self) -> bool:
        """Whether any row's repetition penalty is below 1, so that it raises logits."""
        return bool((self.repetition < 1).any())

    @cached_property
    def has_frequency(self) -> bool:
        """Whether any row has a frequency penalty."""
        return bool((self.frequency != 0).any())

    @cached_property
    def has_presence(self) -> bool:
        """Whether any row has a presence penalty."""
        return bool((self.presence != 0).any())

    @cached_property
    def stop_sets(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Int64 [B], int64 [B]: the row and the token id of every ban there may be, ascending."""
        rows = np.repeat(np.arange(self.num_rows), np.array([len(ids) for ids in self.stop_token_ids], np.int64))
        return rows, np.concatenate((np.empty(0, np.int64), *self.stop_token_ids))

    def gather(self, rows: NDArray[np.int64]) -> RowParameters:
        """The columns of `rows`, in that order."""
        return RowParameters(
            self.repetition[rows],
            self.frequency[rows],
            self.presence[rows],
            self.min_new_tokens[rows],
            tuple(self.stop_token_ids[row] for row in rows.tolist()),
        )

    def concatenate(self, other: RowParameters) -> RowParameters:
        """These rows and then the other's."""
        return RowParameters(
            np.concatenate((self.repetition, other.repetition)),
            np.concatenate((self.frequency, other.frequency)),
            np.concatenate((self.presence, other.presence)),
            np.concatenate((self.min_new_tokens, other.min_new_tokens)),
            self.stop_token_ids + other.stop_token_ids,
        )


def _column(values: list[float]) -> NDArray[np.float32]:
    # Adding zero turns -0.0, which is as neutral as 0.0, into the one that leaves every bit of a logit alone.
    return np.array([to_float32(value) for value in values], np.float32) + np.float32(0)


def _stop_set(parameters: PenaltyParameters) -> NDArray[np.int64]:
    if parameters.min_new_tokens == 0:
        return np.empty(0, np.int64)
    return np.unique(np.array(parameters.stop_token_ids, np.int64))
