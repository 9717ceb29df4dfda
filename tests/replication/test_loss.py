"""What a lost disk, a lost note or a lost answer must not do to conversations and replicas."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from router.administration import Administration
from router.directory import Directory, Owner, State
from router.leases import Leases
from router.replication.daemon import Daemon
from router.replication.objects import Objects
from router.replication.paths import conversation_key, number
from router.router import Router
from router.store_keeping import RETRY_MS, StoreKeeping
from router.upkeep import Upkeep
from sessions_actor.disk import disk_id
from sessions_actor.errors import StorageError
from sessions_actor.replica import Durability
from tests.cluster.conftest import message, until

from .deployments import TERMS, running
from .deployments import World as Nodes


class World(Nodes):
    """Nodes that may go with their disks and come back with them."""

    async def start_local(self) -> None:
        """Run the router without replicas, on the same disks."""
        for root in self.cluster.roots.values():
            root.mkdir(exist_ok=True)
        root = self.folder / "a"
        leases = Leases(self.settings.lease_ttl_s, asyncio.get_running_loop().time)
        directory = Directory(root)
        directory.leave_replica()
        self.router = Router(self.settings, root, directory, self.cluster, leases)
        self.upkeep = Upkeep(self.router)
        await self.upkeep.start("a")

    async def end_daemon(self, name: str) -> None:
        await self.daemons.pop(name).aclose()

    async def start_daemon(self, name: str) -> None:
        stack = self.daemons[name] = contextlib.AsyncExitStack()
        await stack.enter_async_context(running(Daemon(self.folder / name, TERMS)))

    async def away(self, name: str) -> None:
        """End a node; its disk is kept."""
        for actor, node_id in self.cluster.actors.values():
            if node_id == name:
                actor.die()
        if name in self.daemons:
            await self.end_daemon(name)
        del self.cluster.roots[name]
        await self.router.pool.refresh()

    async def back(self, name: str) -> None:
        """Start a node with the disk that it had."""
        self.cluster.roots[name] = self.folder / name
        await self.start_daemon(name)
        await self.router.pool.refresh()
        self.router.pool.set_disk(name, disk_id(self.folder / name), self.cluster.machine(name))

    async def make_on(self, name: str, node_id: str) -> None:
        """Make a conversation on a node."""
        await self.router.pool.refresh()
        for other in self.cluster.roots:
            self.router.pool.set_draining(other, other != node_id)
        await self.session(name).append_message(message("m0"))
        for other in self.cluster.roots:
            self.router.pool.set_draining(other, False)
        serving = self.router.serving(name)
        assert serving is not None
        assert serving.slot.node_id == node_id


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.start()
    yield made
    await made.stop()


async def test_a_file_that_nobody_copied_is_waited_for_never_replaced(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start_local()
    await world.make_on("alice", "b")
    await world.upkeep.close()
    del world.cluster.roots["b"]
    world.cluster.actors.clear()
    await world.start()
    try:
        before = world.router.entry("alice")
        with pytest.raises(StorageError, match="not replicated yet"):
            await world.stored("alice")
        await world.back("b")
        assert await world.stored("alice") == ["m0"]
        assert world.router.entry("alice").generation == before.generation
        assert world.directory.waste(before.disk_id) == []
    finally:
        await world.stop()


async def write_without_replicas(world: World) -> None:
    """Start the router again with durability local, write, and turn replication on again."""
    await world.upkeep.close()
    await world.start_local()
    await world.session("alice").append_message(message("local"))
    await Administration(world.router).hibernate("alice")
    await world.upkeep.close()


async def test_a_replica_from_before_a_stretch_without_replication_is_not_taken(
    world: World,
) -> None:
    """What was acknowledged in between is on the disk alone: nobody is told that it is gone."""
    await world.make_on("alice", "b")
    await write_without_replicas(world)
    await world.end_daemon("b")
    del world.cluster.roots["b"]
    await world.start()
    for _ in range(2):
        with pytest.raises(StorageError, match="since replication was turned on"):
            await world.stored("alice")
    await world.recovery.restore("alice", None, "alice before", in_place=False)
    assert await world.stored("alice before") == ["m0"]
    await world.back("b")
    assert await world.stored("alice") == ["m0", "local"]
    await world.session("alice").append_message(message("m1"))
    await world.lose("b")
    assert await world.stored("alice") == ["m0", "local", "m1"]


async def test_what_woke_after_a_stretch_without_replication_is_copied_while_it_is_used(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.settings = world.settings.model_copy(update={"durability": Durability.ASYNC})
    await world.start()
    try:
        await world.make_on("alice", "b")
        await write_without_replicas(world)
        await world.start()
        await world.session("alice").append_message(message("m1"))
        assert world.router.entry("alice").state is State.ACTIVE
        await until(lambda: nobody_is_behind(world), "the replica has it all")
        entry = world.router.entry("alice")
        assert (entry.state, entry.line) == (State.ACTIVE, entry.generation)
        await world.lose("b")
        assert await world.stored("alice") == ["m0", "local", "m1"]
    finally:
        await world.stop()


async def test_a_conversation_wakes_under_async_while_the_store_is_away(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.settings = world.settings.model_copy(
        update={"durability": Durability.ASYNC, "replica_timeout_s": 1.0}
    )
    await world.start()
    try:
        await world.make_on("alice", "b")
        await Administration(world.router).hibernate("alice")
        (tmp_path / "far").rename(tmp_path / "away")
        (tmp_path / "far").write_text("no folder")
        assert await world.stored("alice") == ["m0"]
        await world.session("alice").append_message(message("m1"))
        (tmp_path / "far").unlink()
        (tmp_path / "away").rename(tmp_path / "far")
        await until(lambda: lag_of(world, "alice") == 0, "the replica has caught up")
        await world.lose("b")
        assert await world.stored("alice") == ["m0", "m1"]
    finally:
        await world.stop()


async def test_a_disk_that_came_back_is_waited_for_anew(world: World) -> None:
    await world.make_on("alice", "b")
    await Administration(world.router).hibernate("alice")
    failover, entry = world.router.failover, world.router.entry("alice")
    assert failover is not None
    clock = asyncio.get_running_loop().time
    await world.away("b")
    assert await failover.is_due(entry)
    await world.back("b")
    assert not await failover.is_due(entry)
    await world.away("b")
    asked = clock()
    assert await failover.is_due(entry)
    assert clock() - asked >= world.settings.lease_ttl_s * 0.9


async def test_a_deletion_takes_the_line_of_a_migration_that_was_given_up(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.settings = world.settings.model_copy(update={"replica_delete_grace_s": 0.0})
    await world.start()
    try:
        await world.session("alice").append_message(message("m0"))
        folder = tmp_path / "far" / "here" / conversation_key("alice")
        (own,) = world.lines("alice")
        left = await reserved(world)
        shutil.copytree(folder / own, folder / left)
        await Administration(world.router).delete("alice")
        await keeping(world).write_records()
        await keeping(world).remove_spent()
        assert world.lines("alice") == []
    finally:
        await world.stop()


async def reserved(world: World) -> str:
    """Take the number of a line, as a move does whose row is never switched."""
    async with world.directory.making("alice", disk_id(world.folder / "a")) as generation:
        return number(generation)


async def test_a_replica_that_cannot_be_removed_keeps_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    world.settings = world.settings.model_copy(update={"replica_delete_grace_s": 0.0})
    await world.start()
    try:
        remove = world.replicas.remove

        async def denied(name: str, up_to: int) -> None:
            if name == "a":
                raise OSError("AccessDenied")
            await remove(name, up_to)

        world.replicas.remove = denied  # type: ignore[method-assign]
        for name in "abc":
            await world.session(name).append_message(message("m0"))
            await Administration(world.router).delete(name)
        await keeping(world).write_records()

        async def others_are_gone() -> bool:
            with contextlib.suppress(OSError):
                await keeping(world).remove_spent()
            return world.lines("b") == world.lines("c") == []

        await until(others_are_gone, "the others to be removed")
        assert len(world.lines("a")) == 1
        assert "replica.kept" in caplog.text
        world.replicas.remove = remove  # type: ignore[method-assign]
        later = world.directory.spent._now_ms() + RETRY_MS
        world.directory.spent._now_ms = lambda: later
        await keeping(world).remove_spent()
        assert world.lines("a") == []
    finally:
        await world.stop()


class Forgetful:
    """A store in which nothing can be noted for a while."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.fails = True

    def put(self, key: str, data: bytes) -> None:
        if self.fails:
            raise OSError("the store is away")
        self._objects.put(key, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)


