"""The pool of a request's finished hypotheses, best first; a tuple of slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from logitd.sampling.beam.hypothesis import Hypothesis


class PoolSlot(NamedTuple):
    """One place of a pool.

    The HF rule has empty ones (no hypothesis), whose score still takes part in its ranking.
    """

    score: float
    hypothesis: Hypothesis | None


Pool: TypeAlias = tuple[PoolSlot, ...]


def hypotheses_of(pool: Pool) -> tuple[Hypothesis, ...]:
    """What the slots hold, in their order."""
    return tuple(slot.hypothesis for slot in pool if slot.hypothesis is not None)


def entered(before: Pool, after: Pool) -> tuple[Hypothesis, ...]:
    """The hypotheses of `after` that `before` had not, in the order of `after`."""
    known = {id(hypothesis) for hypothesis in hypotheses_of(before)}
    return tuple(hypothesis for hypothesis in hypotheses_of(after) if id(hypothesis) not in known)
