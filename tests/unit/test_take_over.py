"""Leases and terms: who may follow an owner that nobody saw end, and when."""

import asyncio
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from router.agent import NodeFacts
from sessions_actor.disk import disk_id, machine_id

from .deployments import TwoMachines, World
from .fake_cluster import FakeActor, until


@pytest.fixture
def machines(world: World) -> TwoMachines:
    return TwoMachines(world)


def facts(node_id: str) -> NodeFacts:
    return NodeFacts(node_id, "disk", "another")


async def test_another_machine_takes_over_only_after_the_lease_ran_out(machines, world):
    life = await world.start(lease_ttl_s=0.3)
    actor = await machines.owner_on(life, "node-1")
    assert life.leases.renew("node-1").term == 1
    granted = life.router.now()
    machines.lose("node-1")
    actor.silent = True
    address = await life.router.resolve("alice", 1)
    assert life.router.now() - granted >= 0.3
    assert (address.epoch, life.leases.term("node-1")) == (2, 2)
    assert life.directory.nodes()["node-1"].term == 2
    assert life.router.renew(facts("node-1")) is None


async def test_a_router_that_starts_waits_for_leases_of_the_one_before(machines, world):
    first = await world.start(lease_ttl_s=0.3)
    await machines.owner_on(first, "node-1")
    await first.die()
    owner = next(actor for actor, node in world.cluster.actors.values() if node == "node-1")
    machines.lose("node-1")
    owner.silent = True
    started = asyncio.get_running_loop().time()
    second = await world.start(lease_ttl_s=0.3)
    owner.die()  # its file's lock is free; whether it still acknowledges is not known
    await second.router.resolve("alice")
    assert second.router.now() - started >= 0.3
    assert second.leases.term("node-1") == 2


async def test_on_the_same_machine_the_files_lock_is_enough(world: World) -> None:
    world.cluster.roots["node-1"] = world.root
    world.cluster.machines = {"node-0": machine_id(), "node-1": machine_id()}
    life = await world.start(lease_ttl_s=60.0)
    machines = TwoMachines.__new__(TwoMachines)
    machines.world, machines.cluster = world, world.cluster
    actor = await machines.owner_on(life, "node-1")
    life.leases.renew("node-1")
    machines.lose("node-1")
    actor.die()
    address = await asyncio.wait_for(life.router.resolve("alice", 1), 10)
    assert address.epoch == 2
    assert life.leases.term("node-1") == 1


async def test_an_owner_whose_term_ended_is_not_given_out(machines, world) -> None:
    life = await world.start(lease_ttl_s=0.05)
    await machines.owner_on(life, "node-1")
    life.leases.renew("node-1")
    await life.router.take_over.outlast("node-1")
    world.cluster.leases["node-1"].grant(2, 0.0, 1e6)
    address = await life.router.resolve("alice", 1)
    assert address.epoch == 2


async def test_a_deleted_conversation_of_a_lost_node_is_gone_for_good(machines, world) -> None:
    life = await world.start(lease_ttl_s=0.3)
    actor = await machines.owner_on(life, "node-1")
    life.leases.renew("node-1")
    granted = life.router.now()
    machines.lose("node-1")
    actor.die()
    await life.router.pool.refresh()
    assert await life.administration.delete("alice")
    assert life.router.now() - granted >= 0.3


async def test_a_node_that_lives_and_renews_is_outlasted_all_the_same(machines, world) -> None:
    life = await world.start(lease_ttl_s=0.2)
    await machines.owner_on(life, "node-1")
    here = facts("node-1")
    assert life.router.renew(here).term == 1

    began = life.router.now()
    waiting = asyncio.create_task(life.router.take_over.outlast("node-1"))
    await until(lambda: (grant := life.router.renew(here)) is not None and grant.term == 2, 10)
    assert life.router.now() - began >= 0.2
    await waiting


async def test_waiting_for_a_lease_may_be_given_up_and_the_node_renews_again(machines, world):
    life = await world.start(lease_ttl_s=60.0)
    await machines.owner_on(life, "node-1")
    here = facts("node-1")
    assert life.router.renew(here) is not None
    waiting = [asyncio.create_task(life.router.take_over.outlast("node-1")) for _ in range(2)]
    for task in waiting:
        await until(lambda: life.router.renew(here) is None)
        task.cancel()
        await asyncio.wait([task])
    assert life.router.renew(here).term == 1


async def test_a_router_that_starts_hears_of_a_machine_before_it_gives_an_owner_up(
    machines, world
) -> None:
    life = await world.start(lease_ttl_s=60.0)
    await machines.owner_on(life, "node-1")
    entry = life.directory.get("alice")
    life.router.pool._machines.clear()  # as a router knows them whose predecessor noted none
    life.leases.expect("node-1", 1)
    succeeding = asyncio.create_task(life.router.take_over.succeed(entry))
    await asyncio.sleep(0)
    for node in ("node-0", "node-1"):
        life.router.renew(NodeFacts(node, disk_id(world.root), machine_id()))
    assert await asyncio.wait_for(succeeding, 10) == machine_id()
    assert life.leases.term("node-1") == 1, "the file's lock is enough"


@pytest.mark.parametrize("how", ["out of reach", "says nothing"])
async def test_an_actor_that_may_have_started_a_file_is_outlasted_before_another_machine_does(
    machines, world, monkeypatch, how: str
) -> None:
    monkeypatch.setattr("router.router.ACTIVATION_TIMEOUT_S", 0.2)
    life = await world.start(lease_ttl_s=0.5)
    actor = await machines.owner_on(life, "node-1")
    await life.administration.hibernate("alice")
    granted = life.router.now()
    life.leases.renew("node-1")
    run, activated = actor._run, []

    async def answer_lost(name: str, args: Any, kwargs: Any) -> Any:
        if name != "activate":
            return await run(name, args, kwargs)
        # The one that waits has its bound; those that start the file elsewhere take their time.
        monkeypatch.setattr("router.router.ACTIVATION_TIMEOUT_S", 60.0)
        machines.lose("node-1")
        actor.die = lambda: None
        await asyncio.shield(run(name, args, kwargs))  # an actor goes on when nobody waits
        activated.append(life.router.now())
        actor.silent = True
        if how == "out of reach":
            raise ActorUnavailableError("the connection broke", None)
        await asyncio.Event().wait()

    actor._run = answer_lost
    life.router.pool.set_draining("node-0", True)
    resolving = asyncio.create_task(life.router.resolve("alice"))
    await until(lambda: activated)
    life.router.pool.set_draining("node-0", False)
    await until(lambda: life.router.leases.term("node-1") == 2)
    assert life.router.now() - granted >= 0.5
    FakeActor.die(actor)  # its file's lock goes with its machine
    address = await asyncio.wait_for(resolving, 60)
    assert life.router.serving("alice").slot.node_id == "node-0"
    assert address.epoch == 3
