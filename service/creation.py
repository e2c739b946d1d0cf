"""From a CreateBatchRequest to a checked plan of the batch, every default filled in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from logitd.sampling import PROFILES, ParameterError, PenaltyParameters, RowStart, check_token_ids
from logitd.service.beam_messages import fill_beam_parameters
from logitd.service.codec import read_int32
from logitd.service.errors import InvalidField, TooManyRows
from logitd.service.identity import CREATE_KEY_BYTES, MAX_NAME_LENGTH, check_batch_id, check_length
from logitd.service.names import PROFILE_NAMES, read_profile, read_rule
from logitd.v1 import types_pb2

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from logitd.service.config import ServerConfig
    from logitd.v1 import service_pb2

# A row's state at its end, per token: key, count, sum and prompt mark, in two layers, and the id in the history.
_STATE_BYTES_PER_TOKEN = 40
# And in a beam batch, per output token: the link in its beam's chain, its place in the pool and in the stored reply.
_BEAM_BYTES_PER_TOKEN = 200
# What a sequence takes beside: its messages and objects, its stop ids as the message, the set and the bans have them.
_STATE_BYTES_PER_SEQUENCE = 4096
_STATE_BYTES_PER_STOP_ID = 32


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """A checked sequence: its effective message without token ids, and the token ids apart."""

    message: types_pb2.Sequence
    prompt_token_ids: NDArray[np.int32]
    output_token_ids: NDArray[np.int32]
    beams: types_pb2.BeamSearchState | None

    def without_history(self) -> SequencePlan:
        """The same of a sequence whose output and beams are kept elsewhere."""
        return replace(self, output_token_ids=self.output_token_ids[:0].copy(), beams=None)

    @property
    def row_start(self) -> RowStart:
        """The sequence as the penalty library takes it."""
        return RowStart(read_penalties(self.message), self.prompt_token_ids, self.output_token_ids)

    @property
    def max_rows(self) -> int:
        """Rows at most: 1, or the width of the search."""
        return self.message.beam.width if self.message.HasField("beam") else 1

    @property
    def reserved_bytes(self) -> int:
        """Bytes of state when the sequence has output all that it may."""
        per_output = _BEAM_BYTES_PER_TOKEN if self.message.HasField("beam") else _STATE_BYTES_PER_TOKEN
        per_row = len(self.prompt_token_ids) * _STATE_BYTES_PER_TOKEN + self.message.max_new_tokens * per_output
        num_stops = len(self.message.eos_token_ids) + len(self.message.stop_token_ids)
        per_row += num_stops * _STATE_BYTES_PER_STOP_ID
        return _STATE_BYTES_PER_SEQUENCE + per_row * self.max_rows


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A checked batch, before it has any state."""

    batch_id: str
    create_key: bytes
    content_digest: bytes
    kind: int
    vocab_size: int
    profile: types_pb2.PenaltyProfile
    beam_rule: types_pb2.BeamRule
    allow_penalty_extension: bool
    sequences: tuple[SequencePlan, ...]

    @property
    def max_rows(self) -> int:
        """Rows at most."""
        return sum(sequence.max_rows for sequence in self.sequences)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of state at most."""
        return sum(sequence.reserved_bytes for sequence in self.sequences)


def plan_batch(request: service_pb2.CreateBatchRequest, config: ServerConfig) -> BatchPlan:
    """Check all of a request; raises `InvalidField` or `TooManyRows`."""
    check_batch_id("batch_id", request.batch_id)
    check_length("create_key", request.create_key, CREATE_KEY_BYTES)
    _check_range("vocab_size", request.vocab_size, 1, config.max_vocab_size)
    kind = _read_kind(request)
    rule = _read_rule(request, kind)
    profile = read_profile("profile", request.profile, rule)
    if not request.sequences:
        raise InvalidField("sequences", "must have at least one", 0)
    if len(request.sequences) > config.max_rows_per_batch:  # before anything is kept of each
        raise TooManyRows(config.max_rows_per_batch, len(request.sequences))
    planner = _SequencePlanner(config, kind, request.vocab_size, profile)
    plan = BatchPlan(
        batch_id=request.batch_id,
        create_key=request.create_key,
        content_digest=hashlib.sha256(request.SerializeToString(deterministic=True)).digest(),
        kind=kind,
        vocab_size=request.vocab_size,
        profile=profile,
        beam_rule=rule,
        allow_penalty_extension=request.allow_penalty_extension,
        sequences=tuple(planner.plan(f"sequences[{i}]", s) for i, s in enumerate(request.sequences)),
    )
    _check_unique([sequence.message.sequence_id for sequence in plan.sequences])
    if plan.max_rows > config.max_rows_per_batch:
        raise TooManyRows(config.max_rows_per_batch, plan.max_rows)
    return plan


def read_penalties(sequence: types_pb2.Sequence) -> PenaltyParameters:
    """The penalty parameters of a sequence; what is not set is neutral."""
    given = sequence.penalties
    return PenaltyParameters(
        repetition_penalty=given.repetition_penalty if given.HasField("repetition_penalty") else 1.0,
        frequency_penalty=given.frequency_penalty,
        presence_penalty=given.presence_penalty,
        min_new_tokens=given.min_new_tokens,
        stop_token_ids=(*sequence.eos_token_ids, *sequence.stop_token_ids),
    )


class _SequencePlanner:
    """Checks the sequences of one batch."""

    def __init__(self, config: ServerConfig, kind: int, vocab_size: int, profile: types_pb2.PenaltyProfile) -> None:
        self._config = config
        self._is_beam = kind == types_pb2.BATCH_KIND_BEAM
        self._vocab_size = vocab_size
        self._profile = profile

    def plan(self, path: str, given: types_pb2.Sequence) -> SequencePlan:
        if not 1 <= len(given.sequence_id) <= MAX_NAME_LENGTH:
            raise InvalidField(f"{path}.sequence_id", f"must be 1 to {MAX_NAME_LENGTH} characters", given.sequence_id)
        effective = types_pb2.Sequence(
            sequence_id=given.sequence_id,
            max_new_tokens=self._read_max_new_tokens(path, given),
            eos_token_ids=given.eos_token_ids,
            stop_token_ids=given.stop_token_ids,
        )
        self._check_stop_sets(path, given)
        self._fill_penalties(path, given, effective)
        self._fill_beam(path, given, effective)
        most_output = effective.max_new_tokens
        prompt = self._read_ids(f"{path}.prompt_token_ids", given.prompt_token_ids, self._config.max_prompt_tokens)
        output = self._read_ids(f"{path}.output_token_ids", given.output_token_ids, most_output)
        return SequencePlan(effective, prompt, output, given.beams if given.HasField("beams") else None)

    def _read_max_new_tokens(self, path: str, given: types_pb2.Sequence) -> int:
        if given.HasField("max_new_tokens"):
            _check_range(f"{path}.max_new_tokens", given.max_new_tokens, 1, self._config.max_new_tokens)
            return given.max_new_tokens
        if self._is_beam:
            raise InvalidField(f"{path}.max_new_tokens", "must be set in a beam batch", "nothing")
        return self._config.default_max_new_tokens

    def _check_stop_sets(self, path: str, given: types_pb2.Sequence) -> None:
        count, most = len(given.eos_token_ids) + len(given.stop_token_ids), self._config.max_stop_token_ids
        if count > most:
            raise InvalidField(f"{path}.stop_token_ids", f"must be at most {most} with eos_token_ids", count)
        for name, ids in (("eos_token_ids", given.eos_token_ids), ("stop_token_ids", given.stop_token_ids)):
            for index, token_id in enumerate(ids):
                _check_range(f"{path}.{name}[{index}]", token_id, 0, self._vocab_size - 1)

    def _fill_penalties(self, path: str, given: types_pb2.Sequence, effective: types_pb2.Sequence) -> None:
        parameters = read_penalties(given)
        try:
            parameters.validate(PROFILES[PROFILE_NAMES[self._profile]], self._vocab_size)
        except ParameterError as error:
            raise InvalidField.of(error, f"{path}.penalties.") from error
        if parameters.min_new_tokens > effective.max_new_tokens:
            rule = f"must be at most max_new_tokens, {effective.max_new_tokens}"
            raise InvalidField(f"{path}.penalties.min_new_tokens", rule, parameters.min_new_tokens)
        effective.penalties.repetition_penalty = parameters.repetition_penalty
        effective.penalties.frequency_penalty = parameters.frequency_penalty
        effective.penalties.presence_penalty = parameters.presence_penalty
        effective.penalties.min_new_tokens = parameters.min_new_tokens

    def _fill_beam(self, path: str, given: types_pb2.Sequence, effective: types_pb2.Sequence) -> None:
        if given.HasField("beam") != self._is_beam:
            rule = "must be set in a beam batch" if self._is_beam else "must not be set in a penalty batch"
            raise InvalidField(f"{path}.beam", rule, "a value" if given.HasField("beam") else "nothing")
        if not self._is_beam:
            if given.HasField("beams"):
                raise InvalidField(f"{path}.beams", "must not be set in a penalty batch", "a value")
            return
        if given.output_token_ids:
            raise InvalidField(f"{path}.output_token_ids", "must be empty in a beam batch, see beams", "a value")
        fill_beam_parameters(f"{path}.beam", given.beam, effective.beam)

    def _read_ids(self, path: str, data: bytes, most: int) -> NDArray[np.int32]:
        ids = read_int32(path, data)
        if len(ids) > most:
            raise InvalidField(path, f"must have at most {most} token ids", len(ids))
        try:
            check_token_ids(path, ids, self._vocab_size)
        except ParameterError as error:
            raise InvalidField.of(error) from error
        return ids


def _read_kind(request: service_pb2.CreateBatchRequest) -> int:
    if request.kind == types_pb2.BATCH_KIND_UNSPECIFIED:
        has_beam = bool(request.sequences) and request.sequences[0].HasField("beam")
        return types_pb2.BATCH_KIND_BEAM if has_beam else types_pb2.BATCH_KIND_PENALTY
    if request.kind not in (types_pb2.BATCH_KIND_PENALTY, types_pb2.BATCH_KIND_BEAM):
        raise InvalidField("kind", "must be PENALTY or BEAM", request.kind)
    return request.kind


def _read_rule(request: service_pb2.CreateBatchRequest, kind: int) -> types_pb2.BeamRule:
    if kind == types_pb2.BATCH_KIND_BEAM:
        return read_rule("beam_rule", request.beam_rule)
    if request.beam_rule != types_pb2.BEAM_RULE_UNSPECIFIED:
        raise InvalidField("beam_rule", "must not be set in a penalty batch", request.beam_rule)
    if request.allow_penalty_extension:
        raise InvalidField("allow_penalty_extension", "must not be set in a penalty batch", True)
    return types_pb2.BEAM_RULE_UNSPECIFIED


def _check_range(path: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidField(path, f"must be in [{least}, {most}]", value)


def _check_unique(sequence_ids: list[str]) -> None:
    seen: set[str] = set()
    for index, sequence_id in enumerate(sequence_ids):
        if sequence_id in seen:
            raise InvalidField(f"sequences[{index}].sequence_id", "must be unique within the batch", sequence_id)
        seen.add(sequence_id)
