"""The HTTP server that Prometheus scrapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import start_http_server

from logitd.service.config import ConfigError, split_address

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class MetricsServer:
    """Serves a registry on `port`, in threads of its own, from the start until `close`."""

    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        host, port = split_address("metrics_listen", address)
        try:
            self._http, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise ConfigError(f"metrics_listen must be free to listen on, got {address!r}: {error}") from error
        self.port = self._http.server_port

    def close(self) -> None:
        """Stop, which takes up to half a second."""
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
