"""One client of a random run: its channel, the streams that it keeps open, and what it expects to be refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from helpers.faults_random import one_in
from helpers.faults_region import SharedRegion
from helpers.wire import STREAM_METHODS, Conversation, Failed, Failure, OpenBatch, Wire, request_id
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from random import Random

    from google.protobuf.message import Message

_REGION_BYTES = 1 << 20
_MOST_REMEMBERED = 20


class Caller:
    """Sends messages alone or over streams that stay open, as it happens."""

    def __init__(self, address: str, random: Random) -> None:
        self.random = random
        self.wire = Wire(address)
        self.region = SharedRegion(self.wire, _REGION_BYTES)
        self._streams: dict[str, Conversation] = {}

    def send(self, method: str, *messages: Message) -> list[Any]:
        """The replies; raises `Failed` at the first message that is refused."""
        if method not in STREAM_METHODS:
            return [self.wire.call(method, message) for message in messages]
        if one_in(self.random, 3):
            return self.wire.stream(method, messages)
        stream = self._streams.pop(method, None) or self.wire.converse(method)
        replies = [stream.ask(message) for message in messages]
        self._streams[method] = stream
        return replies

    def ask(self, method: str, message: Message) -> Any:
        """The one reply to one message."""
        [reply] = self.send(method, message)
        return reply

    def refuse(self, method: str, message: Message, *reasons: str) -> Failure:
        """How a message is refused, which must be for one of these reasons."""
        with pytest.raises(Failed) as caught:
            self.send(method, message)
        assert caught.value.failure.reason in reasons, (method, caught.value.failure)
        return caught.value.failure

    def finish(self) -> None:
        """End the streams, on which no reply is left."""
        for stream in self._streams.values():
            assert stream.finish() == []

    def close(self) -> None:
        self.region.close()
        self.wire.close()


class Remembered:
    """The mutations of a batch in order: the last may come again, those before it must not."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._sent: list[tuple[str, Any, Any]] = []

    def add(self, method: str, message: Any, reply: Any) -> None:
        self._sent = [*self._sent[1 - _MOST_REMEMBERED :], (method, message, reply)]

    def retry_last(self) -> tuple[str, Any, Any, Any] | None:
        """The last mutation sent again: its method, its message, its first reply and its second; None without one."""
        if not self._sent:
            return None
        method, message, reply = self._sent[-1]
        for _ in range(self._caller.random.randint(1, 3)):
            again = self._caller.ask(method, message)
        return method, message, reply, again

    def resend_old(self) -> None:
        """A mutation before the last one arrives late, once more."""
        if len(self._sent) > 1:
            method, message, _ = self._caller.random.choice(self._sent[:-1])
            self._caller.refuse(method, message, "REVISION_MISMATCH")


def misdirect(caller: Caller, live: OpenBatch, method: str, message: Any, others: list[OpenBatch]) -> None:
    """A right message of which one name is wrong is refused; `others` are batches of anybody, dead or alive."""
    wrong = type(message)()
    wrong.CopyFrom(message)
    kind = caller.random.choice(("revision", "uid", "id", "other"))
    if kind == "revision":
        shift = caller.random.choice((-1, 1, 7)) if live.revision else 1
        wrong.target.expected_revision = live.revision + shift
        wrong.target.request_id = request_id()
        failure = caller.refuse(method, wrong, "REVISION_MISMATCH")
        assert failure.metadata == {"expected": str(live.revision + shift), "actual": str(live.revision)}
    elif kind == "uid":
        wrong.target.uid = caller.random.randbytes(16)
        caller.refuse(method, wrong, "UID_MISMATCH")
    elif kind == "id":
        wrong.target.batch_id += "x"
        caller.refuse(method, wrong, "BATCH_NOT_FOUND")
    elif others:
        wrong.target.batch_id = caller.random.choice(others).batch_id
        reasons = ("UID_MISMATCH", "BATCH_NOT_FOUND") if wrong.target.batch_id != live.batch_id else ()
        if reasons:
            caller.refuse(method, wrong, *reasons)


def check_is_gone(caller: Caller, live: OpenBatch) -> None:
    """Nothing is left of a batch that was merged into another."""
    caller.refuse("GetBatch", service_pb2.GetBatchRequest(batch_id=live.batch_id, uid=live.uid), "BATCH_NOT_FOUND")


def check_creation(caller: Caller, request: service_pb2.CreateBatchRequest, live: OpenBatch) -> None:
    """At revision 0 the creation may come again; another one of a live id is refused."""
    if live.revision == 0:
        assert caller.ask("CreateBatch", request).batch.uid == live.uid
    other = service_pb2.CreateBatchRequest()
    other.CopyFrom(request)
    other.create_key = request_id()
    caller.refuse("CreateBatch", other, "BATCH_EXISTS")
