"""Moves of one conversation over a fake cluster: given up, failing or finished at every step."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from router import migration, relocation
from router.directory import State
from router.pool import EVICT_IDLE_S
from router.through import through
from sessions_actor.actor import ActorState
from sessions_actor.errors import MigrationFailedError, NoCapacityError
from sessions_actor.hosted import Phase

from .deployments import Deployment, World, ids, message
from .fake_cluster import until

# What the router asks of the two actors, in this order; the directory is written in between.
STEPS = ("receive", "transfer", "seal", "promote", "discard")


class Steps:
    """Sees each question to an actor of the cluster, and holds up the first of one kind."""

    def __init__(self, world: World, held: str) -> None:
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        self._held = held
        for actor, _ in world.cluster.actors.values():
            self._watch(actor)
        start = world.cluster.start_actor

        async def start_actor(node_id: str) -> Any:
            slot = await start(node_id)
            self._watch(slot.actor)
            return slot

        world.cluster.start_actor = start_actor  # type: ignore[method-assign]

    def _watch(self, actor: Any) -> None:
        run = actor._run

        async def held(name: str, args: Any, kwargs: Any) -> Any:
            if name == self._held and not self.reached.is_set():
                self.reached.set()
                await self.go_on.wait()
            return await run(name, args, kwargs)

        actor._run = held


async def filled(life: Deployment, count: int = 20) -> Any:
    session = life.get("alice")
    await session.append_messages([message(f"m{i}") for i in range(count)])
    return session


async def is_whole(world: World, life: Deployment, session: Any, count: int = 20) -> None:
    """One owner with everything, one file of its, and every other actor idle."""
    await session.append_message(message("after"))
    assert await ids(session) == [*(f"m{i}" for i in range(count)), "after"]
    states = [a.target.ping().state for a, _ in world.cluster.actors.values() if not a.dead]
    assert states.count(ActorState.HOSTING) == 1
    assert set(states) <= {ActorState.HOSTING, ActorState.IDLE}
    entry = life.directory.get("alice")
    assert entry is not None
    assert entry.state is State.ACTIVE
    await life.router.sweeping.sweep(life.router.disk_id)
    file = world.root / entry.file
    assert list(file.parent.glob("*.sqlite")) == [file]
    assert not life.relocation.progress("alice")
    taken = [slot.name for slot in life.router.pool.slots if slot.name is not None]
    assert sorted(taken) == sorted(serving.name for serving in life.router.servings())


@pytest.mark.parametrize("by", ["ticket", "name", "caller"])
@pytest.mark.parametrize("step", STEPS)
async def test_cancelled_at_any_step_one_owner_has_everything(
    world: World, step: str, by: str
) -> None:
    life = await world.start()
    session = await filled(life)
    steps = Steps(world, step)
    moving = asyncio.ensure_future(life.relocation.migrate("alice", None, "t1"))
    await steps.reached.wait()
    assert not life.relocation.cancel("alice", "t2")
    assert not life.relocation.cancel("bob")
    if by == "caller":
        moving.cancel()
    else:
        assert life.relocation.cancel("alice", "t1" if by == "ticket" else None)
    await asyncio.sleep(0)
    steps.go_on.set()
    [outcome] = await asyncio.gather(moving, return_exceptions=True)
    switched = step == "discard"  # the source's: the target owns it already
    if by == "caller":
        assert isinstance(outcome, asyncio.CancelledError)
    elif switched:
        assert not isinstance(outcome, BaseException)
        assert outcome.epoch == 2
    else:
        assert isinstance(outcome, MigrationFailedError)
        assert "cancelled" in outcome.reason
    await is_whole(world, life, session)
    serving = life.router.serving("alice")
    assert serving is not None
    assert serving.epoch == (2 if switched else 1)


async def waiting_for_an_actor(life: Deployment) -> Any:
    """A move whose target's actor is a frozen one's, on a node of two."""
    await life.get("bob").append_message(message("m"))
    life.owner("bob").silent = True
    moving = asyncio.ensure_future(life.relocation.migrate("alice"))
    await until(lambda: life.router.pool._waiters)
    return moving


async def test_cancelled_while_it_waits_for_an_actor(world: World) -> None:
    life = await world.start(max_active=2, capacity_wait_s=30)
    session = await filled(life)
    moving = await waiting_for_an_actor(life)
    progress = life.relocation.progress("alice")
    assert progress is not None
    assert (progress.phase, progress.bytes, progress.bytes_total) == ("waiting", 0, None)
    assert life.relocation.cancel("alice")
    with pytest.raises(MigrationFailedError, match="cancelled"):
        await moving
    life.owner("bob").die()
    await until(lambda: life.router.serving("bob") is None)
    await is_whole(world, life, session)


async def test_nobody_stands_behind_a_move_that_waits_for_an_actor(world: World) -> None:
    life = await world.start(max_active=2, capacity_wait_s=30, lease_ttl_s=60)
    session = await filled(life)
    moving = await waiting_for_an_actor(life)
    life.owner("alice").die()
    await asyncio.wait_for(session.append_message(message("meanwhile")), 10)
    await asyncio.wait_for(life.administration.hibernate("alice"), 10)
    await asyncio.wait_for(session.append_message(message("again")), 10)
    moving.cancel()
    await asyncio.wait([moving])
    life.owner("bob").die()


async def test_on_a_node_of_one_actor_a_conversation_cannot_move(world: World) -> None:
    life = await world.start(max_active=1, capacity_wait_s=30)
    session = await filled(life)
    for node_id in (None, "node-0"):
        with pytest.raises(NoCapacityError):
            await asyncio.wait_for(life.relocation.migrate("alice", node_id), 10)
    await is_whole(world, life, session)


async def test_a_conversation_makes_no_room_for_its_own_move(world: World) -> None:
    life = await world.start(max_active=2)
    session = await filled(life)
    world.cluster.start_delay_s = 0.3  # longer than it takes to hibernate the idle source
    await until(lambda: life.router.now() - life.router.servings()[0].used_at > EVICT_IDLE_S)
    report = await life.relocation.migrate("alice")
    assert report.epoch == 2
    await is_whole(world, life, session)


def once_acquired(life: Deployment, do: Callable[[], Awaitable[None]]) -> None:
    """Have something happen right after the next actor was found, while its move still waits."""
    acquire = life.router.pool.acquire

    async def acquire_late(*args: Any, **kwargs: Any) -> Any:
        life.router.pool.acquire = acquire  # type: ignore[method-assign]
        slot = await acquire(*args, **kwargs)
        await do()
        return slot

    life.router.pool.acquire = acquire_late  # type: ignore[method-assign]


@pytest.mark.parametrize("how", ["hibernates", "dies"])
async def test_a_source_that_goes_while_its_move_waits_is_woken_and_moved(
    world: World, how: str
) -> None:
    life = await world.start(max_active=4 if how == "dies" else 2, capacity_wait_s=30)
    session = await filled(life)

    async def go() -> None:
        serving = life.router.serving("alice")
        assert serving is not None
        if how == "dies":
            life.owner("alice").die()
        else:
            assert await life.router.let_go(serving)

    once_acquired(life, go)
    report = await asyncio.wait_for(life.relocation.migrate("alice"), 20)
    assert report.epoch == 3, "2 is that of the source which was woken"
    await is_whole(world, life, session)


async def test_cancelled_while_it_asks_whether_its_source_lives_no_actor_is_lost(
    world: World,
) -> None:
    life = await world.start()
    session = await filled(life)
    steps: list[Steps] = []

    async def watch() -> None:
        steps.append(Steps(world, "ping"))

    once_acquired(life, watch)
    moving = asyncio.ensure_future(life.relocation.migrate("alice"))
    await until(lambda: steps)
    await asyncio.wait_for(steps[0].reached.wait(), 10)
    assert life.relocation.cancel("alice")
    steps[0].go_on.set()
    with pytest.raises(MigrationFailedError, match="cancelled"):
        await moving
    await is_whole(world, life, session)


@pytest.mark.parametrize("step", ["activate", "hibernate", "ping"])
async def test_an_owner_in_the_making_is_not_left_half_made(world: World, step: str) -> None:
    life = await world.start(max_active=2)
    session = await filled(life)
    if step == "activate":
        await life.administration.hibernate("alice")
    steps = Steps(world, step)
    if step == "ping":
        life.owner("alice").die()
    serving = life.router.serving("alice")
    if step == "hibernate":
        assert serving is not None
        asking = asyncio.ensure_future(life.router.let_go(serving))
    else:
        asking = asyncio.ensure_future(life.relocation.migrate("alice"))  # type: ignore[arg-type]
    await steps.reached.wait()
    asking.cancel()
    await asyncio.sleep(0)
    steps.go_on.set()
    await asyncio.wait([asking])
    await is_whole(world, life, session)


async def test_cancelling_between_the_directory_and_its_disk_does_not_split_the_owner(
    world: World,
) -> None:
    """The switch is applied at once and durable a moment later: cancelling there is too late."""
    life = await world.start()
    session = await filled(life)
    switch = life.directory.switch

    async def cancelled_meanwhile(*args: Any) -> Any:
        work = asyncio.ensure_future(switch(*args))
        await asyncio.sleep(0)
        assert life.relocation.cancel("alice")
        return await work

    life.directory.switch = cancelled_meanwhile  # type: ignore[method-assign]
    report = await life.relocation.migrate("alice")
    assert report.epoch == 2
    await is_whole(world, life, session)


async def test_a_directory_that_cannot_switch_leaves_the_source(world: World) -> None:
    life = await world.start()
    session = await filled(life)
    switch = life.directory.switch

    async def fails(*args: Any) -> Any:
        raise OSError("disk full")

    life.directory.switch = fails  # type: ignore[method-assign]
    with pytest.raises(MigrationFailedError, match="switch: OSError: disk full"):
        await life.relocation.migrate("alice")
    await is_whole(world, life, session)
    life.directory.switch = switch  # type: ignore[method-assign]
    assert (await life.relocation.migrate("alice")).messages == 21


@pytest.mark.parametrize("written", [True, False])
async def test_a_switch_of_unknown_outcome_is_decided_by_the_next_router(
    world: World, written: bool
) -> None:
    """The directory broke at the switch: until it is read again, neither end may serve."""
    life = await world.start()
    await filled(life)
    switch, abandon = life.directory.switch, life.directory.abandon_migration

    async def breaks(*args: Any) -> Any:
        if written:
            await switch(*args)
        life.directory.abandon_migration = broken  # type: ignore[method-assign]
        raise OSError("I/O error")

    async def broken(*args: Any) -> Any:
        raise OSError("the gate is broken")

    life.directory.switch = breaks  # type: ignore[method-assign]
    source = life.owner("alice")
    with pytest.raises(OSError, match="the gate is broken"):
        await life.relocation.migrate("alice")
    assert source.target._hosted is not None
    assert source.target._hosted._phase is Phase.SEALED
    life.directory.abandon_migration = abandon  # type: ignore[method-assign]
    await life.die()
    second = await world.start()
    serving = second.router.serving("alice")
    assert serving is not None
    assert serving.epoch == (2 if written else 1)
    await is_whole(world, second, second.get("alice"))


async def test_a_full_disk_at_the_target_leaves_the_source_serving(world: World) -> None:
    life = await world.start()
    session = await filled(life)
    receive = type(life.owner("alice").target).receive

    async def receives(self: Any, spec: Any) -> None:
        await receive(self, spec)
        self._site.storage.sql.exec("PRAGMA max_page_count = 8")

    type(life.owner("alice").target).receive = receives  # type: ignore[method-assign]
    try:
        with pytest.raises(MigrationFailedError):
            await life.relocation.migrate("alice")
    finally:
        type(life.owner("alice").target).receive = receive  # type: ignore[method-assign]
    await is_whole(world, life, session)


@pytest.mark.parametrize("step", ["receive", "transfer", "seal", "promote"])
@pytest.mark.parametrize("who", ["source", "target"])
async def test_a_side_that_dies_at_any_step_loses_nothing(
    world: World, step: str, who: str
) -> None:
    life = await world.start()
    session = await filled(life)
    source = life.owner("alice")
    steps = Steps(world, step)
    moving = asyncio.ensure_future(life.relocation.migrate("alice"))
    await steps.reached.wait()
    for actor, _ in world.cluster.actors.values():
        if (actor is source) == (who == "source"):
            actor.die()
    steps.go_on.set()
    [outcome] = await asyncio.gather(moving, return_exceptions=True)
    # A source that dies once everything was copied is not needed any more.
    late = who == "source" and step == "promote"
    assert late or isinstance(outcome, MigrationFailedError)
    await is_whole(world, life, session)


@pytest.mark.parametrize("step", ["receive", "transfer", "promote"])
async def test_a_target_that_freezes_is_ended_and_the_source_serves(
    world: World, step: str
) -> None:
    life = await world.start(lease_ttl_s=0.2)
    session = await filled(life)
    source = life.owner("alice")
    steps = Steps(world, step)
    moving = asyncio.ensure_future(life.relocation.migrate("alice"))
    await steps.reached.wait()
    for actor, _ in world.cluster.actors.values():
        actor.silent = actor is not source
    steps.go_on.set()
    [outcome] = await asyncio.wait_for(asyncio.gather(moving, return_exceptions=True), 20)
    assert isinstance(outcome, MigrationFailedError)
    await is_whole(world, life, session)


@pytest.mark.parametrize("reachable_again", [True, False])
async def test_a_source_that_cannot_be_told_to_serve_again_does_not_stay_sealed(
    world: World, monkeypatch: pytest.MonkeyPatch, *, reachable_again: bool
) -> None:
    monkeypatch.setattr(relocation, "DISCARD_TIMEOUT_S", 0.3)
    life = await world.start(lease_ttl_s=0.2)
    session = await filled(life)
    source = life.owner("alice")
    run, lost = source._run, []

    async def unreached(name: str, args: Any, kwargs: Any) -> Any:
        if name == "unseal" and not (reachable_again and lost):
            lost.append(name)
            raise ActorUnavailableError("the connection broke", None)
        return await run(name, args, kwargs)

    source._run = unreached  # type: ignore[method-assign]
    steps = Steps(world, "promote")
    moving = asyncio.ensure_future(life.relocation.migrate("alice"))
    await steps.reached.wait()
    for actor, _ in world.cluster.actors.values():
        if actor is not source:
            actor.die()
    steps.go_on.set()
    [outcome] = await asyncio.wait_for(asyncio.gather(moving, return_exceptions=True), 20)
    assert isinstance(outcome, MigrationFailedError)
    assert lost
    await is_whole(world, life, session)
    assert source.dead is not reachable_again


async def test_progress_tells_how_much_arrived(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(migration, "SEALED_COPY_BYTES_MAX", 0)
    life = await world.start()
    session = await filled(life, 300)
    seen: list[Any] = []

    async def copy(*args: Any) -> Any:
        work = asyncio.ensure_future(migration.copy(*args))
        while not work.done():
            seen.append(life.relocation.progress("alice"))
            await asyncio.wait([work], timeout=0)
        return work.result()

    life.relocation._copy = copy
    report = await life.relocation.migrate("alice")
    phases = list(dict.fromkeys(one.phase for one in seen))
    order = ["waiting", "copying", "catching up", "verifying", "sealed"]
    assert phases == [phase for phase in order if phase in phases]
    assert {"copying", "verifying"} <= set(phases)
    assert seen[-1].rows >= report.messages == 300
    assert seen[-1].bytes >= report.bytes > 0
    assert seen[-1].bytes_total > 0
    assert [one.bytes for one in seen] == sorted(one.bytes for one in seen)
    assert life.relocation.progress("alice") is None
    await is_whole(world, life, session, 300)


async def test_work_goes_through_however_often_its_waiter_is_cancelled() -> None:
    go_on, done = asyncio.Event(), []

    async def work() -> int:
        await go_on.wait()
        done.append(1)
        return 7

    waiter = asyncio.ensure_future(through(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        waiter.cancel()
    await asyncio.sleep(0)
    assert not waiter.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert done == [1]
    assert await through(work()) == 7

    async def fails() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await through(fails())
