"""gRPC's servers and their ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from logitd.service.config import ConfigError

if TYPE_CHECKING:
    from logitd.service.config import ServerConfig

_MILLISECONDS = 1000


def make_grpc_server(config: ServerConfig) -> grpc.aio.Server:
    """A server with the configured limits; it has no ports yet."""
    return grpc.aio.server(options=_channel_options(config))


def open_port(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
    """Listen at an address, with TLS if there are credentials; the port. Raises `ConfigError` if it cannot be had."""
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ConfigError(f"the address must be free to listen on, got {address!r}: {error}") from error


def _channel_options(config: ServerConfig) -> list[tuple[str, int]]:
    # No greatest age of a connection: options are a server's, not a port's, and on a Unix socket it would only hurt.
    ping_timeout = round(config.keepalive_timeout_seconds * _MILLISECONDS)
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        # Three for each batch that there may be, and some beside; a client's further ones wait for their turn.
        ("grpc.max_concurrent_streams", 4 * config.max_batches + 100),
        # Two servers on one port would each take some of the connections, and some of the batches.
        ("grpc.so_reuseport", 0),
        # Who is gone without a word is found out, and a decoder between two requests may keep its connection.
        ("grpc.keepalive_time_ms", round(config.keepalive_seconds * _MILLISECONDS)),
        ("grpc.keepalive_timeout_ms", ping_timeout),
        ("grpc.http2.ping_timeout_ms", ping_timeout),  # the one that closes a connection in grpcio 1.85
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", round(config.min_ping_interval_seconds * _MILLISECONDS)),
    ]
