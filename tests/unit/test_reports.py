"""What actor and router report of what they do: numbers and events, over a fake cluster."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from router import observing
from router import reports as router_reports
from router.observing import Watch, census
from router.relocation import Relocation
from sessions_actor import meters, reports, wire
from sessions_actor.actor import ActivationSpec
from sessions_actor.errors import MigrationFailedError, NoCapacityError
from sessions_actor.lifecycle import LifecycleEvents
from sessions_actor.logs import LOGGER, configure
from sessions_actor.storage import Storage
from sessions_actor.telemetry import Counter, Histogram

from .deployments import World, message
from .fake_cluster import until

Events = Callable[[], list[dict[str, Any]]]
SECRET = "what nobody else should read"


@pytest.fixture(autouse=True)
def _nobody_else_looks() -> None:
    """Actors that other tests killed in this process still look at their files."""
    meters.REGISTRY._before.clear()


@pytest.fixture
def events() -> Iterator[Events]:
    """What is logged in this test, without its time."""
    handlers, level = list(LOGGER.handlers), LOGGER.level
    stream = io.StringIO()
    configure(log_format="json", log_level="info", stream=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    LOGGER.handlers[:] = handlers
    LOGGER.setLevel(level)
    LOGGER.propagate = True


class Rises:
    """By how much counters and histograms rose since this was made."""

    def __init__(self) -> None:
        self._before = self._now()

    def of(self, family: Counter | Histogram, *labels: str) -> float:
        key = family.name, labels
        return self._now().get(key, 0.0) - self._before.get(key, 0.0)

    def _now(self) -> dict[tuple[str, tuple[str, ...]], float]:
        found = {}
        for family in meters.REGISTRY.families.values():
            if isinstance(family, Counter):
                found |= {(family.name, k): cell[0] for k, cell in family._cells.items()}
            elif isinstance(family, Histogram):
                found |= {(family.name, k): sum(s[:-1]) for k, s in family._series.items()}
        return found


def named(events: Events, name: str) -> list[dict[str, Any]]:
    return [event for event in events() if event["event"] == name]


async def test_activations_and_hibernations_by_kind_and_reason(
    world: World, events: Events
) -> None:
    life, rises = await world.start(idle_timeout_s=0.2), Rises()
    await life.get("alice").append_message(message("m1"))
    await life.administration.hibernate("alice")
    await life.get("alice").append_message(message("m2"))
    await until(lambda: rises.of(meters.HIBERNATIONS, "idle") == 1)
    assert rises.of(meters.ACTIVATIONS, "new") == 1
    assert rises.of(meters.ACTIVATIONS, "wake") == 1
    assert rises.of(meters.ACTIVATION_SECONDS, "wake") == 1
    assert rises.of(meters.HIBERNATIONS, "asked") == 1
    assert rises.of(meters.ACTOR_WAIT_SECONDS) == 2
    assert rises.of(meters.CALLS, "append_message", "ok") == 2
    assert rises.of(meters.CALL_SECONDS, "write") == 2
    assert rises.of(meters.EVENTS, "sessions", "session:message:appended") == 2
    first, second = named(events, "conversation.activated")
    assert (first["conversation"], first["epoch"], first["kind"]) == ("alice", 1, "new")
    assert (second["epoch"], second["kind"], second["node"]) == (2, "wake", "node-0")
    assert [e["reason"] for e in named(events, "conversation.hibernated")] == ["asked", "idle"]


async def test_who_makes_room_is_evicted(world: World) -> None:
    life, rises = await world.start(max_active=1), Rises()
    await life.get("alice").append_message(message("m1"))
    await life.get("bob").append_message(message("m1"))
    assert rises.of(meters.HIBERNATIONS, "evicted") == 1


async def test_no_capacity_is_counted_and_named(world: World, events: Events) -> None:
    life, rises = await world.start(max_active=1, capacity_wait_s=0.1), Rises()
    session = life.get("alice")
    await session.append_message(message("m1"))
    async with life.router.locks.hold("alice"):  # it cannot make room now
        with pytest.raises(NoCapacityError):
            await life.router.resolve("bob")
    assert rises.of(meters.NO_CAPACITY) == 1
    assert rises.of(meters.ACTIVATIONS_FAILED, "NoCapacityError") == 1
    assert [e["conversation"] for e in named(events, "capacity.none")] == ["bob"]
    (failed,) = named(events, "conversation.activation_failed")
    assert (failed["conversation"], failed["error"]) == ("bob", "NoCapacityError")


async def test_an_owner_that_died_is_lost(world: World, events: Events) -> None:
    life, rises = await world.start(), Rises()
    await life.get("alice").append_message(message("m1"))
    life.owner("alice").die()
    await life.get("alice").append_message(message("m2"))
    assert rises.of(meters.OWNERS_LOST) == 1
    (lost,) = named(events, "conversation.owner_lost")
    assert (lost["conversation"], lost["epoch"]) == ("alice", 1)


async def test_a_migration_tells_its_phases(world: World, events: Events) -> None:
    life, rises = await world.start(), Rises()
    await life.get("alice").append_message(message("m1"))
    report = await life.relocation.migrate("alice")
    assert rises.of(meters.MIGRATIONS, "moved") == 1
    assert rises.of(meters.MIGRATED_BYTES) == report.bytes > 0
    assert rises.of(meters.MIGRATION_STALL_SECONDS) == 1
    for phase in ("waiting", "copying", "verifying", "switched"):
        assert rises.of(meters.MIGRATION_PHASE_SECONDS, phase) == 1, phase
    assert meters.MIGRATIONS_RUNNING.value() == 0
    steps = [event["phase"] for event in named(events, "migration.step")]
    assert steps == ["copying", "verifying", "switched"]
    (ended,) = named(events, "migration.ended")
    assert (ended["conversation"], ended["messages"], ended["bytes"]) == ("alice", 1, report.bytes)


async def test_a_failed_migration_names_phase_and_cause_and_quotes_nothing(
    world: World, events: Events
) -> None:
    life, rises = await world.start(), Rises()
    await life.get("alice").append_message(message("m1"))

    async def copy(name: str, source: Any, target: Any, seal: Any, gauge: Any) -> Any:
        gauge.enter("copying")
        raise LookupError(SECRET)

    with pytest.raises(MigrationFailedError, match=SECRET):
        await Relocation(life.router, copy).migrate("alice")
    assert rises.of(meters.MIGRATIONS, "failed") == 1
    assert rises.of(meters.MIGRATIONS, "moved") == 0
    assert meters.MIGRATIONS_RUNNING.value() == 0
    (failed,) = named(events, "migration.failed")
    assert (failed["phase"], failed["error"]) == ("copying", "builtins.LookupError")
    assert SECRET not in json.dumps(events())


def test_a_job_tells_its_end(events: Events) -> None:
    class AJob:
        """What is told of a job."""

        id, kind, node_id = "j1", "drain", "node-0"

    router_reports.job_ended(AJob(), "failed", 3, 1)
    (ended,) = named(events, "drain.ended")
    assert (ended["job"], ended["node"], ended["moved"], ended["failed"]) == ("j1", "node-0", 3, 1)
    assert (ended["level"], ended["state"]) == ("warning", "failed")


async def test_the_gauges_of_a_router_follow_what_it_holds(world: World) -> None:
    life = await world.start(max_active=3)
    watch = Watch(life.router, "node-0")
    try:
        for name in ("alice", "bob", "carol"):
            await life.get(name).append_message(message("m1"))
        await life.administration.hibernate("carol")
        watch._total = await census(life.router)
        meters.REGISTRY.drain()
        active, actors = len(life.router.servings()), len(life.router.pool.slots)
        assert 1 <= active <= 2, "an idle one may have made room for the next"
        assert meters.CONVERSATIONS.value("active") == active
        assert meters.CONVERSATIONS.value("hibernated") == 3 - active
        assert meters.ACTORS.value("node-0", "active") == active
        assert meters.ACTORS.value("node-0", "idle") == actors - active
        assert meters.ACTORS_MAX.value("node-0") == 3
        assert meters.NODE_DRAINING.value("node-0") == 0
        assert meters.DISK_FREE_BYTES.value() is not None
        world.cluster.roots = {"node-1": world.root}
        await life.router.pool.refresh()
        meters.REGISTRY.drain()
        assert meters.ACTORS_MAX.value("node-0") is None, "a node that is gone is not shown"
        assert meters.ACTORS_MAX.value("node-1") == 3
        world.cluster.roots = {"node-0": world.root}
    finally:
        watch.end()
    before = meters.ACTORS_MAX.value("node-1")
    life.router.pool.set_draining("node-0", True)
    meters.REGISTRY.drain()
    assert meters.ACTORS_MAX.value("node-1") == before, "it looks no more"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7])
async def test_a_census_counts_each_conversation_once(
    world: World, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "CENSUS_PAGE", 2)
    life = await world.start()
    for number in range(count):
        await life.router.resolve(f"{number}\N{GRINNING FACE}")
        await life.administration.hibernate(f"{number}\N{GRINNING FACE}")
    assert await census(life.router) == count == life.directory.count()


class Activation:
    """What is watched, over a real file."""

    name, epoch, pending, replica = "alice", 3, 5, None

    def __init__(self, storage: Storage) -> None:
        self.storage = storage


def test_the_gauges_of_an_activation_go_with_it(tmp_path: Path, events: Events) -> None:
    storage = Storage(tmp_path / "a.sqlite", quota_bytes=100 * 4096)
    lifecycle = LifecycleEvents()
    end = reports.watch(Activation(storage), lifecycle)
    meters.REGISTRY.drain()
    assert meters.PENDING_CALLS.value() == 5
    assert meters.CONVERSATION_BYTES.value() == storage.used_bytes
    assert meters.QUOTA_RATIO.value() == storage.used_bytes / storage.quota_bytes
    storage.sql.exec("CREATE TABLE large (content)")
    storage.sql.exec("INSERT INTO large VALUES (zeroblob(?))", 92 * 4096)
    for _ in range(3):
        meters.REGISTRY.drain()
    (full,) = named(events, "quota.nearly_full")
    assert (full["conversation"], full["quota_bytes"]) == ("alice", 100 * 4096)
    end()
    meters.REGISTRY.drain()
    assert meters.PENDING_CALLS.value() is None
    assert meters.CONVERSATION_BYTES.value() is None
    assert meters.QUOTA_RATIO.value() is None
    storage.close()


def test_trouble_is_an_event_and_the_rest_is_counted(tmp_path: Path, events: Events) -> None:
    storage = Storage(tmp_path / "a.sqlite")
    lifecycle, rises = LifecycleEvents(), Rises()
    end = reports.watch(Activation(storage), lifecycle)
    for _ in range(3):
        lifecycle.emit("title:changed", {"title": SECRET})
        lifecycle.emit("title:error", {"error": LookupError(SECRET), "title": SECRET})
    end()
    lifecycle.emit("title:changed")
    assert rises.of(meters.EVENTS, "host", "title:changed") == 3
    assert rises.of(meters.EVENTS, "host", "title:error") == 3
    told = named(events, "lifecycle.event")
    assert [(e["source"], e["type"], e["error"]) for e in told] == [
        ("host", "title:error", "builtins.LookupError")
    ] * 3
    assert SECRET not in json.dumps(events())
    storage.close()


async def test_a_lease_that_ended_fences_what_was_bound_in_it(world: World, events: Events) -> None:
    life, rises = await world.start(), Rises()
    session = life.get("alice")
    await session.append_message(message("m1"))
    owner, name = life.owner("alice"), "alice"
    spec = owner.target._spec
    assert isinstance(spec, ActivationSpec)
    world.cluster.leases["node-0"].grant(spec.term + 1, 0.0, 1e6)
    reply = await owner.target.serve(
        wire.pack_request(name, spec.epoch, [wire.Part("", "get_latest_leaf", b"[[]]")])
    )
    assert wire.unpack_reply(reply)[0].tag == wire.REFUSED
    assert rises.of(meters.FENCED) == 1
    (fenced,) = named(events, "conversation.fenced")
    assert (fenced["conversation"], fenced["reason"]) == ("alice", "lease")
