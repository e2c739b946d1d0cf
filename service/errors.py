"""What a call can end with, and the one mapping of it to gRPC status codes and google.rpc details.

ServiceError
├── MalformedMessage      INVALID_ARGUMENT     MALFORMED_MESSAGE
├── InvalidField          INVALID_ARGUMENT     INVALID_FIELD
├── InvalidLogits         INVALID_ARGUMENT     INVALID_LOGITS
├── BatchNotFound         NOT_FOUND            BATCH_NOT_FOUND
├── UidMismatch           NOT_FOUND            UID_MISMATCH
├── RegionNotFound        NOT_FOUND            REGION_NOT_FOUND
├── RevisionMismatch      FAILED_PRECONDITION  REVISION_MISMATCH
├── WrongBatchKind        FAILED_PRECONDITION  WRONG_BATCH_KIND
├── BatchesDiffer         FAILED_PRECONDITION  BATCHES_DIFFER
├── BatchExists           ALREADY_EXISTS       BATCH_EXISTS
├── LimitExceeded         RESOURCE_EXHAUSTED   TOO_MANY_BATCHES, TOO_MUCH_STATE,
│   │                                          TOO_MANY_REGIONS, TOO_MUCH_SHARED_MEMORY
│   └── TooManyRows       RESOURCE_EXHAUSTED   TOO_MANY_ROWS
├── ReplyTooLarge         RESOURCE_EXHAUSTED   REPLY_TOO_LARGE
├── RepliesNotRead        RESOURCE_EXHAUSTED   REPLIES_NOT_READ
├── Draining              UNAVAILABLE          DRAINING
├── NotSupported          UNIMPLEMENTED        NOT_SUPPORTED
└── InternalFault         INTERNAL             INTERNAL
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from logitd.sampling import ParameterError

ERROR_DOMAIN = "logitd"
_RETRY_AFTER_SECONDS = 1
# Trailers are metadata, of which peers take 8 KiB: what came is quoted up to here.
_QUOTE_LENGTH = 120


class ServiceError(Exception):
    """A call's failure with its status; nothing was changed."""

    code: ClassVar[grpc.StatusCode]
    reason: ClassVar[str]
    field: str | None = None
    is_worth_waiting: ClassVar[bool] = False

    def __init__(self, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = {key: str(value) for key, value in metadata.items()}


class MalformedMessage(ServiceError):
    """Bytes that are no message of the expected type."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "MALFORMED_MESSAGE"

    def __init__(self, message_name: str, num_bytes: int) -> None:
        super().__init__(f"the request must be a serialised {message_name}, got {num_bytes} bytes that do not parse")


class InvalidField(ServiceError):
    """A field breaks a rule."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_FIELD"

    def __init__(self, path: str, rule: str, got: object) -> None:
        super().__init__(f"{path} {rule}, got {_quote(got)}")
        self.field = path
        self.rule = f"{rule}, got {_quote(got)}"

    @classmethod
    def of(cls, error: ParameterError, prefix: str = "") -> InvalidField:
        """A library error, its field seen from the message."""
        return cls(f"{prefix}{error.field}", error.rule, error.got)


class InvalidLogits(InvalidField):
    """NaN or +inf where a beam step needs numbers."""

    reason = "INVALID_LOGITS"


class BatchNotFound(ServiceError):
    """The batch id is unknown, expired, or was lost with a restart."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "BATCH_NOT_FOUND"

    def __init__(self, instance_id: str) -> None:
        super().__init__("no live batch has this batch_id; rebuild it with CreateBatch", instance_id=instance_id)


class UidMismatch(ServiceError):
    """The batch id lives another life."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "UID_MISMATCH"

    def __init__(self) -> None:
        super().__init__("this batch_id is live with another uid; the batch that was meant is gone")


class RegionNotFound(ServiceError):
    """The region id is unknown, or its owner is gone."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "REGION_NOT_FOUND"

    def __init__(self) -> None:
        super().__init__("no region has this region_id; register it again")


class RevisionMismatch(ServiceError):
    """The message was meant for another revision, or its revision was taken by another message."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "REVISION_MISMATCH"

    def __init__(self, expected: int, actual: int) -> None:
        message = f"expected_revision must be the batch's revision {actual}, got {expected}, and no retry of the last"
        super().__init__(f"{message} mutation", expected=expected, actual=actual)


class WrongBatchKind(ServiceError):
    """Apply or Accumulate on a beam batch, or BeamStep on a penalty batch."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "WRONG_BATCH_KIND"

    def __init__(self, method: str, kind: str) -> None:
        super().__init__(f"{method} must be called on a {kind} batch, got one of the other kind")


class BatchesDiffer(ServiceError):
    """A merge of batches that differ in kind, vocabulary, profile or rule."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "BATCHES_DIFFER"


class BatchExists(ServiceError):
    """The batch id is live and this is no retry of its creation."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "BATCH_EXISTS"

    def __init__(self) -> None:
        super().__init__("batch_id must not be live with other content, another create_key or a later revision")


class LimitExceeded(ServiceError):
    """A newcomer for whom there is no room."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    is_worth_waiting = True

    def __init__(self, reason: str, limit: str, most: int, got: int) -> None:
        super().__init__(f"{limit} is {most}, got {got}", limit=limit, most=most, got=got)
        self.reason = reason  # type: ignore[misc]  # one class for all limits, told apart by the reason


class TooManyRows(LimitExceeded):
    """A batch that is too wide, however long it waits."""

    is_worth_waiting = False

    def __init__(self, most: int, got: int) -> None:
        super().__init__("TOO_MANY_ROWS", "max_rows_per_batch", most, got)


class ReplyTooLarge(ServiceError):
    """The reply would be larger than a message may be; nothing was changed."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "REPLY_TOO_LARGE"

    def __init__(self, most: int, got: int) -> None:
        message = f"a reply must be at most max_message_bytes, {most}, got {got} bytes; Apply can ask for fewer rows"
        super().__init__(message, most=most, got=got)


class RepliesNotRead(ServiceError):
    """A caller writes and never reads."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "REPLIES_NOT_READ"

    def __init__(self, limit: float) -> None:
        super().__init__(f"a reply must be read within {limit:g} seconds; read while you write", limit_seconds=limit)


class Draining(ServiceError):
    """The server is on its way out."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "DRAINING"
    is_worth_waiting = True

    def __init__(self) -> None:
        super().__init__("the server drains; connect again, elsewhere if you can")


class NotSupported(ServiceError):
    """Something that this server does not do."""

    code = grpc.StatusCode.UNIMPLEMENTED
    reason = "NOT_SUPPORTED"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not supported by this server; see GetCapabilities")


class InternalFault(ServiceError):
    """A fault of our own."""

    code = grpc.StatusCode.INTERNAL
    reason = "INTERNAL"

    def __init__(self) -> None:
        super().__init__("internal error; see the server's log")


def to_status(error: ServiceError) -> status_pb2.Status:
    """The google.rpc.Status that carries the error and its details."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN, metadata=error.metadata)
    details: list[Message] = [info]
    if isinstance(error, InvalidField):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.rule)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.is_worth_waiting:
        delay = duration_pb2.Duration(seconds=_RETRY_AFTER_SECONDS)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    code: int = error.code.value[0]
    return status_pb2.Status(code=code, message=error.message, details=[_pack(detail) for detail in details])


def _pack(detail: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


def _quote(got: object) -> str:
    text = repr(got)
    return text if len(text) <= _QUOTE_LENGTH else f"{text[:_QUOTE_LENGTH]}... ({len(text)} characters)"
