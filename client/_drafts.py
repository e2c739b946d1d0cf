"""Tokens that a draft model proposes, for steps that process the logits of all their positions. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from logitd.client._arrays import ids_to_bytes
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from logitd.client._arrays import TokenIds

    AnyDrafts: TypeAlias = "Drafts | Sequence[TokenIds]"


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """Draft tokens of every sequence of a batch.

    A step with drafts has a row of logits for each position: for each sequence in turn its committed end, then each of
    its drafts in order. Logits at a position are for the token that follows it. Nothing is committed by drafts.
    """

    token_ids: Sequence[TokenIds]
    """For each sequence any number of ids, none included."""
    parents: Sequence[TokenIds] | None = None
    """A tree: for each draft the number, among those of its sequence, of the one that it follows, which comes before
    it; -1 for the committed end. None: each follows the one before it, a chain."""
    is_relaxed: bool = False
    """Every position sees the committed tokens alone, as in SGLang; in its profiles only."""

    def __post_init__(self) -> None:
        for name, lists in (("drafts", self.token_ids), ("parents", self.parents or ())):
            wrong = [ids for ids in lists if np.ndim(ids) != 1]
            if wrong:
                raise TypeError(f"{name} must be a flat list of integers for each sequence, got {wrong[0]!r}")

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The batch's row of each position."""
        return np.repeat(np.arange(len(self.token_ids)), [1 + len(ids) for ids in self.token_ids])

    @property
    def num_positions(self) -> int:
        """The rows of logits."""
        return len(self.token_ids) + sum(map(len, self.token_ids))

    def to_proto(self) -> service_pb2.DraftTokens:
        """The message; ValueError where the parents do not fit the drafts."""
        if self.parents is not None and list(map(len, self.parents)) != list(map(len, self.token_ids)):
            raise ValueError("parents must be as many as the drafts of each sequence, got others")
        splits = np.cumsum([0, *map(len, self.token_ids)])
        return service_pb2.DraftTokens(
            token_ids=b"".join(ids_to_bytes(ids, "drafts") for ids in self.token_ids),
            row_splits=ids_to_bytes(splits),
            parents=b"".join(ids_to_bytes(ids, "parents") for ids in self.parents or ()),
            mode="DRAFT_MODE_SGLANG_RELAXED" if self.is_relaxed else "DRAFT_MODE_EXACT",
        )


def as_drafts(drafts: AnyDrafts | None) -> Drafts | None:
    """Ragged token ids as chains."""
    return drafts if drafts is None or isinstance(drafts, Drafts) else Drafts(drafts)
