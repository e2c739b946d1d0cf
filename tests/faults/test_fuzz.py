"""Random and mutated bytes as messages: every answer is a status of the contract, and nothing is left behind."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from helpers.faults import FaultyServer, assert_flat, scaled, settled
from helpers.faults_fuzz import Fuzzer
from helpers.right_requests import follow, open_beam_batch, open_penalty_batch
from helpers.wire import SERVICE, STREAM_METHODS, Wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INPUTS = scaled(2500, 100_000)
_ROUND = 250
_IN_FLIGHT = 16
_TIMEOUT = 30.0
_REGION_FILE = "logitd-fuzz"
# What the contract lets a call end with; UNAVAILABLE is for servers that drain.
_CODES = {
    "OK",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "FAILED_PRECONDITION",
    "ALREADY_EXISTS",
    "RESOURCE_EXHAUSTED",
    "UNIMPLEMENTED",
}


@pytest.fixture
def fuzzed(tmp_path: Path) -> Iterator[FaultyServer]:
    shared = tmp_path / "shared"
    shared.mkdir()
    flags = ("--max-rows-per-batch", "8", "--max-vocab-size", "65536", "--max-batches", "700")
    with FaultyServer(tmp_path, "--shared-memory-dir", str(shared), "--max-regions", "64", *flags) as server:
        (shared / _REGION_FILE).write_bytes(bytes(16_384))
        yield server


def begin(channel: grpc.Channel, method: str, messages: list[bytes]) -> grpc.Call:
    path = f"/{SERVICE}/{method}"
    if method in STREAM_METHODS:
        return channel.stream_stream(path)(iter(messages), timeout=_TIMEOUT)
    return channel.unary_unary(path).future(messages[0], timeout=_TIMEOUT)


def finish(call: grpc.Call, method: str, fuzzer: Fuzzer) -> str:
    """The name of the code that the call ended with, its details looked at."""
    try:
        for reply in call if method in STREAM_METHODS else [call.result()]:
            fuzzer.note(method, reply)
    except grpc.RpcError as error:
        check_details(error)
    return call.code().name


def check_details(error: grpc.RpcError) -> None:
    status = rpc_status.from_call(error)
    assert status is not None, error
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.domain, bool(info.reason)) == ("logitd", True)


def fuzz(wire: Wire, fuzzer: Fuzzer, inputs: int) -> Counter[tuple[str, str]]:
    """How often each RPC ended with each code."""
    ends: Counter[tuple[str, str]] = Counter()
    for _ in range(0, inputs, _IN_FLIGHT):
        drawn = [fuzzer.draw() for _ in range(_IN_FLIGHT)]
        calls = [(method, begin(wire.channel, method, messages), messages) for method, messages in drawn]
        for method, call, messages in calls:
            code = finish(call, method, fuzzer)
            assert code in _CODES, (method, code, call.details(), messages)
            ends[method, code] += 1
    return ends


@pytest.mark.timeout(scaled(120, 1200))
def test_wrong_bytes_end_with_a_status_of_the_contract(fuzzed: FaultyServer) -> None:
    wire = fuzzed.connect()
    fuzzer = Fuzzer(wire, Random(5), _REGION_FILE)
    ends: Counter[tuple[str, str]] = Counter()
    for number in range(INPUTS // _ROUND):
        fuzzer.renew()
        ends += fuzz(wire, fuzzer, _ROUND)
        if number == INPUTS // _ROUND // 5:
            before = fuzzed.vitals
    for open_batch in (open_penalty_batch, open_beam_batch):
        assert follow(open_batch(wire)) == follow(open_batch(wire))
    fuzzer.renew()
    assert_flat(before, settled(lambda: fuzzed.vitals, before), mib=12)
    codes = {code for _, code in ends}
    assert codes >= _CODES - {"UNIMPLEMENTED", "RESOURCE_EXHAUSTED"}, ends
    assert any(ends[method, "OK"] for method in STREAM_METHODS), ends
