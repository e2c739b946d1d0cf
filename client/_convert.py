"""The client's values to the messages of the contract and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitd.client import _types as types
from logitd.client._arrays import doubles_from_bytes, doubles_to_bytes, ids_from_bytes, ids_to_bytes
from logitd.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

    from logitd.client._arrays import TokenIds
    from logitd.v1 import service_pb2


def full_name(kind: EnumTypeWrapper, name: str | None) -> str:
    """The proto's name of an enum value by its short name; None is "unspecified"."""
    prefix = kind.Name(0).removesuffix("UNSPECIFIED")
    known = [full.removeprefix(prefix) for full in kind.keys()[1:]]
    if name is not None and name not in known:
        raise ValueError(f"{kind.DESCRIPTOR.name} must be one of {', '.join(known)}, got {name!r}")
    return f"{prefix}{name or 'UNSPECIFIED'}"


def short_name(kind: EnumTypeWrapper, number: int) -> str | None:
    """The short name of an enum value; None for "unspecified", `UNKNOWN_7` for one newer than this client."""
    if number == 0:
        return None
    if number not in kind.values():
        return f"UNKNOWN_{number}"
    return kind.Name(number).removeprefix(kind.Name(0).removesuffix("UNSPECIFIED"))


def sequence_to_proto(sequence: types.Sequence, index: int) -> types_pb2.Sequence:
    """A sequence of CreateBatch; `index` becomes its id where it has none."""
    return types_pb2.Sequence(
        sequence_id=sequence.sequence_id or str(index),
        prompt_token_ids=ids_to_bytes(sequence.prompt_token_ids, "prompt_token_ids"),
        output_token_ids=ids_to_bytes(sequence.output_token_ids, "output_token_ids"),
        penalties=_penalties_to_proto(sequence.penalties),
        max_new_tokens=sequence.max_new_tokens,
        eos_token_ids=_int_list(sequence.eos_token_ids, "eos_token_ids"),
        stop_token_ids=_int_list(sequence.stop_token_ids, "stop_token_ids"),
        beam=_beam_to_proto(sequence.beam),
        beams=None if sequence.beams is None else search_state_to_proto(sequence.beams),
    )


def batch_from_proto(batch: types_pb2.Batch) -> types.BatchInfo:
    """A batch as the server describes it."""
    return types.BatchInfo(
        batch_id=batch.batch_id,
        uid=batch.uid,
        revision=batch.revision,
        kind=short_name(types_pb2.BatchKind, batch.kind),
        vocab_size=batch.vocab_size,
        profile=short_name(types_pb2.PenaltyProfile, batch.profile),
        beam_rule=short_name(types_pb2.BeamRule, batch.beam_rule),
        allow_penalty_extension=batch.allow_penalty_extension,
        rows=rows_from_proto(batch.rows),
        sequences=tuple(sequence_from_proto(sequence) for sequence in batch.sequences),
        idle_timeout_seconds=batch.idle_timeout_seconds,
    )


def rows_from_proto(rows: Iterable[types_pb2.RowLayout]) -> tuple[types.RowLayout, ...]:
    """Where the sequences stand."""
    return tuple(types.RowLayout(row.sequence_id, row.first_row, row.row_count) for row in rows)


def search_step_from_proto(step: service_pb2.SearchStep) -> types.SearchStep:
    """What happened to one search."""
    return types.SearchStep(
        sequence_id=step.sequence_id,
        is_done=step.is_done,
        finish_reason=short_name(types_pb2.FinishReason, step.finish_reason),
        entered=tuple(_hypothesis_from_proto(hypothesis) for hypothesis in step.entered),
        hypotheses=tuple(_hypothesis_from_proto(hypothesis) for hypothesis in step.hypotheses),
        checkpoint=step.checkpoint,
        log_prob_sums=doubles_from_bytes(step.log_prob_sums),
        token_log_probs=doubles_from_bytes(step.token_log_probs),
    )


def capabilities_from_proto(reply: service_pb2.GetCapabilitiesResponse) -> types.Capabilities:
    """What a server does."""
    return types.Capabilities(
        version=reply.version,
        instance_id=reply.instance_id,
        data_types=_short_names(types_pb2.DataType, reply.data_types),
        devices=tuple(reply.devices),
        profiles=_short_names(types_pb2.PenaltyProfile, reply.profiles),
        beam_rules=_short_names(types_pb2.BeamRule, reply.beam_rules),
        apply_forms=_short_names(types_pb2.ApplyForm, reply.apply_forms),
        features=tuple(reply.features),
        limits=_limits_from_proto(reply.limits),
    )


def _limits_from_proto(limits: service_pb2.Limits) -> types.Limits:
    return types.Limits(
        max_message_bytes=limits.max_message_bytes,
        max_batches=limits.max_batches,
        max_rows_per_batch=limits.max_rows_per_batch,
        max_vocab_size=limits.max_vocab_size,
        max_new_tokens=limits.max_new_tokens,
        default_max_new_tokens=limits.default_max_new_tokens,
        max_prompt_tokens=limits.max_prompt_tokens,
        max_stop_token_ids=limits.max_stop_token_ids,
        idle_timeout_seconds=limits.idle_timeout_seconds,
    )


