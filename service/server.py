"""A server: its sockets, its worker thread, its health, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import grpc
import torch
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from logitd.service.config import ConfigError
from logitd.service.handlers import SERVICE_NAME, Handlers
from logitd.service.operations.context import OperationContext
from logitd.service.regions import RegionRegistry, clean_directory
from logitd.service.regions.side_socket import SUFFIX, SideSocket
from logitd.service.registry import BatchRegistry

if TYPE_CHECKING:
    from types import TracebackType

    from logitd.service.config import ServerConfig

_LOG = logging.getLogger(__name__)
_MAX_SOCKET_PATH = 107
_SOCKET_MODE = 0o660


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a running server listens; what it does not is empty."""

    tcp_address: str = ""
    unix_socket: str = ""


class LogitServer:
    """One server in this process and event loop; an asynchronous context manager.

    All operations run on one worker thread, which keeps the state in order; the event loop only moves bytes.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self.context = OperationContext(config, BatchRegistry(config), RegionRegistry(config))
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="logitd-cpu", initializer=self._prepare_worker)
        self._health = health.aio.HealthServicer()
        self._handlers = Handlers(self.context, self._worker)
        self._is_hurried = asyncio.Event()
        self._server = grpc.aio.server(options=_channel_options(config))
        self._side_socket: SideSocket | None = None
        self.endpoints = Endpoints()

    async def start(self) -> None:
        """Listen and serve. Raises `ConfigError` if an address cannot be had."""
        self._server.add_generic_rpc_handlers((self._handlers.generic_handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if self._config.reflection:
            names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        if self._config.shared_memory_dir:
            clean_directory(self._config.shared_memory_dir)
        self.endpoints = self._bind()
        await self._server.start()
        if self.endpoints.unix_socket:
            os.chmod(self.endpoints.unix_socket, _SOCKET_MODE)  # a single call before serving
        if self._side_socket is not None:
            self._side_socket.start()
        for name in ("", SERVICE_NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        _LOG.info("serving on %s", " and ".join(filter(None, (self.endpoints.tcp_address, self.endpoints.unix_socket))))

    async def stop(self) -> None:
        """Say that the server drains, linger, let what runs finish within the grace, and release everything."""
        self.context.is_draining = True
        await self._health.enter_graceful_shutdown()
        await self._linger()
        self._handlers.end_streams()
        await self._server.stop(0 if self._is_hurried.is_set() else self._config.grace_seconds)
        if self._side_socket is not None:
            await self._side_socket.stop()
        self._worker.shutdown()
        if self.endpoints.unix_socket and os.path.exists(self.endpoints.unix_socket):  # noqa: ASYNC240
            os.unlink(self.endpoints.unix_socket)

    def hurry(self) -> None:
        """Neither linger nor wait for calls: `stop` returns at once."""
        self._is_hurried.set()

    async def wait(self) -> None:
        """Return when the server has stopped."""
        await self._server.wait_for_termination()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _linger(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.linger_seconds):
                await self._is_hurried.wait()

    def _bind(self) -> Endpoints:
        tcp_address, path = "", self._config.unix_socket
        if self._config.listen:
            host, _, _ = self._config.listen.rpartition(":")
            tcp_address = f"{host}:{self._add_port(self._config.listen)}"
        if path:
            _claim_socket_path(path)
            _claim_socket_path(path + SUFFIX)
            self._add_port(f"unix:{path}")
            self._side_socket = SideSocket(path + SUFFIX, _SOCKET_MODE, self.context.regions, self._worker)
        return Endpoints(tcp_address, path)

    def _add_port(self, address: str) -> int:
        try:
            return self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise ConfigError(f"the address must be free to listen on, got {address!r}: {error}") from error

    def _prepare_worker(self) -> None:
        torch.set_num_threads(self._config.torch_threads)
        torch.set_grad_enabled(False)


def _channel_options(config: ServerConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        # Two servers on one port would each take some of the connections, and some of the batches.
        ("grpc.so_reuseport", 0),
    ]


def _claim_socket_path(path: str) -> None:
    # gRPC would silently take a socket over; one that still answers belongs to another server.
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise ConfigError(f"unix_socket must be at most {_MAX_SOCKET_PATH} bytes, got {path!r}")
    if not os.path.exists(path):
        return
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        raise ConfigError(f"unix_socket must be free or a stale socket, got another file at {path!r}")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise ConfigError(f"unix_socket must not be served already, got {path!r}")
