"""The tokens of a beam as links that beams share; a step adds one link a beam."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


class Link(NamedTuple):
    """One generated token and the link before it.

    `parent_row` is the row of its request that the token continued, `log_prob` its plain log-probability.
    """

    previous: Link | None
    token_id: int
    parent_row: int
    log_prob: float


class Chain(NamedTuple):
    """A beam's tokens, first to last.

    Attributes
    ----------
    token_ids, parent_rows : int32 [N]
    log_probs : float64 [N]
    """

    token_ids: NDArray[np.int32]
    parent_rows: NDArray[np.int32]
    log_probs: NDArray[np.float64]


def unroll(tip: Link | None) -> Chain:
    """The tokens that end with `tip`."""
    links: list[Link] = []
    while tip is not None:
        links.append(tip)
        tip = tip.previous
    links.reverse()
    return Chain(
        np.array([link.token_id for link in links], np.int32),
        np.array([link.parent_row for link in links], np.int32),
        np.array([link.log_prob for link in links], np.float64),
    )


def link_up(items: Iterable[tuple[int, int, float]]) -> Link | None:
    """The last link of a chain of (token id, parent row, log-probability)."""
    tip: Link | None = None
    for token_id, parent_row, log_prob in items:
        tip = Link(tip, token_id, parent_row, log_prob)
    return tip
