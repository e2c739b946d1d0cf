"""A search rebuilt from what its replies told goes on with the same bits."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from helpers.beam_stub import Decoder, StubModel, bits
from logitd.sampling.beam import (
    RULES,
    BeamParameters,
    BeamSearch,
    FinishReason,
    Hypothesis,
    LiveBeam,
    RequestStart,
)
from logitd.sampling.errors import ParameterError
from logitd.sampling.orchestrator import PenaltyOrchestrator, RowStart
from logitd.sampling.parameters import PenaltyParameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitd.sampling.beam import RequestStep

RULE_NAMES = ("HF", "VLLM", "VLLM_PROMPT_LENGTH")
VOCAB_SIZE = 24
PROMPTS = [(1, 2), (3,)]
MODELS = [StubModel(seed, VOCAB_SIZE, step=0.5, eos_token_ids=(7,), eos_bias=1.5) for seed in (11, 12)]
PARAMETERS = [
    BeamParameters(width, 10, 0.7, eos_token_ids=(7, 8), prompt_length=2, return_token_log_probs=True)
    for width in (4, 3)
]
ASKED = PenaltyParameters(1.3, 0.1, min_new_tokens=2, stop_token_ids=(7, 8))


@dataclass
class Journal:
    """What a caller keeps of one request's replies."""

    beams: list[LiveBeam] = field(default_factory=lambda: [LiveBeam(*empty_beam())])
    entered: list[Hypothesis] = field(default_factory=list)
    checkpoint: bytes = b""

    def note(self, result: RequestStep) -> None:
        self.entered += result.entered
        self.checkpoint = result.checkpoint
        columns = (result.parents, result.token_ids, result.scores, result.log_prob_sums, result.token_log_probs)
        self.beams = [
            self._extend(int(parent), int(token_id), float(score), float(total), float(log_prob))
            for parent, token_id, score, total, log_prob in zip(*columns, strict=True)
        ]

    def _extend(self, parent: int, token_id: int, score: float, total: float, log_prob: float) -> LiveBeam:
        beam = self.beams[parent]
        assert beam.parent_chain is not None
        assert beam.token_log_probs is not None
        return LiveBeam(
            np.append(beam.token_ids, np.int32(token_id)),
            score,
            total,
            np.append(beam.parent_chain, np.int32(parent)),
            np.append(beam.token_log_probs, log_prob),
        )

    def start(self, parameters: BeamParameters) -> RequestStart:
        if not len(self.beams[0].token_ids):
            return RequestStart(parameters)
        return RequestStart(parameters, tuple(self.beams), tuple(self.entered), self.checkpoint)


def empty_beam() -> tuple[np.ndarray, float, float, np.ndarray, np.ndarray]:
    return np.empty(0, np.int32), 0.0, 0.0, np.empty(0, np.int32), np.empty(0)


def penalties_of(rule: str, starts: list[RequestStart], places: list[int]) -> PenaltyOrchestrator:
    rows = [
        RowStart(ASKED, PROMPTS[place], beam.token_ids)
        for place, start in zip(places, starts, strict=True)
        for beam in start.live_beams or (LiveBeam(np.empty(0, np.int32), 0.0),)
    ]
    return PenaltyOrchestrator.create(RULES[rule].penalty_profile, VOCAB_SIZE, rows)


def begin(rule: str, starts: list[RequestStart], places: list[int], has_penalties: bool) -> BeamSearch:
    penalties = penalties_of(rule, starts, places) if has_penalties else None
    return BeamSearch.start(rule, VOCAB_SIZE, starts, penalties, allow_penalty_extension=has_penalties)


def run_from(
    rule: str, starts: list[RequestStart], places: list[int], has_penalties: bool, sequences: list[tuple[int, ...]]
) -> dict[int, object]:
    search = begin(rule, starts, places, has_penalties)
    decoder = Decoder(search, [MODELS[place] for place in places], [()] * len(places))
    decoder.sequences = list(sequences)
    decoder.run()
    return {place: bits(decoder.results[number].hypotheses) for number, place in enumerate(places)}


