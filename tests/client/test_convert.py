from __future__ import annotations

import numpy as np
import pytest

from logitd.client import (
    Beam,
    BeamRule,
    BeamSearchState,
    EarlyStopping,
    FinishReason,
    Hypothesis,
    LiveBeam,
    Penalties,
    Profile,
    Sequence,
)
from logitd.client import _convert as convert
from logitd.v1 import service_pb2, types_pb2

HYPOTHESIS = Hypothesis(
    token_ids=np.array([5, 6, 2], np.int32),
    score=-0.75,
    running_sum=-2.25,
    log_prob_sum=-2.0,
    token_log_probs=np.array([-1.0, -0.5, -0.5]),
    finish_reason="EOS",
    parent_chain=np.array([0, 1, 1], np.int32),
    is_filler=True,
)
LIVE_BEAM = LiveBeam(
    token_ids=np.array([5], np.int32),
    score=-1.5,
    log_prob_sum=-1.0,
    token_log_probs=np.array([-1.0]),
    parent_chain=np.array([0], np.int32),
)


def through_the_wire(sequence: Sequence) -> Sequence:
    message = types_pb2.Sequence.FromString(convert.sequence_to_proto(sequence, 0).SerializeToString())
    return convert.batch_from_proto(types_pb2.Batch(sequences=[message])).sequences[0]


@pytest.mark.parametrize(
    ("enum", "message"),
    [
        (Profile, types_pb2.PenaltyProfile),
        (BeamRule, types_pb2.BeamRule),
        (EarlyStopping, types_pb2.EarlyStopping),
        (FinishReason, types_pb2.FinishReason),
    ],
)
def test_the_enums_are_those_of_the_contract(enum, message):
    assert [convert.short_name(message, number) for number in message.values()] == [None, *enum]
    assert [convert.full_name(message, name) for name in enum] == message.keys()[1:]


def test_an_unknown_name_is_refused_with_those_that_are_known():
    rule = r"PenaltyProfile must be one of SGLANG, SGLANG_FUSED, VLLM, HF, got 'sglang'"
    with pytest.raises(ValueError, match=rule):
        convert.full_name(types_pb2.PenaltyProfile, "sglang")
    with pytest.raises(ValueError, match="got 'UNSPECIFIED'"):
        convert.full_name(types_pb2.PenaltyProfile, "UNSPECIFIED")


def test_what_a_newer_server_names_keeps_its_number():
    reply = service_pb2.GetCapabilitiesResponse(profiles=[1, 77], apply_forms=[0, 2])
    capabilities = convert.capabilities_from_proto(reply)
    assert capabilities.profiles == ("SGLANG", "UNKNOWN_77")
    assert capabilities.apply_forms == ("SPARSE",)


def test_a_sequence_comes_back_as_it_was():
    sequence = Sequence(
        prompt_token_ids=[1, 2, 3],
        penalties=Penalties(1.25, 0.0, -0.5, 0),
        max_new_tokens=0,
        eos_token_ids=[2, 2],
        stop_token_ids=(7,),
        output_token_ids=np.array([4, 4]),
        beam=Beam(4, length_penalty=0.0, early_stopping="NEVER", num_return_sequences=2),
        beams=BeamSearchState((LIVE_BEAM,), (HYPOTHESIS,), b"rule"),
        sequence_id="mine",
    )
    back = through_the_wire(sequence)
    assert [list(back.prompt_token_ids), list(back.output_token_ids)] == [[1, 2, 3], [4, 4]]
    assert (back.penalties, back.max_new_tokens, back.beam) == (sequence.penalties, 0, sequence.beam)
    assert (back.eos_token_ids, back.stop_token_ids, back.sequence_id) == ((2, 2), (7,), "mine")
    assert back.beams is not None
    assert back.beams.checkpoint == b"rule"
    assert_same(back.beams.live_beams[0], LIVE_BEAM)
    assert_same(back.beams.pool[0], HYPOTHESIS)


def test_what_is_not_set_stays_not_set():
    message = convert.sequence_to_proto(Sequence(penalties=Penalties(), beam=Beam(3)), 4)
    assert message.sequence_id == "4"
    assert message.penalties == types_pb2.PenaltyParameters()
    assert message.beam == types_pb2.BeamParameters(width=3)
    assert not message.HasField("max_new_tokens")
    assert not message.HasField("beams")
    back = through_the_wire(Sequence())
    assert (back.penalties, back.max_new_tokens, back.beam, back.beams) == (None, None, None, None)


def test_a_repetition_penalty_of_zero_is_sent_as_zero():
    message = convert.sequence_to_proto(Sequence(penalties=Penalties(repetition_penalty=0.0)), 0)
    assert message.penalties.HasField("repetition_penalty")


@pytest.mark.parametrize(("given", "sent"), [(True, "TRUE"), (False, "FALSE"), (EarlyStopping.NEVER, "NEVER")])
def test_early_stopping_may_be_a_truth_value(given, sent):
    message = convert.sequence_to_proto(Sequence(beam=Beam(2, early_stopping=given)), 0)
    assert convert.short_name(types_pb2.EarlyStopping, message.beam.early_stopping) == sent


@pytest.mark.parametrize("field", ["prompt_token_ids", "output_token_ids", "eos_token_ids", "stop_token_ids"])
def test_wrong_ids_are_refused_with_the_name_of_their_field(field):
    with pytest.raises(ValueError, match=f"{field} must fit into int32"):
        convert.sequence_to_proto(Sequence(**{field: [2**31]}), 0)


def assert_same(left: object, right: object) -> None:
    for name in type(right).__dataclass_fields__:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)
