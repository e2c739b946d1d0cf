"""Prometheus metrics: calls under the ecosystem's ``grpc_server_*`` names, and the state's size.

The event loop and the worker count in plain numbers, each of which is written by one at a time; a scrape reads
them from a thread of its own. A batch, a token or anything else that callers choose is never a label.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import grpc
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from logitd.service.calls import SERVICE_NAME, CallObserver
from logitd.service.operations.table import STREAMS, UNARY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from logitd.service.calls import CallRecord
    from logitd.service.config import ServerConfig
    from logitd.service.state_size import StateSize

_CALL_LABELS = ("grpc_type", "grpc_service", "grpc_method")
_CALL_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_STEP_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_LIMITS = (
    *("max_batches", "max_rows_per_batch", "max_state_bytes", "max_regions", "max_region_bytes"),
    *("max_queued_bytes", "max_message_bytes"),
)


class Durations:
    """A histogram of seconds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Pairs of an upper bound and how many are not above it."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))


@dataclass(slots=True)
class _Tally:
    # All calls of one method.
    is_stream: bool
    started: int = 0
    received: int = 0
    sent: int = 0
    codes: Counter[str] = field(default_factory=lambda: Counter({grpc.StatusCode.OK.name: 0}))
    seconds: Durations = field(default_factory=lambda: Durations(_CALL_BOUNDS))
    step_seconds: Durations = field(default_factory=lambda: Durations(_STEP_BOUNDS))


class CallMetrics(CallObserver, Collector):
    """Counts calls and steps."""

    def __init__(self) -> None:
        self._tallies = {name: _Tally(is_stream=False) for name in UNARY}
        self._tallies |= {name: _Tally(is_stream=True) for name in STREAMS}

    def started(self, record: CallRecord) -> None:
        self._tallies[record.method].started += 1

    def received(self, record: CallRecord) -> None:
        self._tallies[record.method].received += 1

    def worked(self, record: CallRecord, seconds: float) -> None:
        if record.is_stream:
            self._tallies[record.method].step_seconds.add(seconds)

    def sent(self, record: CallRecord) -> None:
        self._tallies[record.method].sent += 1

    def ended(self, record: CallRecord) -> None:
        tally = self._tallies[record.method]
        tally.codes[record.code.name] += 1
        tally.seconds.add(record.seconds)

    def collect(self) -> Iterable[Metric]:
        """All of it, for a scrape."""
        started = CounterMetricFamily("grpc_server_started", "Calls that came in.", labels=_CALL_LABELS)
        handled = CounterMetricFamily("grpc_server_handled", "Calls that ended.", labels=(*_CALL_LABELS, "grpc_code"))
        handling = HistogramMetricFamily("grpc_server_handling_seconds", "How long calls took.", labels=_CALL_LABELS)
        for name, tally in self._tallies.items():
            labels = _labels(name, tally)
            started.add_metric(labels, tally.started)
            for code, count in tuple(tally.codes.items()):
                handled.add_metric((*labels, code), count)
            handling.add_metric(labels, tally.seconds.buckets(), tally.seconds.sum)
        return started, handled, handling, *self._collect_messages(), *self._collect_steps()

    def _collect_messages(self) -> Iterator[Metric]:
        received = CounterMetricFamily("grpc_server_msg_received", "Messages taken up.", labels=_CALL_LABELS)
        sent = CounterMetricFamily("grpc_server_msg_sent", "Replies sent.", labels=_CALL_LABELS)
        for name, tally in self._tallies.items():
            received.add_metric(_labels(name, tally), tally.received)
            sent.add_metric(_labels(name, tally), tally.sent)
        yield received
        yield sent

    def _collect_steps(self) -> Iterator[Metric]:
        steps = CounterMetricFamily("logitd_steps", "Steps, or chunks of one, that were answered.", labels=("method",))
        text = "Work on one message of a step RPC, waiting not included."
        seconds = HistogramMetricFamily("logitd_step_seconds", text, labels=("method",))
        for name in STREAMS:
            tally = self._tallies[name]
            steps.add_metric((name,), tally.sent)
            seconds.add_metric((name,), tally.step_seconds.buckets(), tally.step_seconds.sum)
        yield steps
        yield seconds


class StateMetrics(Collector):
    """The state's size and its limits, measured for each scrape."""

    def __init__(
        self, config: ServerConfig, measure: Callable[[], StateSize], count_queued_bytes: Callable[[], int]
    ) -> None:
        self._config = config
        self._measure = measure
        self._count_queued_bytes = count_queued_bytes

    def collect(self) -> Iterable[Metric]:
        """All of it, for a scrape."""
        size = self._measure()
        limits = GaugeMetricFamily("logitd_limit", "What the configuration allows.", labels=("name",))
        for name in _LIMITS:
            limits.add_metric((name,), getattr(self._config, name))
        return (
            GaugeMetricFamily("logitd_batches", "Live batches.", size.batches),
            GaugeMetricFamily("logitd_rows", "Live rows of all batches.", size.rows),
            GaugeMetricFamily("logitd_state_bytes", "Bytes of state.", size.state_bytes),
            GaugeMetricFamily("logitd_state_reserved_bytes", "Bytes it may grow to.", size.reserved_bytes),
            GaugeMetricFamily("logitd_regions", "Registered regions of shared memory.", size.regions),
            GaugeMetricFamily("logitd_region_bytes", "Bytes of all regions.", size.region_bytes),
            GaugeMetricFamily("logitd_queued_bytes", "Bytes read ahead of the work.", self._count_queued_bytes()),
            CounterMetricFamily("logitd_batches_expired", "Batches that were idle too long.", size.expired_batches),
            limits,
        )


def make_registry(*collectors: Collector) -> CollectorRegistry:
    """A registry of one server's own: these collectors and what the process uses."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


def _labels(name: str, tally: _Tally) -> tuple[str, str, str]:
    return "bidi_stream" if tally.is_stream else "unary", SERVICE_NAME, name
