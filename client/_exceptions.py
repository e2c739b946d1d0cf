"""What the client raises, and the one place where gRPC's errors become it.

    LogitdError
    ├── RpcError                        the server, or the way to it, refused a call
    │   ├── InvalidArgumentError        the call is malformed; `field_violations` say where
    │   ├── NotFoundError
    │   │   ├── BatchNotFoundError      unknown or expired, or the server restarted: create it again
    │   │   ├── UidMismatchError        the id now belongs to another batch
    │   │   └── RegionNotFoundError     the shared-memory region is unknown
    │   ├── FailedPreconditionError
    │   │   ├── RevisionMismatchError   the batch stands at `actual`, the call was meant for `expected`
    │   │   ├── WrongBatchKindError     a penalty call on a beam batch, or the reverse
    │   │   └── BatchesDifferError      batches that cannot be merged
    │   ├── AlreadyExistsError          the batch id is in use
    │   ├── ResourceExhaustedError      a limit of the server; `retry_after` where waiting helps
    │   ├── UnavailableError            no server, or one that starts or drains: reconnect and repeat
    │   ├── NotSupportedError           this server does not do it
    │   └── DeadlineExceededError       the time limit of a call passed
    │       └── StepTimeoutError        the client's own time limit of a step passed
    ├── ProtocolError                   a reply breaks the contract
    ├── ClientClosedError               the client was closed
    ├── SharedLogitsClosedError         the shared logits were closed
    └── BatchStateError                 the batch object cannot do this now
        ├── BatchClosedError            it was closed, deleted or merged into another
        ├── BatchBusyError              another step of it is under way
        ├── UnansweredStepError         a mutation was not answered yet: `retry()` it first
        └── RefillNeededError           an in-place Apply may have changed the shared logits: fill them again

Arguments that can be seen to be wrong without the server raise ValueError or TypeError.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

_DOMAIN = "logitd"
_DETAILS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One argument that the server refused."""

    field: str
    """Path of the field in the request, for example `sequences[2].penalties.repetition_penalty`."""
    description: str
    """The rule, and what came."""


@dataclass(frozen=True, slots=True)
class ErrorDetails:
    """What a failed call said beyond its message."""

    code: grpc.StatusCode
    reason: str = ""
    """The server's reason, for example "BATCH_NOT_FOUND"; empty when the error is not the service's own."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    field_violations: tuple[FieldViolation, ...] = ()
    retry_after: float | None = None
    """Seconds after which the server advises to try again."""


class LogitdError(Exception):
    """Everything that this package raises, except ValueError and TypeError for wrong arguments."""


class RpcError(LogitdError):
    """The server, or the way to it, refused a call."""

    def __init__(self, message: str, details: ErrorDetails) -> None:
        super().__init__(message, details)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        kind = self.reason or self.code.name
        # Most messages name their argument already.
        violations = [f"{v.field}: {v.description}" for v in self.field_violations if v.field not in self.message]
        return "\n  ".join([f"{kind}: {self.message}", *violations])

    @property
    def code(self) -> grpc.StatusCode:
        """The gRPC status code."""
        return self.details.code

    @property
    def reason(self) -> str:
        """The server's reason; empty when the error is not the service's own."""
        return self.details.reason

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the server added to the reason."""
        return self.details.metadata

    @property
    def field_violations(self) -> tuple[FieldViolation, ...]:
        """The arguments at fault."""
        return self.details.field_violations

    @property
    def retry_after(self) -> float | None:
        """Seconds after which the server advises to try again; None where it does not."""
        return self.details.retry_after

    @property
    def nothing_changed(self) -> bool:
        """Whether the server says that the refused message changed nothing; False also means "unknown"."""
        return bool(self.reason) and self.reason != "REPLIES_NOT_READ" and self.code in _REFUSALS


class InvalidArgumentError(RpcError):
    """The call is malformed; `field_violations` say where."""


class NotFoundError(RpcError):
    """What the call names does not exist."""


class BatchNotFoundError(NotFoundError):
    """The batch is unknown or expired, or the server restarted: create it again from your own history."""


class UidMismatchError(NotFoundError):
    """The batch id now belongs to another batch."""


class RegionNotFoundError(NotFoundError):
    """The shared-memory region is unknown."""


class FailedPreconditionError(RpcError):
    """The batch is not in a state that permits the call."""


class RevisionMismatchError(FailedPreconditionError):
    """The batch stands at another revision than the call was meant for."""

    @property
    def expected(self) -> int | None:
        """The revision that the call named."""
        return _int_or_none(self.metadata.get("expected"))

    @property
    def actual(self) -> int | None:
        """The revision at which the batch stands."""
        return _int_or_none(self.metadata.get("actual"))


