"""The faults of public reports through the running server: penalties, beams and retries."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from helpers import penalty_cases as cases
from helpers.exact_penalties import penalise_exactly
from helpers.wire import (
    Failed,
    OpenBatch,
    Wire,
    creation,
    ints,
    patch,
    read_doubles,
    read_ints,
    tensor,
    token_update,
)
from helpers.wire_batches import penalties_of, profile_number, sequence_of
from logitd.sampling import PenaltyParameters, RowStart
from logitd.v1 import service_pb2, types_pb2
from logitd.v1.types_pb2 import BeamParameters, Sequence

if TYPE_CHECKING:
    from helpers.penalty_cases import BatchAction, CaseRow, DraftStep, ParameterCase, StepCase

PROFILES = pytest.mark.parametrize("profile", cases.PROFILES)


def sequence(name: str, row: CaseRow) -> Sequence:
    return sequence_of(name, RowStart(PenaltyParameters(**row.parameters), row.prompt, row.output))


def assert_close(actual: torch.Tensor, expected: cases.Logits, *, is_exact: bool = True) -> None:
    wanted = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual.double(), wanted, rtol=0.0 if is_exact else 1e-5, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", cases.STEP_CASES, ids=lambda case: case.name)
def test_a_step(wire: Wire, case: StepCase, dtype: torch.dtype) -> None:
    """Dense and sparse, from a history that came with the batch, in every profile that the case is about."""
    logits = torch.tensor(case.logits, dtype=dtype)
    tolerance = case.is_exact or dtype != torch.float32
    for profile, expected in case.expected.items():
        rows = [sequence(f"row {number}", row) for number, row in enumerate(case.rows)]
        request = creation(*rows, vocab_size=case.vocab_size, profile=profile_number(profile))
        wanted = torch.tensor(expected).to(dtype).tolist()
        with wire.opened(request) as batch:
            assert_close(batch.apply(logits), wanted, is_exact=tolerance)
            sparse = service_pb2.ApplyRequest(
                target=batch.target(), logits=tensor(logits), form=types_pb2.APPLY_FORM_SPARSE
            )
            assert_close(patch(logits, wire.call("Apply", sparse).sparse), wanted, is_exact=tolerance)


@pytest.mark.parametrize("case", cases.STEP_CASES, ids=lambda case: case.name)
def test_a_step_whose_tokens_were_streamed(wire: Wire, case: StepCase) -> None:
    logits = torch.tensor(case.logits)
    outputs = [row.output for row in case.rows]
    for profile, expected in case.expected.items():
        rows = [sequence(f"row {number}", row) for number, row in enumerate(case.rows)]
        for row in rows:
            row.ClearField("output_token_ids")
        with wire.opened(creation(*rows, vocab_size=case.vocab_size, profile=profile_number(profile))) as batch:
            splits = np.cumsum([0, *map(len, outputs)]).tolist()
            after = batch.apply(logits, *[token for output in outputs for token in output], splits=tuple(splits))
            assert_close(after, expected, is_exact=case.is_exact)


@PROFILES
def test_drafts_are_rolled_back(wire: Wire, profile: str) -> None:
    with wire.opened(creation(sequence("s", cases.DRAFTS_ROW), vocab_size=6, profile=profile_number(profile))) as batch:
        for step in cases.DRAFTS:
            check_draft(batch, step, profile)


def check_draft(batch: OpenBatch, step: DraftStep, profile: str) -> None:
    batch.accumulate(*step.tokens, splits=(0, len(step.tokens)), rollback=(step.rollback,))
    after = batch.apply(torch.tensor([step.logits]))
    if profile in step.expected:
        assert_close(after, (step.expected[profile],))


@PROFILES
def test_batches_are_merged_and_filtered(wire: Wire, profile: str) -> None:
    """Each name opens a batch of its own; batches merge as their sequences come to stand side by side."""
    homes: dict[str, OpenBatch] = {}
    for action in cases.CONTINUOUS_BATCHING:
        if action.verb == "open":
            for name in action.names:
                row = cases.CaseRow(cases.CONTINUOUS_BATCHING_PARAMETERS[name])
                homes[name] = wire.open(creation(sequence(name, row), profile=profile_number(profile)))
        elif action.verb == "arrange":
            homes = arrange(wire, homes, action.names)
        else:
            run_action(homes, action, profile)


def arrange(wire: Wire, homes: dict[str, OpenBatch], names: tuple[str, ...]) -> dict[str, OpenBatch]:
    target, *others = dict.fromkeys(homes[name].batch_id for name in names)
    batches = {batch.batch_id: batch for batch in homes.values()}
    batch = batches[target]
    for other in others:
        source = batches[other].target(request_id=b"")
        merge = service_pb2.MergeBatchesRequest(target=batch.target(), source=source)
        batch.revision = wire.call("MergeBatches", merge).revision
    selections = [service_pb2.SequenceSelection(sequence_id=name) for name in names]
    request = service_pb2.FilterBatchRequest(target=batch.target(), sequences=selections)
    reply = wire.call("FilterBatch", request)
    assert [row.sequence_id for row in reply.rows] == list(names)
    batch.revision = reply.revision
    return dict.fromkeys(names, batch)


def run_action(homes: dict[str, OpenBatch], action: BatchAction, profile: str) -> None:
    for batch in {batch.batch_id: batch for batch in homes.values()}.values():
        names = [row.sequence_id for row in batch.describe().rows]
        if action.verb == "accumulate" and action.tokens.keys() & names:
            rows = [action.tokens.get(name, ()) for name in names]
            splits = np.cumsum([0, *map(len, rows)]).tolist()
            batch.accumulate(*[token for row in rows for token in row], splits=tuple(splits))
        elif action.verb == "apply":
            assert names == list(action.names)
            logits = torch.tensor([cases.CONTINUOUS_BATCHING_LOGITS] * len(names))
            assert_close(batch.apply(logits), action.expected[profile])


@PROFILES
@pytest.mark.parametrize("case", cases.PARAMETER_CASES, ids=lambda case: str(case.parameters))
def test_parameters_are_taken_or_refused_at_the_door(wire: Wire, case: ParameterCase, profile: str) -> None:
    asked = Sequence(
        sequence_id="s",
        output_token_ids=ints(*cases.PARAMETER_OUTPUT),
        penalties=types_pb2.PenaltyParameters(**case.parameters),
    )
    request = creation(asked, vocab_size=len(cases.PARAMETER_LOGITS), profile=profile_number(profile))
    if profile not in case.accepted_by:
        with pytest.raises(Failed) as caught:
            wire.open(request)
        assert caught.value.failure.code == "INVALID_ARGUMENT"
        assert caught.value.failure.field == f"sequences[0].penalties.{next(iter(case.parameters))}"
        return
    with wire.opened(request) as batch:
        after = batch.apply(torch.tensor([cases.PARAMETER_LOGITS]))
        if case.logits is not None:
            assert_close(after, (case.logits,))


def test_minimum_above_maximum_is_refused_in_a_beam_batch(wire: Wire) -> None:
    asked = Sequence(sequence_id="s", max_new_tokens=4, beam=BeamParameters(width=2))
    asked.penalties.min_new_tokens = 5
    with pytest.raises(Failed) as caught:
        wire.open(creation(asked))
    assert caught.value.failure.field == "sequences[0].penalties.min_new_tokens"


def test_retried_step_counts_once(wire: Wire) -> None:
    """Token content cannot tell a retry from a repetition: steps 0 and 1 carry the same id."""
    asked = Sequence(sequence_id="s", penalties=types_pb2.PenaltyParameters(frequency_penalty=1.0))
    with wire.opened(creation(asked, vocab_size=5)) as batch:

        def step(revision: int, token_id: int, **target: bytes) -> service_pb2.AccumulateRequest:
            place = batch.target(expected_revision=revision, **target)
            return service_pb2.AccumulateRequest(target=place, tokens=token_update(token_id))

        wire.call("Accumulate", step(0, 2))
        lost = step(1, 2)
        for _ in range(2):  # the first reply never reached the caller
            assert wire.call("Accumulate", lost).revision == 2
        wire.call("Accumulate", step(2, 1))
        for wrong in (step(2, 4), step(9, 0)):
            with pytest.raises(Failed) as caught:
                wire.call("Accumulate", wrong)
            assert caught.value.failure.code == "FAILED_PRECONDITION"
        with pytest.raises(Failed) as caught:
            wire.open(creation(asked, vocab_size=5, batch_id=batch.batch_id))
        assert caught.value.failure.code == "ALREADY_EXISTS"
        batch.revision = 3
        assert batch.outputs() == [[2, 2, 1]]
        assert_close(batch.apply(torch.tensor([[1.0, 2.0, 3.0, 0.5, 0.25]])), ((1.0, 1.0, 1.0, 0.5, 0.25),))


@pytest.mark.parametrize("shift", [0.0, 3.0])
@pytest.mark.parametrize(
    ("rule", "sums_of_shift"),
    [
        # On log-probabilities, which know no constant: the same beams whatever it is.
        ("HF", {0.0: {0: -0.83041077, 1: -1.19200898}, 3.0: {0: -0.83041077, 1: -1.19200898}}),
        # On logits, whose sign depends on it: the order of the two best changes.
        ("VLLM", {0.0: {0: -0.87231268, 1: -1.03897928}, 3.0: {1: -0.85929767, 0: -1.19263100}}),
    ],
)
def test_penalty_on_logits_and_on_log_probabilities(
    wire: Wire, rule: str, sums_of_shift: dict[float, dict[int, float]], shift: float
) -> None:
    asked = Sequence(
        sequence_id="s",
        prompt_token_ids=ints(0),
        penalties=types_pb2.PenaltyParameters(repetition_penalty=1.2),
        max_new_tokens=5,
        eos_token_ids=[4],
        beam=BeamParameters(width=2),
    )
    number = types_pb2.BeamRule.Value(f"BEAM_RULE_{rule}")
    request = creation(asked, vocab_size=5, beam_rule=number, allow_penalty_extension=rule != "HF")
    with wire.opened(request) as batch:
        reply = batch.beam_step(torch.tensor([[2.0, 1.5, -0.5, 0.25, 0.0]]) + shift)
    expected = sums_of_shift[shift]
    assert read_ints(reply.token_ids) == list(expected)
    assert read_doubles(reply.scores) == pytest.approx(list(expected.values()), rel=1e-5)


# Token ids, sum of log-probabilities; D stopped at its length.
HYPOTHESES = {
    "A": ((3, 9), -2.0),
    "B": ((3, 1, 4, 2, 6, 9), -4.5),
    "C": ((5, 2, 9), -2.4),
    "D": ((1, 2, 6), -2.7),
}
RANKINGS = {
    "HF": {1.0: "BCDA", 0.0: "ACDB", 2.0: "BCDA", -1.0: "ACDB"},
    "VLLM": {1.0: "BCDA", 0.0: "ACDB", 2.0: "BCDA", -1.0: "ACDB"},
    "VLLM_PROMPT_LENGTH": {1.0: "ACDB", 0.0: "ACDB", 2.0: "ACDB", -1.0: "ACDB"},
}
EOS, PROMPT_LENGTH = 9, 20


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -1.0])
@pytest.mark.parametrize("rule", RANKINGS)
def test_length_that_divides_the_score(wire: Wire, rule: str, length_penalty: float) -> None:
    """The last token of each hypothesis is certain, so that the sum of the beam before it is the hypothesis' own."""
    number = types_pb2.BeamRule.Value(f"BEAM_RULE_{rule}")
    searches = [almost_done(name, token_ids, total, length_penalty) for name, (token_ids, total) in HYPOTHESES.items()]
    with wire.opened(creation(*searches, vocab_size=10, beam_rule=number)) as batch:
        reply = batch.beam_step(torch.cat([certain(token_ids[-1]) for token_ids, _ in HYPOTHESES.values()]))
    found = {search.sequence_id: search.entered[0] for search in reply.searches}
    for name, (token_ids, total) in HYPOTHESES.items():
        length = len(token_ids)
        if rule == "VLLM_PROMPT_LENGTH":
            length += PROMPT_LENGTH - (token_ids[-1] == EOS)
        assert read_ints(found[name].token_ids) == list(token_ids)
        assert found[name].running_sum == pytest.approx(total, rel=1e-6)
        assert found[name].score == pytest.approx(total / length**length_penalty, rel=1e-5)
    assert "".join(sorted(found, key=lambda name: -found[name].score)) == RANKINGS[rule][length_penalty]


