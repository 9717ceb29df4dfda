"""What a lost disk, a lost note or a lost answer must not do to conversations and replicas."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router.administration import Administration
from router.directory import Directory
from router.leases import Leases
from router.replication.daemon import Daemon
from router.replication.paths import conversation_key, number
from router.router import Router
from router.upkeep import Upkeep
from sessions_actor.disk import disk_id
from sessions_actor.errors import StorageError
from tests.cluster.conftest import message

from .conftest import TERMS, running
from .test_router import World as Nodes


class World(Nodes):
    """Nodes that may go with their disks and come back with them."""

    async def start_local(self) -> None:
        """Run the router without replicas, on the same disks."""
        for root in self.cluster.roots.values():
            root.mkdir(exist_ok=True)
        root = self.folder / "a"
        leases = Leases(self.settings.lease_ttl_s, asyncio.get_running_loop().time)
        self.router = Router(self.settings, root, Directory(root), self.cluster, leases)
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
        left = number(await world.directory.reserve_generation())
        shutil.copytree(folder / own, folder / left)
        await Administration(world.router).delete("alice")
        assert world.router.failover is not None
        await world.router.failover.remove_spent()
        assert world.lines("alice") == []
    finally:
        await world.stop()
