"""Fixtures of the client's tests: a scripted server in this process, the real one in its own, both client surfaces."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import queue
import subprocess
import sys
import threading
from collections import defaultdict
from concurrent import futures
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from logitd.client import AsyncClient, BeamBatch, Client, LogitdError, PenaltyBatch, SharedLogits
from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SERVICE = "logitd.v1.LogitProcessorService"
UID = bytes(range(16))
_REGION_METHODS = ("RegisterSharedMemory", "UnregisterSharedMemory")


class Fake:
    """A server that answers by a script: what the real one must never do.

    `script` holds, per method, functions of (request bytes, context) that are used up one a message. What they
    return is the reply; None ends the stream.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.script: dict[str, list[Callable[[bytes, grpc.ServicerContext], bytes | None]]] = defaultdict(list)
        self.received: dict[str, list[bytes]] = defaultdict(list)
        self.metadata: dict[str, list[dict[str, str]]] = defaultdict(list)
        self.drop_in = 0
        self.script["CreateBatch"] = [self._create] * 100
        self.script["DeleteBatch"] = [lambda request, context: b""] * 100

    def _create(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        message = service_pb2.CreateBatchRequest.FromString(request)
        batch = types_pb2.Batch(batch_id=message.batch_id, uid=UID, kind=message.kind)
        batch.vocab_size = message.vocab_size
        for row, sequence in enumerate(message.sequences):
            batch.rows.add(sequence_id=sequence.sequence_id, first_row=row, row_count=1)
        return service_pb2.CreateBatchResponse(batch=batch).SerializeToString()

    def answer(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes | None:
        self.received[method].append(request)
        self.metadata[method].append(dict(context.invocation_metadata()))
        if not self.script[method]:
            context.abort(grpc.StatusCode.DATA_LOSS, f"the script for {method} is at its end")
        return self.script[method].pop(0)(request, context)


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, fake: Fake) -> None:
        self._fake = fake

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = details.method.rpartition("/")[2]
        if method in ("Accumulate", "Apply", "BeamStep"):
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: self._stream(method, requests, context)
            )
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._fake.answer(method, request, context))

    def _stream(self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for request in requests:
            reply = self._fake.answer(method, request, context)
            if reply is None:
                return
            yield reply


class Replies:
    """Ingredients of scripts."""

    @staticmethod
    def send(message: Any) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        data = message if isinstance(message, bytes) else message.SerializeToString()
        return lambda request, context: data

    @staticmethod
    def end(request: bytes, context: grpc.ServicerContext) -> None:
        return None

    @staticmethod
    def hang(request: bytes, context: grpc.ServicerContext) -> None:
        over = threading.Event()
        if context.add_callback(over.set):  # else it is over already
            over.wait(20)

    @staticmethod
    def fail(code: grpc.StatusCode, message: str, *details: Any) -> Callable[[bytes, grpc.ServicerContext], None]:
        def answer(request: bytes, context: grpc.ServicerContext) -> None:
            context.set_trailing_metadata(Replies.trailer(code, message, *details))
            context.abort(code, message)

        return answer

    @staticmethod
    def refuse(code: grpc.StatusCode, reason: str, **metadata: str) -> Callable[[bytes, grpc.ServicerContext], None]:
        info = error_details_pb2.ErrorInfo(domain="logitd", reason=reason, metadata=metadata)
        return Replies.fail(code, "refused", info)

    @staticmethod
    def trailer(code: grpc.StatusCode, message: str, *details: Any) -> tuple[tuple[str, bytes], ...]:
        status = status_pb2.Status(code=code.value[0], message=message)
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        return (("grpc-status-details-bin", status.SerializeToString()),)


@pytest.fixture
def replies() -> type[Replies]:
    return Replies


@pytest.fixture
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fake]:
    target = f"unix:{tmp_path_factory.mktemp('fake')}/socket"
    server = grpc.server(futures.ThreadPoolExecutor(8))
    scripted = Fake(target)
    server.add_generic_rpc_handlers((_Handler(scripted),))
    server.add_insecure_port(target)
    server.start()
    yield scripted
    server.stop(None).wait()