def almost_done(name: str, token_ids: tuple[int, ...], total: float, length_penalty: float) -> Sequence:
    """A search one token before the end of a hypothesis, beside a hopeless beam."""
    before = ints(*token_ids[:-1])
    beams = [types_pb2.LiveBeam(token_ids=before, score=score, log_prob_sum=score) for score in (total, total - 50)]
    return Sequence(
        sequence_id=name,
        prompt_token_ids=bytes(4 * PROMPT_LENGTH),
        max_new_tokens=20 if token_ids[-1] == EOS else len(token_ids),
        eos_token_ids=[EOS],
        beam=BeamParameters(width=2, length_penalty=length_penalty),
        beams=types_pb2.BeamSearchState(live_beams=beams),
    )


def certain(token_id: int) -> torch.Tensor:
    """Two rows: the first has one possible token, the second all."""
    rows = torch.zeros(2, 10)
    rows[0] = -math.inf
    rows[0, token_id] = 0.0
    return rows


START = (-3.5, 4.0, 2.0, -2.0, 3.5)
NEXT = (
    (-2.0, -3.5, -0.5, -1.0, 0.0),
    (1.5, -2.0, 0.5, -0.5, -3.5),
    (-3.0, 0.5, -2.5, 3.0, -1.0),
    (-4.0, -0.5, -1.5, -1.0, 2.5),
)
# Parents, tokens and sums of the live beams after each step.
LIVE_STEPS = (
    ((0, 0), (1, 2), (-0.55669597, -2.55669597)),
    ((0, 0), (0, 2), (-0.98857582, -1.98857582)),
    ((1, 0), (3, 2), (-2.09019891, -2.24935491)),
    ((1, 1), (3, 1), (-2.35097799, -4.85097799)),
)
# The steps that are run, and the hypotheses with their scores.
ENDS = {
    "TRUE": (3, {(1, 0, 4): -0.58311830, (4,): -1.05669597}),
    "FALSE": (4, {(1, 2, 3, 4): -0.54633262, (1, 0, 4): -0.58311830}),
    "NEVER": (5, {(1, 0, 2, 3, 4): -0.48922190, (1, 2, 3, 4): -0.54633262}),
}


