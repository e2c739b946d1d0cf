"""Draft tokens that are not decided yet, and the positions whose logits they ask for."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from logitd.sampling.checks import check_integers, check_row_splits, check_token_ids
from logitd.sampling.errors import ParameterError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# What bounds the work of a message: 64 chains of 90, or a chain of 723.
MAX_PATH_TOKENS = 1 << 18


class DraftMode(enum.Enum):
    """Which history a position is penalised with."""

    EXACT = "the committed output and the drafts on the position's own path"
    SGLANG_RELAXED = "the committed output alone, at every position"


@dataclass(frozen=True)
class Drafts:
    """Drafts of R rows, N of them, and their P = R + N positions.

    Row i's positions are its committed end and then each of its drafts; logits at a position are for the token that
    follows it. A path leads from the committed end to a position; T is the length of all paths together.

    Attributes
    ----------
    num_positions : int64 [R]
        Of each row, at least one.
    rows, depths : int64 [P]
        Each position's row, and how many drafts its path has.
    path_positions, path_token_ids : int64 [T], int32 [T]
        The tokens on each position's path.
    """

    num_positions: NDArray[np.int64]
    rows: NDArray[np.int64]
    depths: NDArray[np.int64]
    path_positions: NDArray[np.int64]
    path_token_ids: NDArray[np.int32]

    @classmethod
    def create(
        cls,
        token_ids: ArrayLike,
        row_splits: ArrayLike | None = None,
        parents: ArrayLike | None = None,
        *,
        num_rows: int,
        vocab_size: int,
    ) -> Drafts:
        """Checked drafts.

        Parameters
        ----------
        token_ids : integers [N], each in [0, vocab_size)
        row_splits : integers [R + 1], optional
            Drafts [row_splits[i], row_splits[i + 1]) are row i's; by default one for each row.
        parents : integers [N], optional
            The number, among its row's drafts, of the one that each follows, which comes before it; -1 for the
            committed end. By default each follows the one before it: a chain.

        Raises
        ------
        ParameterError
            A wrong length, an id or a parent out of range, paths of more than MAX_PATH_TOKENS tokens together.
        """
        ids = check_token_ids("token_ids", token_ids, vocab_size)
        lengths = check_row_splits(row_splits, len(ids), num_rows)
        counts = np.ones(num_rows, np.int64) if lengths is None else np.array(lengths, np.int64)
        draft_rows = np.repeat(np.arange(num_rows), counts)
        numbers = np.arange(len(ids)) - np.repeat(counts.cumsum() - counts, counts)
        steps_back = np.minimum(numbers, 1) if parents is None else _steps_back(parents, numbers)
        drafts, token_ids_of_paths = _follow_paths(ids, steps_back)
        positions = np.arange(len(ids)) + draft_rows + 1
        depths = np.zeros(num_rows + len(ids), np.int64)
        depths[positions] = np.bincount(drafts, minlength=len(ids))
        rows = np.repeat(np.arange(num_rows), counts + 1)
        return cls(counts + 1, rows, depths, positions[drafts], token_ids_of_paths)

    @property
    def total_positions(self) -> int:
        """P."""
        return len(self.rows)


def _steps_back(parents: ArrayLike, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    # How far before each draft its parent stands; 0 where that is the committed end.
    chosen = check_integers("parents", parents)
    if chosen.shape != numbers.shape:
        raise ParameterError("parents", f"must have shape {numbers.shape}, one a draft", chosen.shape)
    wrong = np.flatnonzero((chosen < -1) | (chosen >= numbers))
    if len(wrong):
        index = int(wrong[0])
        rule = f"must be in [-1, {numbers[index]}), a draft before its own of the same row, or -1"
        raise ParameterError(f"parents[{index}]", rule, int(chosen[index]))
    return np.where(chosen < 0, 0, numbers - chosen)


def _follow_paths(
    token_ids: NDArray[np.int32], steps_back: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    # For each draft its own token and those of all its ancestors: the draft's index, and the token.
    drafts = current = np.arange(len(token_ids))
    owners, tokens, total = [drafts[:0]], [token_ids[:0]], 0
    while len(drafts):
        total += len(drafts)
        if total > MAX_PATH_TOKENS:
            rule = f"must have paths of at most {MAX_PATH_TOKENS} tokens together"
            raise ParameterError("token_ids", rule, f"more, of {len(token_ids)} drafts")
        owners.append(drafts)
        tokens.append(token_ids[current])
        goes_on = steps_back[current] > 0
        drafts, current = drafts[goes_on], (current - steps_back[current])[goes_on]
    return np.concatenate(owners), np.concatenate(tokens)
