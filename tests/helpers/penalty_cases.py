"""Faults that public reports describe, as numbers: what comes in, what must come out, what the fault gives.

Data only, so that the library and the running server can both be held to it. The values are our own; `source` names
the report of the fault. All numbers of exact cases are dyadic and hold bit by bit in fp32, fp16 and bf16.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

INF = float("inf")
NAN = float("nan")
PROFILES = ("SGLANG", "SGLANG_FUSED", "VLLM", "HF")

Logits = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class CaseRow:
    """A sequence: its parameters by name (what is absent is unset), its prompt and its output."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()


@dataclass(frozen=True)
class StepCase:
    """One application to logits [R, V].

    Attributes
    ----------
    expected : mapping from profile to logits [R, V]
        Of the profiles that the case is about.
    faults : mapping from a name to logits [R, V]
        What the reported fault gives under the profile SGLANG.
    """

    name: str
    source: str
    rows: tuple[CaseRow, ...]
    logits: Logits
    expected: Mapping[str, Logits]
    faults: Mapping[str, Logits] = field(default_factory=dict)
    is_exact: bool = True

    @property
    def vocab_size(self) -> int:
        return len(self.logits[0])


def _in_every_profile(expected: Logits, **others: Logits) -> dict[str, Logits]:
    return dict.fromkeys(PROFILES, expected) | others


# Kind: test_dense_equivalence.test_apply_equals_the_dense_form, in which logits of both signs and zeros are touched.
SIGN_OF_REPETITION = StepCase(
    name="repetition pushes a negative logit down",
    source="huggingface/transformers#2302, #2303; panbanda/higgs#32; mlc-ai/mlc-llm#2937",
    rows=(CaseRow({"repetition_penalty": 2.0}, output=(0, 1, 3)),),
    logits=((2.0, -1.0, 0.5, 0.0, -0.25, 1.75),),
    expected=_in_every_profile(((1.0, -2.0, 0.5, 0.0, -0.25, 1.75),)),
    faults={"always divided": ((1.0, -0.5, 0.5, 0.0, -0.25, 1.75),)},
)

# Kind: test_dense_equivalence (histories repeat a few ids), test_accumulate.test_any_pieces_equal_...
ONCE_OR_PER_OCCURRENCE = StepCase(
    name="repetition and presence act once, frequency for each occurrence",
    source="ohdearquant/lattice#312; huggingface/transformers.js#1062; mlc-ai/mlc-llm#1693",
    rows=(
        CaseRow(
            {"repetition_penalty": 1.5, "frequency_penalty": 0.5, "presence_penalty": 0.25}, output=(2, 2, 2, 2, 1)
        ),
    ),
    logits=((1.0, 3.0, 6.0, -0.5, 0.25, 2.0),),
    expected=_in_every_profile(((1.0, 1.25, 1.75, -0.5, 0.25, 2.0),), SGLANG_FUSED=((1.0, 1.5, 2.5, -0.5, 0.25, 2.0),)),
    faults={
        "repetition for each occurrence": ((1.0, 1.25, -1.0648148148148149, -0.5, 0.25, 2.0),),
        "the presence penalty used for frequency": ((1.0, 1.5, 2.75, -0.5, 0.25, 2.0),),
    },
    is_exact=False,
)

_SCOPE_SOURCE = "vllm-project/vllm-metal#69; NVIDIA/TensorRT-LLM#5623; vllm-project/vllm#1424; transformers#36642"
_SCOPE_LOGITS = ((4.0, 4.5, 1.0, -1.0, 3.0, 2.125),)
_SCOPE_PARAMETERS = {"repetition_penalty": 2.0, "frequency_penalty": 0.5, "presence_penalty": 0.25}
_HALVED_PROMPT = ((2.0, 4.5, 1.0, -1.0, 1.5, 2.125),)

# Kind: test_dense_equivalence, whose rows have prompts in every profile, with and without output.
SCOPE_BEFORE_ANY_OUTPUT = StepCase(
    name="the prompt alone, before the first output token",
    source=_SCOPE_SOURCE,
    rows=(CaseRow(_SCOPE_PARAMETERS, prompt=(0, 0, 4)),),
    logits=_SCOPE_LOGITS,
    expected={"SGLANG": _SCOPE_LOGITS, "SGLANG_FUSED": _SCOPE_LOGITS, "VLLM": _HALVED_PROMPT, "HF": _HALVED_PROMPT},
)
SCOPE = StepCase(
    name="prompt and output, each penalty with its own scope",
    source=_SCOPE_SOURCE,
    rows=(CaseRow(_SCOPE_PARAMETERS, prompt=(0, 0, 4), output=(1, 1, 3)),),
    logits=_SCOPE_LOGITS,
    expected={
        "SGLANG": ((4.0, 1.0, 1.0, -2.75, 3.0, 2.125),),
        "SGLANG_FUSED": ((4.0, 1.625, 1.0, -3.5, 3.0, 2.125),),
        "VLLM": ((2.0, 1.0, 1.0, -2.75, 1.5, 2.125),),
        "HF": ((2.0, 1.0, 1.0, -2.75, 1.5, 2.125),),
    },
    faults={"the prompt counted by all penalties": ((0.75, 1.0, 1.0, -2.75, 0.75, 2.125),)},
)
SCOPE_OF_REPETITION_ALONE = StepCase(
    name="repetition over prompt and output, as the engine without other penalties has it",
    source=_SCOPE_SOURCE,
    rows=(CaseRow({"repetition_penalty": 2.0}, prompt=(0, 0, 4), output=(1, 1, 3)),),
    logits=_SCOPE_LOGITS,
    expected={"HF": ((2.0, 2.25, 1.0, -2.0, 1.5, 2.125),), "VLLM": ((2.0, 2.25, 1.0, -2.0, 1.5, 2.125),)},
)

