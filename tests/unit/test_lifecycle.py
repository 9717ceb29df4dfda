"""Lifecycle: order, one shared startup, events, disposal, and a capability of one's own."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sessions_actor.durable_object import DurableObject, ObjectState
from sessions_actor.lifecycle import (
    Lifecycle,
    LifecycleCapability,
    LifecycleEvent,
)
from sessions_actor.open_object import open_object
from sessions_actor.storage import Storage

Trace = list[str]


class Traced(LifecycleCapability):
    """Writes down what is asked of it; fails when told to."""

    def __init__(self, capability_id: str, trace: Trace) -> None:
        super().__init__(capability_id)
        self.trace = trace
        self.failures: list[Exception] = []
        self.dispose_failure: Exception | None = None
        self.within: Callable[[], Any] | None = None

    async def on_start(self) -> None:
        self.trace.append(f"start {self.capability_id}")
        await asyncio.sleep(0)
        if self.within is not None:
            await self.within()
        if self.failures:
            raise self.failures.pop(0)
        self.trace.append(f"started {self.capability_id}")

    async def on_dispose(self) -> None:
        self.trace.append(f"dispose {self.capability_id}")
        if self.dispose_failure is not None:
            raise self.dispose_failure


class Host(DurableObject):
    """A host with two traced capabilities."""

    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)
        self.trace: Trace = []
        self.failures: list[Exception] = []
        self.first, self.second = Traced("first", self.trace), Traced("second", self.trace)
        self.lifecycle = Lifecycle.install(self).use(self.first).use(self.second)

    async def on_start(self) -> None:
        self.trace.append("start host")
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)


STARTED = ["start first", "started first", "start second", "started second", "start host"]


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    opened = Storage(tmp_path / "a.sqlite")
    yield opened
    opened.close()


@pytest.fixture
def host(storage: Storage) -> Host:
    return Host(ObjectState("alice", storage))


# --------------------------------------------------------------------------------- installation


def test_a_host_has_one_lifecycle(host: Host) -> None:
    with pytest.raises(RuntimeError, match="has a lifecycle already"):
        Lifecycle.install(host)


def test_a_lifecycle_needs_the_state_first(storage: Storage) -> None:
    class Hasty(DurableObject):
        def __init__(self, state: ObjectState) -> None:
            Lifecycle.install(self)
            super().__init__(state)

    with pytest.raises(RuntimeError, match="super"):
        Hasty(ObjectState("alice", storage))


def test_ids_are_unique_and_say_something(host: Host) -> None:
    with pytest.raises(RuntimeError, match="'first' is installed already"):
        host.lifecycle.use(Traced("first", []))
    for unfit in ("", "  ", "host", "lifecycle"):
        with pytest.raises(ValueError, match="a capability's id"):
            Traced(unfit, [])


def test_a_capability_lives_in_one_lifecycle(host: Host, storage: Storage) -> None:
    other = DurableObject(ObjectState("bob", storage))
    with pytest.raises(RuntimeError, match="installed already"):
        Lifecycle.install(other).use(host.first)


def test_a_capability_needs_installing_before_use() -> None:
    with pytest.raises(RuntimeError, match=r"install Traced with Lifecycle\.use\(\)"):
        _ = Traced("alone", []).lifecycle


async def test_capabilities_are_added_before_startup(host: Host) -> None:
    host.failures.append(LookupError())
    with pytest.raises(LookupError):
        await host.lifecycle.start()
    with pytest.raises(RuntimeError, match="before startup"):
        host.lifecycle.use(Traced("late", []))


def test_a_capability_is_given_what_it_needs_and_not_the_host(host: Host, storage: Storage) -> None:
    context = host.first.lifecycle
    assert context.name == "alice"
    assert context.storage is storage
    assert not any(value is host for value in vars(context).values())


# -------------------------------------------------------------------------------------- startup


async def test_startup_runs_in_order_and_once(host: Host) -> None:
    assert not host.lifecycle.is_started()
    await host.lifecycle.start()
    assert host.lifecycle.is_started()
    assert host.first.lifecycle.is_started()
    await host.lifecycle.start()
    await host.lifecycle.ready()
    assert host.trace == STARTED


async def test_concurrent_callers_share_one_startup(host: Host) -> None:
    await asyncio.gather(
        host.lifecycle.start(), host.lifecycle.ready(), host.first.lifecycle.ready()
    )
    assert host.trace == STARTED


async def test_concurrent_callers_share_a_failure_and_the_next_tries_again(host: Host) -> None:
    host.second.failures.append(LookupError("not yet"))
    outcomes = await asyncio.gather(
        *(host.lifecycle.ready() for _ in range(3)), return_exceptions=True
    )
    assert [str(outcome) for outcome in outcomes] == ["not yet"] * 3
    assert not host.lifecycle.is_started()
    assert host.trace == STARTED[:3]

    host.trace.clear()
    await host.lifecycle.ready()
    assert host.trace == STARTED, "capabilities start over together"


async def test_after_the_host_failed_only_the_host_starts_again(host: Host) -> None:
    host.failures.append(LookupError())
    with pytest.raises(LookupError):
        await host.lifecycle.start()
    host.trace.clear()
    await host.lifecycle.start()
    assert host.trace == ["start host"]


async def test_a_caller_that_retries_in_its_own_handler_gets_a_new_startup(host: Host) -> None:
    host.first.failures += [LookupError(), LookupError()]
    attempts = 0
    while not host.lifecycle.is_started():
        attempts += 1
        try:
            await host.lifecycle.start()
        except LookupError:
            continue
    assert attempts == 3


async def test_a_call_from_within_startup_returns_at_once(host: Host) -> None:
    async def call_back() -> None:
        await host.lifecycle.start()
        await host.first.lifecycle.ready()
        assert not host.lifecycle.is_started()
        await asyncio.create_task(host.lifecycle.ready())

    host.second.within = call_back
    await asyncio.wait_for(host.lifecycle.start(), 5)
    assert host.trace == STARTED


async def test_a_call_from_elsewhere_during_startup_waits(host: Host) -> None:
    gate = asyncio.Event()
    host.first.within = gate.wait
    starting = asyncio.create_task(host.lifecycle.start())
    waiting = asyncio.create_task(host.lifecycle.ready())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    gate.set()
    await asyncio.gather(starting, waiting)
    assert host.lifecycle.is_started()


async def test_cancelling_a_caller_does_not_stop_the_startup_others_share(host: Host) -> None:
    gate = asyncio.Event()
    host.first.within = gate.wait
    starting = asyncio.create_task(host.lifecycle.start())
    waiting = asyncio.create_task(host.lifecycle.ready())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.sleep(0)
    gate.set()
    await waiting
    assert starting.cancelled()
    assert host.trace == STARTED


async def test_a_startup_that_fails_unheard_is_not_complained_about(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()
    host.first.within = gate.wait
    host.first.failures.append(LookupError())
    starting = asyncio.create_task(host.lifecycle.start())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    gate.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert caplog.records == []
    await host.lifecycle.start()
    assert host.lifecycle.is_started()


async def test_two_hosts_do_not_take_one_startup_for_the_other(host: Host, tmp_path: Path) -> None:
    storage = Storage(tmp_path / "other.sqlite")
    other = Host(ObjectState("bob", storage))
    host.first.within = other.lifecycle.start
    await host.lifecycle.start()
    assert other.trace == STARTED
    storage.close()


# --------------------------------------------------------------------------------------- events


def test_events_carry_their_source_and_arrive_in_order(host: Host) -> None:
    seen: list[LifecycleEvent] = []
    host.lifecycle.events.subscribe(seen.append)
    host.first.lifecycle.events.emit("greeted", {"who": "bob"})
    host.lifecycle.events.emit("done")
    assert seen == [
        LifecycleEvent("first", "greeted", {"who": "bob"}),
        LifecycleEvent("host", "done", {}),
    ]


async def test_events_of_startup_reach_who_subscribed_before(host: Host) -> None:
    seen: list[str] = []
    host.lifecycle.events.subscribe(lambda event: seen.append(event.type))

    async def tell() -> None:
        host.first.lifecycle.events.emit("half-way")

    host.first.within = tell
    await host.lifecycle.start()
    assert seen == ["half-way"]


def test_unsubscribing_ends_it_also_in_the_middle_of_an_event(host: Host) -> None:
    seen: list[str] = []
    ends: list[Callable[[], None]] = []

    def first(_: LifecycleEvent) -> None:
        seen.append("first")
        for end in ends:
            end()

    host.lifecycle.events.subscribe(first)
    ends.append(host.second.lifecycle.events.subscribe(lambda _: seen.append("second")))
    host.lifecycle.events.emit("a")
    assert seen == ["first"]


def test_the_same_listener_twice_hears_twice(host: Host) -> None:
    seen: list[LifecycleEvent] = []
    end = host.lifecycle.events.subscribe(seen.append)
    host.lifecycle.events.subscribe(seen.append)
    host.lifecycle.events.emit("a")
    end()
    host.lifecycle.events.emit("b")
    assert [event.type for event in seen] == ["a", "a", "b"]


def test_a_listener_that_raises_is_reported_and_breaks_nothing(host: Host) -> None:
    seen: list[LifecycleEvent] = []
    failure = LookupError("no")

    def broken(event: LifecycleEvent) -> None:
        raise failure

    host.lifecycle.events.subscribe(broken)
    host.lifecycle.events.subscribe(seen.append)
    host.first.lifecycle.events.emit("greeted")
    event = LifecycleEvent("first", "greeted")
    assert seen == [
        LifecycleEvent("lifecycle", "lifecycle:error", {"event": event, "error": failure}),
        event,
    ]


def test_a_listener_is_a_plain_function_and_a_type_is_not_blank(host: Host) -> None:
    async def waits(event: LifecycleEvent) -> None: ...

    with pytest.raises(TypeError, match="plain function"):
        host.lifecycle.events.subscribe(waits)
    with pytest.raises(ValueError, match="not blank"):
        host.lifecycle.events.emit(" ")


# ------------------------------------------------------------------------------------- disposal


async def test_disposal_is_in_reverse_order_and_once(host: Host) -> None:
    await host.lifecycle.start()
    host.trace.clear()
    await asyncio.gather(host.lifecycle.dispose(), host.lifecycle.dispose())
    await host.lifecycle.dispose()
    assert host.trace == ["dispose second", "dispose first"]
    assert not host.lifecycle.is_started()
    with pytest.raises(RuntimeError, match="is disposed"):
        await host.lifecycle.start()


async def test_every_capability_is_disposed_of_even_if_one_fails(host: Host) -> None:
    host.second.dispose_failure = LookupError("stuck")
    for _ in range(2):
        with pytest.raises(ExceptionGroup) as caught:
            await host.lifecycle.dispose()
        assert [str(error) for error in caught.value.exceptions] == ["stuck"]
    assert host.trace == ["dispose second", "dispose first"]


async def test_disposal_waits_for_a_startup_under_way(host: Host) -> None:
    gate = asyncio.Event()
    host.second.within = gate.wait
    starting = asyncio.create_task(host.lifecycle.start())
    for _ in range(5):
        await asyncio.sleep(0)
    disposing = asyncio.create_task(host.lifecycle.dispose())
    await asyncio.sleep(0)
    assert host.trace == STARTED[:3]
    gate.set()
    await asyncio.gather(starting, disposing)
    assert host.trace == [*STARTED, "dispose second", "dispose first"]
    assert not host.lifecycle.is_started()


async def test_startup_cannot_dispose_of_itself(host: Host) -> None:
    host.first.within = host.lifecycle.dispose
    with pytest.raises(RuntimeError, match="startup cannot dispose of itself"):
        await asyncio.wait_for(host.lifecycle.start(), 5)


async def test_a_task_begun_in_startup_may_dispose_later(host: Host) -> None:
    tasks: list[asyncio.Task[None]] = []
    gate = asyncio.Event()

    async def begin() -> None:
        async def later() -> None:
            await gate.wait()
            await host.lifecycle.dispose()

        tasks.append(asyncio.create_task(later()))

    host.first.within = begin
    await host.lifecycle.start()
    gate.set()
    await tasks[0]
    assert host.trace[-1] == "dispose first"


# ---------------------------------------------------------------- a capability of one's own


class Visits(LifecycleCapability):
    """Counts how often the conversation was started and greeted, durably."""

    def __init__(self) -> None:
        super().__init__("visits")

    async def on_start(self) -> None:
        await self._count("starts")

    async def greet(self, who: str) -> int:
        """Count one greeting; tell how many there were."""
        await self.lifecycle.ready()
        count = await self._count("greetings")
        self.lifecycle.events.emit("visits:greeted", {"who": who, "count": count})
        return count

    async def _count(self, what: str) -> int:
        storage = self.lifecycle.storage

        def op() -> int:
            count: int = storage.kv.get(what, 0) + 1
            storage.kv.put(what, count)
            return count

        return await storage.submit(op)


class Doorman(DurableObject):
    """A conversation that greets."""

    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)
        self.visits = Visits()
        self.lifecycle = Lifecycle.install(self).use(self.visits)
        self.seen: list[LifecycleEvent] = []
        self.lifecycle.events.subscribe(self.seen.append)


async def test_a_capability_of_ones_own(tmp_path: Path) -> None:
    for start in range(1, 3):
        async with open_object(Doorman, name="door", path=tmp_path / "a.sqlite") as door:
            counts = await asyncio.gather(*(door.visits.greet("bob") for _ in range(10)))
            assert counts == list(range(start * 10 - 9, start * 10 + 1))
            assert await door.storage.get("starts") == start
            assert {event.source for event in door.seen} == {"visits"}
            assert door.seen[-1].payload == {"who": "bob", "count": start * 10}
