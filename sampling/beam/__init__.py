"""Beam search by the rules of several engines, exactly, by name.

A step takes the logits of the live beams and returns the next search and what the decoder does: which rows its caches
continue, which tokens it appends, and what finished. Nothing is changed in place.

    search = BeamSearch.start("HF", vocab_size, [RequestStart(BeamParameters(width=4, max_new_tokens=64))])
    search, step = search.step(logits)
"""

from __future__ import annotations

from logitd.sampling.beam.errors import LogitsError
from logitd.sampling.beam.hypothesis import FinishReason, Hypothesis, LiveBeam
from logitd.sampling.beam.parameters import BeamParameters, EarlyStopping
from logitd.sampling.beam.results import BatchStep, RequestStep
from logitd.sampling.beam.rule import BeamRule
from logitd.sampling.beam.rules import RULES, find_rule
from logitd.sampling.beam.search import BeamSearch
from logitd.sampling.beam.start import RequestStart

__all__ = [
    "RULES",
    "BatchStep",
    "BeamParameters",
    "BeamRule",
    "BeamSearch",
    "EarlyStopping",
    "FinishReason",
    "Hypothesis",
    "LiveBeam",
    "LogitsError",
    "RequestStart",
    "RequestStep",
    "find_rule",
]
