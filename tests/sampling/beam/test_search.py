"""The step protocol: rows, padding, dtypes, refusals, requests that leave, are kept, forked, merged or finished."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.beam_stub import Decoder, StubModel, bits
from logitd.sampling.beam import (
    BeamParameters,
    BeamSearch,
    EarlyStopping,
    FinishReason,
    LiveBeam,
    LogitsError,
    RequestStart,
)
from logitd.sampling.errors import ParameterError
from logitd.sampling.orchestrator import PenaltyOrchestrator, RowStart
from logitd.sampling.parameters import PenaltyParameters

RULE_NAMES = ("HF", "VLLM", "VLLM_PROMPT_LENGTH")
VOCAB_SIZE = 32
PROMPTS = [(1,), (2, 3), (4, 5, 6)]
MODELS = [StubModel(seed, VOCAB_SIZE, eos_token_ids=(7,), eos_bias=2.0) for seed in range(3)]
PARAMETERS = [
    BeamParameters(width, length, eos_token_ids=(7,), prompt_length=len(prompt), return_token_log_probs=True)
    for width, length, prompt in zip([4, 2, 3], [6, 9, 3], PROMPTS, strict=True)
]


def start(rule: str, parameters: list[BeamParameters] = PARAMETERS) -> BeamSearch:
    return BeamSearch.start(rule, VOCAB_SIZE, [RequestStart(p) for p in parameters])


def decode(rule: str, **options: object) -> Decoder:
    return Decoder(start(rule), MODELS, PROMPTS, **options)  # type: ignore[arg-type]


def all_bits(decoder: Decoder) -> list[object]:
    return [bits(decoder.results[place].hypotheses) for place in range(len(MODELS))]


@pytest.fixture(scope="module", params=RULE_NAMES)
def rule(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_a_new_request_has_one_row_whatever_its_width(rule: str) -> None:
    search = start(rule)
    assert search.row_splits.tolist() == [0, 1, 2, 3]
    search, step = search.step(decode(rule).logits())
    assert step.parent_rows.tolist() == [0] * 4 + [1] * 2 + [2] * 3
    assert step.row_splits.tolist() == search.row_splits.tolist() == [0, 4, 6, 9]


def test_log_probs_of_hypotheses_are_the_models(rule: str) -> None:
    for place, result in decode(rule).run().results.items():
        for hypothesis in result.hypotheses:
            sequence = PROMPTS[place]
            assert hypothesis.token_log_probs is not None
            for token_id, log_prob in zip(hypothesis.token_ids.tolist(), hypothesis.token_log_probs, strict=True):
                values = torch.log_softmax(torch.from_numpy(MODELS[place](sequence)), -1)
                assert log_prob == float(values[token_id])
                sequence = (*sequence, token_id)
            assert hypothesis.log_prob_sum == pytest.approx(hypothesis.token_log_probs.sum())


def test_parent_chain_names_rows_of_the_request(rule: str) -> None:
    decoder = decode(rule)
    # histories[place][step]: the token sequences of the request's rows in that step's message.
    histories: list[list[list[tuple[int, ...]]]] = [[] for _ in MODELS]
    while decoder.search.requests:
        splits = decoder.search.row_splits.tolist()
        for place, number in enumerate(decoder.numbers):
            histories[number].append(decoder.sequences[splits[place] : splits[place + 1]])
        decoder.step()
    for place, result in decoder.results.items():
        for hypothesis in result.hypotheses:
            generated = tuple(hypothesis.token_ids.tolist())
            for length, row in enumerate(hypothesis.parent_chain.tolist()):
                assert histories[place][length][row] == PROMPTS[place] + generated[:length]


def test_hypotheses_of_the_answer_have_entered_the_pool_before(rule: str) -> None:
    decoder, entered = decode(rule), {place: [] for place in range(3)}
    while decoder.search.requests:
        numbers = list(decoder.numbers)
        for request in decoder.step().requests:
            entered[numbers[request.index]] += request.entered
    for place, result in decoder.results.items():
        assert result.hypotheses
        assert all(any(h is known for known in entered[place]) for h in result.hypotheses)
        assert [h.score for h in result.hypotheses] == sorted((h.score for h in result.hypotheses), reverse=True)


@pytest.mark.parametrize("padding", [1, 32])
def test_padding_columns_are_never_looked_at(rule: str, padding: int) -> None:
    assert all_bits(decode(rule, padding=padding).run()) == all_bits(decode(rule).run())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_logits_are_widened_first(rule: str, dtype: torch.dtype) -> None:
    narrow, wide = decode(rule, dtype=dtype), decode(rule)
    while narrow.search.requests:
        logits = narrow.logits()
        narrow.step(logits)
        wide.step(logits.float())
    assert all_bits(narrow) == all_bits(wide)


def test_logits_of_any_strides(rule: str) -> None:
    plain, strided = decode(rule), decode(rule)
    while plain.search.requests:
        logits = plain.logits()
        plain.step(logits)
        strided.step(logits.t().contiguous().t())
    assert all_bits(plain) == all_bits(strided)


def test_logits_are_not_changed_and_the_old_search_goes_on_as_before(rule: str) -> None:
    decoder = decode(rule)
    decoder.step()
    logits, search = decoder.logits(), decoder.search
    before = logits.clone()
    _, first = search.step(logits)
    _, again = search.step(logits)
    assert torch.equal(logits, before)
    for name in ("parent_rows", "token_ids", "scores"):
        assert getattr(first, name).tobytes() == getattr(again, name).tobytes()


def test_devices_agree_where_nothing_ties(rule: str, device: torch.device) -> None:
    there, here = decode(rule), decode(rule)
    while here.search.requests:
        logits = here.logits()
        there.step(logits.to(device))
        here.step(logits)
    for place in range(len(MODELS)):
        pairs = zip(there.results[place].hypotheses, here.results[place].hypotheses, strict=True)
        for found, expected in pairs:
            assert found.token_ids.tolist() == expected.token_ids.tolist()
            assert found.score == pytest.approx(expected.score, rel=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("column", [0, 13, VOCAB_SIZE - 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_and_inf_are_refused_and_the_search_goes_on(
    rule: str, value: float, column: int, dtype: torch.dtype
) -> None:
    decoder = decode(rule)
    decoder.step()
    bad = decoder.logits().to(dtype)
    row = 5
    bad[row, column] = value
    before = decoder.search
    with pytest.raises(LogitsError, match=r"must not be NaN or \+inf") as caught:
        before.step(bad)
    assert (caught.value.row, caught.value.token_id) == (row, column)
    assert all_bits(decoder.run()) == all_bits(decode(rule).run())


def test_rows_of_requests_that_are_finished_are_not_looked_at_and_the_others_keep_their_numbers(rule: str) -> None:
    decoder, undisturbed = decode(rule), decode(rule)
    decoder.step()
    logits = decoder.logits()
    logits[:4] = torch.nan
    broken = logits.clone()
    broken[6, 3] = torch.inf
    with pytest.raises(LogitsError) as caught:
        decoder.search.step(broken, finish=[0])
    assert caught.value.row == 6
    step = decoder.step(logits, finish=[0])
    assert [request.index for request in step.requests] == [0, 1, 2]
    assert step.remaining == (1, 2)
    assert step.parent_rows.min() >= 4
    decoder.run()
    assert all_bits(decoder)[1:] == all_bits(undisturbed.run())[1:]
    assert decoder.results[0].finish_reason is FinishReason.REQUESTED


@pytest.mark.parametrize(
    "logits",
    [
        torch.zeros(2, VOCAB_SIZE),
        torch.zeros(4, VOCAB_SIZE),
        torch.zeros(3, VOCAB_SIZE - 1),
        torch.zeros(3 * VOCAB_SIZE),
        torch.zeros(3, VOCAB_SIZE, dtype=torch.float64),
        torch.zeros(3, VOCAB_SIZE, dtype=torch.int32),
    ],
    ids=["few rows", "many rows", "narrow", "flat", "float64", "int32"],
)
def test_logits_of_another_shape_or_dtype_are_refused(rule: str, logits: torch.Tensor) -> None:
    with pytest.raises(LogitsError, match="must be"):
        start(rule).step(logits)


@pytest.mark.parametrize("num_steps", [1, 2, 4])
def test_finishing_on_demand_equals_a_length_stop(rule: str, num_steps: int) -> None:
    # With a bias this low no search ends by itself before.
    models = [StubModel(seed, VOCAB_SIZE, eos_token_ids=(7,), eos_bias=1.0) for seed in range(3)]
    long = [BeamParameters(p.width, 9, eos_token_ids=(7,), prompt_length=2) for p in PARAMETERS]
    short = [BeamParameters(p.width, num_steps, eos_token_ids=(7,), prompt_length=2) for p in PARAMETERS]
    decoder, expected = Decoder(start(rule, long), models, PROMPTS), Decoder(start(rule, short), models, PROMPTS).run()
    for _ in range(num_steps):
        decoder.step()
    kept, step = decoder.search.finish([2, 0])
    assert [request.index for request in step.requests] == [0, 2]
    assert step.remaining == (1,)
    assert step.parent_rows.tolist() == list(range(long[0].width, long[0].width + long[1].width))
    assert len(step.token_ids) == 0
    assert kept.num_rows == long[1].width
    for request in step.requests:
        found, wanted = bits(request.hypotheses), bits(expected.results[request.index].hypotheses)
        swapped = {FinishReason.REQUESTED: FinishReason.LENGTH}
        assert [tuple(swapped.get(f, f) if isinstance(f, FinishReason) else f for f in h) for h in found] == wanted
        assert request.finish_reason is FinishReason.REQUESTED


def test_a_request_finished_before_its_first_step_has_nothing(rule: str) -> None:
    search, step = start(rule).finish([1])
    assert step.requests[0].hypotheses == ()
    assert step.requests[0].finish_reason is FinishReason.REQUESTED
    assert search.num_rows == 2


def test_finishing_all_leaves_an_empty_search(rule: str) -> None:
    search, step = start(rule).finish([0, 1, 2])
    assert search.num_rows == 0
    assert step.row_splits.tolist() == [0]
    search, step = search.step(torch.empty(0, VOCAB_SIZE))
    assert step.requests == ()


@pytest.mark.parametrize("index", [-1, 3])
def test_a_request_that_is_not_there_cannot_be_named(rule: str, index: int) -> None:
    search = start(rule)
    for call in (search.finish, search.filter, lambda names: search.step(torch.zeros(3, VOCAB_SIZE), names)):
        with pytest.raises(ParameterError, match="must be named by 0 to 2"):
            call([index])
    with pytest.raises(ParameterError):
        search.snapshot(index)


def test_filter_reorders_and_forks(rule: str) -> None:
    decoder, undisturbed = decode(rule), all_bits(decode(rule).run())
    decoder.step()
    order = [2, 0, 2]
    splits = decoder.search.row_splits.tolist()
    sequences = [decoder.sequences[row] for place in order for row in range(splits[place], splits[place + 1])]
    forked = Decoder(decoder.search.filter(order), [MODELS[place] for place in order], [()] * 3)
    forked.sequences = sequences
    forked.run()
    assert [bits(forked.results[place].hypotheses) for place in range(3)] == [undisturbed[place] for place in order]
    assert all_bits(decoder.run()) == undisturbed


def test_merged_searches_go_on_as_they_would_apart(rule: str) -> None:
    decoder, undisturbed = decode(rule), all_bits(decode(rule).run())
    decoder.step()
    new = start(rule, PARAMETERS[:1])
    merged = Decoder(decoder.search.merge(new), [*MODELS, MODELS[0]], [()] * 4)
    merged.sequences = [*decoder.sequences, PROMPTS[0]]
    merged.run()
    assert [bits(merged.results[place].hypotheses) for place in range(4)] == [*undisturbed, undisturbed[0]]


def test_searches_that_differ_cannot_be_merged() -> None:
    def with_penalties(profile: str) -> BeamSearch:
        penalties = PenaltyOrchestrator.create(profile, VOCAB_SIZE, [RowStart(PenaltyParameters(1.5))])
        return BeamSearch.start("HF", VOCAB_SIZE, [RequestStart(PARAMETERS[0])], penalties)

    wider = BeamSearch.start("HF", VOCAB_SIZE + 1, [RequestStart(PARAMETERS[0])])
    for ours, other in (
        (start("HF"), start("VLLM")),
        (start("HF"), wider),
        (with_penalties("HF"), with_penalties("SGLANG")),
    ):
        with pytest.raises(ParameterError):
            ours.merge(other)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_side_without_penalties_gets_neutral_ones(is_first: bool) -> None:
    rows = [RowStart(PenaltyParameters(1.7), PROMPTS[0])]
    penalties = PenaltyOrchestrator.create("HF", VOCAB_SIZE, rows)
    search = BeamSearch.start("HF", VOCAB_SIZE, [RequestStart(PARAMETERS[0])], penalties)
    with_penalties, plain = Decoder(search, MODELS[:1], PROMPTS[:1]), decode("HF")
    with_penalties.step()
    plain.step()
    pair = [with_penalties, plain] if is_first else [plain, with_penalties]
    merged = Decoder(pair[0].search.merge(pair[1].search), pair[0].models + pair[1].models, [()] * 4)
    merged.sequences = pair[0].sequences + pair[1].sequences
    merged.run()
    alone = [bits(decoder.run().results[place].hypotheses) for decoder in pair for place in range(len(decoder.models))]
    assert [bits(merged.results[place].hypotheses) for place in range(4)] == alone


def test_a_boost_that_overflows_running_sums_is_refused() -> None:
    boost = RowStart(PenaltyParameters(frequency_penalty=-3e38), (), (2,))
    beams = tuple(LiveBeam(np.array([2], np.int32), 3e38) for _ in range(2))
    penalties = PenaltyOrchestrator.create("HF", VOCAB_SIZE, [boost, boost])
    search = BeamSearch.start("HF", VOCAB_SIZE, [RequestStart(BeamParameters(2, 9), beams)], penalties)
    with pytest.raises(LogitsError, match="running sums"):
        search.step(torch.zeros(2, VOCAB_SIZE))


def test_penalties_are_filtered_merged_and_follow_the_parents() -> None:
    def with_penalties(places: list[int]) -> BeamSearch:
        rows = [RowStart(PenaltyParameters(1.0 + place, 0.5), PROMPTS[place]) for place in places]
        penalties = PenaltyOrchestrator.create("HF", VOCAB_SIZE, rows)
        return BeamSearch.start("HF", VOCAB_SIZE, [RequestStart(PARAMETERS[place]) for place in places], penalties)

    together = Decoder(with_penalties([0, 1, 2]), MODELS, PROMPTS)
    apart = with_penalties([2, 1]).filter([1]).merge(with_penalties([0]))
    merged = Decoder(apart, [MODELS[1], MODELS[0]], [PROMPTS[1], PROMPTS[0]])
    while together.search.requests:
        search = together.search
        assert search.penalties is not None
        for row, sequence in enumerate(together.sequences):
            owner = together.numbers[int(np.searchsorted(search.row_splits, row, side="right")) - 1]
            assert search.penalties.output_token_ids(row).tolist() == list(sequence[len(PROMPTS[owner]) :])
        together.step()
    merged.run()
    expected = all_bits(together)
    assert [bits(merged.results[place].hypotheses) for place in range(2)] == [expected[1], expected[0]]


@pytest.mark.parametrize("mode", list(EarlyStopping))
@pytest.mark.parametrize("count", [1, 2, 4])
def test_num_return_sequences_cuts_the_answer(mode: EarlyStopping, count: int) -> None:
    def run(num_return_sequences: int | None) -> Decoder:
        parameters = BeamParameters(4, 6, 1.0, mode, (7,), num_return_sequences)
        return Decoder(start("HF", [parameters]), MODELS[:1], PROMPTS[:1]).run()

    all_four, cut = run(None).results[0].hypotheses, run(count).results[0].hypotheses
    assert len(all_four) == 4
    assert bits(cut) == bits(all_four[:count])


def test_token_log_probs_only_where_asked(rule: str) -> None:
    parameters = BeamParameters(2, 3, eos_token_ids=(7,), prompt_length=1)
    decoder = Decoder(start(rule, [parameters]), MODELS[:1], PROMPTS[:1]).run()
    assert all(h.token_log_probs is None for h in decoder.results[0].hypotheses)


def test_a_step_reports_what_it_appended(rule: str) -> None:
    decoder, totals = decode(rule), np.zeros(3)
    while decoder.search.requests:
        step = decoder.step()
        live = [request for request in step.requests if not request.is_done]
        totals = totals[step.parent_rows] + np.concatenate([r.token_log_probs for r in live] or [[]])
        assert np.concatenate([r.log_prob_sums for r in live] or [[]]) == pytest.approx(totals)
        assert step.scores.tolist() == [score for r in live for score in r.scores.tolist()]
        assert step.token_ids.tolist() == [token_id for r in live for token_id in r.token_ids.tolist()]
        for request in step.requests:
            assert (len(request.parents) == 0) == request.is_done
            assert (request.checkpoint == b"") == request.is_done
