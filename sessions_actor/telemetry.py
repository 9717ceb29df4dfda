"""What a process counts of its own work: counters, gauges and histograms, in memory. Pure.

Rules:
- Recording costs a dictionary look-up and an addition; nothing is sent, locked or formatted. The
  code that records runs in one thread per process.
- Label values are few and known: methods, outcomes, kinds, classes of errors. A family that is
  given more than `LABEL_SETS_MAX` different ones counts the rest as `other`.

`meters` declares what there is, `metrics_export` sends it to Ray; without that these are plain
numbers that nobody reads. What it does not do: know a clock, keep history, or tell processes apart.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import product
from typing import ClassVar, Final, NamedTuple, TypeVar

PREFIX: Final = "sessions_actor_"
LABEL_SETS_MAX: Final = 64
OTHER: Final = "other"

Labels = tuple[str, ...]


class Kind(StrEnum):
    """How the samples of a name are to be read."""

    COUNTER = "counter"  # by how much it rose
    GAUGE = "gauge"  # what it is
    HISTOGRAM = "histogram"  # what a bucket, the sum or the count is so far


class Sample(NamedTuple):
    """One number to be sent on. Those of a histogram are named `_bucket`, `_sum` and `_count`."""

    name: str
    kind: Kind
    labels: dict[str, str]
    value: float


class _Family(ABC):
    """One metric with all its label values.

    Args: `role` names the processes that record it, when only some do: "router", "actor".
    """

    kind: ClassVar[Kind]
    recording: ClassVar[bool] = True
    """Whether anything is recorded in this process; `record()` turns it off and on."""

    def __init__(
        self, name: str, help: str, labels: Sequence[str] = (), *, role: str | None = None
    ) -> None:
        assert name.startswith(PREFIX)
        self.name, self.help, self.labels, self.role = name, help, tuple(labels), role

    def _admit(self, labels: Labels, known: int) -> Labels:
        """Return under which labels to count, so that a family stays small."""
        assert len(labels) == len(self.labels), f"{self.name} has the labels {self.labels}"
        return labels if known < LABEL_SETS_MAX else (OTHER,) * len(labels)

    def _labelled(self, values: Labels) -> dict[str, str]:
        return dict(zip(self.labels, values, strict=True))

    @abstractmethod
    def drain(self) -> Iterator[Sample]:
        """Yield what is to be sent on now."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything."""


class Counter(_Family):
    """Something that only rises.

    Args: `known` are label values that are sent as 0 before anything happened: one list of values
        for each label. Without labels that is always so.
    """

    kind = Kind.COUNTER

    def __init__(
        self,
        name: str,
        help: str,
        labels: Sequence[str] = (),
        *,
        known: Sequence[Sequence[str]] = (),
        role: str | None = None,
    ) -> None:
        assert name.endswith("_total")
        super().__init__(name, help, labels, role=role)
        self._known = tuple(product(*known)) if known or not labels else ()
        self.reset()

    def inc(self, *labels: str, by: float = 1) -> None:
        """Count one more, or `by` more."""
        if self.recording:
            self.cell(*labels)[0] += by

    def cell(self, *labels: str) -> list[float]:
        """Return the count itself, in a list of one, to be raised where a look-up would be felt."""
        cell = self._cells.get(labels)
        if cell is None:
            labels = self._admit(labels, len(self._cells))
            cell = self._cells.setdefault(labels, [0.0])
        return cell

    def value(self, *labels: str) -> float:
        """Return the count so far."""
        return self._cells.get(labels, (0.0,))[0]

    def drain(self) -> Iterator[Sample]:
        for labels, (value,) in self._cells.items():
            rise = value - self._sent.get(labels, 0.0)
            if rise > 0 or labels not in self._sent:
                self._sent[labels] = value
                yield Sample(self.name, self.kind, self._labelled(labels), rise)

    def reset(self) -> None:
        self._cells: dict[Labels, list[float]] = {labels: [0.0] for labels in self._known}
        self._sent: dict[Labels, float] = {}


