"""What a process counts: buckets, what is sent once, and a bound on label values."""

import subprocess
import sys

import pytest

from sessions_actor import meters, telemetry
from sessions_actor.telemetry import (
    LABEL_SETS_MAX,
    OTHER,
    Counter,
    Gauge,
    Histogram,
    Kind,
    Registry,
    Sample,
)


def slow_buckets(bounds: list[float], values: list[float]) -> dict[str, float]:
    """Count as Prometheus defines it: a bucket holds what is at most its bound."""
    found = {format(b, "g"): float(sum(v <= b for v in values)) for b in bounds}
    return {**found, "+Inf": float(len(values))}


def test_a_counter_sends_each_rise_once() -> None:
    counter = Counter("sessions_actor_things_total", "Things", ("kind",))
    counter.inc("a")
    counter.inc("a", by=2)
    counter.inc("b")
    name = "sessions_actor_things_total"
    assert list(counter.drain()) == [
        Sample(name, Kind.COUNTER, {"kind": "a"}, 3.0),
        Sample(name, Kind.COUNTER, {"kind": "b"}, 1.0),
    ]
    assert list(counter.drain()) == []
    counter.inc("b")
    assert list(counter.drain()) == [Sample(name, Kind.COUNTER, {"kind": "b"}, 1.0)]
    assert (counter.value("a"), counter.value("b"), counter.value("c")) == (3, 2, 0)


def test_a_gauge_is_sent_each_time_until_it_is_cleared() -> None:
    gauge = Gauge("sessions_actor_level", "Level", ("node",))
    gauge.set(4, "n")
    gauge.set(5, "n")
    expected = [Sample("sessions_actor_level", Kind.GAUGE, {"node": "n"}, 5)]
    assert list(gauge.drain()) == list(gauge.drain()) == expected
    gauge.clear("n")
    gauge.clear("never set")
    assert list(gauge.drain()) == []


def test_a_histogram_counts_as_prometheus_does() -> None:
    bounds, values = [0.1, 1.0, 2.5], [0.05, 0.1, 0.10001, 2.5, 2.6, 100.0, 0.0]
    histogram = Histogram("sessions_actor_size", "Size", bounds, ("kind",))
    for value in values:
        histogram.observe(value, "a")
    samples = list(histogram.drain())
    buckets = {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}
    assert buckets == slow_buckets(bounds, values)
    rest = {s.name: s.value for s in samples if not s.name.endswith("_bucket")}
    assert rest == {
        "sessions_actor_size_count": len(values),
        "sessions_actor_size_sum": pytest.approx(sum(values)),
    }
    assert all(s.labels["kind"] == "a" for s in samples)
    assert (histogram.count("a"), histogram.sum("a")) == (len(values), pytest.approx(sum(values)))


def test_a_histogram_sends_each_time_what_it_is_so_far() -> None:
    histogram = Histogram("sessions_actor_size", "Size", [1.0, 2.0])
    assert list(histogram.drain()) == []
    histogram.observe(1.5)
    first = list(histogram.drain())
    assert list(histogram.drain()) == first
    histogram.observe(0.5)
    assert {s.labels.get("le", s.name): s.value for s in histogram.drain()} == {
        "1": 1,
        "2": 2,
        "+Inf": 2,
        "sessions_actor_size_count": 2,
        "sessions_actor_size_sum": 2.0,
    }


def test_label_values_are_bounded() -> None:
    counter = Counter("sessions_actor_things_total", "Things", ("type",))
    histogram = Histogram("sessions_actor_size", "Size", [1.0], ("type",))
    gauge = Gauge("sessions_actor_level", "Level", ("type",))
    for i in range(10 * LABEL_SETS_MAX):
        counter.inc(f"Error{i}")
        histogram.observe(0.5, f"Error{i}")
        gauge.set(1, f"Error{i}")
    for family in (counter, histogram, gauge):
        series = {sample.labels["type"] for sample in family.drain() if sample.value}
        assert len(series) == LABEL_SETS_MAX + 1
        assert OTHER in series
    assert counter.value(OTHER) == 9 * LABEL_SETS_MAX
    counter.inc("Error3")
    assert counter.value("Error3") == 2, "those that were first keep their own"


def test_nothing_is_recorded_when_turned_off() -> None:
    counter = Counter("sessions_actor_things_total", "Things")
    histogram = Histogram("sessions_actor_size", "Size", [1.0])
    gauge = Gauge("sessions_actor_level", "Level")
    telemetry.record(False)
    try:
        counter.inc()
        histogram.observe(1)
        gauge.set(1)
    finally:
        telemetry.record(True)
    assert (counter.value(), histogram.count(), gauge.value()) == (0, 0, None)


def test_gauges_are_looked_at_before_they_are_read() -> None:
    registry = Registry()
    gauge = registry.add(Gauge("sessions_actor_level", "Level"))
    levels = iter([1.0, 2.0, 3.0])
    end = registry.before_drain(lambda: gauge.set(next(levels)))
    assert [registry.drain()[0].value for _ in range(2)] == [1.0, 2.0]
    end()
    end()
    assert registry.drain()[0].value == 2.0
    registry.before_drain(lambda: gauge.set(1 / 0))
    registry.before_drain(lambda: gauge.set(7.0))
    assert registry.drain()[0].value == 7.0, "one that fails keeps nobody from the others"
    with pytest.raises(AssertionError):
        registry.add(Gauge("sessions_actor_level", "Another of this name"))


def test_names_follow_the_conventions() -> None:
    for name, family in meters.REGISTRY.families.items():
        assert name.startswith("sessions_actor_")
        assert name == name.lower()
        assert family.help
        assert name.endswith("_total") is isinstance(family, Counter)
        assert not {"name", "conversation", "session", "message", "id"} & set(family.labels)
        if isinstance(family, Histogram):
            assert name.endswith(("_seconds", "_bytes", "_ops"))
        assert family.role in (None, meters.ROUTER)


def test_it_needs_neither_ray_nor_a_clock() -> None:
    code = (
        "import sessions_actor.meters, sys;"
        "sys.exit('ray' in sys.modules or 'structlog' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_what_is_known_beforehand_is_sent_as_nothing() -> None:
    """Prometheus sees no rise in a series that begins at 1."""
    plain = Counter("sessions_actor_things_total", "Things")
    known = Counter(
        "sessions_actor_ends_total", "Ends", ("how", "who"), known=[["ok", "error"], ["me"]]
    )
    unknown = Counter("sessions_actor_kinds_total", "Kinds", ("kind",))
    assert [sample.value for sample in plain.drain()] == [0.0]
    assert [(s.labels["how"], s.value) for s in known.drain()] == [("ok", 0.0), ("error", 0.0)]
    assert list(unknown.drain()) == list(known.drain()) == []
    plain.inc()
    assert [sample.value for sample in plain.drain()] == [1.0]
    plain.reset()
    assert [sample.value for sample in plain.drain()] == [0.0]


def test_a_process_sends_what_its_role_records() -> None:
    registry = Registry()
    both = registry.add(Counter("sessions_actor_things_total", "Things"))
    router = registry.add(Counter("sessions_actor_moves_total", "Moves", role="router"))
    both.inc()
    router.inc()
    assert [sample.name for sample in registry.drain("actor")] == [both.name]
    assert [sample.name for sample in registry.drain("router")] == [router.name]
    assert registry.drain() == []
