"""The server's configuration: one frozen dataclass, filled from flags and ``LOGITD_*`` variables, here alone."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVIRONMENT_PREFIX = "LOGITD_"
# The fields of a message beside its tensor; token ids of a long step included.
_MESSAGE_OVERHEAD = 1 << 20
_GREATEST_MESSAGE = 2**31 - 1
_FP32_BYTES = 4


class ConfigError(ValueError):
    """A setting breaks a rule."""


def _setting(default: Any, help_text: str, *, may_be_zero: bool = False, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": help_text, "may_be_zero": may_be_zero, "choices": choices})


_ADDRESSES = ("listen", "health_listen", "metrics_listen")
_GREATEST_PORT = 65_535
_GREATEST_MODE = 0o777


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Every setting of the server. The help texts are the documentation of ``logitd serve``."""

    listen: str = _setting("127.0.0.1:50051", "TCP address HOST:PORT; port 0 takes a free one; empty: no TCP")
    unix_socket: str = _setting("", "path of a Unix domain socket to listen on as well; empty: none")
    unix_socket_mode: str = _setting("0660", "permissions of the Unix socket, octal; the group is the server's")
    tls_certificate: str = _setting("", "PEM file of the TCP listener's certificate chain; empty: no TLS")
    tls_key: str = _setting("", "PEM file of its private key; both are read again when they change")
    tls_client_ca: str = _setting("", "PEM file of authorities; set: clients must present a certificate of theirs")
    health_listen: str = _setting("", "HOST:PORT that serves health alone, without TLS, for probes; empty: none")
    metrics_listen: str = _setting("", "HOST:PORT of the Prometheus metrics, over HTTP; empty: none")
    shared_memory_dir: str = _setting("", "directory of named shared-memory files; empty: only memory files")
    max_regions: int = _setting(1024, "registered regions of shared memory at most")
    max_region_bytes: int = _setting(8 << 30, "bytes of all registered regions together at most")
    max_batches: int = _setting(1024, "live batches at most")
    max_rows_per_batch: int = _setting(256, "rows of one batch at most (beams count one by one)")
    max_vocab_size: int = _setting(262_144, "columns of logits at most, padding included")
    max_new_tokens: int = _setting(131_072, "greatest max_new_tokens that a sequence may ask for")
    default_max_new_tokens: int = _setting(4096, "max_new_tokens of a sequence that asks for none")
    max_prompt_tokens: int = _setting(1_048_576, "prompt tokens of one sequence at most")
    max_stop_token_ids: int = _setting(1024, "EOS and stop ids of one sequence at most")
    max_state_bytes: int = _setting(4 << 30, "bytes of state that all batches together may reserve")
    idle_timeout_seconds: float = _setting(600.0, "a batch expires after this long without a message")
    max_queued_bytes: int = _setting(64 << 20, "bytes of a stream that are read ahead of the work")
    reply_timeout_seconds: float = _setting(30.0, "a caller that leaves a reply unread this long loses its stream")
    keepalive_seconds: float = _setting(60.0, "a connection that is silent this long is pinged")
    keepalive_timeout_seconds: float = _setting(20.0, "a ping unanswered this long closes its connection")
    min_ping_interval_seconds: float = _setting(30.0, "clients may ping this often, with or without open calls")
    linger_seconds: float = _setting(
        3.0, "after SIGTERM, how long calls are still taken while readiness is NOT_SERVING", may_be_zero=True
    )
    grace_seconds: float = _setting(5.0, "how long calls that run may then go on", may_be_zero=True)
    torch_threads: int = _setting(1, "intra-op threads of torch; more than 1 suffers from busy neighbours")
    reflection: bool = _setting(False, "serve gRPC reflection, for grpcurl and the like")
    log_level: str = _setting("info", "least level that is logged", choices=("debug", "info", "warning", "error"))
    log_format: str = _setting("json", "a line of JSON an event, or text for a person", choices=("json", "text"))

    def __post_init__(self) -> None:
        if not self.listen and not self.unix_socket:
            raise ConfigError("listen or unix_socket must be set, got neither")
        for setting in fields(self):
            value = getattr(self, setting.name)
            choices = setting.metadata["choices"]
            if choices and value not in choices:
                raise ConfigError(f"{setting.name} must be one of {', '.join(choices)}, got {value!r}")
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            may_be_zero = setting.metadata["may_be_zero"] and value == 0
            if is_number and not may_be_zero and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{setting.name} must be finite and > 0, got {value!r}")
        if self.default_max_new_tokens > self.max_new_tokens:
            rule = f"must be at most max_new_tokens, {self.max_new_tokens}"
            raise ConfigError(f"default_max_new_tokens {rule}, got {self.default_max_new_tokens}")
        self._check_listeners()

    @property
    def unix_socket_permissions(self) -> int:
        """The number that `unix_socket_mode` writes."""
        return int(self.unix_socket_mode, 8)

    @property
    def max_message_bytes(self) -> int:
        """Bytes of one message at most: the largest batch's logits in fp32, and the fields around them."""
        logits = self.max_rows_per_batch * self.max_vocab_size * _FP32_BYTES
        return min(logits + _MESSAGE_OVERHEAD, _GREATEST_MESSAGE)

    def _check_listeners(self) -> None:
        for name in _ADDRESSES:
            if getattr(self, name):
                split_address(name, getattr(self, name))
        is_octal = self.unix_socket_mode.isascii() and set(self.unix_socket_mode) <= set("01234567")
        if not (is_octal and 0 < int(self.unix_socket_mode or "0", 8) <= _GREATEST_MODE):
            raise ConfigError(f"unix_socket_mode must be octal permissions like 0660, got {self.unix_socket_mode!r}")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError("tls_certificate and tls_key must be set together, got one of them")
        if self.tls_client_ca and not self.tls_certificate:
            raise ConfigError("tls_client_ca must come with tls_certificate, got it alone")
        if self.tls_certificate and not self.listen:
            raise ConfigError("tls_certificate must come with listen: only TCP has TLS, got none")