def _short_names(kind: EnumTypeWrapper, numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(name for number in numbers if (name := short_name(kind, number)) is not None)


def _penalties_to_proto(penalties: types.Penalties | None) -> types_pb2.PenaltyParameters | None:
    if penalties is None:
        return None
    return types_pb2.PenaltyParameters(
        repetition_penalty=penalties.repetition_penalty,
        frequency_penalty=penalties.frequency_penalty,
        presence_penalty=penalties.presence_penalty,
        min_new_tokens=penalties.min_new_tokens,
    )


def _beam_to_proto(beam: types.Beam | None) -> types_pb2.BeamParameters | None:
    if beam is None:
        return None
    stopping = beam.early_stopping
    name = str(stopping).upper() if isinstance(stopping, bool) else stopping
    return types_pb2.BeamParameters(
        width=beam.width,
        length_penalty=beam.length_penalty,
        early_stopping=full_name(types_pb2.EarlyStopping, name),
        num_return_sequences=beam.num_return_sequences,
        return_token_log_probs=beam.return_token_log_probs,
    )


def search_state_to_proto(state: types.BeamSearchState) -> types_pb2.BeamSearchState:
    """A search under way, for CreateBatch."""
    return types_pb2.BeamSearchState(
        live_beams=[_live_beam_to_proto(beam) for beam in state.live_beams],
        pool=[_hypothesis_to_proto(hypothesis) for hypothesis in state.pool],
        checkpoint=state.checkpoint,
    )


def _live_beam_to_proto(beam: types.LiveBeam) -> types_pb2.LiveBeam:
    return types_pb2.LiveBeam(
        token_ids=ids_to_bytes(beam.token_ids),
        score=beam.score,
        log_prob_sum=beam.log_prob_sum,
        token_log_probs=doubles_to_bytes(beam.token_log_probs),
        parent_chain=ids_to_bytes(beam.parent_chain, "parent_chain"),
    )


def _hypothesis_to_proto(hypothesis: types.Hypothesis) -> types_pb2.Hypothesis:
    return types_pb2.Hypothesis(
        token_ids=ids_to_bytes(hypothesis.token_ids),
        score=hypothesis.score,
        running_sum=hypothesis.running_sum,
        log_prob_sum=hypothesis.log_prob_sum,
        token_log_probs=doubles_to_bytes(hypothesis.token_log_probs),
        finish_reason=full_name(types_pb2.FinishReason, hypothesis.finish_reason),
        parent_chain=ids_to_bytes(hypothesis.parent_chain, "parent_chain"),
        is_filler=hypothesis.is_filler,
    )


def sequence_from_proto(sequence: types_pb2.Sequence) -> types.Sequence:
    """A sequence of CreateBatch or GetBatch."""
    return types.Sequence(
        prompt_token_ids=ids_from_bytes(sequence.prompt_token_ids),
        penalties=_penalties_from_proto(sequence),
        max_new_tokens=sequence.max_new_tokens if sequence.HasField("max_new_tokens") else None,
        eos_token_ids=tuple(sequence.eos_token_ids),
        stop_token_ids=tuple(sequence.stop_token_ids),
        output_token_ids=ids_from_bytes(sequence.output_token_ids),
        beam=_beam_from_proto(sequence),
        beams=search_state_from_proto(sequence),
        sequence_id=sequence.sequence_id,
    )


def _penalties_from_proto(sequence: types_pb2.Sequence) -> types.Penalties | None:
    if not sequence.HasField("penalties"):
        return None
    set_fields = {descriptor.name: value for descriptor, value in sequence.penalties.ListFields()}
    return types.Penalties(**set_fields)


def _beam_from_proto(sequence: types_pb2.Sequence) -> types.Beam | None:
    if not sequence.HasField("beam"):
        return None
    beam = sequence.beam
    return types.Beam(
        width=beam.width,
        length_penalty=beam.length_penalty if beam.HasField("length_penalty") else None,
        early_stopping=short_name(types_pb2.EarlyStopping, beam.early_stopping),
        num_return_sequences=beam.num_return_sequences if beam.HasField("num_return_sequences") else None,
        return_token_log_probs=beam.return_token_log_probs,
    )


def search_state_from_proto(sequence: types_pb2.Sequence) -> types.BeamSearchState | None:
    """A sequence's search under way; None for a new one."""
    if not sequence.HasField("beams"):
        return None
    return types.BeamSearchState(
        live_beams=tuple(_live_beam_from_proto(beam) for beam in sequence.beams.live_beams),
        pool=tuple(_hypothesis_from_proto(hypothesis) for hypothesis in sequence.beams.pool),
        checkpoint=sequence.beams.checkpoint,
    )


def _live_beam_from_proto(beam: types_pb2.LiveBeam) -> types.LiveBeam:
    return types.LiveBeam(
        token_ids=ids_from_bytes(beam.token_ids),
        score=beam.score,
        log_prob_sum=beam.log_prob_sum,
        token_log_probs=doubles_from_bytes(beam.token_log_probs),
        parent_chain=ids_from_bytes(beam.parent_chain),
    )


def _hypothesis_from_proto(hypothesis: types_pb2.Hypothesis) -> types.Hypothesis:
    return types.Hypothesis(
        token_ids=ids_from_bytes(hypothesis.token_ids),
        score=hypothesis.score,
        running_sum=hypothesis.running_sum,
        log_prob_sum=hypothesis.log_prob_sum,
        token_log_probs=doubles_from_bytes(hypothesis.token_log_probs),
        finish_reason=short_name(types_pb2.FinishReason, hypothesis.finish_reason),
        parent_chain=ids_from_bytes(hypothesis.parent_chain),
        is_filler=hypothesis.is_filler,
    )


def _int_list(ids: TokenIds, name: str) -> list[int]:
    return [int(token_id) for token_id in ids_from_bytes(ids_to_bytes(ids, name))]
