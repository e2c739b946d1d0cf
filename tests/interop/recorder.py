"""A server in the middle: it passes every call on to a real server and keeps the bytes that went either way.

The samples stay free of test code like this: what they send and get is seen from outside.
"""

from __future__ import annotations

import threading
from concurrent import futures
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from interop.make_vectors import SERVICE, STREAMS, Exchange

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NO_LIMIT = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class Recording:
    """What was said over `target`, in the order of the answers; the scenario of an exchange is its batch's id."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._exchanges: list[Exchange] = []
        self._lock = threading.Lock()

    def add(self, rpc: str, route: str, request: bytes, reply: bytes) -> None:
        with self._lock:
            self._exchanges.append(Exchange(route, rpc, request, 0, reply))

    def batches(self) -> list[list[Exchange]]:
        """The exchanges of each batch, in the order in which the batches were opened."""
        batches: dict[str, list[Exchange]] = {}
        for exchange in self._exchanges:
            if exchange.scenario:
                batches.setdefault(exchange.scenario, []).append(exchange)
        return list(batches.values())

    def without_batch(self) -> list[Exchange]:
        """Those that name no batch: capabilities, shared memory."""
        return [exchange for exchange in self._exchanges if not exchange.scenario]


class _PassOn(grpc.GenericRpcHandler):
    def __init__(self, channel: grpc.Channel, recording: Recording) -> None:
        self._channel = channel
        self._recording = recording

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if not details.method.startswith(SERVICE):
            return None
        rpc = details.method.removeprefix(SERVICE)
        route = dict(details.invocation_metadata).get("x-logitd-route", "")
        if rpc in STREAMS:
            return grpc.stream_stream_rpc_method_handler(lambda requests, context: self._stream(rpc, route, requests))
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._unary(rpc, route, request))

    def _unary(self, rpc: str, route: str, request: bytes) -> bytes:
        reply: bytes = self._channel.unary_unary(SERVICE + rpc)(request)
        self._recording.add(rpc, route, request, reply)
        return reply

    def _stream(self, rpc: str, route: str, requests: Iterator[bytes]) -> Iterator[bytes]:
        # One message at a time: the samples wait for each answer.
        sent: list[bytes] = []

        def passed_on() -> Iterator[bytes]:
            for request in requests:
                sent.append(request)
                yield request

        replies: Any = self._channel.stream_stream(SERVICE + rpc)(passed_on())
        for number, reply in enumerate(replies):
            self._recording.add(rpc, route, sent[number], reply)
            yield reply


@contextmanager
def recording(server_address: str, folder: Path) -> Iterator[Recording]:
    """Listens at a Unix socket in `folder`, with the side socket of the server beside it."""
    socket = folder / "recorder"
    side_socket = folder / "recorder.memory"
    side_socket.symlink_to(server_address.removeprefix("unix:") + ".memory")
    result = Recording(f"unix:{socket}")
    with grpc.insecure_channel(server_address, options=_NO_LIMIT) as channel:
        proxy = grpc.server(futures.ThreadPoolExecutor(8), options=_NO_LIMIT)
        proxy.add_generic_rpc_handlers((_PassOn(channel, result),))
        proxy.add_insecure_port(result.target)
        proxy.start()
        try:
            yield result
        finally:
            proxy.stop(None).wait()
            side_socket.unlink()
