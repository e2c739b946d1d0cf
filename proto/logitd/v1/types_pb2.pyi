from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    DATA_TYPE_FP32: _ClassVar[DataType]
    DATA_TYPE_FP16: _ClassVar[DataType]
    DATA_TYPE_BF16: _ClassVar[DataType]

class PenaltyProfile(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PENALTY_PROFILE_UNSPECIFIED: _ClassVar[PenaltyProfile]
    PENALTY_PROFILE_SGLANG: _ClassVar[PenaltyProfile]
    PENALTY_PROFILE_SGLANG_FUSED: _ClassVar[PenaltyProfile]
    PENALTY_PROFILE_VLLM: _ClassVar[PenaltyProfile]
    PENALTY_PROFILE_HF: _ClassVar[PenaltyProfile]

class BatchKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BATCH_KIND_UNSPECIFIED: _ClassVar[BatchKind]
    BATCH_KIND_PENALTY: _ClassVar[BatchKind]
    BATCH_KIND_BEAM: _ClassVar[BatchKind]

class BeamRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BEAM_RULE_UNSPECIFIED: _ClassVar[BeamRule]
    BEAM_RULE_HF: _ClassVar[BeamRule]
    BEAM_RULE_VLLM: _ClassVar[BeamRule]
    BEAM_RULE_VLLM_PROMPT_LENGTH: _ClassVar[BeamRule]

class EarlyStopping(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EARLY_STOPPING_UNSPECIFIED: _ClassVar[EarlyStopping]
    EARLY_STOPPING_FALSE: _ClassVar[EarlyStopping]
    EARLY_STOPPING_TRUE: _ClassVar[EarlyStopping]
    EARLY_STOPPING_NEVER: _ClassVar[EarlyStopping]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_EOS: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_REQUESTED: _ClassVar[FinishReason]
    FINISH_REASON_NO_CANDIDATE: _ClassVar[FinishReason]
    FINISH_REASON_RULE: _ClassVar[FinishReason]

class ApplyForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    APPLY_FORM_UNSPECIFIED: _ClassVar[ApplyForm]
    APPLY_FORM_DENSE: _ClassVar[ApplyForm]
    APPLY_FORM_SPARSE: _ClassVar[ApplyForm]
    APPLY_FORM_IN_PLACE: _ClassVar[ApplyForm]
    APPLY_FORM_EDITS: _ClassVar[ApplyForm]

class DraftMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_MODE_UNSPECIFIED: _ClassVar[DraftMode]
    DRAFT_MODE_EXACT: _ClassVar[DraftMode]
    DRAFT_MODE_SGLANG_RELAXED: _ClassVar[DraftMode]

class BatchView(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BATCH_VIEW_UNSPECIFIED: _ClassVar[BatchView]
    BATCH_VIEW_BASIC: _ClassVar[BatchView]
    BATCH_VIEW_FULL: _ClassVar[BatchView]
DATA_TYPE_UNSPECIFIED: DataType
DATA_TYPE_FP32: DataType
DATA_TYPE_FP16: DataType
DATA_TYPE_BF16: DataType
PENALTY_PROFILE_UNSPECIFIED: PenaltyProfile
PENALTY_PROFILE_SGLANG: PenaltyProfile
PENALTY_PROFILE_SGLANG_FUSED: PenaltyProfile
PENALTY_PROFILE_VLLM: PenaltyProfile
PENALTY_PROFILE_HF: PenaltyProfile
BATCH_KIND_UNSPECIFIED: BatchKind
BATCH_KIND_PENALTY: BatchKind
BATCH_KIND_BEAM: BatchKind
BEAM_RULE_UNSPECIFIED: BeamRule
BEAM_RULE_HF: BeamRule
BEAM_RULE_VLLM: BeamRule
BEAM_RULE_VLLM_PROMPT_LENGTH: BeamRule
EARLY_STOPPING_UNSPECIFIED: EarlyStopping
EARLY_STOPPING_FALSE: EarlyStopping
EARLY_STOPPING_TRUE: EarlyStopping
EARLY_STOPPING_NEVER: EarlyStopping
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_EOS: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_REQUESTED: FinishReason
FINISH_REASON_NO_CANDIDATE: FinishReason
FINISH_REASON_RULE: FinishReason
APPLY_FORM_UNSPECIFIED: ApplyForm
APPLY_FORM_DENSE: ApplyForm
APPLY_FORM_SPARSE: ApplyForm
APPLY_FORM_IN_PLACE: ApplyForm
APPLY_FORM_EDITS: ApplyForm
DRAFT_MODE_UNSPECIFIED: DraftMode
DRAFT_MODE_EXACT: DraftMode
DRAFT_MODE_SGLANG_RELAXED: DraftMode
BATCH_VIEW_UNSPECIFIED: BatchView
BATCH_VIEW_BASIC: BatchView
BATCH_VIEW_FULL: BatchView

class Tensor(_message.Message):
    __slots__ = ("data_type", "shape", "data", "shared_memory", "padding")
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    data_type: DataType
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    shared_memory: SharedMemoryRef
    padding: bytes
    def __init__(self, data_type: _Optional[_Union[DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., shared_memory: _Optional[_Union[SharedMemoryRef, _Mapping]] = ..., padding: _Optional[bytes] = ...) -> None: ...

class SharedMemoryRef(_message.Message):
    __slots__ = ("region_id", "offset")
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    region_id: str
    offset: int
    def __init__(self, region_id: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class PenaltyParameters(_message.Message):
    __slots__ = ("repetition_penalty", "frequency_penalty", "presence_penalty", "min_new_tokens")
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MIN_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    min_new_tokens: int
    def __init__(self, repetition_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., min_new_tokens: _Optional[int] = ...) -> None: ...

class BeamParameters(_message.Message):
    __slots__ = ("width", "length_penalty", "early_stopping", "num_return_sequences", "return_token_log_probs")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    NUM_RETURN_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKEN_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    width: int
    length_penalty: float
    early_stopping: EarlyStopping
    num_return_sequences: int
    return_token_log_probs: bool
    def __init__(self, width: _Optional[int] = ..., length_penalty: _Optional[float] = ..., early_stopping: _Optional[_Union[EarlyStopping, str]] = ..., num_return_sequences: _Optional[int] = ..., return_token_log_probs: bool = ...) -> None: ...

class Sequence(_message.Message):
    __slots__ = ("sequence_id", "prompt_token_ids", "output_token_ids", "penalties", "max_new_tokens", "eos_token_ids", "stop_token_ids", "beam", "beams")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PENALTIES_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BEAM_FIELD_NUMBER: _ClassVar[int]
    BEAMS_FIELD_NUMBER: _ClassVar[int]
    sequence_id: str
    prompt_token_ids: bytes
    output_token_ids: bytes
    penalties: PenaltyParameters
    max_new_tokens: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    beam: BeamParameters
    beams: BeamSearchState
    def __init__(self, sequence_id: _Optional[str] = ..., prompt_token_ids: _Optional[bytes] = ..., output_token_ids: _Optional[bytes] = ..., penalties: _Optional[_Union[PenaltyParameters, _Mapping]] = ..., max_new_tokens: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., beam: _Optional[_Union[BeamParameters, _Mapping]] = ..., beams: _Optional[_Union[BeamSearchState, _Mapping]] = ...) -> None: ...

class BeamSearchState(_message.Message):
    __slots__ = ("live_beams", "pool", "checkpoint")
    LIVE_BEAMS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    live_beams: _containers.RepeatedCompositeFieldContainer[LiveBeam]
    pool: _containers.RepeatedCompositeFieldContainer[Hypothesis]
    checkpoint: bytes
    def __init__(self, live_beams: _Optional[_Iterable[_Union[LiveBeam, _Mapping]]] = ..., pool: _Optional[_Iterable[_Union[Hypothesis, _Mapping]]] = ..., checkpoint: _Optional[bytes] = ...) -> None: ...

class LiveBeam(_message.Message):
    __slots__ = ("token_ids", "score", "log_prob_sum", "token_log_probs", "parent_chain")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    LOG_PROB_SUM_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    PARENT_CHAIN_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    score: float
    log_prob_sum: float
    token_log_probs: bytes
    parent_chain: bytes
    def __init__(self, token_ids: _Optional[bytes] = ..., score: _Optional[float] = ..., log_prob_sum: _Optional[float] = ..., token_log_probs: _Optional[bytes] = ..., parent_chain: _Optional[bytes] = ...) -> None: ...

class Hypothesis(_message.Message):
    __slots__ = ("token_ids", "score", "running_sum", "log_prob_sum", "token_log_probs", "finish_reason", "parent_chain", "is_filler")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_SUM_FIELD_NUMBER: _ClassVar[int]
    LOG_PROB_SUM_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    PARENT_CHAIN_FIELD_NUMBER: _ClassVar[int]
    IS_FILLER_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    score: float
    running_sum: float
    log_prob_sum: float
    token_log_probs: bytes
    finish_reason: FinishReason
    parent_chain: bytes
    is_filler: bool
    def __init__(self, token_ids: _Optional[bytes] = ..., score: _Optional[float] = ..., running_sum: _Optional[float] = ..., log_prob_sum: _Optional[float] = ..., token_log_probs: _Optional[bytes] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., parent_chain: _Optional[bytes] = ..., is_filler: bool = ...) -> None: ...

class RowLayout(_message.Message):
    __slots__ = ("sequence_id", "first_row", "row_count")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    sequence_id: str
    first_row: int
    row_count: int
    def __init__(self, sequence_id: _Optional[str] = ..., first_row: _Optional[int] = ..., row_count: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("batch_id", "uid", "revision", "kind", "vocab_size", "profile", "beam_rule", "allow_penalty_extension", "rows", "sequences", "idle_timeout_seconds")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    BEAM_RULE_FIELD_NUMBER: _ClassVar[int]
    ALLOW_PENALTY_EXTENSION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    uid: bytes
    revision: int
    kind: BatchKind
    vocab_size: int
    profile: PenaltyProfile
    beam_rule: BeamRule
    allow_penalty_extension: bool
    rows: _containers.RepeatedCompositeFieldContainer[RowLayout]
    sequences: _containers.RepeatedCompositeFieldContainer[Sequence]
    idle_timeout_seconds: float
    def __init__(self, batch_id: _Optional[str] = ..., uid: _Optional[bytes] = ..., revision: _Optional[int] = ..., kind: _Optional[_Union[BatchKind, str]] = ..., vocab_size: _Optional[int] = ..., profile: _Optional[_Union[PenaltyProfile, str]] = ..., beam_rule: _Optional[_Union[BeamRule, str]] = ..., allow_penalty_extension: bool = ..., rows: _Optional[_Iterable[_Union[RowLayout, _Mapping]]] = ..., sequences: _Optional[_Iterable[_Union[Sequence, _Mapping]]] = ..., idle_timeout_seconds: _Optional[float] = ...) -> None: ...
