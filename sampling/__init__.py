"""The mathematics of logitd: penalties and beam search on torch tensors, penalties on numpy arrays as well.

No gRPC, no I/O, no clocks.
"""

from __future__ import annotations

from logitd.sampling.checks import check_token_ids
from logitd.sampling.draft_state import DraftState
from logitd.sampling.drafts import DraftMode, Drafts
from logitd.sampling.edit_list import EditList
from logitd.sampling.errors import ParameterError
from logitd.sampling.orchestrator import PenaltyOrchestrator, RowStart
from logitd.sampling.parameters import PenaltyParameters
from logitd.sampling.patches import Patch
from logitd.sampling.profiles import DEFAULT_PROFILE, PROFILES, PenaltyName, Profile

__all__ = [
    "DEFAULT_PROFILE",
    "PROFILES",
    "DraftMode",
    "DraftState",
    "Drafts",
    "EditList",
    "ParameterError",
    "Patch",
    "PenaltyName",
    "PenaltyOrchestrator",
    "PenaltyParameters",
    "Profile",
    "RowStart",
    "check_token_ids",
]
