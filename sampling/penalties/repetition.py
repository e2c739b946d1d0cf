"""Repetition: scales an id that was seen, once, however often it was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitd.sampling.penalties.base import Penalty, spread
from logitd.sampling.profiles import RepetitionForm

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from logitd.sampling.backends.base import LogitsBackend, Values
    from logitd.sampling.profiles import Profile
    from logitd.sampling.rows import RowParameters
    from logitd.sampling.token_table import TokenTable


class Repetition(Penalty):
    """Lowers a logit by its sign: a positive one is divided by r, a negative one multiplied."""

    is_additive = False

    def is_required(self, rows: RowParameters) -> bool:
        return rows.has_repetition

    def part(self, rows: RowParameters, table: TokenTable) -> NDArray[np.float32]:
        return spread(rows.repetition, table)

    def apply(self, backend: LogitsBackend, values: Values, part: Values, profile: Profile) -> Values:
        if profile.repetition_form is RepetitionForm.RECIPROCAL:
            return backend.select(values > 0, values * (1 / part), values * part)
        return backend.select(values < 0, values * part, values / part)
