"""What is refused, by which rule, under which field; and that a refused call changes nothing."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from helpers.penalty_states import assert_same_state
from helpers.penalty_strategies import PROFILES
from helpers.tensors import assert_same_bits
from logitd.sampling import Drafts, ParameterError, PenaltyOrchestrator, PenaltyParameters, RowStart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INF, NAN = math.inf, math.nan
VOCAB_SIZE = 5
SGLANG_LIKE = ("SGLANG", "SGLANG_FUSED")

FINITE_POSITIVE = "must be finite and > 0, also after rounding to fp32"
FINITE = "must be finite, also after rounding to fp32"

# Profiles, field, values that are refused, rule.
REFUSED: list[tuple[Sequence[str], str, Sequence[float], str]] = [
    (PROFILES, "repetition_penalty", (0.0, -0.0, -1.0, NAN, INF, -INF, 1e-46, 1e39), FINITE_POSITIVE),
    (SGLANG_LIKE, "repetition_penalty", (2.5, 2 + 1e-12, 3e38), "must be at most 2 in profile"),
    (PROFILES, "frequency_penalty", (NAN, INF, -INF, 1e39, -1e39), FINITE),
    (PROFILES, "presence_penalty", (NAN, INF, -INF, 1e39, -1e39), FINITE),
    ((*SGLANG_LIKE, "VLLM"), "frequency_penalty", (2.5, -2.5, 2 + 1e-12), "must be in [-2, 2] in profile"),
    ((*SGLANG_LIKE, "VLLM"), "presence_penalty", (2.5, -2.5, 3e38), "must be in [-2, 2] in profile"),
    (PROFILES, "min_new_tokens", (-1, 2**31), "must be in [0, 2147483647]"),
]
ACCEPTED: list[tuple[Sequence[str], str, Sequence[float]]] = [
    (PROFILES, "repetition_penalty", (0.5, 1.0, 2.0, 1e-45)),
    (("VLLM", "HF"), "repetition_penalty", (2.5, 3e38)),
    (PROFILES, "frequency_penalty", (-2.0, -0.0, 2.0)),
    (PROFILES, "presence_penalty", (-2.0, -0.0, 2.0)),
    (("HF",), "frequency_penalty", (2.5, -3e38)),
    (("HF",), "presence_penalty", (-2.5, 3e38)),
    (PROFILES, "min_new_tokens", (0, 2**31 - 1)),
]
TOKEN_RULE = f"must be in [0, {VOCAB_SIZE})"
BAD_TOKENS: list[tuple[Any, str, str]] = [
    ([0, -1], "[1]", TOKEN_RULE),
    ([VOCAB_SIZE], "[0]", TOKEN_RULE),
    ([0, 2**31], "[1]", TOKEN_RULE),
    ([2**63], "[0]", TOKEN_RULE),
    ([0.5], "", "must be one dimension of integers"),
    ([True], "", "must be one dimension of integers"),
    ([[0]], "", "must be one dimension of integers"),
    (0, "", "must be one dimension of integers"),
    ([2**70], "", "must be one dimension of integers"),
    (["0"], "", "must be one dimension of integers"),
]


def refuses(field: str, rule: str) -> pytest.RaisesExc[ParameterError]:
    def names_the_field(error: ParameterError) -> bool:
        return bool(error.field == field and error.rule.startswith(rule))

    return pytest.RaisesExc(ParameterError, match=re.escape(f"{field} {rule}"), check=names_the_field)


def open_two_rows(profile: str = "VLLM") -> PenaltyOrchestrator:
    parameters = PenaltyParameters(1.5, 0.5, -0.5, min_new_tokens=4, stop_token_ids=(4,))
    rows = [RowStart(parameters, (1,), (0, 0, 2)), RowStart(PenaltyParameters(), (), (3,))]
    return PenaltyOrchestrator.create(profile, VOCAB_SIZE, rows)


@pytest.mark.parametrize(
    ("profile", "field", "value", "rule"),
    [
        (profile, field, value, rule)
        for profiles, field, values, rule in REFUSED
        for value in values
        for profile in profiles
    ],
)
def test_a_parameter_out_of_the_profiles_range_is_refused(profile: str, field: str, value: float, rule: str) -> None:
    row = RowStart(PenaltyParameters(**{field: value}))
    with refuses(f"rows[1].{field}", rule) as caught:
        PenaltyOrchestrator.create(profile, VOCAB_SIZE, [RowStart(), row])
    assert caught.value.got is value
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("profile", "field", "value"),
    [(profile, field, value) for profiles, field, values in ACCEPTED for value in values for profile in profiles],
)
def test_a_parameter_in_the_profiles_range_is_taken(profile: str, field: str, value: float) -> None:
    row = RowStart(PenaltyParameters(**{field: value}))
    assert PenaltyOrchestrator.create(profile, VOCAB_SIZE, [row]).num_rows == 1


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 2**40])
def test_a_stop_id_outside_the_vocabulary_is_refused(token_id: int) -> None:
    row = RowStart(PenaltyParameters(stop_token_ids=(0, token_id)))
    with refuses("rows[0].stop_token_ids[1]", TOKEN_RULE):
        PenaltyOrchestrator.create("SGLANG", VOCAB_SIZE, [row])


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("field", ["prompt_token_ids", "output_token_ids"])
@pytest.mark.parametrize(("token_ids", "suffix", "rule"), BAD_TOKENS)
def test_bad_tokens_of_a_new_row_are_refused(profile: str, field: str, token_ids: Any, suffix: str, rule: str) -> None:
    with refuses(f"rows[1].{field}{suffix}", rule):
        PenaltyOrchestrator.create(profile, VOCAB_SIZE, [RowStart(), RowStart(**{field: token_ids})])


def test_an_unknown_profile_is_refused() -> None:
    with refuses("profile", "must be one of SGLANG, SGLANG_FUSED, VLLM, HF"):
        PenaltyOrchestrator.create("sglang", VOCAB_SIZE, [])


@pytest.mark.parametrize(("token_ids", "suffix", "rule"), BAD_TOKENS)
def test_bad_tokens_are_refused(token_ids: Any, suffix: str, rule: str) -> None:
    state = open_two_rows()
    with refuses(f"token_ids{suffix}", rule):
        state.accumulate(token_ids, [0, np.size(token_ids), np.size(token_ids)])
    assert_same_state(state, open_two_rows())


@pytest.mark.parametrize("token_ids", [[], [1], [1, 2, 3]])
def test_without_splits_there_is_one_token_a_row(token_ids: list[int]) -> None:
    state = open_two_rows()
    with refuses("token_ids", "must be one a row, 2, where no row_splits come"):
        state.accumulate(token_ids)
    assert_same_state(state, open_two_rows())


@pytest.mark.parametrize(
    ("row_splits", "rule"),
    [
        ([], "must have shape (3,)"),
        ([0, 2], "must have shape (3,)"),
        ([0, 1, 1, 2], "must have shape (3,)"),
        ([[0, 1, 2]], "must have shape (3,)"),
        (2, "must have shape (3,)"),
        ([1, 1, 2], "must start with 0, never fall, and end with the number of tokens, 2"),
        ([0, 1, 1], "must start with 0, never fall, and end with the number of tokens, 2"),
        ([0, 1, 3], "must start with 0, never fall, and end with the number of tokens, 2"),
        ([0, 3, 2], "must start with 0, never fall, and end with the number of tokens, 2"),
        ([0, -1, 2], "must start with 0, never fall, and end with the number of tokens, 2"),
        (np.array([0, 3, 2], np.uint64), "must start with 0, never fall, and end with the number of tokens, 2"),
        (np.array([0, 2**64 - 1, 2], np.uint64), "must start with 0, never fall, and end with the number of tokens, 2"),
        ([0.0, 1.0, 2.0], "must be integers"),
        ([False, True, True], "must be integers"),
    ],
)
def test_bad_row_splits_are_refused(row_splits: Any, rule: str) -> None:
    state = open_two_rows()
    with refuses("row_splits", rule):
        state.accumulate([1, 2], row_splits)
    assert_same_state(state, open_two_rows())


@pytest.mark.parametrize(
    ("rollback", "suffix", "rule"),
    [
        ([], "", "must have shape (2,), one count a row"),
        ([1], "", "must have shape (2,), one count a row"),
        ([1, 1, 1], "", "must have shape (2,), one count a row"),
        (1, "", "must have shape (2,), one count a row"),
        ([-1, 0], "[0]", "must be in [0, 3], the row's output"),
        ([4, 0], "[0]", "must be in [0, 3], the row's output"),
        ([0, 2], "[1]", "must be in [0, 1], the row's output"),
        (np.array([0, 2**64 - 1], np.uint64), "[1]", "must be in [0, 1], the row's output"),
        ([0.5, 0.0], "", "must be integers"),
        ([True, False], "", "must be integers"),
    ],
)
def test_a_bad_rollback_is_refused(rollback: Any, suffix: str, rule: str) -> None:
    state = open_two_rows()
    with refuses(f"rollback{suffix}", rule):
        state.accumulate([1, 2], rollback=rollback)
    assert_same_state(state, open_two_rows())


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        ([-1], "must be in [0, 2)"),
        ([0, 2], "must be in [0, 2)"),
        ([0.0], "must be integers"),
        ([True, False], "must be integers"),
    ],
)
def test_a_bad_choice_of_rows_is_refused(rows: Any, rule: str) -> None:
    state = open_two_rows()
    with refuses("rows", rule):
        state.filter(rows)
    assert_same_state(state, open_two_rows())


@pytest.mark.parametrize(("profile", "vocab_size"), [("HF", VOCAB_SIZE), ("VLLM", VOCAB_SIZE + 1)])
def test_states_that_differ_in_kind_do_not_merge(profile: str, vocab_size: int) -> None:
    state, other = open_two_rows(), PenaltyOrchestrator.create(profile, vocab_size, [RowStart()])
    with refuses("other", f"must have profile and vocabulary ('VLLM', {VOCAB_SIZE})"):
        state.merge(other)
    assert_same_state(state, open_two_rows())


BAD_LOGITS: list[tuple[torch.Tensor, int, str]] = [
    (torch.zeros(2, VOCAB_SIZE, dtype=torch.float64), 0, "must be float32, float16 or bfloat16"),
    (torch.zeros(2, VOCAB_SIZE, dtype=torch.int32), 0, "must be float32, float16 or bfloat16"),
    (torch.zeros(VOCAB_SIZE), 0, f"must have shape [rows, columns >= {VOCAB_SIZE}]"),
    (torch.zeros(1, 2, VOCAB_SIZE), 0, f"must have shape [rows, columns >= {VOCAB_SIZE}]"),
    (torch.zeros(2, VOCAB_SIZE - 1), 0, f"must have shape [rows, columns >= {VOCAB_SIZE}]"),
    (torch.zeros(3, VOCAB_SIZE), 0, "must hold rows of the batch's 2"),
    (torch.zeros(2, VOCAB_SIZE), 1, "must hold rows of the batch's 2"),
    (torch.zeros(1, VOCAB_SIZE), 2, "must hold rows of the batch's 2"),
    (torch.zeros(1, VOCAB_SIZE), -1, "must hold rows of the batch's 2"),
    (torch.zeros(1, VOCAB_SIZE).expand(2, -1), 0, "must not share memory between its items"),
    (torch.zeros(2, 1).expand(-1, VOCAB_SIZE), 0, "must not share memory between its items"),
    (torch.zeros(VOCAB_SIZE + 1).unfold(0, VOCAB_SIZE, 1), 0, "must not share memory between its items"),
]


@pytest.mark.parametrize("verb", [PenaltyOrchestrator.apply_inplace, PenaltyOrchestrator.compute_patch])
@pytest.mark.parametrize(("logits", "first_row", "rule"), BAD_LOGITS)
def test_bad_logits_are_refused(verb: Callable[..., object], logits: torch.Tensor, first_row: int, rule: str) -> None:
    state, before = open_two_rows(), logits.clone()
    with refuses("logits", rule):
        verb(state, logits, first_row=first_row)
    assert torch.equal(logits, before)
    assert_same_state(state, open_two_rows())


def read_only() -> np.ndarray:
    array = np.zeros((2, VOCAB_SIZE), np.float32)
    array.flags.writeable = False
    return array


BAD_ARRAYS: list[tuple[np.ndarray, str]] = [
    (np.zeros((2, VOCAB_SIZE)), "must be float32, float16 or uint16 in an array"),
    (
        np.zeros((2, VOCAB_SIZE), ">f4"),
        "must be float32, float16 or uint16 in an array",
    ),
    (np.zeros((VOCAB_SIZE, 2), np.float32).T, "must be contiguous in an array"),
    (np.zeros((2, 2 * VOCAB_SIZE), np.float32)[:, ::2], "must be contiguous in an array"),
    (np.zeros(VOCAB_SIZE, np.float32), f"must have shape [rows, columns >= {VOCAB_SIZE}]"),
    (np.zeros((2, VOCAB_SIZE - 1), np.float16), f"must have shape [rows, columns >= {VOCAB_SIZE}]"),
    (np.zeros((3, VOCAB_SIZE), np.uint16), "must hold rows of the batch's 2"),
    (read_only(), "must be writable"),
]


@pytest.mark.parametrize(("logits", "rule"), BAD_ARRAYS)
def test_bad_arrays_are_refused(logits: np.ndarray, rule: str) -> None:
    state = open_two_rows()
    with refuses("logits", rule):
        state.apply_inplace(logits)
    with refuses("logits", rule):
        state.with_drafts(Drafts.create([], [0, 0, 0], num_rows=2, vocab_size=VOCAB_SIZE)).apply_inplace(logits)
    assert not logits.any()


def test_an_array_that_is_only_read_need_not_be_writable() -> None:
    assert len(open_two_rows().compute_patch(read_only()).values) > 0


@pytest.mark.parametrize("shape", [(0, VOCAB_SIZE), (1, VOCAB_SIZE), (1, VOCAB_SIZE + 2)])
def test_a_numpy_row_with_a_stride_of_zero_is_taken(shape: tuple[int, int]) -> None:
    # numpy gives axes of one item, and arrays without any, a stride of 0.
    num_rows, width = shape
    array = np.zeros(width, np.float32)[np.newaxis][:num_rows]
    logits, expected = torch.from_numpy(array), torch.zeros(shape)
    assert 0 in logits.stride()
    open_two_rows().apply_inplace(logits)
    open_two_rows().apply_inplace(expected)
    assert_same_bits(logits, expected)