# Kind: test_dense_equivalence, against one formula a profile; test_extremes.test_the_order_is_the_profiles.
ORDER = StepCase(
    name="scaling and adding do not commute",
    source="turboderp-org/exllamav3#274; sgl-project/sglang#28181",
    rows=(
        CaseRow({"repetition_penalty": 2.0, "frequency_penalty": 1.0, "presence_penalty": 0.5}, output=(0, 0, 1, 2)),
    ),
    logits=((3.0, 1.0, -1.0, 0.5, 3.5),),
    expected=_in_every_profile(((-1.0, -1.0, -3.5, 0.5, 3.5),), SGLANG_FUSED=((0.25, -1.0, -5.0, 0.5, 3.5),)),
)

_MIXED_LOGITS = (1.0, 2.0, 0.5, 3.0, -1.0, 0.25)
_MIXED_EXPECTED = (_MIXED_LOGITS, (1.0, 1.0, 0.5, 1.0, -1.0, 0.25))

# Kind: test_dense_equivalence.test_neutral_rows_keep_every_bit_..., test_each_row_alone_equals_the_batch.
MIXED_ROWS = StepCase(
    name="a penalised row leaves its neighbours alone, and shorter histories are not filled with id 0",
    source="huggingface/text-generation-inference#1810, #1765, #1811; tenstorrent/vllm#286",
    rows=(
        CaseRow(),
        CaseRow({"frequency_penalty": 1.0}, output=(3, 3, 1)),
        CaseRow({"presence_penalty": 0.5, "repetition_penalty": 2.0}, output=(5,)),
    ),
    logits=(_MIXED_LOGITS,) * 3,
    expected=_in_every_profile(
        (*_MIXED_EXPECTED, (1.0, 2.0, 0.5, 3.0, -1.0, -0.375)),
        SGLANG_FUSED=(*_MIXED_EXPECTED, (1.0, 2.0, 0.5, 3.0, -1.0, -0.5)),
    ),
    faults={"id 0 as a filler is counted": (*_MIXED_EXPECTED, (0.0, 2.0, 0.5, 3.0, -1.0, -0.375))},
)

_NOTHING_LEFT = (-INF,) * 6

# Kind: test_dense_equivalence.test_no_nan_appears_and_no_minus_infinity_leaves, test_extremes.
MASKED_LOGITS = StepCase(
    name="-inf stays -inf under every penalty, and a row may be -inf altogether",
    source="opendatahub-io/vllm-tgis-adapter#85; sgl-project/sglang#24874; allenai/allennlp#890; ahrefs/ocannl#548",
    rows=(
        CaseRow(
            {"repetition_penalty": 2.0, "frequency_penalty": 0.5, "min_new_tokens": 2, "stop_token_ids": (2, 3)},
            output=(0, 1, 4),
        ),
        CaseRow(
            {
                "repetition_penalty": 1.0,
                "frequency_penalty": 0.0,
                "presence_penalty": 0.0,
                "min_new_tokens": 9,
                "stop_token_ids": (2, 3),
            },
            output=(0, 1),
        ),
        CaseRow(
            {"repetition_penalty": 2.0, "presence_penalty": -1.0, "min_new_tokens": 9, "stop_token_ids": (2, 3)},
            output=(0,),
        ),
        CaseRow({"min_new_tokens": 9, "stop_token_ids": (2, 3)}, output=(1,)),
    ),
    logits=(
        (-INF, 2.0, -INF, 1.0, -3.0, 0.5),
        (-INF, 2.0, -INF, 1.0, -3.0, 0.5),
        _NOTHING_LEFT,
        (-INF, -INF, 1.0, -INF, -INF, -INF),
    ),
    expected=_in_every_profile(
        (
            (-INF, 0.5, -INF, 1.0, -6.5, 0.5),
            (-INF, 2.0, -INF, -INF, -3.0, 0.5),
            _NOTHING_LEFT,
            _NOTHING_LEFT,
        ),
        SGLANG_FUSED=(
            (-INF, 0.75, -INF, 1.0, -7.0, 0.5),
            (-INF, 2.0, -INF, -INF, -3.0, 0.5),
            _NOTHING_LEFT,
            _NOTHING_LEFT,
        ),
    ),
)

