"""Many small callers at once: one row of 32k each, sparse replies, against a bare echo server under the same load."""

from __future__ import annotations

import asyncio
import statistics
import struct
import time
from typing import TYPE_CHECKING

import grpc
import numpy as np
from harness import Case, Row, Settings
from peers import bare_server
from processes import bare_channel_address, logitd_server_address

from logitd.client import AsyncClient, Penalties, Sequence

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

NUM_STREAMS = (1, 8, 32)
VOCAB_SIZE, NUM_DISTINCT = 32_768, 100
LIMIT = 1.4
P99_LIMIT = 4.0
# Rounds of all streams together, ours and the peer's in turn.
_ROUNDS = {True: 4, False: 12}
_STEPS = 30


def cases() -> Iterator[Case]:
    """Each number of streams."""
    for number in NUM_STREAMS:
        yield Case(f"transport/streams/{number}", lambda settings, number=number: _measure(number, settings))


def _measure(number: int, settings: Settings) -> Iterator[Row]:
    with logitd_server_address() as ours, bare_channel_address() as bare:
        latencies = asyncio.run(_compare(ours, bare, number, _ROUNDS[settings.effort.seconds < 1]))
    times = {name: statistics.median(taken) * 1000 for name, taken in latencies.items()}
    name = f"transport/streams/{number}"
    yield Row.of(name, times["ours"], "a bare echo server, same load and bytes", times["bare"], LIMIT)
    p99 = float(np.quantile(latencies["ours"], 0.99)) * 1000
    yield Row.of(f"{name}/p99", p99, "its own median", times["ours"], P99_LIMIT)


async def _compare(ours: str, bare: str, number: int, rounds: int) -> dict[str, list[float]]:
    logits = np.random.default_rng(0).normal(0, 5, (1, VOCAB_SIZE)).astype(np.float32)
    latencies: dict[str, list[float]] = {"ours": [], "bare": []}
    async with AsyncClient(ours) as client, grpc.aio.insecure_channel(bare) as channel:
        our_steps = [await _open_batch(client, logits, seed) for seed in range(number)]
        bare_steps = [_open_stream(channel, logits) for _ in range(number)]
        for _ in range(rounds):
            latencies["ours"] += await _run_all(our_steps)
            latencies["bare"] += await _run_all(bare_steps)
    return latencies


async def _open_batch(client: AsyncClient, logits: np.ndarray, seed: int) -> Callable[[], Awaitable[object]]:
    rng = np.random.default_rng(seed)
    sequence = Sequence(
        output_token_ids=rng.choice(VOCAB_SIZE, NUM_DISTINCT, replace=False),
        penalties=Penalties(1.2, 0.3, 0.2),
        max_new_tokens=65_536,
    )
    batch = await client.create_batch([sequence], vocab_size=VOCAB_SIZE)
    return lambda: batch.apply_sparse(logits, rng.integers(0, VOCAB_SIZE, 1))


def _open_stream(channel: grpc.aio.Channel, logits: np.ndarray) -> Callable[[], Awaitable[object]]:
    stream = channel.stream_stream(bare_server.METHOD)()
    message = struct.pack("<q", NUM_DISTINCT * 8) + logits.tobytes()

    async def step() -> object:
        await stream.write(message)
        return await stream.read()

    return step


async def _run_all(steps: list[Callable[[], Awaitable[object]]]) -> list[float]:
    return [seconds for taken in await asyncio.gather(*map(_run_one, steps)) for seconds in taken]


async def _run_one(step: Callable[[], Awaitable[object]]) -> list[float]:
    taken = []
    for _ in range(_STEPS):
        start = time.perf_counter()
        await step()
        taken.append(time.perf_counter() - start)
    return taken
