from logitd.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StepTarget(_message.Message):
    __slots__ = ("batch_id", "uid", "expected_revision", "request_id")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    uid: bytes
    expected_revision: int
    request_id: bytes
    def __init__(self, batch_id: _Optional[str] = ..., uid: _Optional[bytes] = ..., expected_revision: _Optional[int] = ..., request_id: _Optional[bytes] = ...) -> None: ...

class TokenUpdate(_message.Message):
    __slots__ = ("rollback_counts", "token_ids", "row_splits")
    ROLLBACK_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ROW_SPLITS_FIELD_NUMBER: _ClassVar[int]
    rollback_counts: bytes
    token_ids: bytes
    row_splits: bytes
    def __init__(self, rollback_counts: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., row_splits: _Optional[bytes] = ...) -> None: ...

class CreateBatchRequest(_message.Message):
    __slots__ = ("batch_id", "create_key", "vocab_size", "profile", "sequences", "kind", "beam_rule", "allow_penalty_extension")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_KEY_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BEAM_RULE_FIELD_NUMBER: _ClassVar[int]
    ALLOW_PENALTY_EXTENSION_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    create_key: bytes
    vocab_size: int
    profile: _types_pb2.PenaltyProfile
    sequences: _containers.RepeatedCompositeFieldContainer[_types_pb2.Sequence]
    kind: _types_pb2.BatchKind
    beam_rule: _types_pb2.BeamRule
    allow_penalty_extension: bool
    def __init__(self, batch_id: _Optional[str] = ..., create_key: _Optional[bytes] = ..., vocab_size: _Optional[int] = ..., profile: _Optional[_Union[_types_pb2.PenaltyProfile, str]] = ..., sequences: _Optional[_Iterable[_Union[_types_pb2.Sequence, _Mapping]]] = ..., kind: _Optional[_Union[_types_pb2.BatchKind, str]] = ..., beam_rule: _Optional[_Union[_types_pb2.BeamRule, str]] = ..., allow_penalty_extension: bool = ...) -> None: ...

