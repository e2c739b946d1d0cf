"""The log: an event a line, one for each call, and nothing of what callers send."""

from __future__ import annotations

import io
import json
import logging
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from helpers.wire import Failed, Wire, creation, ints, tensor
from logitd.service.config import ServerConfig
from logitd.service.logs import JsonFormatter, TextFormatter, set_up_logging
from logitd.v1 import service_pb2, types_pb2
from logitd.v1.types_pb2 import BeamParameters, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers.live_server import LiveServer

SECONDS = 10
# What only a caller knows: as text, and as the numbers of token ids and logits.
BATCH_ID, SEQUENCE_ID, TOKEN_ID, LOGIT = "a-telling-batch-id", "a-telling-sequence-id", 54_321, 98_765.0
SECRETS = ("telling", str(TOKEN_ID), "98765")


class Log:
    """What a server of this process logs as JSON."""

    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def calls(self, count: int) -> list[dict[str, Any]]:
        """The events of `count` calls, of which the last comes just after its reply."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            found = [event for event in self.events() if event["event"] == "call"]
            if len(found) >= count:
                assert len(found) == count
                return found
            time.sleep(0.01)
        raise AssertionError(self.text)


@pytest.fixture
def log() -> Iterator[Log]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("logitd")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield Log(stream)
    logger.removeHandler(handler)
    logger.setLevel(level)


def telling_batch(wire: Wire, **fields: Any) -> Any:
    sequence = Sequence(sequence_id=SEQUENCE_ID, prompt_token_ids=ints(TOKEN_ID), max_new_tokens=10, **fields)
    return wire.opened(creation(sequence, batch_id=BATCH_ID, vocab_size=60_000))


def test_call_is_one_event_with_what_it_came_to(wire: Wire, log: Log) -> None:
    request = service_pb2.GetCapabilitiesRequest()
    reply = wire.call("GetCapabilities", request)
    [event] = log.calls(1)
    moment, ms = event.pop("time"), event.pop("ms")
    assert moment.endswith("+00:00")
    assert 0 < ms < SECONDS * 1000
    assert event == {
        "level": "info",
        "event": "call",
        "method": "GetCapabilities",
        "code": "OK",
        "peer": "unix",
        "messages_received": 1,
        "messages_sent": 1,
        "bytes_received": request.ByteSize(),
        "bytes_sent": reply.ByteSize(),
    }


def test_stream_is_one_event_for_all_its_messages(wire: Wire, log: Log) -> None:
    with telling_batch(wire) as batch:
        stream = wire.converse("Apply")
        request = service_pb2.ApplyRequest(target=batch.target(), logits=tensor(torch.zeros(1, 60_000)))
        sizes = [stream.ask(request).ByteSize() for _ in range(3)]
        stream.finish()
    event = next(event for event in log.calls(3) if event["method"] == "Apply")
    assert (event["messages_received"], event["messages_sent"]) == (3, 3)
    assert (event["bytes_received"], event["bytes_sent"]) == (3 * request.ByteSize(), sum(sizes))


def test_failure_tells_its_code_and_reason(wire: Wire, log: Log) -> None:
    with pytest.raises(Failed):
        wire.call("GetBatch", service_pb2.GetBatchRequest(batch_id=BATCH_ID))
    [event] = log.calls(1)
    assert (event["level"], event["code"], event["reason"]) == ("info", "NOT_FOUND", "BATCH_NOT_FOUND")
    assert event["messages_sent"] == 0


def test_nothing_of_what_callers_send_is_logged(wire: Wire, log: Log) -> None:
    """Failures included, whose statuses tell the caller what came."""
    asked = types_pb2.PenaltyParameters(repetition_penalty=2)
    with telling_batch(wire, penalties=asked) as batch:
        batch.accumulate(TOKEN_ID)
        batch.apply(torch.full((1, 60_000), LOGIT), TOKEN_ID)
        batch.describe()
        with pytest.raises(Failed, match=str(TOKEN_ID + 10_000)):
            batch.accumulate(TOKEN_ID + 10_000)
        uid = batch.uid.hex()
    with telling_batch(wire, beam=BeamParameters(width=2)) as batch:
        logits = torch.zeros(1, 60_000)
        logits[0, TOKEN_ID] = torch.nan
        with pytest.raises(Failed, match=str(TOKEN_ID)):
            batch.beam_step(logits)
    with pytest.raises(Failed):
        wire.call("RegisterSharedMemory", service_pb2.RegisterSharedMemoryRequest(file_name="telling/", byte_size=1))
    assert {event["code"] for event in log.calls(10)} == {"OK", "INVALID_ARGUMENT", "UNIMPLEMENTED"}
    for secret in (*SECRETS, uid, str(TOKEN_ID + 10_000)):
        assert secret not in log.text


def test_fault_of_ours_is_told_with_its_frames_but_not_in_its_words(
    server: LiveServer, wire: Wire, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(batch_id: str, count: int) -> list[object]:
        try:
            return {}[TOKEN_ID]
        except KeyError as error:
            raise RuntimeError(*SECRETS) from error

    monkeypatch.setattr(server.registry, "list_after", look_up)
    with pytest.raises(Failed) as caught:
        wire.call("ListBatches", service_pb2.ListBatchesRequest())
    assert (caught.value.failure.code, caught.value.failure.reason) == ("INTERNAL", "INTERNAL")
    [call] = log.calls(1)
    assert (call["level"], call["code"], call["reason"]) == ("error", "INTERNAL", "INTERNAL")
    [fault] = [event for event in log.events() if event["event"] != "call"]
    assert (fault["level"], fault["event"]) == ("error", "ListBatches failed")
    assert "in look_up" in fault["trace"]
    assert fault["trace"].index("RuntimeError") < fault["trace"].index("KeyError")
    for secret in SECRETS:
        assert secret not in log.text + str(caught.value)


def test_text_is_the_same_for_a_person() -> None:
    record = logging.LogRecord("logitd", logging.INFO, "", 0, "served %d", (3,), None)
    record.fields = {"peer": "unix", "ms": 1.5}
    as_json = json.loads(JsonFormatter().format(record))
    assert TextFormatter().format(record) == f"{as_json['time']} info served 3 peer=unix ms=1.5"
    try:
        raise KeyError(TOKEN_ID)
    except KeyError as error:
        record.exc_info = (KeyError, error, error.__traceback__)
    first, *_, last = TextFormatter().format(record).splitlines()
    assert first.endswith(" info served 3 peer=unix ms=1.5")
    assert last == "KeyError"


@pytest.mark.parametrize(("log_format", "formatter"), [("json", JsonFormatter), ("text", TextFormatter)])
def test_settings_choose_form_and_level(log_format: str, formatter: type[logging.Formatter]) -> None:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    root.handlers = []
    try:
        set_up_logging(ServerConfig(log_format=log_format, log_level="warning"))
        [handler] = root.handlers
        assert type(handler.formatter) is formatter
        assert root.level == logging.WARNING
    finally:
        root.handlers, root.level = handlers, level
