"""How a client connects; shared by the sync and the asyncio surface."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logitd.client._exceptions import ClientClosedError, DeadlineExceededError

if TYPE_CHECKING:
    import grpc

DEFAULT_TIMEOUT = 30.0
"""Seconds for a unary call and for a step."""
DEFAULT_CHUNK_BYTES = 4 * 1024 * 1024
"""Logits above this travel in several messages: large messages cost more a byte, and servers limit their size."""
DEFAULT_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""The greatest reply. Steps in chunks stay far below; a GetBatch of long histories may need more."""
CLEAN_UP_TIMEOUT = 5.0
"""Seconds for deleting a batch after a failure, when the server may well be the reason."""
STARTING_PAUSE = 0.1
"""Seconds between two questions to a server that starts."""
DEFAULT_RECOVER_TIMEOUT = 60.0
"""Seconds for a server to come back: a container that restarts, and the imports of its process."""

_ROUTE_KEY = "x-logitd-route"
_MAX_ROUTE_LENGTH = 256
_GRPC_MESSAGE_BYTES, _BESIDE_ARRAYS = 4 * 1024 * 1024, 1024
"""gRPC's default limit of a message, and what stands in one around its arrays."""


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The options of a client."""

    target: str
    timeout: float | None
    step_timeout: float | None
    credentials: grpc.ChannelCredentials | None
    route: str | None
    max_message_bytes: int
    chunk_bytes: int
    recover: bool
    recover_timeout: float
    most_reply_bytes: int = field(init=False)
    """Bytes of arrays in a reply at most: a proxy may have gRPC's own limit, whatever this end takes."""

    def __post_init__(self) -> None:
        for name, seconds in (("timeout", self.timeout), ("step_timeout", self.step_timeout)):
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} must be greater than 0 seconds or None, got {seconds}")
        if not self.recover_timeout > 0:
            raise ValueError(f"recover_timeout must be greater than 0 seconds, got {self.recover_timeout}")
        for name, size in (("max_message_bytes", self.max_message_bytes), ("chunk_bytes", self.chunk_bytes)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        most_reply_bytes = max(1, min(self.max_message_bytes, _GRPC_MESSAGE_BYTES) - _BESIDE_ARRAYS)
        object.__setattr__(self, "most_reply_bytes", most_reply_bytes)

    @property
    def channel_options(self) -> list[tuple[str, int]]:
        """What gRPC needs to know. A server that restarts beside its decoder is back in moments, so look soon."""
        return [
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]

    def metadata(self, batch_id: str | None) -> tuple[tuple[str, str], ...]:
        """The metadata of a call about a batch, or about none."""
        route = self.route if self.route is not None else batch_id
        if route is None:
            return ()
        if len(route) > _MAX_ROUTE_LENGTH or not (route.isascii() and route.isprintable()):
            rule = f"a route, and so a batch id, must be at most {_MAX_ROUTE_LENGTH} printable ASCII characters"
            raise ValueError(f"{rule}, got {route[:_MAX_ROUTE_LENGTH]!r}")
        return ((_ROUTE_KEY, route),)


class ClientBase:
    """What the clients for threads and for asyncio have in common."""

    def __init__(
        self,
        target: str,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        step_timeout: float | None = DEFAULT_TIMEOUT,
        credentials: grpc.ChannelCredentials | None = None,
        route: str | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        recover: bool = True,
        recover_timeout: float = DEFAULT_RECOVER_TIMEOUT,
    ) -> None:
        """Prepares a connection, which the first call makes.

        Parameters
        ----------
        target
            As gRPC has it: "unix:/run/logitd.sock", "127.0.0.1:50051", "dns:///logitd:50051".
        timeout, step_timeout
            Seconds for a unary call, and for a step over an open stream; None: no limit.
        credentials
            For TLS; None: plain.
        route
            What a proxy keeps a batch on its server by; None: each batch's id. Batches that may be merged need one.
        max_message_bytes
            The greatest reply that is accepted.
        chunk_bytes
            Logits above this travel in several messages of consecutive rows.
        recover
            Whether steps outlive a server that goes away: they wait for it to come back, are sent again, and where it
            has forgotten the batch it is rebuilt from its history. False: what fails raises, and `retry()` is yours.
        recover_timeout
            Seconds, counted from the first failure of a call, after which it raises all the same.
        """
        self._config = ClientConfig(
            target,
            timeout,
            step_timeout,
            credentials,
            route,
            max_message_bytes,
            chunk_bytes,
            recover,
            recover_timeout,
        )
        self._is_closed = False
        self._was_reached = False
        self._connect()

    def _connect(self) -> None:
        raise NotImplementedError

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError(f"the client of {self._config.target!r} is closed")

    def _not_ready(self, seconds: float, error: DeadlineExceededError) -> DeadlineExceededError:
        message = f"no server answered at {self._config.target!r} within {seconds:g} s: {error.message}"
        return DeadlineExceededError(message, error.details)

    @property
    def _expects_server(self) -> bool:
        # A server that never answered may have another address; one that did is expected back.
        return self._config.recover and self._was_reached
