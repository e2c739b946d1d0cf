"""The penalties, one a file. Their order is in the profile table, `logitd.sampling.profiles`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitd.sampling.penalties.frequency import Frequency
from logitd.sampling.penalties.presence import Presence
from logitd.sampling.penalties.repetition import Repetition
from logitd.sampling.profiles import PenaltyName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitd.sampling.penalties.base import Penalty

__all__ = ["PENALTIES"]

PENALTIES: Mapping[PenaltyName, Penalty] = {
    PenaltyName.REPETITION: Repetition(),
    PenaltyName.FREQUENCY: Frequency(),
    PenaltyName.PRESENCE: Presence(),
}
