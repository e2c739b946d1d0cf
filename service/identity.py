"""Who a message is for, and whether it has been committed already."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from logitd.service.errors import InvalidField

if TYPE_CHECKING:
    from logitd.v1 import service_pb2

UID_BYTES = 16
REQUEST_ID_BYTES = 16
CREATE_KEY_BYTES = 16
MAX_NAME_LENGTH = 128


class Standing(enum.Enum):
    """How a message's expected revision stands to the batch's."""

    CURRENT = "meant for the batch as it is"
    RETRY = "the same message was committed last"


class Target(NamedTuple):
    """A checked StepTarget."""

    batch_id: str
    uid: bytes
    expected_revision: int
    request_id: bytes


class Mutation(NamedTuple):
    """The last committed mutation: enough to know its retry, and to answer it where a reply is stored."""

    method: str
    request_id: bytes
    reply: bytes = b""


def read_target(message: service_pb2.StepTarget, *, is_mutation: bool, path: str = "target") -> Target:
    """The target of a message; raises `InvalidField`."""
    check_batch_id(f"{path}.batch_id", message.batch_id)
    check_length(f"{path}.uid", message.uid, UID_BYTES)
    if not message.HasField("expected_revision"):
        raise InvalidField(f"{path}.expected_revision", "must be set", "nothing")
    if message.expected_revision < 0:
        raise InvalidField(f"{path}.expected_revision", "must be 0 or more", message.expected_revision)
    if is_mutation:
        check_length(f"{path}.request_id", message.request_id, REQUEST_ID_BYTES)
    return Target(message.batch_id, message.uid, message.expected_revision, message.request_id)


def check_batch_id(path: str, batch_id: str) -> None:
    """Raise `InvalidField` unless `batch_id` may name a batch."""
    if not (1 <= len(batch_id) <= MAX_NAME_LENGTH and batch_id.isascii() and batch_id.isprintable()):
        raise InvalidField(path, f"must be 1 to {MAX_NAME_LENGTH} printable ASCII characters", batch_id)


def check_length(path: str, value: bytes, length: int) -> None:
    """Raise `InvalidField` unless `value` has `length` bytes."""
    if len(value) != length:
        raise InvalidField(path, f"must have {length} bytes", f"{len(value)} bytes")
