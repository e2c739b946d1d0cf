"""The wire's enum numbers and what the library calls the same things."""

from __future__ import annotations

from typing import cast

from logitd.sampling import DEFAULT_PROFILE, PROFILES
from logitd.sampling.beam import RULES, EarlyStopping, FinishReason
from logitd.service.errors import InvalidField
from logitd.v1 import types_pb2

# The stubs type enum numbers by their enum, but look-ups by name as int: the casts say what they are.
PROFILE_NUMBERS = {
    name: cast("types_pb2.PenaltyProfile", types_pb2.PenaltyProfile.Value(f"PENALTY_PROFILE_{name}"))
    for name in PROFILES
}
PROFILE_NAMES = {number: name for name, number in PROFILE_NUMBERS.items()}
RULE_NUMBERS = {name: cast("types_pb2.BeamRule", types_pb2.BeamRule.Value(f"BEAM_RULE_{name}")) for name in RULES}
RULES_BY_NUMBER = {number: RULES[name] for name, number in RULE_NUMBERS.items()}
EARLY_STOPPING_NUMBERS = {
    mode: cast("types_pb2.EarlyStopping", types_pb2.EarlyStopping.Value(f"EARLY_STOPPING_{mode.name}"))
    for mode in EarlyStopping
}
EARLY_STOPPING = {
    types_pb2.EARLY_STOPPING_UNSPECIFIED: EarlyStopping.FALSE,
    **{number: mode for mode, number in EARLY_STOPPING_NUMBERS.items()},
}
FINISH_REASON_NUMBERS = {
    reason: cast("types_pb2.FinishReason", types_pb2.FinishReason.Value(f"FINISH_REASON_{reason.name}"))
    for reason in FinishReason
}
FINISH_REASONS = {number: reason for reason, number in FINISH_REASON_NUMBERS.items()}


def read_profile(path: str, number: types_pb2.PenaltyProfile, rule: types_pb2.BeamRule) -> types_pb2.PenaltyProfile:
    """The profile in force; not set, the server's default, or in a beam batch that of the rule's engine."""
    if number in PROFILE_NAMES:
        return number
    if number != types_pb2.PENALTY_PROFILE_UNSPECIFIED:
        raise InvalidField(path, f"must be one of {', '.join(PROFILES)}", number)
    name = RULES_BY_NUMBER[rule].penalty_profile if rule in RULES_BY_NUMBER else DEFAULT_PROFILE.name
    return PROFILE_NUMBERS[name]


def read_rule(path: str, number: types_pb2.BeamRule) -> types_pb2.BeamRule:
    """The beam rule in force; not set, HF."""
    if number == types_pb2.BEAM_RULE_UNSPECIFIED:
        return types_pb2.BEAM_RULE_HF
    if number not in RULES_BY_NUMBER:
        raise InvalidField(path, f"must be one of {', '.join(RULES)}", number)
    return number
