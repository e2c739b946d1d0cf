"""The interface of a penalty on seen tokens, of which there are two kinds: scaling and additive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from logitd.sampling.backends.base import LogitsBackend, Values
    from logitd.sampling.entries import Entries
    from logitd.sampling.profiles import Profile
    from logitd.sampling.rows import RowParameters


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
    def part(self, entries: Entries) -> NDArray[np.float32]:
        """Its part of each entry's edit, float32 [n], or [1] where it is the same; neutral where it does not act.

        Not to be changed.
        """

    @abstractmethod
    def apply_(self, backend: LogitsBackend, values: Values, entries: Entries, profile: Profile) -> Values:
        """`values` [n] fp32, the logits of `entries`, after this penalty; their memory is used."""


class AdditivePenalty(Penalty):
    """A penalty whose part is subtracted."""

    is_additive = True

    def apply_(self, backend: LogitsBackend, values: Values, entries: Entries, profile: Profile) -> Values:
        values -= backend.put(self.part(entries))
        return values
