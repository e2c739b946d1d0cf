"""Repetition: scales an id that was seen, once, however often it was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitd.sampling.penalties.base import Penalty
from logitd.sampling.profiles import RepetitionForm

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from logitd.sampling.backends.base import LogitsBackend, Values
    from logitd.sampling.entries import Entries
    from logitd.sampling.profiles import Profile
    from logitd.sampling.rows import RowParameters


class Repetition(Penalty):
    """Lowers a logit by its sign: a positive one is divided by r, a negative one multiplied."""

    is_additive = False

    def is_required(self, rows: RowParameters) -> bool:
        return rows.has_repetition

    def part(self, entries: Entries) -> NDArray[np.float32]:
        return entries.spread(entries.rows.repetition)

    def apply_(self, backend: LogitsBackend, values: Values, entries: Entries, profile: Profile) -> Values:
        penalty = backend.put(self.part(entries))
        multiplied = values * penalty
        divided = values * (1 / penalty) if profile.repetition_form is RepetitionForm.RECIPROCAL else values / penalty
        if entries.rows.has_boosting_repetition:
            return backend.select(values > 0, divided, multiplied)
        # From 1 on the formula's choice is always the smaller one.
        return backend.minimum_(multiplied, divided)