def forget(world: World) -> Forgetful:
    store = Forgetful(world.replicas.objects)
    world.replicas._objects = store
    return store


async def rebuilt(world: World) -> None:
    """Lose the router's node and every replica of the directory, and start again."""
    await world.upkeep.close()
    await world.lose("a")
    shutil.rmtree(world.folder / "far" / "here" / "directory")
    world.cluster.roots["a"] = world.folder / "a"
    await world.start()


async def test_a_move_that_nobody_could_note_is_found_all_the_same(world: World) -> None:
    session = world.session("alice")
    await session.append_message(message("m0"))
    await keeping(world).write_records()
    forget(world)
    await world.relocation.migrate("alice", "b")
    await session.append_message(message("m1"))
    await rebuilt(world)
    assert await world.stored("alice") == ["m0", "m1"]


async def test_a_move_that_was_given_up_is_not_taken_for_the_newest(world: World) -> None:
    """Its line is whole and nobody recorded it: what was acknowledged later is elsewhere."""
    session = world.session("alice")
    await session.append_message(message("m0"))
    folder = world.folder / "far" / "here" / conversation_key("alice")
    (own,) = world.lines("alice")
    left = await reserved(world)
    shutil.copytree(folder / own, folder / left)
    await session.append_message(message("m1"))
    await rebuilt(world)
    assert await world.stored("alice") == ["m0", "m1"]


