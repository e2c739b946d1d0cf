"""Timing of several contenders in one process: alternate rounds, medians, one thread, no garbage collection."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Contender:
    """One side of a comparison.

    Attributes
    ----------
    run : what is timed
    prepare : what goes before every run and is not timed
    """

    run: Callable[[], None]
    prepare: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: at least `min_rounds`, then until `seconds` have passed or `max_rounds` are done."""

    min_rounds: int
    max_rounds: int
    seconds: float
    warm_up_rounds: int = 1


FULL = Effort(min_rounds=7, max_rounds=200, seconds=1.0)
QUICK = Effort(min_rounds=3, max_rounds=40, seconds=0.1)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line chose."""

    effort: Effort
    device: str


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison, as `build/bench.json` has it; `ratio` is ours / peer and should be at most `limit`."""

    name: str
    ours_ms: float
    peer: str
    peer_ms: float
    ratio: float
    limit: float

    @classmethod
    def of(cls, name: str, ours_ms: float, peer: str, peer_ms: float, limit: float) -> Row:
        return cls(name, ours_ms, peer, peer_ms, ours_ms / peer_ms, limit)

    @property
    def is_over(self) -> bool:
        return self.ratio > self.limit

    def to_json(self) -> dict[str, str | float]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Case:
    """A named measurement that yields one or more rows once it is asked to."""

    name: str
    measure: Callable[[Settings], Iterable[Row]]


def measure(contenders: Mapping[str, Contender], settings: Settings) -> dict[str, float]:
    """The median milliseconds of each contender; all of them run once, in turn, in every round."""
    effort = settings.effort
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    with _quiet():
        for _ in range(effort.warm_up_rounds):
            _run_round(contenders, settings.device)
        start = time.perf_counter()
        for done in range(effort.max_rounds):
            if done >= effort.min_rounds and time.perf_counter() - start > effort.seconds:
                break
            for name, taken in _run_round(contenders, settings.device):
                seconds[name].append(taken)
    return {name: statistics.median(taken) * 1000 for name, taken in seconds.items()}


def _run_round(contenders: Mapping[str, Contender], device: str) -> list[tuple[str, float]]:
    taken = []
    for name, contender in contenders.items():
        contender.prepare()
        _synchronise(device)
        start = time.perf_counter()
        contender.run()
        _synchronise(device)
        taken.append((name, time.perf_counter() - start))
    return taken


def _synchronise(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()


@contextmanager
def _quiet() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        torch.set_num_threads(threads)