@pytest.mark.parametrize("has_penalties", [False, True], ids=["plain", "penalties"])
@pytest.mark.parametrize("rule", RULE_NAMES)
def test_a_rebuilt_search_goes_on_with_the_same_bits(rule: str, has_penalties: bool) -> None:
    search = begin(rule, [RequestStart(p) for p in PARAMETERS], [0, 1], has_penalties)
    decoder, journals = Decoder(search, MODELS, PROMPTS), [Journal(), Journal()]
    points: list[Callable[[], dict[int, object]]] = []

    def mark() -> None:
        """Remember how to go on from here, from the replies and from a snapshot."""
        places, sequences = list(decoder.numbers), list(decoder.sequences)
        from_replies = [journals[place].start(PARAMETERS[place]) for place in places]
        snapshots = [decoder.search.snapshot(index) for index in range(len(places))]
        points.append(lambda: run_from(rule, from_replies, places, has_penalties, sequences))
        points.append(lambda: run_from(rule, snapshots, places, has_penalties, sequences))

    mark()
    while decoder.search.requests:
        places = list(decoder.numbers)
        step = decoder.step()
        for result in step.requests:
            journals[places[result.index]].note(result)
        mark()
    assert max(decoder.num_steps) >= 5
    expected = {place: bits(result.hypotheses) for place, result in decoder.results.items()}
    assert any(len(journal.entered) > PARAMETERS[place].width for place, journal in enumerate(journals))
    for point in points:
        found = point()
        assert found == {place: expected[place] for place in found}


def midway(rule: str) -> RequestStart:
    """A request whose pool is neither empty nor trivial."""
    search = BeamSearch.start(rule, VOCAB_SIZE, [RequestStart(PARAMETERS[0])])
    decoder = Decoder(search, MODELS[:1], PROMPTS[:1])
    while len(decoder.search.snapshot(0).pool) < 2:
        decoder.step()
    return decoder.search.snapshot(0)


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_the_pool_may_come_in_any_order_and_hold_more(rule: str) -> None:
    start = midway(rule)
    extra = replace(start.pool[0], token_ids=start.pool[0].token_ids + 1, running_sum=-1.0)
    shuffled = replace(start, pool=(extra, *reversed(start.pool)))
    again = BeamSearch.start(rule, VOCAB_SIZE, [shuffled]).snapshot(0)
    assert bits(again.pool) == bits(start.pool)
    assert again.checkpoint == start.checkpoint


def test_without_a_checkpoint_the_pool_is_taken_as_it_is() -> None:
    start = midway("HF")
    again = BeamSearch.start("HF", VOCAB_SIZE, [replace(start, checkpoint=b"", pool=start.pool[::-1])]).snapshot(0)
    assert bits(again.pool) == bits(start.pool)


def test_what_a_caller_did_not_keep_is_marked_so() -> None:
    plain = replace(PARAMETERS[0], return_token_log_probs=False)
    beams = tuple(LiveBeam(np.array([1, token_id], np.int32), -1.0 - token_id) for token_id in range(4))
    _, step = BeamSearch.start("HF", VOCAB_SIZE, [RequestStart(plain, beams)]).finish([0])
    best = step.requests[0].hypotheses[0]
    assert best.parent_chain.tolist() == [-1, -1]
    assert best.log_prob_sum == best.running_sum == -1.0
    assert best.token_log_probs is None


def change(start: RequestStart, index: int, value: bytes) -> RequestStart:
    changed = start.checkpoint[:index] + value + start.checkpoint[index + len(value) :]
    return replace(start, checkpoint=changed)


def with_beam(start: RequestStart, **values: object) -> RequestStart:
    return replace(start, live_beams=(*start.live_beams[:-1], replace(start.live_beams[-1], **values)))


def with_hypothesis(start: RequestStart, **values: object) -> RequestStart:
    return replace(start, pool=(replace(start.pool[0], **values), *start.pool[1:]))


