"""Drains of nodes whose disk is not known when they begin, or is named late."""

import asyncio

import pytest

from router import jobs as module
from router.agent import NodeFacts
from sessions_actor.disk import disk_id
from sessions_actor.errors import StorageError

from .deployments import Deployment, World, ids, message


async def came_back(world: World) -> tuple[Deployment, str]:
    """Make two conversations on a node's own disk; the node returns under another id, silent."""
    other = world.root.parent / "other-disk"
    world.cluster.roots["node-1"] = other
    life = await world.start()
    disk = disk_id(other)
    life.router.renew(NodeFacts("node-1", disk, "machine"))
    life.router.pool.set_draining("node-0", True)
    for name in ("alice", "bob"):
        await life.get(name).append_message(message("m"))
        await life.administration.hibernate(name)
    life.router.pool.set_draining("node-0", False)
    del world.cluster.roots["node-1"]
    world.cluster.roots["node-2"] = other
    await life.router.pool.refresh()
    assert life.directory.count_on_disk(disk) == 2
    return life, disk


async def test_a_drain_learns_the_disk_of_a_node_that_has_not_told(world: World) -> None:
    life, disk = await came_back(world)
    report = await life.jobs.report(await life.jobs.start_drain("node-2", "j1"))
    assert (report.state, report.moved, report.failed) == ("done", 2, {})
    assert life.directory.count_on_disk(disk) == 0
    (job,) = life.directory.jobs.all()
    assert job.disk_id == disk
    assert await ids(life.get("alice")) == ["m"]


async def test_a_node_that_tells_its_disk_while_a_drain_begins_is_emptied(world: World) -> None:
    life, disk = await came_back(world)
    refresh, passes = life.router.pool.refresh, 0

    async def tells():
        nonlocal passes
        passes += 1
        if passes == 2:
            life.router.renew(NodeFacts("node-2", disk, "machine"))
        return await refresh()

    life.router.pool.refresh = tells
    job = await life.jobs.start_drain("node-2", "j1")
    report = await asyncio.wait_for(life.jobs.report(job), 20)
    assert (report.state, report.moved, report.failed) == ("done", 2, {})
    assert life.directory.count_on_disk(disk) == 0


async def test_a_drain_of_a_node_that_cannot_tell_its_disk_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TROUBLE_PAUSE_S", 0.001)
    life, disk = await came_back(world)

    async def start_actor(node_id: str) -> None:
        raise StorageError(node_id, "permission denied")

    monkeypatch.setattr(world.cluster, "start_actor", start_actor)
    report = await life.jobs.report(await life.jobs.start_drain("node-2", "j1"))
    assert (report.state, report.moved) == ("failed", 0)
    assert "is not known" in str(report.error)
    assert life.directory.count_on_disk(disk) == 2


async def test_what_others_move_does_not_keep_a_drain_busy(world: World) -> None:
    """A name that is listed again and again, and found elsewhere each time it is looked at."""
    life, _ = await came_back(world)
    moves = 0

    async def resettle(name: str, node_id: str | None = None) -> None:
        nonlocal moves
        moves += 1
        raise module.ConversationNotFoundError(name)

    life.relocation.resettle = resettle
    job = await life.jobs.start_drain("node-2", "j1")
    report = await asyncio.wait_for(life.jobs.report(job), 20)
    assert (report.moved, moves) == (0, 2 * module.TRIES)
    assert sorted(report.failed) == ["alice", "bob"]