@pytest.mark.parametrize("mode", ENDS)
def test_early_stopping_modes_stop_at_their_own_steps(wire: Wire, mode: str) -> None:
    number_of_steps, hypotheses = ENDS[mode]
    stopping = types_pb2.EarlyStopping.Value(f"EARLY_STOPPING_{mode}")
    asked = Sequence(
        sequence_id="s", max_new_tokens=8, eos_token_ids=[4], beam=BeamParameters(width=2, early_stopping=stopping)
    )
    with wire.opened(creation(asked, vocab_size=5)) as batch:
        logits = torch.tensor([START])
        for parents, token_ids, sums in LIVE_STEPS[: number_of_steps - 1]:
            reply = batch.beam_step(logits)
            assert (read_ints(reply.parent_rows), read_ints(reply.token_ids)) == (list(parents), list(token_ids))
            assert read_doubles(reply.scores) == pytest.approx(sums, rel=1e-5)
            assert not reply.searches[0].is_done
            logits = torch.tensor([NEXT[token_id] for token_id in token_ids])
        done = batch.beam_step(logits).searches[0]
    assert (done.is_done, done.finish_reason) == (True, types_pb2.FINISH_REASON_RULE)
    assert [tuple(read_ints(h.token_ids)) for h in done.hypotheses] == list(hypotheses)
    assert [h.score for h in done.hypotheses] == pytest.approx(list(hypotheses.values()), rel=1e-5)


