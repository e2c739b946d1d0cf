"""The interface of a penalty on seen tokens, of which there are two kinds: scaling and additive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from logitd.sampling.backends.base import LogitsBackend, Values
    from logitd.sampling.profiles import Profile
    from logitd.sampling.rows import RowParameters
    from logitd.sampling.token_table import TokenTable


class Penalty(ABC):
    """One penalty: who asks for it, its part of each entry's edit, and its arithmetic.

    Attributes
    ----------
    is_additive : bool
        Its part is subtracted; else it scales.
    """

    is_additive: ClassVar[bool]

    @abstractmethod
    def is_required(self, rows: RowParameters) -> bool:
        """Whether any row asks for it; nothing is computed or allocated otherwise."""

    @abstractmethod
    def part(self, rows: RowParameters, table: TokenTable) -> NDArray[np.float32]:
        """Its part of the edit of each of the table's entries, float32 [N]; neutral where it does not act."""

    @abstractmethod
    def apply(self, backend: LogitsBackend, values: Values, part: Values, profile: Profile) -> Values:
        """`values` [N] fp32 after this penalty; the argument stays as it is."""


class AdditivePenalty(Penalty):
    """A penalty whose part is subtracted."""

    is_additive = True

    def apply(self, backend: LogitsBackend, values: Values, part: Values, profile: Profile) -> Values:
        return values - part


def spread(column: NDArray[np.float32], table: TokenTable) -> NDArray[np.float32]:
    """A column over rows [R] as one over the table's entries [N]."""
    return column.repeat(table.row_lengths)
