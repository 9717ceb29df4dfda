"""Drains while something is on its way to the node: once done, nothing comes to it any more."""

import asyncio
from typing import Any

import pytest

from sessions_actor.errors import MigrationFailedError, ReplicaUnavailableError

from .deployments import Deployment, World, ids, message
from .fake_cluster import until
from .test_jobs import Gate, drained, lie_on, made, node_of, states
from .test_relocation import Steps, once_acquired


async def two_disks(world: World, **settings: Any) -> Deployment:
    life = await world.start(**settings)
    world.cluster.roots["node-1"] = world.root.parent / "other"
    return life


async def test_a_rebalance_under_way_does_not_fill_a_node_that_is_emptied(world: World) -> None:
    life = await two_disks(world)
    await made(life, 8, 20_000)
    world.cluster.roots["node-2"] = world.root.parent / "third"
    gate = Gate(life)
    await life.jobs.start_rebalance("r1")
    await until(lambda: gate.begun)
    draining = asyncio.ensure_future(drained(life, "node-1", "d1"))
    await until(lambda: life.router.pool.is_draining("node-1"))
    gate.opened.set()
    report = await asyncio.wait_for(draining, 30)
    assert report.state == "done"
    rebalance = await asyncio.wait_for(life.jobs.report("r1"), 30)
    assert rebalance.state == "done"
    assert lie_on(life)["node-1"] == 0
    assert lie_on(life)["node-2"] > 0, "what was planned for the other found its place"
    assert sum(lie_on(life).values()) == 8


@pytest.mark.parametrize("node_id", ["node-1", None])
async def test_a_move_that_began_before_a_drain_ends_before_it(
    world: World, node_id: str | None
) -> None:
    life = await two_disks(world, max_active=1)  # so it goes to the other node, asked or not
    await made(life, 1, 1000)
    gate = Gate(life)
    moving = asyncio.ensure_future(life.relocation.migrate("c00", node_id))
    await until(lambda: gate.begun)
    entry = life.directory.get("c00")
    assert entry is not None
    assert entry.target is not None
    assert entry.target["node_id"] == "node-1"
    draining = asyncio.ensure_future(drained(life, "node-1", "d1"))
    await until(lambda: life.router.pool.is_draining("node-1"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not draining.done()
    gate.opened.set()
    await moving
    report = await asyncio.wait_for(draining, 30)
    assert (report.state, report.moved, report.failed) == ("done", 1, {})
    assert lie_on(life) == {"node-0": 1}
    assert await ids(life.get("c00")) == ["m"]


@pytest.mark.parametrize("node_id", ["node-1", None])
async def test_a_move_that_waits_for_an_actor_does_not_go_where_a_drain_began(
    world: World, node_id: str | None
) -> None:
    life = await two_disks(world, max_active=1)
    await made(life, 1, 1000)
    if node_id is None:
        world.cluster.roots["node-2"] = world.root.parent / "third"
    await life.get("c00").append_message(message("m2"))
    assert node_of(life, "c00") == "node-0"

    reports: list[Any] = []

    async def drain() -> None:
        slots = [slot for slot in life.router.pool.slots if slot.name == "c00"]
        (chosen,) = {slot.node_id for slot in slots} - {"node-0"}
        reports.append(await drained(life, chosen, "d1"))

    once_acquired(life, drain)
    moving = life.relocation.migrate("c00", node_id)
    if node_id is None:
        report = await asyncio.wait_for(moving, 30)
        assert report.target_node_id != reports[0].node_id
    else:
        with pytest.raises(MigrationFailedError, match="emptied"):
            await asyncio.wait_for(moving, 30)
    assert lie_on(life)[reports[0].node_id] == 0
    # Who names the node all the same, now that it is being emptied, has it so.
    moved = await life.relocation.migrate("c00", reports[0].node_id)
    assert moved.target_node_id == reports[0].node_id


async def test_a_drain_waits_for_an_owner_that_is_being_started(world: World) -> None:
    world.cluster.roots["node-1"] = world.root
    life = await world.start()
    await made(life, 1)
    steps = Steps(world, "activate")
    asked = asyncio.ensure_future(life.get("c00").append_message(message("m2")))
    await steps.reached.wait()
    (node_id,) = {slot.node_id for slot in life.router.pool.slots if slot.name == "c00"}
    for one in ("node-0", "node-1"):
        life.router.pool.set_disk(one, life.router.disk_id, "machine")
    draining = asyncio.ensure_future(drained(life, node_id, "d1"))
    await until(lambda: life.router.pool.is_draining(node_id))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not draining.done()
    steps.go_on.set()
    await asked
    assert (await asyncio.wait_for(draining, 30)).state == "done"
    assert node_of(life, "c00") != node_id
    assert await ids(life.get("c00")) == ["m", "m2"]


@pytest.mark.parametrize("late", ["begin", "note_node"])
async def test_a_job_whose_first_row_is_confirmed_late_runs(
    world: World, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    life = await two_disks(world)
    await made(life, 2, 1000)
    storage = life.directory._storage
    submit, passed = storage.submit, 0

    async def confirmed_late(op: Any) -> Any:
        nonlocal passed
        result = await submit(op)
        passed += 1
        if passed == (1 if late == "begin" else 2):
            raise ReplicaUnavailableError("the directory", 1.0)
        return result

    monkeypatch.setattr(storage, "submit", confirmed_late)
    world.cluster.announced.add("node-0")
    await life.jobs.heed()
    (job,) = await life.jobs.all()
    report = await asyncio.wait_for(life.jobs.report(job.id), 30)
    assert (report.state, report.moved) == ("done", 2)
    assert (await states(life))["node-0"] == "draining"
    assert lie_on(life) == {"node-1": 2}
