"""The command ``logitd``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

from logitd.service.config import ConfigError, ServerConfig, add_arguments, load_config
from logitd.service.interpreter import freeze_objects, tune_allocator
from logitd.service.logs import set_up_logging

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOG = logging.getLogger(__name__)
_DESCRIPTION = """\
Serve logit post-processing over gRPC: repetition, frequency and presence penalties, min_new_tokens, and beam search,
with the exact numerics of SGLang, vLLM or Transformers, chosen by name. The contract is proto/logitd/v1/service.proto.

Every flag can also be set by the environment variable in its line; a flag wins over a variable.
"""
_EPILOG = """\
examples:
  logitd serve                                             TCP on 127.0.0.1:50051
  logitd serve --listen '' --unix-socket /run/logitd.sock  a Unix socket alone, for a decoder on the same node
  logitd serve --listen 0.0.0.0:50051                      every interface; mind that nobody has to log in
  logitd serve --listen 0.0.0.0:50051 --tls-certificate tls.crt --tls-key tls.key --tls-client-ca ca.crt \\
    --health-listen 0.0.0.0:50052 --metrics-listen 0.0.0.0:9090
                                                           clients with a certificate of that authority alone, probes
                                                           and Prometheus on ports of their own

Health (grpc.health.v1) has two names: '' is liveness, logitd.v1.LogitProcessorService readiness. SIGTERM and SIGINT
stop the server: readiness turns NOT_SERVING, replies say that it drains, it lingers, ends the streams that are idle,
lets calls that run finish, and exits with 0. A second signal stops it at once.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``logitd`` and return its exit status: 0, or 2 for settings that break a rule."""
    arguments = _make_parser().parse_args(argv)
    try:
        config = load_config(arguments)
        set_up_logging(config)
        asyncio.run(_serve(config))
    except ConfigError as error:
        sys.stderr.write(f"logitd: {error}\n")
        return 2
    return 0


async def _serve(config: ServerConfig) -> None:
    # Before anything that takes a while: the first process of a container never gets a signal that it does not handle.
    stop, hurry = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    _LOG.info("starting", extra={"fields": {"version": version("logitd")}})

    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # or each failed handshake puts a line of gRPC's own into the log
    try:
        from logitd.service.server import LogitServer  # torch takes a second to load: not before the settings are right
    except ModuleNotFoundError as error:
        rule = "the server's packages must be installed, as with pip install '.[server]' in a clone"
        raise ConfigError(f"{rule}, got no module {error.name}") from error

    tune_allocator()
    async with LogitServer(config, hurry):
        freeze_objects()
        await stop.wait()


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="logitd", description="Logit post-processing as a gRPC service.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="run the server",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(serve)
    return parser
