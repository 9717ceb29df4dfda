"""Sends what a process recorded to Ray, whose Prometheus endpoint shows it as `ray_<name>`.

Rules:
- A few times in the interval at which Ray's workers report, at most once a second. Of counters
  only what rose; gauges each time, since Ray takes one that is not sent again for gone. A process
  that is killed takes along what it had not sent.
- A process that fell idle goes on for `LINGER_S`: what is sent as a gauge, the parts of a histogram
  too, is to be seen once by whoever reads every minute.
- Every series carries the node and the role of the process. Ray adds the id of its worker.
- A counter is sent as 0 before it first rises: Prometheus sees no rise in what begins at 1.
- A histogram is sent as its buckets, its sum and its count so far, each as a gauge. Ray's own
  takes one observation at a time and its agent replays each at the middle of its bucket: dear,
  and its sum a guess. Sent as counters, the parts would all end in `_total`.

Without Ray nothing is sent; with a Ray that has no endpoint (`pip install ray` without
`[default]`) it goes nowhere. What it does not do: decide what is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Final

from .meters import REGISTRY
from .telemetry import Kind, Registry, Sample

FLUSH_MIN_S: Final = 1.0
REPORT_S_DEFAULT: Final = 10.0
LINGER_S: Final = 150.0
# Flushes in one of Ray's intervals: more would cost 300 actors of a node a part of its CPU.
FLUSHES: Final = 4

Sink = Callable[[float, dict[str, str]], None]
"""Takes a number and the labels of its series."""

Make = Callable[[Kind, str, str, tuple[str, ...]], Sink]
"""Makes the sink of a name: its kind, name, help, and the names of its labels."""


class MetricsExport:
    """One process's way to Ray's metrics.

    Args:
        role: what the process is: "actor", "router", "agent".
        node: the node's id; asked of Ray unless given.
        make: where it goes; Ray unless given.
        period_s: how often; by Ray's interval unless given.
    """

    def __init__(
        self,
        role: str,
        *,
        registry: Registry = REGISTRY,
        enabled: bool = True,
        node: str | None = None,
        make: Make | None = None,
        period_s: float | None = None,
    ) -> None:
        self._role, self._registry, self._enabled = role, registry, enabled
        self._node, self._make, self._period_s = node, make, period_s
        self._sinks: dict[str, Sink] = {}
        self._task: asyncio.Task[None] | None = None
        self._wanted = False
        self._until = 0.0

    def begin(self) -> None:
        """Send from now on. Called with a running event loop; beginning twice is fine."""
        self._wanted = True
        if self._task is None and self._is_possible():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def end(self) -> None:
        """Send what was recorded so far, stop after a while."""
        self._wanted = False
        with contextlib.suppress(RuntimeError):  # no loop runs: nothing is sent any more
            self._until = asyncio.get_running_loop().time() + LINGER_S

    def _is_possible(self) -> bool:
        ray = sys.modules.get("ray")
        there = self._make is not None or (ray is not None and ray.is_initialized())
        return self._enabled and there

    async def _run(self) -> None:
        period_s = self._period_s or _period_s()
        try:
            clock = asyncio.get_running_loop().time
            while self._wanted or clock() < self._until:
                # Nothing that goes wrong here may reach those whom the process serves.
                with contextlib.suppress(Exception):
                    self.flush()
                await asyncio.sleep(period_s)
            with contextlib.suppress(Exception):
                self.flush()
        finally:
            self._task = None
            if self._wanted:  # asked for again during the last round
                self.begin()

    def flush(self) -> int:
        """Send now what there is to send; returns how many numbers that were."""
        samples = self._registry.drain(self._role)
        if samples and self._node is None:
            import ray

            self._node = ray.get_runtime_context().get_node_id()
        for sample in samples:
            tags = {"node": self._node or "", "role": self._role, **sample.labels}
            self._sink(sample, tags)(sample.value, tags)
        return len(samples)

    def _sink(self, sample: Sample, tags: Mapping[str, str]) -> Sink:
        sink = self._sinks.get(sample.name)
        if sink is None:
            help = self._registry.family_of(sample.name).help
            make = self._make or _in_ray
            sink = self._sinks[sample.name] = make(sample.kind, sample.name, help, tuple(tags))
        return sink


def _period_s() -> float:
    """Return how often to send, by the interval at which this process's Ray reports."""
    report_s = REPORT_S_DEFAULT
    with contextlib.suppress(Exception):  # a Ray that does not tell
        import ray

        report_s = ray._config.metrics_report_interval_ms() / 1000
    return max(FLUSH_MIN_S, report_s / FLUSHES)


def _in_ray(kind: Kind, name: str, help: str, keys: tuple[str, ...]) -> Sink:
    """Make a metric of Ray."""
    from ray.util import metrics

    if kind is not Kind.COUNTER:
        return metrics.Gauge(name, help, keys).set
    counter = metrics.Counter(name, help, keys)

    def add(value: float, tags: dict[str, str]) -> None:
        if value > 0:
            counter.inc(value, tags)
        else:  # what `inc` refuses: a counter begins at 0
            counter._record(value, tags)

    return add
