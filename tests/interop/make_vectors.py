"""Makes the golden vectors: what a caller of each RPC and form sends, and what a server answers, byte for byte.

    python tests/interop/make_vectors.py

writes `vectors/vectors.tsv` anew. What a server chooses by chance (uids, region ids, its instance id) is replaced by
fixed text of the same length, so that two runs give the same file.
"""

from __future__ import annotations

import queue
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from google.rpc import error_details_pb2, status_pb2

sys.path.insert(0, str(Path(__file__).parents[1]))

from interop.scenarios import SCENARIOS

from helpers.live_server import serving
from logitd.service.config import ServerConfig
from logitd.v1 import service_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from google.protobuf.message import Message

VECTORS = Path(__file__).parent / "vectors" / "vectors.tsv"
COLUMNS = ("scenario", "rpc", "request", "status", "reply")

SERVICE = "/logitd.v1.LogitProcessorService/"
STREAMS = ("Accumulate", "Apply", "BeamStep")
_SECONDS = 20


class Exchange(NamedTuple):
    """A message and its answer: the reply, or with another status than 0 the google.rpc.Status of the failure."""

    scenario: str
    rpc: str
    request: bytes
    status: int
    reply: bytes


class Recorder:
    """Speaks to a server and writes down what was said, the server's own choices replaced."""

    def __init__(self, channel: grpc.Channel, side_socket: Path, memory_dir: Path) -> None:
        self.side_socket = side_socket
        self.memory_dir = memory_dir
        self.toy_tokens: list[list[int]] = []
        self.toy_processed: list[bytes] = []
        self.exchanges: list[Exchange] = []
        self._channel = channel
        self._scenario = ""
        self._chosen: dict[bytes, bytes] = {}
        self._streams: dict[str, tuple[queue.SimpleQueue[bytes | None], Any]] = {}

    def record(self, scenario: str, talk: Callable[[Recorder], None]) -> None:
        """One scenario: all messages of a stream RPC in it travel on one stream."""
        self._scenario, self._chosen = scenario, {}
        talk(self)
        for outbox, _ in self._streams.values():
            outbox.put(None)
        self._streams.clear()

    def ask(self, rpc: str, request: Message) -> Any:
        """The reply to a message, parsed."""
        data = request.SerializeToString()
        reply = self._answer(rpc, data)
        self._write(rpc, data, 0, reply)
        return _reply_type(rpc).FromString(reply)

    def fail(self, rpc: str, request: Message) -> None:
        """The same where the server must refuse."""
        data = request.SerializeToString()
        try:
            self._answer(rpc, data)
        except grpc.RpcError as error:
            status = _sorted_details(dict(error.trailing_metadata())["grpc-status-details-bin"])
            self._write(rpc, data, status.code, status.SerializeToString())
        else:
            raise AssertionError(f"{rpc} must be refused in the scenario {self._scenario}")

    def name(self, chosen: bytes, fixed: bytes) -> None:
        """Write `fixed` for what the server chose; both have the same length, so that nothing else changes."""
        assert len(chosen) == len(fixed)
        self._chosen[chosen] = fixed
        last = self.exchanges.pop()
        self._write(last.rpc, last.request, last.status, last.reply)

    def replace_last_reply(self, reply: Message) -> None:
        self.exchanges[-1] = self.exchanges[-1]._replace(reply=reply.SerializeToString(deterministic=True))

    def _write(self, rpc: str, request: bytes, status: int, reply: bytes) -> None:
        for chosen, fixed in self._chosen.items():
            request, reply = request.replace(chosen, fixed), reply.replace(chosen, fixed)
        self.exchanges.append(Exchange(self._scenario, rpc, request, status, reply))

    def _answer(self, rpc: str, data: bytes) -> bytes:
        if rpc not in STREAMS:
            answer: bytes = self._channel.unary_unary(SERVICE + rpc)(data, timeout=_SECONDS)
            return answer
        if rpc not in self._streams:
            outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            call = self._channel.stream_stream(SERVICE + rpc)(iter(outbox.get, None), timeout=_SECONDS)
            self._streams[rpc] = outbox, call
        outbox, call = self._streams[rpc]
        outbox.put(data)
        return next(call)


def make_vectors(folder: Path) -> list[Exchange]:
    """All exchanges, with a server of its own that keeps its socket and shared memory in `folder`."""
    memory_dir = folder / "memory"
    memory_dir.mkdir()
    config = ServerConfig(
        listen="", unix_socket=str(folder / "socket"), shared_memory_dir=str(memory_dir), linger_seconds=0
    )
    with serving(config) as server, grpc.insecure_channel(server.address) as channel:
        recorder = Recorder(channel, folder / "socket.memory", memory_dir)
        for scenario, talk in SCENARIOS.items():
            recorder.record(scenario, talk)
    return recorder.exchanges


def to_text(exchanges: Iterable[Exchange]) -> str:
    """A line of column names, then one a message; bytes in hexadecimal."""
    lines = [COLUMNS] + [(e.scenario, e.rpc, e.request.hex(), str(e.status), e.reply.hex()) for e in exchanges]
    return "".join("\t".join(line) + "\n" for line in lines)


def read_vectors() -> list[Exchange]:
    """What the file holds."""
    lines = [line.split("\t") for line in VECTORS.read_text().splitlines()[1:]]
    return [Exchange(s, rpc, bytes.fromhex(q), int(status), bytes.fromhex(p)) for s, rpc, q, status, p in lines]


def _sorted_details(data: bytes) -> status_pb2.Status:
    """The status with the entries of its maps in order: on the wire they have none."""
    status = status_pb2.Status.FromString(data)
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            detail.value = info.SerializeToString(deterministic=True)
    return status


def _reply_type(rpc: str) -> Any:
    return getattr(service_pb2, f"{rpc}Response")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        VECTORS.write_text(to_text(make_vectors(Path(folder))))