def test_penalty_state_follows_the_parents(wire: Wire) -> None:
    """Both children descend from the second beam, so that neither may have the tokens of the first as seen."""
    parameters = PenaltyParameters(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    before = [types_pb2.LiveBeam(token_ids=ints(*t), score=s, log_prob_sum=s) for t, s in (((0, 0), -9), ((1, 4), -1))]
    asked = Sequence(
        sequence_id="s",
        penalties=penalties_of(parameters),
        max_new_tokens=6,
        eos_token_ids=[5],
        beam=BeamParameters(width=2),
        beams=types_pb2.BeamSearchState(live_beams=before),
    )
    request = creation(asked, profile=types_pb2.PENALTY_PROFILE_SGLANG, beam_rule=types_pb2.BEAM_RULE_HF)
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0, -1.0, 0.0], [4.0, 3.0, 2.5, 1.0, -1.0, 0.0]])
    with wire.opened(request) as batch:
        first = batch.beam_step(torch.tensor([[0.0] * 6, [-2.0, -1.0, 4.0, 3.5, -3.0, -4.0]]))
        assert (read_ints(first.parent_rows), read_ints(first.token_ids)) == ([1, 1], [2, 3])
        second = batch.beam_step(logits)
    histories = ((1, 4, 2), (1, 4, 3))
    log_probs = torch.log_softmax(logits, -1).double().numpy()
    sums = [
        score + penalise_exactly("SGLANG", RowStart(parameters, (), history), row).logits
        for score, history, row in zip(read_doubles(first.scores), histories, log_probs, strict=True)
    ]
    best = np.argsort(-np.concatenate(sums))[:2]
    assert (read_ints(second.parent_rows), read_ints(second.token_ids)) == ((best // 6).tolist(), (best % 6).tolist())
    assert read_doubles(second.scores) == pytest.approx(np.concatenate(sums)[best].tolist(), rel=1e-5)