REFUSALS: dict[str, tuple[str, Callable[[RequestStart], RequestStart]]] = {
    "truncated": ("checkpoint", lambda s: replace(s, checkpoint=s.checkpoint[:-1])),
    "longer": ("checkpoint", lambda s: replace(s, checkpoint=s.checkpoint + b"\0")),
    "no header": ("checkpoint", lambda s: replace(s, checkpoint=b"\1")),
    "another version": ("checkpoint", lambda s: change(s, 0, b"\2")),
    "another rule": ("checkpoint", lambda s: change(s, 1, b"\x63")),
    "more slots than bytes": ("checkpoint", lambda s: change(s, 2, struct.pack("<I", 2**32 - 1))),
    "slots out of order": ("checkpoint", lambda s: change(s, 6, s.checkpoint[23:40] + s.checkpoint[6:23])),
    "another width": (
        "checkpoint",
        lambda s: replace(s, parameters=replace(s.parameters, width=2), live_beams=s.live_beams[:2]),
    ),
    "a hypothesis less": ("pool", lambda s: replace(s, pool=s.pool[1:])),
    "another hypothesis": ("pool", lambda s: with_hypothesis(s, running_sum=-0.5)),
    "another score": ("pool", lambda s: with_hypothesis(s, score=s.pool[0].score - 1)),
    "an empty hypothesis": ("pool[0].token_ids", lambda s: with_hypothesis(s, token_ids=np.empty(0, np.int32))),
    "NaN in the pool": ("pool[0].score", lambda s: with_hypothesis(s, score=np.nan)),
    "a short chain": ("pool[0].parent_chain", lambda s: with_hypothesis(s, parent_chain=np.empty(0, np.int32))),
    "no log-probs": ("pool[0].token_log_probs", lambda s: with_hypothesis(s, token_log_probs=None)),
    "no live beams": ("pool", lambda s: replace(s, live_beams=())),
    "no live beams, no pool": ("checkpoint", lambda s: replace(s, live_beams=(), pool=())),
    "more beams than width": ("live_beams", lambda s: replace(s, live_beams=s.live_beams * 2)),
    "beams of other lengths": (
        "live_beams[3].token_ids",
        lambda s: with_beam(s, token_ids=np.array([1] * 9, np.int32)),
    ),
    "a negative id": (
        "live_beams[3].token_ids[0]",
        lambda s: with_beam(s, token_ids=s.live_beams[0].token_ids * 0 - 1),
    ),
    "an id at V": (
        "live_beams[3].token_ids[0]",
        lambda s: with_beam(s, token_ids=s.live_beams[0].token_ids * 0 + VOCAB_SIZE),
    ),
    "NaN as a score": ("live_beams[3].score", lambda s: with_beam(s, score=np.nan)),
    "inf as a sum": ("live_beams[3].log_prob_sum", lambda s: with_beam(s, log_prob_sum=np.inf)),
    "a short parent chain": ("live_beams[3].parent_chain", lambda s: with_beam(s, parent_chain=np.empty(0, np.int32))),
    "beams without log-probs": ("live_beams[3].token_log_probs", lambda s: with_beam(s, token_log_probs=None)),
    "at max_new_tokens": (
        "live_beams[0].token_ids",
        lambda s: replace(s, parameters=replace(s.parameters, max_new_tokens=len(s.live_beams[0].token_ids))),
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_does_not_belong_together_is_refused(name: str) -> None:
    field_name, alter = REFUSALS[name]
    start = midway("HF")
    assert len(start.live_beams) == 4
    with pytest.raises(ParameterError) as caught:
        BeamSearch.start("HF", VOCAB_SIZE, [alter(start)])
    assert caught.value.field == f"requests[0].{field_name}"


def test_hf_needs_all_its_beams_and_vllm_does_not() -> None:
    for rule, is_refused in (("HF", True), ("VLLM", False)):
        start = midway(rule)
        fewer = replace(start, live_beams=start.live_beams[:2])
        if is_refused:
            with pytest.raises(ParameterError):
                BeamSearch.start(rule, VOCAB_SIZE, [fewer])
        else:
            assert BeamSearch.start(rule, VOCAB_SIZE, [fewer]).num_rows == 2


def test_a_pool_beyond_the_width_needs_a_checkpoint() -> None:
    start = midway("VLLM")
    with pytest.raises(ParameterError) as caught:
        BeamSearch.start("VLLM", VOCAB_SIZE, [replace(start, pool=start.pool * 3, checkpoint=b"")])
    assert caught.value.field == "requests[0].pool"


def test_reasons_survive() -> None:
    start = midway("HF")
    assert {h.finish_reason for h in start.pool} == {FinishReason.EOS}
