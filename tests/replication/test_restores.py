"""Restores that are cut off, meet dead actors, or find a replica that is behind."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from router.administration import Administration
from router.directory import Owner
from router.replicated_directory import ReplicatedDirectory
from router.replication import restore as restoring
from router.spent import Keep
from router.sweeping import LATE_S
from sessions_actor.disk import disk_id
from sessions_actor.errors import ReplicaUnavailableError, StorageError
from sessions_actor.replica import Durability
from tests.cluster.conftest import message, until

from .deployments import World


class Held:
    """Holds the engine's restores at their end, until it is told to let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self._run = restoring._run
        monkeypatch.setattr(restoring, "_run", self)

    async def __call__(self, *args: Any) -> int:
        position = await self._run(*args)
        if not self.go.is_set():
            self.begun.set()
            await self.go.wait()
        return position


@contextlib.asynccontextmanager
async def deployed(folder: Path, **changed: Any) -> AsyncIterator[World]:
    world = World(folder)
    world.settings = world.settings.model_copy(update=changed)
    await world.start()
    try:
        yield world
    finally:
        await world.stop()


def files(world: World) -> set[str]:
    """What lies on the nodes' disks, but for logs and what the engine keeps."""
    found = world.folder.glob("?/conversations/*/*")
    beside = (".sqlite-", ".sqlite.lock")
    return {
        path.name
        for path in found
        if path.is_file() and not any(part in path.name for part in beside)
    }


def named(world: World) -> set[str]:
    """The files that the directory names."""
    return {Path(world.router.entry(name).file).name for name in world.directory.page()}


async def sweep(world: World) -> None:
    """Remove waste twice, as after a while."""
    sweeping, now = world.router.sweeping, world.router.now
    for node in world.cluster.roots:
        world.router.pool.add(await world.cluster.start_actor(node))
    for later_s in (LATE_S, 3 * LATE_S):
        sweeping._now = lambda later_s=later_s: now() + later_s
        for disk in {slot.disk_id for slot in world.router.pool.slots}:
            await sweeping.sweep(disk)


async def kill_owner(world: World, name: str) -> None:
    """End the process that serves a conversation; nothing of it copies any more."""
    serving = world.router.serving(name)
    assert serving is not None
    actor = serving.slot.actor
    actor.target._hosted.replica.abandon()
    actor.die()


async def test_in_place_keeps_what_no_replica_holds_yet(tmp_path: Path) -> None:
    async with deployed(tmp_path, durability=Durability.ASYNC) as world:
        session = world.session("alice")
        await session.append_message(message("m0"))
        await Administration(world.router).hibernate("alice")
        moment = datetime.now(UTC)
        await session.append_message(message("m1"))
        await kill_owner(world, "alice")
        await world.recovery.restore("alice", moment, "kept", in_place=True)
        assert await world.stored("kept") == ["m0", "m1"]
        assert await world.stored("alice") == ["m0"]


async def test_in_place_without_the_disk_that_has_the_end_changes_nothing(tmp_path: Path) -> None:
    async with deployed(tmp_path, durability=Durability.ASYNC) as world:
        session = world.session("alice")
        await session.append_message(message("m0"))
        await world.relocation.migrate("alice", "b")
        moment = datetime.now(UTC)
        await session.append_message(message("m1"))
        await kill_owner(world, "alice")
        await world.router.bury(world.router.serving("alice"))  # type: ignore[arg-type]
        before = world.router.entry("alice")
        await world.lose("b")
        await world.router.pool.refresh()
        with pytest.raises(StorageError, match="bring the disk back"):
            await world.recovery.restore("alice", moment, "kept", in_place=True)
        assert world.router.entry("alice") == before
        assert world.directory.page() == ["alice"]


@pytest.mark.parametrize("in_place", [False, True])
async def test_a_router_killed_while_it_restores_leaves_everything_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    await world.session("alice").append_message(message("m0"))
    held = Held(monkeypatch)
    job = asyncio.create_task(world.recovery.restore("alice", None, "bob", in_place=in_place))
    await held.begun.wait()
    await world.upkeep.abandon()
    world.directory.close()
    await world.start()
    assert world.directory.page() == ["alice"]
    held.go.set()
    await world.recovery.restore("alice", None, "bob", in_place=False)
    await world.session("bob").append_message(message("m1"))
    with pytest.raises(Exception, match=r"."):  # its directory is not its own any more
        await job
    assert await world.stored("bob") == ["m0", "m1"]
    assert await world.stored("alice") == ["m0"]
    await sweep(world)
    assert files(world) == named(world), "what it brought is waste"


