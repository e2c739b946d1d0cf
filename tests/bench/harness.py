"""Timing of several contenders in one process: alternate rounds, medians, one thread, no garbage collection."""

from __future__ import annotations

import gc
import statistics
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


class Contender(ABC):
    """One side of a comparison. What it prepares is not timed."""

    def prepare_round(self) -> None:  # noqa: B027
        """What goes before the first of several runs, one after the other."""

    def prepare(self) -> None:  # noqa: B027
        """What goes before every run."""

    @abstractmethod
    def run(self) -> None:
        """What is timed."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure a case: at least `min_rounds` rounds, then until `seconds` have passed.

    In a round each contender runs until it has taken `round_seconds`. Its first run only brings back to the caches
    what the others drove out, and does not count unless it alone filled the round.
    """

    min_rounds: int
    seconds: float
    round_seconds: float


FULL = Effort(min_rounds=5, seconds=1.0, round_seconds=0.05)
QUICK = Effort(min_rounds=1, seconds=0.1, round_seconds=0.01)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line chose."""

    effort: Effort
    device: str


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison, as `build/bench.json` has it; `ratio` is ours / theirs and may be at most `limit`."""

    name: str
    ours: float
    peer: str
    theirs: float
    unit: str
    ratio: float
    limit: float

    @classmethod
    def of(cls, name: str, ours: float, peer: str, theirs: float, limit: float, unit: str = "ms") -> Row:
        """The row of two medians, or sizes."""
        return cls(name, ours, peer, theirs, unit, ours / theirs, limit)

    @property
    def is_over(self) -> bool:
        """Whether ours takes more than the limit allows."""
        return self.ratio > self.limit


@dataclass(frozen=True, slots=True)
class Case:
    """A named measurement, whose rows come once it is asked to."""

    name: str
    measure: Callable[[Settings], Iterable[Row]]


def measure(
    contenders: Mapping[str, Contender], settings: Settings, clock: Callable[[], float] | None = None
) -> dict[str, float]:
    """The median milliseconds of each contender. All get a round in turn, until the effort is made.

    `clock` gives seconds. By default it is the processor time of this process, all its threads together, which busy
    neighbours disturb least; and wall time where an accelerator does the work. What waits for another process needs
    `time.perf_counter`.
    """
    clock = clock or (time.process_time if settings.device == "cpu" else time.perf_counter)
    effort = settings.effort
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    start = time.perf_counter()
    rounds = 0
    with _quiet():
        while rounds < effort.min_rounds or time.perf_counter() - start < effort.seconds:
            for name, contender in contenders.items():
                seconds[name] += _run_round(contender, settings, clock)
            rounds += 1
    return {name: statistics.median(taken) * 1000 for name, taken in seconds.items()}


def _run_round(contender: Contender, settings: Settings, clock: Callable[[], float]) -> list[float]:
    seconds: list[float] = []
    contender.prepare_round()
    while sum(seconds) < settings.effort.round_seconds:
        contender.prepare()
        seconds.append(_time(contender.run, settings.device, clock))
    return seconds[1:] or seconds


def _time(run: Callable[[], None], device: str, clock: Callable[[], float]) -> float:
    _synchronise(device)
    start = clock()
    run()
    _synchronise(device)
    return clock() - start


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