_LENGTH_LOGITS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)


def _length_cases(
    name: str, min_new_tokens: int, stop_ids: tuple[int, ...], banned: set[int], prompt: tuple[int, ...] = ()
) -> tuple[StepCase, ...]:
    """One case for each output length up to one more than min_new_tokens."""
    parameters = {"min_new_tokens": min_new_tokens, "stop_token_ids": stop_ids}
    masked = tuple(-INF if token_id in banned else logit for token_id, logit in enumerate(_LENGTH_LOGITS))
    return tuple(
        StepCase(
            name=f"{name}, {length} of {min_new_tokens} output",
            source="NVIDIA/TensorRT-LLM#12358, #12166; vllm-project/vllm#5849, #15407; sgl-project/sglang#31972",
            rows=(CaseRow(parameters, prompt, (0,) * length),),
            logits=(_LENGTH_LOGITS,),
            expected=_in_every_profile((masked if length < min_new_tokens else _LENGTH_LOGITS,)),
        )
        for length in range(min_new_tokens + 2)
    )


# Kind: test_dense_equivalence (stop sets with repeats and empty ones, outputs shorter and longer than the minimum);
# test_state_machine, in which rollback makes a row too short again.
MIN_NEW_TOKENS = (
    *_length_cases("the prompt is not counted", 3, (1,), {1}, prompt=(2, 3, 2, 3)),
    *_length_cases("two EOS ids and a stop id", 2, (1, 5, 3), {1, 3, 5}),
    *_length_cases("no EOS id but a stop id", 2, (4,), {4}),
    *_length_cases("an empty stop set", 2, (), set()),
    *_length_cases("ids named twice", 1, (1, 1, 1), {1}),
)

STEP_CASES = (
    SIGN_OF_REPETITION,
    ONCE_OR_PER_OCCURRENCE,
    SCOPE_BEFORE_ANY_OUTPUT,
    SCOPE,
    SCOPE_OF_REPETITION_ALONE,
    ORDER,
    MIXED_ROWS,
    MASKED_LOGITS,
    *MIN_NEW_TOKENS,
)


@dataclass(frozen=True)
class BatchAction:
    """A step in the life of sequences that are known by name.

    Attributes
    ----------
    verb :
        open a batch of its own for each of `names`; accumulate `tokens` to each; merge and filter so that the batch
        is `names` in that order; apply to the batch `names`, with the case's row for each.
    expected : mapping from profile to logits [len(names), V]
    """

    verb: Literal["open", "accumulate", "arrange", "apply"]
    names: tuple[str, ...] = ()
    tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    expected: Mapping[str, Logits] = field(default_factory=dict)


_PLAIN = (1.0, 2.0, -1.0, 4.0, 0.5, 3.0)

# Kind: test_state_machine, every chain of verbs.
CONTINUOUS_BATCHING_SOURCE = (
    "sgl-project/sglang#1001; ml-explore/mlx-lm#1225, #1772; jundot/omlx#1845; vllm-project/vllm#27910"
)
CONTINUOUS_BATCHING_LOGITS = _PLAIN
CONTINUOUS_BATCHING_PARAMETERS: Mapping[str, Mapping[str, float]] = {
    "r0": {},
    "r1": {},
    "r2": {"repetition_penalty": 2.0, "frequency_penalty": 0.5},
    "r3": {"presence_penalty": 1.0},
}
CONTINUOUS_BATCHING = (
    BatchAction("open", ("r0", "r1")),
    BatchAction("arrange", ("r0", "r1")),
    BatchAction("accumulate", tokens={"r0": (1,), "r1": (2,)}),
    BatchAction("apply", ("r0", "r1"), expected=_in_every_profile((_PLAIN, _PLAIN))),
    BatchAction("open", ("r2",)),
    BatchAction("accumulate", tokens={"r2": (3, 3)}),
    BatchAction("arrange", ("r0", "r1", "r2")),
    BatchAction("accumulate", tokens={"r0": (4,), "r1": (5,), "r2": (1,)}),
    BatchAction(
        "apply",
        ("r0", "r1", "r2"),
        expected=_in_every_profile(
            (_PLAIN, _PLAIN, (1.0, 0.5, -1.0, 1.0, 0.5, 3.0)),
            SGLANG_FUSED=(_PLAIN, _PLAIN, (1.0, 0.75, -1.0, 1.5, 0.5, 3.0)),
        ),
    ),
    BatchAction("arrange", ("r1", "r2")),
    BatchAction("accumulate", tokens={"r1": (0,), "r2": (3,)}),
    BatchAction("open", ("r3",)),
    BatchAction("accumulate", tokens={"r3": (2,)}),
    BatchAction("arrange", ("r3", "r1", "r2")),
    BatchAction(
        "apply",
        ("r3", "r1", "r2"),
        expected=_in_every_profile(
            ((1.0, 2.0, -2.0, 4.0, 0.5, 3.0), _PLAIN, (1.0, 0.5, -1.0, 0.5, 0.5, 3.0)),
            SGLANG_FUSED=((1.0, 2.0, -2.0, 4.0, 0.5, 3.0), _PLAIN, (1.0, 0.75, -1.0, 1.25, 0.5, 3.0)),
        ),
    ),
)


