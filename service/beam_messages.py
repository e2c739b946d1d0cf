"""The library's beams, hypotheses and parameters as messages, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitd.sampling import ParameterError, check_token_ids
from logitd.sampling.beam import BeamParameters, FinishReason, Hypothesis, LiveBeam, RequestStart
from logitd.service.codec import read_float64, read_int32, write_float64, write_int32
from logitd.service.errors import InvalidField
from logitd.service.names import EARLY_STOPPING, EARLY_STOPPING_NUMBERS, FINISH_REASON_NUMBERS, FINISH_REASONS
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from logitd.sampling.beam import RequestStep
    from logitd.service.creation import SequencePlan

# Where the library's fields of a request stand in a Sequence; what is not here belongs to its beam parameters.
_SEQUENCE_FIELDS = {"eos_token_ids": "", "max_new_tokens": "", "penalties": "", "min_new_tokens": "penalties."}
_STATE_FIELDS = {"live_beams", "pool", "checkpoint"}
_HYPOTHESIS_REASONS = {FinishReason.EOS, FinishReason.LENGTH, FinishReason.REQUESTED}


def fill_beam_parameters(path: str, given: types_pb2.BeamParameters, effective: types_pb2.BeamParameters) -> None:
    """Every default filled in; raises `InvalidField` for what no rule takes."""
    if given.early_stopping not in EARLY_STOPPING:
        raise InvalidField(f"{path}.early_stopping", "must be FALSE, TRUE or NEVER", given.early_stopping)
    if given.width < 1:
        raise InvalidField(f"{path}.width", "must be 1 or more", given.width)
    effective.CopyFrom(given)
    effective.early_stopping = EARLY_STOPPING_NUMBERS[EARLY_STOPPING[given.early_stopping]]
    if not given.HasField("length_penalty"):
        effective.length_penalty = 1.0
    if not given.HasField("num_return_sequences"):
        effective.num_return_sequences = given.width


def read_request(path: str, plan: SequencePlan, vocab_size: int) -> RequestStart:
    """A sequence as the beam library takes it; raises `InvalidField` for arrays that are none."""
    message, beams = plan.message, plan.beams
    parameters = BeamParameters(
        width=message.beam.width,
        max_new_tokens=message.max_new_tokens,
        length_penalty=message.beam.length_penalty,
        early_stopping=EARLY_STOPPING[message.beam.early_stopping],
        eos_token_ids=tuple(message.eos_token_ids),
        num_return_sequences=message.beam.num_return_sequences,
        prompt_length=len(plan.prompt_token_ids),
        return_token_log_probs=message.beam.return_token_log_probs,
    )
    if beams is None:
        return RequestStart(parameters)
    return RequestStart(
        parameters,
        tuple(_read_live_beam(f"{path}.live_beams[{i}]", beam, vocab_size) for i, beam in enumerate(beams.live_beams)),
        tuple(_read_hypothesis(f"{path}.pool[{i}]", hypothesis) for i, hypothesis in enumerate(beams.pool)),
        beams.checkpoint,
    )


def write_request(start: RequestStart) -> types_pb2.BeamSearchState:
    """A search under way as a message."""
    return types_pb2.BeamSearchState(
        live_beams=[_write_live_beam(beam) for beam in start.live_beams],
        pool=[write_hypothesis(hypothesis) for hypothesis in start.pool],
        checkpoint=start.checkpoint,
    )


def write_hypothesis(hypothesis: Hypothesis) -> types_pb2.Hypothesis:
    """A hypothesis as a message."""
    log_probs = hypothesis.token_log_probs
    return types_pb2.Hypothesis(
        token_ids=write_int32(hypothesis.token_ids),
        score=hypothesis.score,
        running_sum=hypothesis.running_sum,
        log_prob_sum=hypothesis.log_prob_sum,
        token_log_probs=b"" if log_probs is None else write_float64(log_probs),
        finish_reason=FINISH_REASON_NUMBERS[hypothesis.finish_reason],
        parent_chain=write_int32(hypothesis.parent_chain),
        is_filler=hypothesis.is_filler,
    )


def write_search_step(sequence: types_pb2.Sequence, step: RequestStep) -> service_pb2.SearchStep:
    """What happened to one search as a message."""
    return service_pb2.SearchStep(
        sequence_id=sequence.sequence_id,
        is_done=step.finish_reason is not None,
        finish_reason=FINISH_REASON_NUMBERS[step.finish_reason] if step.finish_reason is not None else None,
        entered=[write_hypothesis(hypothesis) for hypothesis in step.entered],
        hypotheses=[write_hypothesis(hypothesis) for hypothesis in step.hypotheses],
        checkpoint=step.checkpoint,
        log_prob_sums=write_float64(step.log_prob_sums),
        token_log_probs=write_float64(step.token_log_probs) if sequence.beam.return_token_log_probs else b"",
    )


def locate_error(error: ParameterError) -> InvalidField:
    """A library error about ``requests[i]`` with the path of its field in CreateBatchRequest."""
    owner, _, field = error.field.partition(".")
    sequence = owner.replace("requests", "sequences")
    head = field.partition("[")[0].partition(".")[0]
    if head == "prompt_length":
        return InvalidField(f"{sequence}.prompt_token_ids", error.rule, error.got)
    place = "beams." if head in _STATE_FIELDS else _SEQUENCE_FIELDS.get(head, "beam.")
    return InvalidField(f"{sequence}.{place}{field}", error.rule, error.got)


def _read_live_beam(path: str, beam: types_pb2.LiveBeam, vocab_size: int) -> LiveBeam:
    token_ids = read_int32(f"{path}.token_ids", beam.token_ids)
    try:
        check_token_ids(f"{path}.token_ids", token_ids, vocab_size)
    except ParameterError as error:
        raise InvalidField.of(error) from error
    return LiveBeam(
        token_ids=token_ids,
        score=beam.score,
        log_prob_sum=beam.log_prob_sum,
        parent_chain=read_int32(f"{path}.parent_chain", beam.parent_chain) if beam.parent_chain else None,
        token_log_probs=read_float64(f"{path}.token_log_probs", beam.token_log_probs) if beam.token_log_probs else None,
    )


def _read_hypothesis(path: str, message: types_pb2.Hypothesis) -> Hypothesis:
    if FINISH_REASONS.get(message.finish_reason) not in _HYPOTHESIS_REASONS:
        raise InvalidField(f"{path}.finish_reason", "must be EOS, LENGTH or REQUESTED", message.finish_reason)
    log_probs = message.token_log_probs
    return Hypothesis(
        token_ids=read_int32(f"{path}.token_ids", message.token_ids),
        score=message.score,
        running_sum=message.running_sum,
        log_prob_sum=message.log_prob_sum,
        finish_reason=FINISH_REASONS[message.finish_reason],
        parent_chain=read_int32(f"{path}.parent_chain", message.parent_chain),
        token_log_probs=read_float64(f"{path}.token_log_probs", log_probs) if log_probs else None,
    )


def _write_live_beam(beam: LiveBeam) -> types_pb2.LiveBeam:
    return types_pb2.LiveBeam(
        token_ids=write_int32(beam.token_ids),
        score=beam.score,
        log_prob_sum=beam.score if beam.log_prob_sum is None else beam.log_prob_sum,
        token_log_probs=b"" if beam.token_log_probs is None else write_float64(beam.token_log_probs),
        parent_chain=b"" if beam.parent_chain is None else write_int32(beam.parent_chain),
    )
