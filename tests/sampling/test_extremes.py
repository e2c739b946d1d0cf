"""Where numbers end: overflow, underflow, infinities, rounding. Expected values are written out."""

from __future__ import annotations

import math

import pytest
import torch

from helpers.penalty_strategies import PROFILES
from helpers.tensors import assert_same_bits
from logitd.sampling import PenaltyOrchestrator, PenaltyParameters, RowStart

INF = math.inf
HUGE = 3e38
TINY = 2.0**-149
FP16_MAX = 65504.0
BF16_MAX = torch.finfo(torch.bfloat16).max

every_profile = pytest.mark.parametrize("profile", PROFILES)


def penalised(profile: str, parameters: PenaltyParameters, logits: torch.Tensor, times: int = 1) -> torch.Tensor:
    """One row of logits [V] after every id was output `times` times."""
    vocab_size = len(logits)
    row = RowStart(parameters, (), tuple(range(vocab_size)) * times)
    result = logits.unsqueeze(0).clone()
    PenaltyOrchestrator.create(profile, vocab_size, [row]).apply_inplace(result)
    return result[0]


def assert_penalised(
    profile: str, parameters: PenaltyParameters, cases: list[tuple[float, float]], device: torch.device, times: int = 1
) -> None:
    logits = torch.tensor([before for before, _ in cases], device=device)
    expected = torch.tensor([after for _, after in cases])
    assert_same_bits(penalised(profile, parameters, logits, times).cpu(), expected)


@every_profile
@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, FP16_MAX), (torch.bfloat16, BF16_MAX)])
def test_a_result_beyond_the_dtype_is_infinite_as_a_cast_has_it(
    profile: str, dtype: torch.dtype, most: float, device: torch.device
) -> None:
    logits = torch.tensor([most, -most], dtype=dtype, device=device)
    boosted = penalised(profile, PenaltyParameters(repetition_penalty=0.5), logits)
    assert boosted.tolist() == [INF, -most / 2]
    lowered = penalised(profile, PenaltyParameters(repetition_penalty=2.0), logits)
    assert lowered.tolist() == [most / 2, -INF]


@every_profile
def test_the_result_is_rounded_once(profile: str, device: torch.device) -> None:
    # A half step below 1, twice: rounded after each, both ties go back to 1.
    half_step = 2.0**-9
    logits = torch.ones(1, dtype=torch.bfloat16, device=device)
    parameters = PenaltyParameters(frequency_penalty=half_step, presence_penalty=half_step)
    assert penalised(profile, parameters, logits).item() == 1 - 2 * half_step


@every_profile
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bits_are_worked_on_as_fp32(profile: str, dtype: torch.dtype, device: torch.device) -> None:
    # In the dtype itself 1000 additions of 0.001 stop at 0.5 or so.
    logits = torch.full((1,), 4.0, dtype=dtype, device=device)
    after = penalised(profile, PenaltyParameters(frequency_penalty=0.001), logits, times=1000)
    assert after.item() == 3.0


def test_huge_additive_penalties_make_infinities_but_no_nan(device: torch.device) -> None:
    lowering = PenaltyParameters(frequency_penalty=HUGE, presence_penalty=HUGE)
    assert_penalised("HF", lowering, [(INF, INF), (-INF, -INF), (1.0, -INF), (-HUGE, -INF)], device, times=5)
    boosting = PenaltyParameters(frequency_penalty=-HUGE, presence_penalty=-HUGE)
    assert_penalised("HF", boosting, [(INF, INF), (-INF, -INF), (1.0, INF), (HUGE, INF)], device, times=5)


def test_a_huge_sum_ends_at_the_greatest_fp32_number(device: torch.device) -> None:
    greatest = torch.finfo(torch.float32).max
    assert_penalised("HF", PenaltyParameters(frequency_penalty=HUGE), [(greatest, 0.0), (0.0, -greatest)], device, 2)
    assert_penalised("HF", PenaltyParameters(frequency_penalty=-HUGE), [(-greatest, 0.0), (0.0, greatest)], device, 2)


