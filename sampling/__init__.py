"""The mathematics of logitd: penalties and beam search on torch tensors. No gRPC, no I/O, no clocks."""

from __future__ import annotations

from logitd.sampling.edits import Edits, Patch
from logitd.sampling.errors import ParameterError
from logitd.sampling.orchestrator import PenaltyOrchestrator, RowStart, check_token_ids
from logitd.sampling.parameters import PenaltyParameters
from logitd.sampling.profiles import DEFAULT_PROFILE, PROFILES, PenaltyName, Profile

__all__ = [
    "DEFAULT_PROFILE",
    "PROFILES",
    "Edits",
    "ParameterError",
    "Patch",
    "PenaltyName",
    "PenaltyOrchestrator",
    "PenaltyParameters",
    "Profile",
    "RowStart",
    "check_token_ids",
]
