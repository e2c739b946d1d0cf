from __future__ import annotations

import inspect
import pickle
import re

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

import logitd.client
from logitd.client import _exceptions as exceptions

CODES = grpc.StatusCode


class FailedCall(grpc.RpcError):
    def __init__(self, code, message="told so", trailer=()):
        self._answers = code, message, trailer

    def code(self):
        return self._answers[0]

    def details(self):
        return self._answers[1]

    def trailing_metadata(self):
        return self._answers[2]


def refusal(replies, code, reason, *others, **metadata):
    info = error_details_pb2.ErrorInfo(domain="logitd", reason=reason, metadata=metadata)
    return exceptions.from_grpc_error(FailedCall(code, trailer=replies.trailer(code, "told so", info, *others)))


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (CODES.INVALID_ARGUMENT, "INVALID_FIELD", exceptions.InvalidArgumentError),
        (CODES.NOT_FOUND, "BATCH_NOT_FOUND", exceptions.BatchNotFoundError),
        (CODES.NOT_FOUND, "UID_MISMATCH", exceptions.UidMismatchError),
        (CODES.NOT_FOUND, "REGION_NOT_FOUND", exceptions.RegionNotFoundError),
        (CODES.NOT_FOUND, "A_NEWER_REASON", exceptions.NotFoundError),
        (CODES.FAILED_PRECONDITION, "REVISION_MISMATCH", exceptions.RevisionMismatchError),
        (CODES.FAILED_PRECONDITION, "WRONG_BATCH_KIND", exceptions.WrongBatchKindError),
        (CODES.FAILED_PRECONDITION, "BATCHES_DIFFER", exceptions.BatchesDifferError),
        (CODES.ALREADY_EXISTS, "BATCH_EXISTS", exceptions.AlreadyExistsError),
        (CODES.RESOURCE_EXHAUSTED, "TOO_MANY_ROWS", exceptions.ResourceExhaustedError),
        (CODES.UNAVAILABLE, "DRAINING", exceptions.UnavailableError),
        (CODES.UNIMPLEMENTED, "NOT_SUPPORTED", exceptions.NotSupportedError),
        (CODES.DEADLINE_EXCEEDED, "", exceptions.DeadlineExceededError),
        (CODES.INTERNAL, "INTERNAL", exceptions.RpcError),
        (CODES.INTERNAL, "", exceptions.UnavailableError),
        (CODES.CANCELLED, "", exceptions.UnavailableError),
        (CODES.DATA_LOSS, "", exceptions.RpcError),
    ],
)
def test_the_most_specific_kind_wins(replies, code, reason, kind):
    error = refusal(replies, code, reason)
    assert type(error) is kind
    assert (error.code, error.reason, error.message) == (code, reason, "told so")


def test_the_details_are_read(replies):
    violation = error_details_pb2.BadRequest.FieldViolation(field="tokens.token_ids", description="must be small")
    bad = error_details_pb2.BadRequest(field_violations=[violation])
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000))
    error = refusal(replies, CODES.INVALID_ARGUMENT, "INVALID_FIELD", bad, retry, limit="7")
    assert [(v.field, v.description) for v in error.field_violations] == [("tokens.token_ids", "must be small")]
    assert error.retry_after == 1.5
    assert error.metadata == {"limit": "7"}
    assert str(error) == "INVALID_FIELD: told so\n  tokens.token_ids: must be small"


def test_a_revision_mismatch_tells_both_revisions(replies):
    error = refusal(replies, CODES.FAILED_PRECONDITION, "REVISION_MISMATCH", expected="3", actual="5")
    assert (error.expected, error.actual) == (3, 5)
    assert refusal(replies, CODES.FAILED_PRECONDITION, "REVISION_MISMATCH", actual="x").actual is None


@pytest.mark.parametrize(
    "trailer",
    [None, (), (("grpc-status-details-bin", b"\xff\xff"),), (("other", "text"),)],
)
def test_errors_without_details_are_told_by_their_code(trailer):
    error = exceptions.from_grpc_error(FailedCall(CODES.NOT_FOUND, None, trailer))
    assert type(error) is exceptions.NotFoundError
    assert (error.reason, error.retry_after, error.field_violations) == ("", None, ())
    assert str(error) == "NOT_FOUND: the call failed without a message"


def test_details_that_contradict_the_status_do_not_count(replies):
    info = error_details_pb2.ErrorInfo(domain="logitd", reason="BATCH_NOT_FOUND")
    trailer = replies.trailer(CODES.NOT_FOUND, "told so", info)
    assert type(exceptions.from_grpc_error(FailedCall(CODES.DATA_LOSS, trailer=trailer))) is exceptions.RpcError


def test_reasons_of_other_services_do_not_count(replies):
    info = error_details_pb2.ErrorInfo(domain="proxy", reason="BATCH_NOT_FOUND")
    error = exceptions.from_grpc_error(
        FailedCall(CODES.NOT_FOUND, trailer=replies.trailer(CODES.NOT_FOUND, "told so", info))
    )
    assert (type(error), error.reason, error.nothing_changed) == (exceptions.NotFoundError, "", False)


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (CODES.INVALID_ARGUMENT, "INVALID_FIELD", True),
        (CODES.FAILED_PRECONDITION, "REVISION_MISMATCH", True),
        (CODES.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE", True),
        (CODES.RESOURCE_EXHAUSTED, "REPLIES_NOT_READ", False),
        (CODES.RESOURCE_EXHAUSTED, "", False),
        (CODES.UNAVAILABLE, "DRAINING", False),
        (CODES.INTERNAL, "ANY", False),
    ],
)
def test_only_a_refusal_by_the_service_says_that_nothing_changed(replies, code, reason, expected):
    assert refusal(replies, code, reason).nothing_changed is expected


def test_errors_can_be_pickled(replies):
    error = refusal(replies, CODES.FAILED_PRECONDITION, "REVISION_MISMATCH", expected="3", actual="5")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.details) == (type(error), str(error), error.details)


def test_the_tree_in_the_docstring_is_the_tree():
    assert exceptions.__doc__ is not None
    drawn, path = {}, []
    for line in exceptions.__doc__.splitlines():
        if match := re.match(r"    ([│├└─ ]*)(\w+Error)\b", line):
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            drawn[match[2]] = path[depth - 1] if depth else "Exception"
    classes = dict(inspect.getmembers(exceptions, inspect.isclass))
    actual = {
        name: kind.__base__.__name__ for name, kind in classes.items() if issubclass(kind, exceptions.LogitdError)
    }
    assert drawn == actual
    assert set(drawn) <= set(logitd.client.__all__)