class CreateBatchResponse(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: _types_pb2.Batch
    def __init__(self, batch: _Optional[_Union[_types_pb2.Batch, _Mapping]] = ...) -> None: ...

class GetBatchRequest(_message.Message):
    __slots__ = ("batch_id", "uid", "view")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    uid: bytes
    view: _types_pb2.BatchView
    def __init__(self, batch_id: _Optional[str] = ..., uid: _Optional[bytes] = ..., view: _Optional[_Union[_types_pb2.BatchView, str]] = ...) -> None: ...

class GetBatchResponse(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: _types_pb2.Batch
    def __init__(self, batch: _Optional[_Union[_types_pb2.Batch, _Mapping]] = ...) -> None: ...

class ListBatchesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListBatchesResponse(_message.Message):
    __slots__ = ("batches", "next_page_token")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[_types_pb2.Batch]
    next_page_token: str
    def __init__(self, batches: _Optional[_Iterable[_Union[_types_pb2.Batch, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeleteBatchRequest(_message.Message):
    __slots__ = ("batch_id", "uid", "allow_missing")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    ALLOW_MISSING_FIELD_NUMBER: _ClassVar[int]
    batch_id: str
    uid: bytes
    allow_missing: bool
    def __init__(self, batch_id: _Optional[str] = ..., uid: _Optional[bytes] = ..., allow_missing: bool = ...) -> None: ...

class DeleteBatchResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SequenceSelection(_message.Message):
    __slots__ = ("sequence_id", "new_sequence_id")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    NEW_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    sequence_id: str
    new_sequence_id: str
    def __init__(self, sequence_id: _Optional[str] = ..., new_sequence_id: _Optional[str] = ...) -> None: ...

class FilterBatchRequest(_message.Message):
    __slots__ = ("target", "sequences")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    target: StepTarget
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceSelection]
    def __init__(self, target: _Optional[_Union[StepTarget, _Mapping]] = ..., sequences: _Optional[_Iterable[_Union[SequenceSelection, _Mapping]]] = ...) -> None: ...

class FilterBatchResponse(_message.Message):
    __slots__ = ("revision", "rows", "draining")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    revision: int
    rows: _containers.RepeatedCompositeFieldContainer[_types_pb2.RowLayout]
    draining: bool
    def __init__(self, revision: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[_types_pb2.RowLayout, _Mapping]]] = ..., draining: bool = ...) -> None: ...

class MergeBatchesRequest(_message.Message):
    __slots__ = ("target", "source")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    target: StepTarget
    source: StepTarget
    def __init__(self, target: _Optional[_Union[StepTarget, _Mapping]] = ..., source: _Optional[_Union[StepTarget, _Mapping]] = ...) -> None: ...

class MergeBatchesResponse(_message.Message):
    __slots__ = ("revision", "rows", "draining")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    revision: int
    rows: _containers.RepeatedCompositeFieldContainer[_types_pb2.RowLayout]
    draining: bool
    def __init__(self, revision: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[_types_pb2.RowLayout, _Mapping]]] = ..., draining: bool = ...) -> None: ...

class AccumulateRequest(_message.Message):
    __slots__ = ("target", "tokens")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    target: StepTarget
    tokens: TokenUpdate
    def __init__(self, target: _Optional[_Union[StepTarget, _Mapping]] = ..., tokens: _Optional[_Union[TokenUpdate, _Mapping]] = ...) -> None: ...

class AccumulateResponse(_message.Message):
    __slots__ = ("revision", "draining")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    revision: int
    draining: bool
    def __init__(self, revision: _Optional[int] = ..., draining: bool = ...) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ("target", "tokens", "form", "first_row", "logits", "edits_since_revision", "row_count", "drafts")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    EDITS_SINCE_REVISION_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    target: StepTarget
    tokens: TokenUpdate
    form: _types_pb2.ApplyForm
    first_row: int
    logits: _types_pb2.Tensor
    edits_since_revision: int
    row_count: int
    drafts: DraftTokens
    def __init__(self, target: _Optional[_Union[StepTarget, _Mapping]] = ..., tokens: _Optional[_Union[TokenUpdate, _Mapping]] = ..., form: _Optional[_Union[_types_pb2.ApplyForm, str]] = ..., first_row: _Optional[int] = ..., logits: _Optional[_Union[_types_pb2.Tensor, _Mapping]] = ..., edits_since_revision: _Optional[int] = ..., row_count: _Optional[int] = ..., drafts: _Optional[_Union[DraftTokens, _Mapping]] = ...) -> None: ...

class DraftTokens(_message.Message):
    __slots__ = ("token_ids", "row_splits", "parents", "mode")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ROW_SPLITS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    row_splits: bytes
    parents: bytes
    mode: _types_pb2.DraftMode
    def __init__(self, token_ids: _Optional[bytes] = ..., row_splits: _Optional[bytes] = ..., parents: _Optional[bytes] = ..., mode: _Optional[_Union[_types_pb2.DraftMode, str]] = ...) -> None: ...

class ApplyResponse(_message.Message):
    __slots__ = ("revision", "draining", "first_row", "dense", "sparse", "in_place", "edits")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    IN_PLACE_FIELD_NUMBER: _ClassVar[int]
    EDITS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    draining: bool
    first_row: int
    dense: DenseResult
    sparse: SparsePatch
    in_place: InPlaceResult
    edits: Edits
    def __init__(self, revision: _Optional[int] = ..., draining: bool = ..., first_row: _Optional[int] = ..., dense: _Optional[_Union[DenseResult, _Mapping]] = ..., sparse: _Optional[_Union[SparsePatch, _Mapping]] = ..., in_place: _Optional[_Union[InPlaceResult, _Mapping]] = ..., edits: _Optional[_Union[Edits, _Mapping]] = ...) -> None: ...

class DenseResult(_message.Message):
    __slots__ = ("logits",)
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    logits: _types_pb2.Tensor
    def __init__(self, logits: _Optional[_Union[_types_pb2.Tensor, _Mapping]] = ...) -> None: ...

class SparsePatch(_message.Message):
    __slots__ = ("row_splits", "token_ids", "values", "data_type")
    ROW_SPLITS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    row_splits: bytes
    token_ids: bytes
    values: bytes
    data_type: _types_pb2.DataType
    def __init__(self, row_splits: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., values: _Optional[bytes] = ..., data_type: _Optional[_Union[_types_pb2.DataType, str]] = ...) -> None: ...

class InPlaceResult(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Edits(_message.Message):
    __slots__ = ("row_splits", "token_ids", "repetition", "presence", "frequency_sums", "flags", "is_full")
    ROW_SPLITS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    REPETITION_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_SUMS_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    IS_FULL_FIELD_NUMBER: _ClassVar[int]
    row_splits: bytes
    token_ids: bytes
    repetition: bytes
    presence: bytes
    frequency_sums: bytes
    flags: bytes
    is_full: bool
    def __init__(self, row_splits: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., repetition: _Optional[bytes] = ..., presence: _Optional[bytes] = ..., frequency_sums: _Optional[bytes] = ..., flags: _Optional[bytes] = ..., is_full: bool = ...) -> None: ...

class BeamStepRequest(_message.Message):
    __slots__ = ("target", "first_row", "logits", "has_more_chunks", "finish_sequence_ids")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    FINISH_SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    target: StepTarget
    first_row: int
    logits: _types_pb2.Tensor
    has_more_chunks: bool
    finish_sequence_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, target: _Optional[_Union[StepTarget, _Mapping]] = ..., first_row: _Optional[int] = ..., logits: _Optional[_Union[_types_pb2.Tensor, _Mapping]] = ..., has_more_chunks: bool = ..., finish_sequence_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class BeamStepResponse(_message.Message):
    __slots__ = ("revision", "draining", "is_chunk_acknowledgement", "parent_rows", "token_ids", "scores", "rows", "searches")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    IS_CHUNK_ACKNOWLEDGEMENT_FIELD_NUMBER: _ClassVar[int]
    PARENT_ROWS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SEARCHES_FIELD_NUMBER: _ClassVar[int]
    revision: int
    draining: bool
    is_chunk_acknowledgement: bool
    parent_rows: bytes
    token_ids: bytes
    scores: bytes
    rows: _containers.RepeatedCompositeFieldContainer[_types_pb2.RowLayout]
    searches: _containers.RepeatedCompositeFieldContainer[SearchStep]
    def __init__(self, revision: _Optional[int] = ..., draining: bool = ..., is_chunk_acknowledgement: bool = ..., parent_rows: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., scores: _Optional[bytes] = ..., rows: _Optional[_Iterable[_Union[_types_pb2.RowLayout, _Mapping]]] = ..., searches: _Optional[_Iterable[_Union[SearchStep, _Mapping]]] = ...) -> None: ...

class SearchStep(_message.Message):
    __slots__ = ("sequence_id", "is_done", "finish_reason", "entered", "hypotheses", "checkpoint", "log_prob_sums", "token_log_probs")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    IS_DONE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    ENTERED_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LOG_PROB_SUMS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    sequence_id: str
    is_done: bool
    finish_reason: _types_pb2.FinishReason
    entered: _containers.RepeatedCompositeFieldContainer[_types_pb2.Hypothesis]
    hypotheses: _containers.RepeatedCompositeFieldContainer[_types_pb2.Hypothesis]
    checkpoint: bytes
    log_prob_sums: bytes
    token_log_probs: bytes
    def __init__(self, sequence_id: _Optional[str] = ..., is_done: bool = ..., finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., entered: _Optional[_Iterable[_Union[_types_pb2.Hypothesis, _Mapping]]] = ..., hypotheses: _Optional[_Iterable[_Union[_types_pb2.Hypothesis, _Mapping]]] = ..., checkpoint: _Optional[bytes] = ..., log_prob_sums: _Optional[bytes] = ..., token_log_probs: _Optional[bytes] = ...) -> None: ...

class RegisterSharedMemoryRequest(_message.Message):
    __slots__ = ("memory_file_token", "file_name", "byte_size")
    MEMORY_FILE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    BYTE_SIZE_FIELD_NUMBER: _ClassVar[int]
    memory_file_token: bytes
    file_name: str
    byte_size: int
    def __init__(self, memory_file_token: _Optional[bytes] = ..., file_name: _Optional[str] = ..., byte_size: _Optional[int] = ...) -> None: ...

class RegisterSharedMemoryResponse(_message.Message):
    __slots__ = ("region_id",)
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    region_id: str
    def __init__(self, region_id: _Optional[str] = ...) -> None: ...

class UnregisterSharedMemoryRequest(_message.Message):
    __slots__ = ("region_id",)
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    region_id: str
    def __init__(self, region_id: _Optional[str] = ...) -> None: ...

class UnregisterSharedMemoryResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCapabilitiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCapabilitiesResponse(_message.Message):
    __slots__ = ("version", "instance_id", "data_types", "devices", "profiles", "beam_rules", "apply_forms", "features", "limits")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    BEAM_RULES_FIELD_NUMBER: _ClassVar[int]
    APPLY_FORMS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    version: str
    instance_id: str
    data_types: _containers.RepeatedScalarFieldContainer[_types_pb2.DataType]
    devices: _containers.RepeatedScalarFieldContainer[str]
    profiles: _containers.RepeatedScalarFieldContainer[_types_pb2.PenaltyProfile]
    beam_rules: _containers.RepeatedScalarFieldContainer[_types_pb2.BeamRule]
    apply_forms: _containers.RepeatedScalarFieldContainer[_types_pb2.ApplyForm]
    features: _containers.RepeatedScalarFieldContainer[str]
    limits: Limits
    def __init__(self, version: _Optional[str] = ..., instance_id: _Optional[str] = ..., data_types: _Optional[_Iterable[_Union[_types_pb2.DataType, str]]] = ..., devices: _Optional[_Iterable[str]] = ..., profiles: _Optional[_Iterable[_Union[_types_pb2.PenaltyProfile, str]]] = ..., beam_rules: _Optional[_Iterable[_Union[_types_pb2.BeamRule, str]]] = ..., apply_forms: _Optional[_Iterable[_Union[_types_pb2.ApplyForm, str]]] = ..., features: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_message_bytes", "max_batches", "max_rows_per_batch", "max_vocab_size", "max_new_tokens", "default_max_new_tokens", "max_prompt_tokens", "max_stop_token_ids", "idle_timeout_seconds")
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCHES_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_PER_BATCH_FIELD_NUMBER: _ClassVar[int]
    MAX_VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    max_message_bytes: int
    max_batches: int
    max_rows_per_batch: int
    max_vocab_size: int
    max_new_tokens: int
    default_max_new_tokens: int
    max_prompt_tokens: int
    max_stop_token_ids: int
    idle_timeout_seconds: float
    def __init__(self, max_message_bytes: _Optional[int] = ..., max_batches: _Optional[int] = ..., max_rows_per_batch: _Optional[int] = ..., max_vocab_size: _Optional[int] = ..., max_new_tokens: _Optional[int] = ..., default_max_new_tokens: _Optional[int] = ..., max_prompt_tokens: _Optional[int] = ..., max_stop_token_ids: _Optional[int] = ..., idle_timeout_seconds: _Optional[float] = ...) -> None: ...
