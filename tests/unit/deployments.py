"""A router over the fake cluster, life after life, and machines that it can lose."""

import asyncio
from pathlib import Path
from typing import Any

from router.administration import Administration
from router.directory import Directory
from router.jobs import Jobs
from router.leases import Leases
from router.relocation import Relocation
from router.router import Router
from router.settings import Settings
from router.upkeep import Upkeep
from sessions_actor.channel import Address
from sessions_actor.disk import machine_id
from sessions_actor.handle import ConversationHandle
from sessions_actor.overload import Bounds

from .fake_cluster import FakeActor, FakeCluster


class Deployment:
    """One life of a router over a cluster that outlives it."""

    call_timeout_s = 10.0
    bounds = Bounds()

    def __init__(self, root: Path, cluster: FakeCluster, **settings: Any) -> None:
        chosen = {"storage_root": root, "warm_actors": 0, "max_active": 4, "lease_ttl_s": 0.2}
        self.settings = Settings(**(chosen | settings))
        self.cluster = cluster
        self.directory = Directory(root)
        self.leases = Leases(self.settings.lease_ttl_s, asyncio.get_running_loop().time)
        self.router = Router(self.settings, root, self.directory, cluster, self.leases)
        self.upkeep = Upkeep(self.router)
        self.administration = Administration(self.router)
        self.relocation = Relocation(self.router)
        self.jobs = Jobs(self.router, self.relocation, bytes_min=1)

    async def resolve(self, name: str, failed: Address | None) -> Address:
        return await self.router.resolve(name, None if failed is None else failed.epoch)

    async def find(self, name: str, failed: Address | None) -> Address:
        return await self.router.resolve(name, None if failed is None else failed.epoch, False)

    async def succession(self, name: str, epoch: int, wait_s: float) -> Any:
        return await self.router.succession(name, epoch, wait_s)

    async def die(self) -> None:
        """End as a killed process does: nothing is put in order."""
        assert self.upkeep._tending is not None
        self.upkeep._tending.cancel()
        await self.jobs.close()
        await self.router.pool.close()
        self.directory.close()

    def get(self, name: str) -> Any:
        return ConversationHandle(name, self).session()

    def owner(self, name: str) -> FakeActor:
        serving = self.router.serving(name)
        assert serving is not None
        actor: FakeActor = serving.slot.actor
        return actor


class World:
    """A cluster of nodes on one shared disk, or on disks of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cluster = FakeCluster({"node-0": root})
        self.lives: list[Deployment] = []

    async def start(self, **settings: Any) -> Deployment:
        life = Deployment(self.root, self.cluster, **settings)
        await life.upkeep.start("node-0")
        await life.jobs.resume()
        self.lives.append(life)
        return life


def message(name: str) -> dict[str, Any]:
    return {"id": name, "role": "user", "parts": [{"type": "text", "text": name}]}


async def ids(session: Any) -> list[str]:
    return [m["id"] async for m in session.history()]


class TwoMachines:
    """Two nodes that mount one disk, each on a machine of its own."""

    def __init__(self, world: World) -> None:
        self.world, self.cluster = world, world.cluster
        self.cluster.roots["node-1"] = world.root
        self.cluster.machines = {"node-0": machine_id(), "node-1": "another"}

    def lose(self, node_id: str) -> None:
        """Cut a node off: the cluster forgets it, what runs there goes on."""
        del self.cluster.roots[node_id]

    async def owner_on(self, life: Deployment, node_id: str) -> FakeActor:
        """Make a conversation that a node's actor serves."""
        other = next(n for n in self.cluster.roots if n != node_id)
        life.router.pool.set_draining(other, True)
        await life.router.resolve("alice")
        life.router.pool.set_draining(other, False)
        serving = life.router.serving("alice")
        assert serving is not None
        assert serving.slot.node_id == node_id
        return life.owner("alice")