async def test_what_could_not_be_noted_is_noted_later(world: World) -> None:
    store = forget(world)
    for name in ("kept", "deleted"):
        await world.session(name).append_message(message("m0"))
    await Administration(world.router).delete("deleted")
    with pytest.raises(OSError, match="away"):
        await keeping(world).write_records()
    store.fails = False
    await keeping(world).write_records()
    records = {r.name: r async for _, _, r in world.replicas.records() if r is not None}
    assert records["kept"].deleted_at is None
    assert records["deleted"].deleted_at is not None
    assert await world.directory.records.page(None) == []
    await rebuilt(world)
    assert world.directory.page() == ["kept"]


async def test_a_deletion_that_the_next_router_finishes_is_noted(world: World) -> None:
    await world.session("alice").append_message(message("m0"))
    await Administration(world.router).hibernate("alice")
    entry = world.router.entry("alice")
    await world.directory.begin_delete("alice", entry.epoch)
    deleting = world.directory.get("alice")
    assert deleting is not None
    await world.router.take_over.settle(deleting)
    await rebuilt(world)
    assert world.directory.page() == []


async def test_a_replica_is_kept_until_its_deletion_is_noted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.settings = world.settings.model_copy(update={"replica_delete_grace_s": 0.0})
    await world.start()
    try:
        await world.session("alice").append_message(message("m0"))
        store = forget(world)
        await Administration(world.router).delete("alice")
        await keeping(world).remove_spent()
        assert len(world.lines("alice")) == 1
        store.fails = False
        await keeping(world).write_records()
        await keeping(world).remove_spent()
        assert world.lines("alice") == []
    finally:
        await world.stop()


async def test_moments_before_a_move_are_restored_under_async(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.settings = world.settings.model_copy(update={"durability": Durability.ASYNC})
    await world.start()
    try:
        session = world.session("alice")
        await session.append_message(message("m0"))
        await until(lambda: lag_of(world, "alice") == 0, "the replica has caught up")
        moment = datetime.now(UTC)
        await world.relocation.migrate("alice", "b")
        await session.append_message(message("m1"))
        await world.relocation.migrate("alice", "c")
        await keeping(world).write_records()
        await world.recovery.restore("alice", moment, "then", in_place=False)
        assert await world.stored("then") == ["m0"]
    finally:
        await world.stop()


async def test_what_an_owner_left_behind_is_copied_while_it_sleeps(tmp_path: Path) -> None:
    """The store was away when it hibernated, and the daemon that would have tried again is gone."""
    world = World(tmp_path)
    world.settings = world.settings.model_copy(
        update={"durability": Durability.ASYNC, "replica_timeout_s": 1.0}
    )
    await world.start()
    try:
        await world.make_on("alice", "b")
        await until(lambda: lag_of(world, "alice") == 0, "the replica has caught up")
        (tmp_path / "far").rename(tmp_path / "away")
        (tmp_path / "far").write_text("no folder")
        await world.session("alice").append_message(message("m1"))
        await Administration(world.router).hibernate("alice")
        assert world.directory.count_behind()[0] == 1
        await world.end_daemon("b")
        (tmp_path / "far").unlink()
        (tmp_path / "away").rename(tmp_path / "far")
        await world.start_daemon("b")
        await until(lambda: nobody_is_behind(world), "the replica has it all")
        entry = world.router.entry("alice")
        assert entry.line == entry.generation
        await world.lose("b")
        assert await world.stored("alice") == ["m0", "m1"]
    finally:
        await world.stop()


async def test_what_slept_when_replication_was_turned_on_is_copied(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start_local()
    await world.make_on("alice", "b")
    await world.upkeep.close()
    await world.start()
    try:
        assert world.directory.count_behind()[0] == 1
        await world.make_on("other", "b")
        await until(lambda: nobody_is_behind(world), "the replica has it all")
        await world.lose("b")
        assert await world.stored("alice") == ["m0"]
    finally:
        await world.stop()


async def test_a_conversation_that_wakes_is_no_longer_counted_as_left_behind(world: World) -> None:
    await world.make_on("alice", "b")
    await Administration(world.router).hibernate("alice")
    entry = world.router.entry("alice")
    assert world.directory.count_behind()[0] == 0, "its replica was brought up to date"
    await world.directory.activate("alice", entry.epoch, Owner("b", "actor", entry.disk_id))
    ended = world.router.entry("alice")
    await world.directory.hibernate(
        "alice", ended.epoch, file_bytes=1, last_active_at=1, position=5, behind=True
    )
    assert world.directory.count_behind()[0] == 1
    assert await world.stored("alice") == ["m0"]
    assert world.directory.count_behind()[0] == 0


def keeping(world: World) -> StoreKeeping:
    failover = world.router.failover
    assert failover is not None
    return failover.keeping


def nobody_is_behind(world: World) -> bool:
    keeping(world).start()
    return world.directory.count_behind() == (0, 0.0)


def lag_of(world: World, name: str) -> float:
    serving = world.router.serving(name)
    assert serving is not None
    hosted = serving.slot.actor.target._hosted
    assert hosted is not None
    lag_s: float = hosted.replica_lag_s
    return lag_s