async def test_what_is_still_being_restored_is_not_swept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.session("alice").append_message(message("m0"))
    held = Held(monkeypatch)
    job = asyncio.create_task(world.recovery.restore("alice", None, "bob", in_place=False))
    await held.begun.wait()
    await sweep(world)
    held.go.set()
    await job
    await sweep(world)
    assert await world.stored("bob") == ["m0"]
    await Administration(world.router).hibernate("bob")
    assert await world.stored("bob") == ["m0"]


async def test_a_restore_whose_note_was_not_confirmed_is_whole(world: World) -> None:
    await world.session("alice").append_message(message("m0"))
    place = world.directory.place

    async def unconfirmed(*args: Any) -> Any:
        await place(*args)
        raise ReplicaUnavailableError("the store is away", 10.0)

    world.directory.place = unconfirmed  # type: ignore[method-assign]
    await world.recovery.restore("alice", None, "bob", in_place=False)
    assert await world.stored("bob") == ["m0"]


async def test_in_place_is_whole_though_its_note_was_not_confirmed(world: World) -> None:
    session = world.session("alice")
    await session.append_message(message("m0"))
    moment = datetime.now(UTC)
    await asyncio.sleep(0.02)
    await session.append_message(message("m1"))
    fail_over = world.directory.fail_over

    async def unconfirmed(*args: Any, **options: Any) -> Any:
        await fail_over(*args, **options)
        raise ReplicaUnavailableError("the store is away", 10.0)

    world.directory.fail_over = unconfirmed  # type: ignore[method-assign]
    await world.recovery.restore("alice", moment, "bob", in_place=True)
    assert await world.stored("alice") == ["m0"]
    assert await world.stored("bob") == ["m0", "m1"]


async def test_what_was_restored_in_place_is_never_taken_for_what_was_there_before(
    world: World,
) -> None:
    """Its disk goes before it was copied: that is an error, not the older content."""
    session = world.session("alice")
    await session.append_message(message("m0"))
    moment = datetime.now(UTC)
    await asyncio.sleep(0.02)
    await session.append_message(message("m1"))

    async def full(*_: Any) -> Any:
        raise StorageError("a node", "is full")

    activate, world.router.activate = world.router.activate, full  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="is restored, but did not start yet"):
        await world.recovery.restore("alice", moment, "bob", in_place=True)
    world.router.activate = activate  # type: ignore[method-assign]
    entry = world.router.entry("alice")
    file = next(
        root / entry.file for root in world.cluster.roots.values() if (root / entry.file).exists()
    )
    file.unlink()
    with pytest.raises(StorageError, match="not replicated yet"):
        await world.stored("alice")


async def test_a_router_that_follows_another_learns_how_far_replicas_are(world: World) -> None:
    await world.session("alice").append_message(message("m0"))
    storage = world.directory._storage
    await storage.submit(lambda: storage.write("UPDATE conversations SET line = 0, position = 0"))
    await world.upkeep.abandon()
    world.directory.close()
    await world.start()
    assert world.router.serving("alice") is not None
    await until(lambda: not world.directory.lacks("alice"), "its line is noted")
    assert world.router.entry("alice").position > 0


async def lose_the_restorer(world: World, held: Held) -> None:
    """End the actor that restores, as a kill does: it removes nothing that it made."""
    await held.begun.wait()
    (actor,) = [
        actor
        for actor, _ in world.cluster.actors.values()
        if not actor.dead and actor.calls[-1:] == ["chore"] and actor.target._hosted is None
    ]
    draft = next(world.folder.glob("?/conversations/*/*.restoring"))
    content = draft.read_bytes()
    actor.die()
    await until(lambda: not draft.exists(), "the restore to end")
    draft.write_bytes(content)
    held.go.set()