@dataclass(frozen=True)
class DraftStep:
    """Drop the last `rollback` output tokens, append `tokens`, then apply to one row of logits."""

    rollback: int
    tokens: tuple[int, ...]
    logits: tuple[float, ...]
    expected: Mapping[str, tuple[float, ...]]


_FIRST_ROWS = (1.0, 2.0, 4.0, 0.5, 3.0, -1.0)
_LAST_ROWS = (2.0, 1.0, 3.5, 0.0, 4.0, -2.0)
_COMMON_ORDER = ("SGLANG", "VLLM", "HF")

# Kind: test_accumulate.test_a_rollback_is_as_if_the_tokens_had_never_come, test_rollback_and_tokens_in_one_call_...
DRAFTS_SOURCE = "vllm-project/vllm#18902, #6718; sgl-project/sglang#40244; youssofal/MTPLX#120"
DRAFTS_ROW = CaseRow({"repetition_penalty": 2.0, "frequency_penalty": 0.5, "presence_penalty": 0.25}, output=(2,))
DRAFTS = (
    DraftStep(0, (), _FIRST_ROWS, dict.fromkeys(_COMMON_ORDER, (1.0, 2.0, 1.25, 0.5, 3.0, -1.0))),
    DraftStep(0, (2,), _FIRST_ROWS, dict.fromkeys(_COMMON_ORDER, (1.0, 2.0, 0.75, 0.5, 3.0, -1.0))),
    DraftStep(0, (4,), _LAST_ROWS, dict.fromkeys(_COMMON_ORDER, (2.0, 1.0, 0.5, 0.0, 1.25, -2.0))),
    DraftStep(0, (4,), _LAST_ROWS, dict.fromkeys(_COMMON_ORDER, (2.0, 1.0, 0.5, 0.0, 0.75, -2.0))),
    # Two drafts stand, the third is replaced.
    DraftStep(1, (1,), _FIRST_ROWS, dict.fromkeys(_COMMON_ORDER, (1.0, 0.25, 0.75, 0.5, 0.75, -1.0))),
)
DRAFTS_FAULTS = {
    "one token counted a round": (1.0, 0.25, 1.25, 0.5, 3.0, -1.0),
    "the rejected draft still counted": (1.0, 0.25, 0.75, 0.5, 0.25, -1.0),
}


@dataclass(frozen=True)
class ParameterCase:
    """Parameters of a new sequence, and the profiles that take them.

    Attributes
    ----------
    logits : of `PARAMETER_LOGITS` after `PARAMETER_OUTPUT`, None where only acceptance matters
    """

    parameters: Mapping[str, float]
    accepted_by: tuple[str, ...]
    logits: tuple[float, ...] | None = None


# Kind: test_validation.test_a_parameter_out_of_the_profiles_range_is_refused.
PARAMETER_SOURCE = "sgl-project/sglang#24874; vllm-project/vllm#16403"
PARAMETER_LOGITS = (2.0, -1.0, 0.5, 0.0, 1.0)
PARAMETER_OUTPUT = (0, 1, 3)
PARAMETER_CASES = (
    ParameterCase({}, PROFILES, PARAMETER_LOGITS),
    ParameterCase({"repetition_penalty": 0.0}, ()),
    ParameterCase({"repetition_penalty": -1.0}, ()),
    ParameterCase({"repetition_penalty": NAN}, ()),
    ParameterCase({"repetition_penalty": INF}, ()),
    ParameterCase({"repetition_penalty": 0.5}, PROFILES, (4.0, -0.5, 0.5, 0.0, 1.0)),
    ParameterCase({"repetition_penalty": 2.5}, ("VLLM", "HF")),
    ParameterCase({"frequency_penalty": -2.0}, PROFILES, (4.0, 1.0, 0.5, 2.0, 1.0)),
    ParameterCase({"frequency_penalty": 2.5}, ("HF",)),
    ParameterCase({"presence_penalty": NAN}, ()),
    ParameterCase({"min_new_tokens": -1}, ()),
)
