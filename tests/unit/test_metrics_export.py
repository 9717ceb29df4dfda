"""What is sent on: names, labels, rises; and that nothing is sent where nobody listens."""

import asyncio
from collections import defaultdict
from collections.abc import Callable

import pytest
import ray

from sessions_actor.metrics_export import LINGER_S, MetricsExport
from sessions_actor.telemetry import Counter, Gauge, Histogram, Kind, Registry


async def until(condition: Callable[[], bool]) -> None:
    """Let the export run until a condition holds."""
    async with asyncio.timeout(20):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


class Receiver:
    """Adds up what rises and keeps the last of what is, as Ray does."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, frozenset[tuple[str, str]]], float] = defaultdict(float)
        self.made: list[tuple[Kind, str, tuple[str, ...]]] = []
        self.broken = False
        self.sent: list[str] = []

    def make(self, kind: Kind, name: str, help: str, keys: tuple[str, ...]):  # type: ignore[no-untyped-def]
        assert help
        self.made.append((kind, name, keys))

        def take(value: float, tags: dict[str, str]) -> None:
            if self.broken:
                raise ConnectionError
            assert tuple(tags) == keys
            self.sent.append(name)
            key = name, frozenset(tags.items())
            rises = kind is Kind.COUNTER
            self.values[key] = self.values[key] + value if rises else value

        return take

    def value(self, name: str, **labels: str) -> float | None:
        tags = {"node": "n1", "role": "actor"} | labels
        return self.values.get((name, frozenset(tags.items())))


def registry_of_three() -> tuple[Registry, Counter, Gauge, Histogram]:
    registry = Registry()
    counter = registry.add(Counter("sessions_actor_things_total", "Things", ("kind",)))
    gauge = registry.add(Gauge("sessions_actor_level", "Level", ("node",)))
    histogram = registry.add(Histogram("sessions_actor_wait_seconds", "Wait", [0.1, 1.0]))
    return registry, counter, gauge, histogram


def test_each_name_is_made_once_and_rises_add_up() -> None:
    registry, counter, gauge, histogram = registry_of_three()
    received = Receiver()
    export = MetricsExport("actor", registry=registry, node="n1", make=received.make)
    for round in range(3):
        counter.inc("a")
        gauge.set(round, "n2")
        histogram.observe(0.5)
        export.flush()
    assert received.value("sessions_actor_things_total", kind="a") == 3
    assert received.value("sessions_actor_level", node="n2") == 2, "its own node label counts"
    assert received.value("sessions_actor_wait_seconds_bucket", le="0.1") == 0
    assert received.value("sessions_actor_wait_seconds_bucket", le="1") == 3
    assert received.value("sessions_actor_wait_seconds_bucket", le="+Inf") == 3
    assert received.value("sessions_actor_wait_seconds_count") == 3
    assert received.value("sessions_actor_wait_seconds_sum") == 1.5
    assert len(received.made) == len({name for _, name, _ in received.made}) == 5
    assert export.flush() == 1 + 5, "the gauge and the histogram are sent again"


async def test_it_sends_until_it_is_ended_and_the_rest_then() -> None:
    registry, counter, _, _ = registry_of_three()
    received = Receiver()
    export = MetricsExport("actor", registry=registry, node="n1", make=received.make, period_s=0.01)
    export.begin()
    export.begin()
    counter.inc("a")
    await until(lambda: received.value("sessions_actor_things_total", kind="a") == 1)
    counter.inc("a")
    export.end()
    await until(lambda: received.value("sessions_actor_things_total", kind="a") == 2)


async def test_one_that_was_ended_tells_for_a_while_what_ray_would_take_for_gone() -> None:
    registry, _, gauge, _ = registry_of_three()
    received = Receiver()
    export = MetricsExport("actor", registry=registry, node="n1", make=received.make, period_s=30.0)
    export.begin()
    gauge.set(1.0, "n2")
    await asyncio.sleep(30.0)
    export.end()
    sent = len(received.sent)
    await asyncio.sleep(LINGER_S - 1.0)
    assert len(received.sent) > sent, "whoever reads every minute sees it"
    await asyncio.sleep(90.0)
    sent = len(received.sent)
    await asyncio.sleep(300.0)
    assert len(received.sent) == sent
    export.begin()
    await asyncio.sleep(1.0)
    assert len(received.sent) > sent
    export.end()


async def test_a_receiver_that_fails_harms_nobody() -> None:
    registry, counter, _, _ = registry_of_three()
    received = Receiver()
    received.broken = True
    export = MetricsExport("actor", registry=registry, node="n1", make=received.make, period_s=0.01)
    counter.inc("a")
    export.begin()
    await until(lambda: bool(received.made))
    received.broken = False
    counter.inc("a")
    await until(lambda: received.value("sessions_actor_things_total", kind="a") is not None)
    export.end()


async def test_without_a_cluster_or_when_turned_off_nothing_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    registry, counter, _, _ = registry_of_three()
    counter.inc("a")
    received = Receiver()
    before = asyncio.all_tasks()
    for export in (
        MetricsExport("actor", registry=registry),  # this process is in no cluster
        MetricsExport("actor", registry=registry, enabled=False, make=received.make),
    ):
        export.begin()
        assert asyncio.all_tasks() == before
        export.end()
    assert received.made == []
    assert [sample.value for sample in registry.drain()] == [1.0], "nothing was taken"