class Gauge(_Family):
    """Something that is so much now."""

    kind = Kind.GAUGE

    def __init__(
        self, name: str, help: str, labels: Sequence[str] = (), *, role: str | None = None
    ) -> None:
        assert not name.endswith("_total")
        super().__init__(name, help, labels, role=role)
        self.reset()

    def set(self, value: float, *labels: str) -> None:
        """Note what it is now."""
        if self.recording:
            values = self._values
            if labels not in values:
                labels = self._admit(labels, len(values))
            values[labels] = value

    def clear(self, *labels: str) -> None:
        """Say nothing of it any more."""
        self._values.pop(labels, None)

    def value(self, *labels: str) -> float | None:
        """Return what was noted last."""
        return self._values.get(labels)

    def drain(self) -> Iterator[Sample]:
        # Each time, changed or not: a gauge that is not sent again counts as gone.
        for labels, value in self._values.items():
            yield Sample(self.name, self.kind, self._labelled(labels), value)

    def reset(self) -> None:
        self._values: dict[Labels, float] = {}


class Histogram(_Family):
    """How often something was at most so large.

    Args: `bounds` are the upper ends of the buckets, rising; the last one, infinity, is added.
    """

    kind = Kind.HISTOGRAM

    def __init__(
        self,
        name: str,
        help: str,
        bounds: Sequence[float],
        labels: Sequence[str] = (),
        *,
        role: str | None = None,
    ) -> None:
        assert list(bounds) == sorted(set(bounds))
        super().__init__(name, help, labels, role=role)
        self.bounds = tuple(bounds)
        self._les = [*(format(bound, "g") for bound in bounds), "+Inf"]
        self.reset()

    def observe(self, value: float, *labels: str) -> None:
        """Count one observation."""
        if self.recording:
            series = self.series(*labels)
            series[bisect_left(self.bounds, value)] += 1
            series[-1] += value

    def series(self, *labels: str) -> list[float]:
        """Return the counts of the buckets and then the sum, to be raised as `observe` does."""
        series = self._series.get(labels)
        if series is None:
            labels = self._admit(labels, len(self._series))
            series = self._series.setdefault(labels, [0.0] * (len(self.bounds) + 2))
        return series

    def count(self, *labels: str) -> float:
        """Return how many observations there were."""
        return math.fsum(self._series.get(labels, (0.0,))[:-1])

    def sum(self, *labels: str) -> float:
        """Return the sum of what was observed."""
        return self._series.get(labels, [0.0])[-1]

    def drain(self) -> Iterator[Sample]:
        for labels, series in self._series.items():
            named = self._labelled(labels)
            total = 0.0
            # Buckets are cumulative: each holds those below it as well.
            for le, count in zip(self._les, series, strict=False):
                total += count
                yield Sample(f"{self.name}_bucket", self.kind, {**named, "le": le}, total)
            yield Sample(f"{self.name}_count", self.kind, named, total)
            yield Sample(f"{self.name}_sum", self.kind, named, series[-1])

    def reset(self) -> None:
        self._series: dict[Labels, list[float]] = {}


F = TypeVar("F", bound=_Family)


class Registry:
    """The families of a process."""

    def __init__(self) -> None:
        self.families: dict[str, _Family] = {}
        self._before: list[Callable[[], None]] = []

    def add(self, family: F) -> F:
        """Take in a family, under a name of its own."""
        assert family.name not in self.families
        self.families[family.name] = family
        return family

    def family_of(self, name: str) -> _Family:
        """Return the family that a sample belongs to."""
        family = self.families.get(name)
        return family or self.families[name.rpartition("_")[0]]

    def before_drain(self, look: Callable[[], None]) -> Callable[[], None]:
        """Have gauges set each time before they are read; returns what ends that."""
        self._before.append(look)

        def end() -> None:
            if look in self._before:
                self._before.remove(look)

        return end

    def drain(self, role: str | None = None) -> list[Sample]:
        """Return which counters rose since the last call, every gauge and every histogram.

        Args: `role` leaves out what only processes of another role record.
        """
        for look in list(self._before):
            # Who looks at what is just being closed must not keep the others from being read.
            with contextlib.suppress(Exception):
                look()
        families = [f for f in self.families.values() if f.role in (None, role) or role is None]
        return [sample for family in families for sample in family.drain()]

    def reset(self) -> None:
        """Forget everything that was recorded; for tests. Cells taken before count no more."""
        for family in self.families.values():
            family.reset()
        self._before.clear()


def record(on: bool) -> None:
    """Turn recording in this process on or off."""
    _Family.recording = on