class _Awaited:
    """A sync client or batch under the surface of the asyncio one, so that one test covers both."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aenter__(self) -> _Awaited:
        self._inner.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not inspect.ismethod(value):
            return value

        async def call(*args: Any, **options: Any) -> Any:
            plain = [arg._inner if isinstance(arg, _Awaited) else arg for arg in args]
            result = value(*plain, **options)
            return _Awaited(result) if isinstance(result, PenaltyBatch | BeamBatch | SharedLogits) else result

        return call


@pytest.fixture(params=["sync", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes a client whose methods are awaited, whichever surface it has; call it inside of a coroutine."""
    if request.param == "asyncio":
        return AsyncClient
    return lambda *args, **options: _Awaited(Client(*args, **options))


@pytest.fixture
def run() -> Callable[[Any], Any]:
    """Runs a coroutine function to its end."""
    return lambda scenario: asyncio.run(scenario())


class Server:
    """A real server in its own process, run by the Python of LOGITD_SERVER_PYTHON."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.target = f"unix:{folder}/socket"
        self.memory_dir = folder / "memory"
        self.memory_dir.mkdir()
        self.start()

    def start(self) -> None:
        python = os.environ.get("LOGITD_SERVER_PYTHON", sys.executable)
        command = [python, "-m", "logitd.service", "serve", "--listen", "", "--linger-seconds", "0"]
        command += ["--unix-socket", f"{self._folder}/socket", "--shared-memory-dir", str(self.memory_dir)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        with Client(self.target) as client:
            for _ in range(60):
                with contextlib.suppress(LogitdError):
                    client.wait_until_ready(1)
                    return
                if self._process.poll() is not None:
                    break
        self.kill()
        pytest.fail(f"the server did not start:\n{self._log}")

    @property
    def _log(self) -> str:
        return (self._folder / "log").read_text()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(30) == 0, self._log


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server that all tests share."""
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture
def server_target(shared_server: Server) -> str:
    """The address of a real server that all tests share."""
    return shared_server.target


@pytest.fixture(scope="session")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server that a test may kill if it starts it again."""
    server = Server(tmp_path_factory.mktemp("own"))
    yield server
    server.stop()


@pytest.fixture
def lossy(fake: Fake, server_target: str) -> Iterator[Fake]:
    """A way to the real server on which the reply `drop_in` steps from now is lost: the work was done."""
    with grpc.insecure_channel(server_target) as channel:
        for method in ("CreateBatch", "DeleteBatch", "GetBatch", "GetCapabilities", *_REGION_METHODS):
            forward = channel.unary_unary(f"/{SERVICE}/{method}")
            fake.script[method] = [lambda request, context, forward=forward: forward(request)] * 100
        for method in ("FilterBatch", "MergeBatches"):
            forward = channel.unary_unary(f"/{SERVICE}/{method}")
            fake.script[method] = [_lossy_unary(fake, forward)] * 100
        for method in ("Accumulate", "Apply", "BeamStep"):
            fake.script[method] = [_lossy_forward(fake, channel.stream_stream(f"/{SERVICE}/{method}"))] * 100
        yield fake


def _lossy_unary(fake: Fake, forward: Any) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        reply = forward(request)
        _drop(fake, context)
        return reply

    return answer


def _drop(fake: Fake, context: grpc.ServicerContext) -> None:
    fake.drop_in -= 1
    if fake.drop_in == 0:
        context.abort(grpc.StatusCode.UNAVAILABLE, "the reply is lost")


def _lossy_forward(fake: Fake, forward: Any) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    streams: dict[grpc.ServicerContext, tuple[queue.SimpleQueue[bytes | None], Iterator[bytes]]] = {}

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        if context not in streams:
            outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            streams[context] = outbox, forward(iter(outbox.get, None))
            context.add_callback(lambda: outbox.put(None))
        outbox, replies = streams[context]
        outbox.put(request)
        reply = next(replies)
        _drop(fake, context)
        return reply

    return answer
