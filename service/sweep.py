"""Idle state is let go of without anybody asking for it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from logitd.service.operations.context import OperationContext

_LOG = logging.getLogger(__name__)
_SWEEPS_PER_TIMEOUT = 10


async def sweep(context: OperationContext, worker: Executor) -> None:
    """Expire batches and regions, on the worker thread, until cancelled: each goes within a tenth of its timeout."""
    interval = context.config.idle_timeout_seconds / _SWEEPS_PER_TIMEOUT
    while True:
        await asyncio.sleep(interval)
        try:
            await asyncio.get_running_loop().run_in_executor(worker, _expire, context)
        except Exception:  # a fault of ours, which must not end the sweeping
            _LOG.exception("the sweep failed")


def _expire(context: OperationContext) -> None:
    expired = context.registry.num_expired
    context.registry.expire()
    context.regions.expire()
    if context.registry.num_expired > expired:
        fields = {"expired": context.registry.num_expired - expired, "live": len(context.registry)}
        _LOG.info("idle batches expired", extra={"fields": fields})