class WrongBatchKindError(FailedPreconditionError):
    """A penalty call on a beam batch, or the reverse."""


class BatchesDifferError(FailedPreconditionError):
    """The batches differ in kind, vocabulary, profile or rule and cannot be merged."""


class AlreadyExistsError(RpcError):
    """The batch id is in use."""


class ResourceExhaustedError(RpcError):
    """The call exceeds a limit of the server."""


class UnavailableError(RpcError):
    """There is no server, or it starts or drains: reconnect and repeat."""


class NotSupportedError(RpcError):
    """This server does not do it; `capabilities()` lists what it does."""


class DeadlineExceededError(RpcError):
    """The time limit of a call passed."""


class StepTimeoutError(DeadlineExceededError):
    """The client's own time limit of a step passed; a mutation may or may not have happened: `retry()` it."""


class ProtocolError(LogitdError):
    """A reply breaks the contract."""


class ClientClosedError(LogitdError):
    """The client was closed."""


class SharedLogitsClosedError(LogitdError):
    """The shared logits were closed."""


class BatchStateError(LogitdError):
    """The batch object cannot do this now."""


class BatchClosedError(BatchStateError):
    """The batch object was closed, deleted or merged into another."""


class BatchBusyError(BatchStateError):
    """Another step of the batch is under way; a batch does one at a time."""


class UnansweredStepError(BatchStateError):
    """A mutation was not answered, so the batch's revision is unknown: call `retry()` first."""


class RefillNeededError(BatchStateError):
    """An in-place Apply was not answered, so nobody knows what its shared logits hold.

    Fill them again; then, if it carried token ids, `retry(refilled=True)`, else just repeat the call.
    """


_REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)

# What a call ends with where the way to the server is at fault.
_OF_THE_WAY = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED})

_BY_REASON: Mapping[str, type[RpcError]] = {
    "BATCH_NOT_FOUND": BatchNotFoundError,
    "UID_MISMATCH": UidMismatchError,
    "REGION_NOT_FOUND": RegionNotFoundError,
    "REVISION_MISMATCH": RevisionMismatchError,
    "WRONG_BATCH_KIND": WrongBatchKindError,
    "BATCHES_DIFFER": BatchesDifferError,
}

_BY_CODE: Mapping[grpc.StatusCode, type[RpcError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPreconditionError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.UNIMPLEMENTED: NotSupportedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
}


class _FailedCall(Protocol):
    """What sync and asyncio errors of gRPC have in common."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> Any: ...


def from_grpc_error(error: grpc.RpcError) -> RpcError:
    """Translates an error of gRPC, sync or asyncio. The most specific class wins.

    Raise what it returns `from` the error.
    """
    call = cast("_FailedCall", error)
    details = _read_details(call)
    kind = _BY_REASON.get(details.reason) or _BY_CODE.get(details.code, RpcError)
    if details.code in _OF_THE_WAY and not details.reason:
        # Not the server's word, which has a reason: a proxy resets the streams of a server that is gone, and gRPC
        # cancels the calls that a server which stops has not taken up.
        kind = UnavailableError
    return kind(call.details() or "the call failed without a message", details)


def step_timeout(method: str, seconds: float) -> StepTimeoutError:
    """The error for a step that was not answered in time."""
    details = ErrorDetails(grpc.StatusCode.DEADLINE_EXCEEDED)
    return StepTimeoutError(f"{method} was not answered within {seconds:g} s", details)


def _read_details(call: _FailedCall) -> ErrorDetails:
    # Details that do not parse, or contradict the status, are worth less than the status itself.
    try:
        status = _rich_status(call)
        return ErrorDetails(call.code()) if status is None else _unpack_details(call.code(), status)
    except DecodeError:
        return ErrorDetails(call.code())


def _rich_status(call: _FailedCall) -> status_pb2.Status | None:
    for key, value in call.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            status = status_pb2.Status.FromString(value)
            return status if status.code == call.code().value[0] else None
    return None


def _unpack_details(code: grpc.StatusCode, status: status_pb2.Status) -> ErrorDetails:
    details = ErrorDetails(code)
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    for packed in status.details:
        if packed.Unpack(info) and info.domain == _DOMAIN:
            details = replace(details, reason=info.reason, metadata=dict(info.metadata))
        elif packed.Unpack(bad):
            violations = tuple(FieldViolation(v.field, v.description) for v in bad.field_violations)
            details = replace(details, field_violations=violations)
        elif packed.Unpack(retry):
            seconds = retry.retry_delay.seconds + retry.retry_delay.nanos * 1e-9
            details = replace(details, retry_after=seconds)
    return details


def _int_or_none(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
