"""The health service: `""` is liveness, the service's name is readiness."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from logitd.service.calls import SERVICE_NAME

if TYPE_CHECKING:
    from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

LIVENESS, READINESS = "", SERVICE_NAME
_RESPONSE = health_pb2.HealthCheckResponse


class HealthService(health_pb2_grpc.HealthServicer):
    """grpc.health.v1, for any number of gRPC servers of one event loop.

    Liveness is SERVING as long as the process answers, while it drains too: what watches it would kill a server that
    still finishes its calls. Readiness says whether to send calls. The servicer of grpcio-health-checking keeps its
    watches open, and each of them would hold a stop up for its whole grace.
    """

    def __init__(self) -> None:
        self._statuses = {LIVENESS: _RESPONSE.SERVING, READINESS: _RESPONSE.NOT_SERVING}
        self._is_ended = False
        self._changed = asyncio.Event()

    def set_ready(self, is_ready: bool) -> None:
        """Turn readiness."""
        self._statuses[READINESS] = _RESPONSE.SERVING if is_ready else _RESPONSE.NOT_SERVING
        self._wake_watches()

    def end_watches(self) -> None:
        """End the watches, and those that still come, once they have the present status."""
        self._is_ended = True
        self._wake_watches()

    async def Check(
        self, request: HealthCheckRequest, context: grpc.aio.ServicerContext[HealthCheckRequest, HealthCheckResponse]
    ) -> HealthCheckResponse:
        """The status of a name; NOT_FOUND for others."""
        if request.service not in self._statuses:
            await context.abort(grpc.StatusCode.NOT_FOUND, "service must be empty or the service's full name")
        return _RESPONSE(status=self._statuses[request.service])

    async def Watch(
        self, request: HealthCheckRequest, context: grpc.aio.ServicerContext[HealthCheckRequest, HealthCheckResponse]
    ) -> None:
        """The status of a name now and whenever it changes; SERVICE_UNKNOWN for others."""
        told = None
        while True:
            changed = self._changed
            status = self._statuses.get(request.service, _RESPONSE.SERVICE_UNKNOWN)
            if status != told:
                await context.write(_RESPONSE(status=status))
                told = status
            if self._is_ended:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server stops")
            await changed.wait()

    def _wake_watches(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