def test_a_huge_sum_rolls_back(device: torch.device) -> None:
    state = PenaltyOrchestrator.create("HF", 1, [RowStart(PenaltyParameters(frequency_penalty=HUGE), (), (0, 0))])
    logits = torch.tensor([[HUGE]], device=device)
    state.accumulate([], [0, 0], rollback=[1]).apply_inplace(logits)
    assert logits.item() == 0.0


@pytest.mark.parametrize("profile", ["VLLM", "HF"])
def test_the_smallest_repetition_penalty(profile: str, device: torch.device) -> None:
    cases = [(INF, INF), (-INF, -INF), (0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -TINY), (-3.0, -3 * TINY)]
    assert_penalised(profile, PenaltyParameters(repetition_penalty=1e-45), cases, device)


def test_the_reciprocal_of_the_smallest_repetition_penalty_is_infinite(device: torch.device) -> None:
    # TINY * (1 / TINY): the engine's 1 / TINY overflows, where a division gives 1.
    parameters = PenaltyParameters(repetition_penalty=1e-45)
    assert_penalised("VLLM", parameters, [(TINY, INF)], device)
    assert_penalised("HF", parameters, [(TINY, 1.0)], device)


def test_a_huge_repetition_penalty_is_divided_or_multiplied_by_its_reciprocal(device: torch.device) -> None:
    parameters = PenaltyParameters(repetition_penalty=HUGE)
    huge = torch.tensor(HUGE)
    common = [(INF, INF), (-INF, -INF), (0.0, 0.0), (-2.0, -INF)]
    assert_penalised("HF", parameters, [*common, (HUGE, 1.0)], device)
    assert_penalised("VLLM", parameters, [*common, (HUGE, (huge * (1 / huge)).item())], device)


@every_profile
@pytest.mark.parametrize(
    "parameters",
    [
        PenaltyParameters(repetition_penalty=1 + 1e-9),
        PenaltyParameters(frequency_penalty=1e-50, presence_penalty=-1e-50),
        PenaltyParameters(frequency_penalty=-0.0, presence_penalty=-0.0),
    ],
)
def test_what_rounds_to_neutral_is_neutral(profile: str, parameters: PenaltyParameters, device: torch.device) -> None:
    logits = torch.tensor([-0.0, math.nan, 1.0], device=device)
    assert_same_bits(penalised(profile, parameters, logits), logits)


@pytest.mark.parametrize("boost", [{"frequency_penalty": -0.5}, {"presence_penalty": -0.5}])
def test_a_boost_of_nothing_is_a_product_and_turns_minus_zero_into_zero(
    boost: dict[str, float], device: torch.device
) -> None:
    # The engine subtracts -0.5 * 0, which is -0, from ids that only the prompt has.
    row = RowStart(PenaltyParameters(repetition_penalty=1.5, **boost), (0,))
    logits = torch.tensor([[-0.0, -0.0]], device=device)
    PenaltyOrchestrator.create("VLLM", 2, [row]).apply_inplace(logits)
    assert_same_bits(logits.cpu(), torch.tensor([[0.0, -0.0]]))


@every_profile
def test_a_ban_wins_over_nan_and_infinity(profile: str, device: torch.device) -> None:
    parameters = PenaltyParameters(1.5, 0.5, 0.5, min_new_tokens=9, stop_token_ids=(0, 1))
    assert_penalised(profile, parameters, [(math.nan, -INF), (INF, -INF)], device)


@pytest.mark.parametrize(
    ("profile", "expected"), [("SGLANG", -1.5), ("VLLM", -1.5), ("HF", -1.5), ("SGLANG_FUSED", -2.0)]
)
def test_the_order_is_the_profiles(profile: str, expected: float, device: torch.device) -> None:
    parameters = PenaltyParameters(repetition_penalty=2.0, frequency_penalty=2.0)
    assert_penalised(profile, parameters, [(1.0, expected)], device)
