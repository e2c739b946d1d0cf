"""A server: its listeners, its worker thread, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

import torch
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from logitd.service.call_log import CallLog
from logitd.service.calls import SERVICE_NAME
from logitd.service.config import ConfigError
from logitd.service.handlers import Handlers
from logitd.service.health import HealthService
from logitd.service.metrics import CallMetrics, StateMetrics, make_registry
from logitd.service.metrics_server import MetricsServer
from logitd.service.operations.context import OperationContext
from logitd.service.regions import RegionRegistry, clean_directory
from logitd.service.regions.side_socket import SUFFIX, SideSocket
from logitd.service.registry import BatchRegistry
from logitd.service.sockets import claiming, listen_unix
from logitd.service.state_size import StateSize, measure_state
from logitd.service.sweep import sweep
from logitd.service.tls import make_credentials
from logitd.service.transport import make_grpc_server, open_port
from logitd.service.worker import Worker

if TYPE_CHECKING:
    from types import TracebackType

    from logitd.service.config import ServerConfig

_LOG = logging.getLogger(__name__)
# How long a scrape waits for its turn on the worker thread.
_MEASURE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a running server listens; what it does not is empty."""

    tcp_address: str = ""
    unix_socket: str = ""
    health_address: str = ""
    metrics_address: str = ""


class LogitServer:
    """One server in this process and event loop; an asynchronous context manager.

    All operations run one at a time, which keeps the state in order: quick ones in the event loop, others on a thread,
    while the loop moves bytes. Once `hurry` is set, `stop` neither lingers nor waits for calls.
    """

    def __init__(self, config: ServerConfig, hurry: asyncio.Event | None = None) -> None:
        self._config = config
        self.context = OperationContext(config, BatchRegistry(config), RegionRegistry(config))
        self._worker = Worker(self._prepare_thread)
        self._health = HealthService()
        self._metrics = CallMetrics() if config.metrics_listen else None
        observers = [CallLog()] if self._metrics is None else [CallLog(), self._metrics]
        self._handlers = Handlers(self.context, self._worker, observers)
        self._hurry = asyncio.Event() if hurry is None else hurry
        self._server = make_grpc_server(config)
        self._resources = AsyncExitStack()
        self.endpoints = Endpoints()

    async def start(self) -> None:
        """Listen and serve. Raises `ConfigError` if a setting turns out wrong: an address, a certificate."""
        try:
            await self._start()
        except BaseException:
            await self._resources.aclose()
            raise
        listeners = {name: place for name, place in asdict(self.endpoints).items() if place}
        _LOG.info("serving", extra={"fields": listeners})

    async def stop(self) -> None:
        """Say that the server drains, linger, let what runs finish within the grace, and release everything."""
        self.context.is_draining = True
        self._health.set_ready(False)
        _LOG.info("draining", extra={"fields": {"linger_seconds": self._config.linger_seconds}})
        await self._linger()
        self._handlers.end_streams()
        self._health.end_watches()
        await self._finish_calls()
        await self._resources.aclose()
        _LOG.info("stopped")

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

    async def _start(self) -> None:
        self._prepare_thread()
        self._resources.callback(self._worker.shutdown, cancel_futures=True)
        self._add_services()
        if self._config.shared_memory_dir:
            _clean(self._config.shared_memory_dir)
        self.endpoints = Endpoints(
            tcp_address=self._open_tcp(),
            metrics_address=self._serve_metrics(),
            health_address=await self._serve_health(),
            unix_socket=self._open_unix_socket(),
        )
        await self._server.start()
        sweeper = asyncio.create_task(sweep(self.context, self._worker))
        self._resources.callback(sweeper.cancel)
        self._health.set_ready(True)

    def _add_services(self) -> None:
        self._server.add_generic_rpc_handlers((self._handlers.generic_handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if self._config.reflection:
            names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)

    def _open_tcp(self) -> str:
        if not self._config.listen:
            return ""
        port = open_port(self._server, self._config.listen, make_credentials(self._config))
        return _with_port(self._config.listen, port)

    def _open_unix_socket(self) -> str:
        path = self._config.unix_socket
        if path:
            with claiming(path, path + SUFFIX, mode=self._config.unix_socket_permissions):
                open_port(self._server, f"unix:{path}")
                side_socket = SideSocket(listen_unix(path + SUFFIX), self.context.regions, self._worker)
            self._resources.push_async_callback(side_socket.stop)
            side_socket.start()
        return path

    def _serve_metrics(self) -> str:
        if self._metrics is None:
            return ""
        state = StateMetrics(self._config, self._measure, lambda: self._handlers.queued_bytes)
        server = MetricsServer(self._config.metrics_listen, make_registry(self._metrics, state))
        self._resources.callback(server.close)
        return _with_port(self._config.metrics_listen, server.port)

    async def _serve_health(self) -> str:
        if not self._config.health_listen:
            return ""
        server = make_grpc_server(self._config)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        port = open_port(server, self._config.health_listen)
        await server.start()
        self._resources.push_async_callback(server.stop, None)
        return _with_port(self._config.health_listen, port)

    async def _linger(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.linger_seconds):
                await self._hurry.wait()

    async def _finish_calls(self) -> None:
        stopping = asyncio.create_task(self._server.stop(self._config.grace_seconds))
        hurried = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({stopping, hurried}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not stopping.done():
            await self._server.stop(None)
        await stopping

    def _measure(self) -> StateSize:
        return self._worker.submit(measure_state, self.context).result(_MEASURE_SECONDS)

    def _prepare_thread(self) -> None:
        torch.set_num_threads(self._config.torch_threads)
        torch.set_grad_enabled(False)


def _clean(shared_memory_dir: str) -> None:
    try:
        clean_directory(shared_memory_dir)
    except OSError as error:
        raise ConfigError(f"shared_memory_dir must be a directory to read and write, got {error}") from error


def _with_port(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}"