@pytest.mark.parametrize("in_place", [None, False, True])
async def test_an_actor_lost_at_a_restore_is_replaced_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, in_place: bool | None
) -> None:
    """None: it is a fail-over that restores."""
    await world.session("alice").append_message(message("m0"))
    if in_place is None:
        await world.relocation.migrate("alice", "b")
        await world.lose("b")
    held = Held(monkeypatch)
    lost = asyncio.create_task(lose_the_restorer(world, held))
    if in_place is None:
        assert await world.stored("alice") == ["m0"]
    else:
        await world.recovery.restore("alice", None, "bob", in_place=in_place)
        assert await world.stored("bob") == ["m0"]
        assert await world.stored("alice") == ["m0"]
    await lost
    assert not any(slot.actor.dead for slot in world.router.pool.slots)
    await sweep(world)
    assert files(world) == named(world)


async def test_in_place_needs_one_actor(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.settings = world.settings.model_copy(update={"max_active": 1})
    for name in "bc":
        world.cluster.roots.pop(name)
    await world.start()
    try:
        session = world.session("alice")
        await session.append_message(message("m0"))
        moment = datetime.now(UTC)
        await asyncio.sleep(0.02)
        await session.append_message(message("m1"))
        await world.recovery.restore("alice", moment, "bob", in_place=True)
        assert await world.stored("alice") == ["m0"]
        assert await world.stored("bob") == ["m0", "m1"]
    finally:
        await world.stop()


async def test_what_was_kept_gets_a_replica_of_its_own(world: World) -> None:
    session = world.session("alice")
    await session.append_message(message("m0"))
    await world.relocation.migrate("alice", "b")
    await world.recovery.restore("alice", None, "bob", in_place=True)
    await until(lambda: not world.directory.lacks("bob"), "its replica")
    for name in [*world.cluster.roots]:
        if disk_id(world.folder / name) == world.router.entry("bob").disk_id:
            await world.lose(name)
    if "a" not in world.cluster.roots:
        world.cluster.roots["a"] = world.folder / "a"
        await world.start()
    assert await world.stored("bob") == ["m0"]


async def test_a_file_in_the_making_is_waste_for_the_next_router(tmp_path: Path) -> None:
    directory = ReplicatedDirectory(tmp_path)
    disk = disk_id(tmp_path)
    async with directory.making("alice", disk) as given:
        assert directory.waste(disk) == []
        await directory.place("alice", disk, given)
    assert directory.waste(disk) == []
    async with directory.making("bob", disk):
        directory.close()
    directory = ReplicatedDirectory(tmp_path)
    assert [one.file for one in directory.waste(disk)] != []
    assert directory.page() == ["alice"]
    directory.close()


async def test_processes_start_while_a_lease_runs_out(world: World) -> None:
    await world.session("alice").append_message(message("m0"))
    await world.relocation.migrate("alice", "b")
    await world.lose("b")
    world.router.pool.set_disk("c", disk_id(world.folder / "c"), "machine")
    take_over, ran_out = world.router.take_over, asyncio.Event()
    outlast = take_over.outlast

    async def waiting(node_id: str) -> None:
        await ran_out.wait()
        await outlast(node_id)

    take_over.outlast = waiting  # type: ignore[method-assign]
    called = asyncio.create_task(world.stored("alice"))

    def stand_ready() -> bool:
        views = {view.node_id: view.idle for view in world.router.pool.views()}
        return views.keys() == {"a", "c"} and all(views.values())

    await until(stand_ready, "an actor on each node that is left")
    starts = world.cluster.starts
    ran_out.set()
    assert await called == ["m0"]
    assert world.cluster.starts == starts


async def test_the_last_complete_line_is_kept_until_the_next_is_complete(tmp_path: Path) -> None:
    directory = ReplicatedDirectory(tmp_path)
    directory.spent.keep = Keep(left_ms=0, deleted_ms=0)
    owner = Owner("node", "actor", disk_id(tmp_path))
    entry = await directory.create("alice", owner)
    assert entry is not None
    await directory.note_file("alice", entry.epoch)
    await directory.note_line("alice", entry.epoch, 7)
    for _ in range(2):  # a second fail-over before the first was copied
        asleep = await directory.hibernate(
            "alice", directory.get("alice").epoch, file_bytes=1, last_active_at=None
        )
        async with directory.making("alice", owner.disk_id) as generation:
            entry = await directory.fail_over(
                "alice", asleep.epoch, owner.disk_id, owner, generation=generation, has_file=True
            )
        assert directory.spent.due() == []
    await directory.note_line("alice", entry.epoch, 9)
    assert [one.up_to for one in directory.spent.due()] == [1, 2]
    directory.close()
