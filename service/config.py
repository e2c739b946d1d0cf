"""The server's configuration: one frozen dataclass, filled from flags and ``LOGITD_*`` variables, here alone."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ENVIRONMENT_PREFIX = "LOGITD_"
# The fields of a message beside its tensor; token ids of a long step included.
_MESSAGE_OVERHEAD = 1 << 20
_GREATEST_MESSAGE = 2**31 - 1
_FP32_BYTES = 4


class ConfigError(ValueError):
    """A setting breaks a rule."""


def _setting(default: Any, help_text: str, *, may_be_zero: bool = False) -> Any:
    return field(default=default, metadata={"help": help_text, "may_be_zero": may_be_zero})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Every setting of the server. The help texts are the documentation of ``logitd serve``."""

    listen: str = _setting("127.0.0.1:50051", "TCP address HOST:PORT; port 0 takes a free one; empty: no TCP")
    unix_socket: str = _setting("", "path of a Unix domain socket to listen on as well; empty: none")
    shared_memory_dir: str = _setting("", "directory of named shared-memory files; empty: only memory files")
    max_regions: int = _setting(1024, "registered regions of shared memory at most")
    max_region_bytes: int = _setting(64 << 30, "bytes of all registered regions together at most")
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
    reply_timeout_seconds: float = _setting(30.0, "a stream ends when its caller leaves a reply unread this long")
    linger_seconds: float = _setting(
        3.0, "after SIGTERM, how long calls are still taken while health says NOT_SERVING", may_be_zero=True
    )
    grace_seconds: float = _setting(5.0, "how long calls that run may then go on", may_be_zero=True)
    torch_threads: int = _setting(1, "intra-op threads of torch; more than 1 suffers from busy neighbours")
    reflection: bool = _setting(False, "serve gRPC reflection, for grpcurl and the like")

    def __post_init__(self) -> None:
        if not self.listen and not self.unix_socket:
            raise ConfigError("listen or unix_socket must be set, got neither")
        for setting in fields(self):
            value = getattr(self, setting.name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            may_be_zero = setting.metadata["may_be_zero"] and value == 0
            if is_number and not may_be_zero and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{setting.name} must be finite and > 0, got {value!r}")
        if self.default_max_new_tokens > self.max_new_tokens:
            rule = f"must be at most max_new_tokens, {self.max_new_tokens}"
            raise ConfigError(f"default_max_new_tokens {rule}, got {self.default_max_new_tokens}")

    @property
    def max_message_bytes(self) -> int:
        """Bytes of one message at most: the largest batch's logits in fp32, and the fields around them."""
        logits = self.max_rows_per_batch * self.max_vocab_size * _FP32_BYTES
        return min(logits + _MESSAGE_OVERHEAD, _GREATEST_MESSAGE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag for each setting; help texts and defaults come from the dataclass."""
    for setting in fields(ServerConfig):
        text = f"{setting.metadata['help']} (default {setting.default!r}; {_variable(setting.name)})"
        flag = "--" + setting.name.replace("_", "-")
        if isinstance(setting.default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
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


def parse_config(argv: Sequence[str] = ()) -> ServerConfig:
    """A configuration from flags alone, for embedding and tests."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return load_config(parser.parse_args(argv), {})


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