def split_address(name: str, address: str) -> tuple[str, int]:
    """The host and the port of the setting `name`; raises `ConfigError`. Hosts of IPv6 are written in brackets."""
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= _GREATEST_PORT
    is_host = bool(host) and (":" not in host or (host[0], host[-1]) == ("[", "]"))
    if not (is_host and is_port):
        raise ConfigError(f"{name} must be HOST:PORT, got {address!r}")
    return host.strip("[]"), int(port)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag for each setting; help texts and defaults come from the dataclass."""
    for setting in fields(ServerConfig):
        text = f"{setting.metadata['help']} (default {setting.default!r}; {_variable(setting.name)})"
        flag = "--" + setting.name.replace("_", "-")
        if isinstance(setting.default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        elif setting.metadata["choices"]:
            parser.add_argument(flag, choices=setting.metadata["choices"], default=None, help=text)
        else:
            metavar = type(setting.default).__name__.upper()
            parser.add_argument(flag, type=type(setting.default), default=None, metavar=metavar, help=text)


def load_config(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> ServerConfig:
    """Flags first, then ``LOGITD_*`` variables, then defaults. Raises `ConfigError`."""
    values: dict[str, Any] = {}
    for setting in fields(ServerConfig):
        flag, variable = getattr(arguments, setting.name, None), environment.get(_variable(setting.name))
        if flag is not None:
            values[setting.name] = flag
        elif variable is not None:
            values[setting.name] = _parse(setting.name, type(setting.default), variable)
    return ServerConfig(**values)


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _parse(name: str, kind: type, text: str) -> Any:
    if kind is bool:
        if text.lower() not in {"1", "0", "true", "false"}:
            raise ConfigError(f"{_variable(name)} must be 1, 0, true or false, got {text!r}")
        return text.lower() in {"1", "true"}
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{_variable(name)} must be a {kind.__name__}, got {text!r}") from None
