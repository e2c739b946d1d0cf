"""The token table of a state in two layers, so that a step costs the tokens it touches and not all that were seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from logitd.sampling.token_table import TokenTable

# Up to here the upper layer is copied in less time than it takes to ask for the lower one.
_FEW_ENTRIES = 16_384
# A larger one may have this share of the lower layer's entries, whose copy is so spread over many steps.
_SHARE = 8


class LayeredTable:
    """Immutable entries: those of `recent`, and of `base` those whose keys `recent` lacks.

    Steps copy the small upper layer and put into it what they touch; when it has grown it is folded into the lower
    one. Reading may fold too, which nobody can see: the entries stay the same.
    """

    __slots__ = ("_layers",)

    def __init__(self, table: TokenTable) -> None:
        """The entries of `table`, in one layer."""
        self._layers = _arrange(table)

    @property
    def base(self) -> TokenTable:
        """The lower layer."""
        return self._layers[0]

    @property
    def recent(self) -> TokenTable:
        """The upper layer."""
        return self._layers[1]

    @property
    def layers(self) -> list[TokenTable]:
        """Those that have entries, the upper one first; at least one."""
        base, recent = self._layers
        if len(base.keys) == 0:
            return [recent]
        return [recent, base] if len(recent.keys) else [base]

    @property
    def vocab_size(self) -> int:
        """What a row number is multiplied with in a key."""
        return self.base.vocab_size

    @property
    def num_bytes(self) -> int:
        """Bytes of the entries."""
        return self.base.num_bytes + self.recent.num_bytes

    def open_entries(self, keys: NDArray[np.int64]) -> tuple[TokenTable, NDArray[np.int64]]:
        """A copy of the upper layer with an entry for each of `keys`, and where those stand; for `replace_recent`.

        As `TokenTable.open_entries`, but an entry of the lower layer is taken over.
        """
        base, recent = self._layers
        return recent.open_entries(keys, base if len(base.keys) else None)

    def replace_recent(self, recent: TokenTable) -> LayeredTable:
        """These entries with another upper layer, which `open_entries` gave and the caller has filled in."""
        base = self.base
        table = LayeredTable.__new__(LayeredTable)
        table._layers = base, recent
        if len(recent.keys) > max(_FEW_ENTRIES, len(base.keys) // _SHARE):
            table._layers = _arrange(_fold(base, recent))
        return table

    def fold(self) -> TokenTable:
        """All entries as one table."""
        base, recent = self._layers
        if len(base.keys) and len(recent.keys):
            self._layers = _arrange(_fold(base, recent))
            base, recent = self._layers
        return base if len(base.keys) else recent

    def select(self, keys: NDArray[np.int64]) -> TokenTable:
        """A table of `keys` (ascending, distinct) alone, of count 0 where this table lacks it."""
        return self.recent.select(keys, self.base)


def _fold(base: TokenTable, recent: TokenTable) -> TokenTable:
    return base.overlay(recent) if len(base.keys) else recent


def _arrange(table: TokenTable) -> tuple[TokenTable, TokenTable]:
    empty = table.without_entries()
    return (empty, table) if len(table.keys) <= _FEW_ENTRIES else (table, empty)
