"""A router over nodes with disks of their own, in one process with real replicas and no Ray."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from router import Settings
from router.leases import Leases
from router.recovery import Recovery
from router.relocation import Relocation
from router.replicated_directory import ReplicatedDirectory
from router.replication import home
from router.replication.daemon import Daemon, DaemonTerms
from router.replication.paths import conversation_key
from router.replication.replicas import Replicas
from router.router import Router
from router.upkeep import Upkeep
from sessions_actor.channel import Address
from sessions_actor.handle import ConversationHandle
from sessions_actor.open_object import Activation
from sessions_actor.overload import Bounds
from sessions_actor.replica import Durability
from tests.unit.fake_cluster import FakeCluster

DAY_S = 86_400.0
TERMS = DaemonTerms(DAY_S, DAY_S)

NAMESPACE = "here"


@contextlib.asynccontextmanager
async def running(daemon: Daemon) -> AsyncIterator[Daemon]:
    """Run a daemon while this is open."""
    task = asyncio.create_task(daemon.run())
    try:
        await daemon.ready(30.0)
        yield daemon
    finally:
        task.cancel()
        await asyncio.wait([task])


def set_patience(activation: Activation[Any], seconds: float) -> None:
    """Have writes wait that long for the replica from now on: a test of an outage starts before."""
    replica = activation.replica
    assert replica is not None
    assert replica._confirmation is not None
    replica._spec = replace(replica._spec, timeout_s=seconds)
    replica._confirmation._timeout_s = seconds


class World:
    """Nodes a, b and c, each with a disk and its daemon; the router runs on a."""

    call_timeout_s = 30.0
    bounds = Bounds()
    replicas_class = Replicas

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "far").mkdir()
        self.cluster = FakeCluster({name: folder / name for name in "abc"})
        self.stack = contextlib.AsyncExitStack()
        self.daemons: dict[str, contextlib.AsyncExitStack] = {}
        self.settings = Settings(
            storage_root=folder / "a",
            warm_actors=0,
            lease_ttl_s=0.3,
            capacity_wait_s=5.0,
            durability=Durability.REPLICATED,
            replica_url=f"file://{folder}/far",
            replica_timeout_s=20.0,
        )

    async def start(self) -> None:
        for name, root in self.cluster.roots.items():
            root.mkdir(exist_ok=True)
            if name not in self.daemons:
                self.daemons[name] = contextlib.AsyncExitStack()
                await self.daemons[name].enter_async_context(running(Daemon(root, TERMS)))
        root = self.folder / "a"
        self.replicas = self.replicas_class(self.settings, NAMESPACE)
        await self.replicas.check()
        found = await home.prepare(root, self.replicas)
        self.directory = ReplicatedDirectory(root)
        try:
            await home.begin(root, self.directory, self.replicas, found)
        except BaseException:
            self.directory.close()
            raise
        leases = Leases(self.settings.lease_ttl_s, asyncio.get_running_loop().time)
        self.router = Router(
            self.settings, root, self.directory, self.cluster, leases, self.replicas
        )
        self.upkeep = Upkeep(self.router)
        await self.upkeep.start("a")
        self.relocation = Relocation(self.router)
        self.recovery = Recovery(self.router)

    async def stop(self) -> None:
        await self.upkeep.close()
        for daemon in self.daemons.values():
            await daemon.aclose()

    async def lose(self, name: str) -> None:
        """End a node with everything on it, its disk included."""
        for actor, node_id in self.cluster.actors.values():
            if node_id == name:
                actor.die()
        await self.daemons.pop(name).aclose()
        shutil.rmtree(self.cluster.roots.pop(name))

    async def lose_head(self, *, directory: bool) -> None:
        """Lose the head with its disk, and put another in its place.

        Args: `directory` says whether the replicas of the directory are lost as well.
        """
        await self.upkeep.close()
        await self.lose("a")
        if directory:
            shutil.rmtree(self.folder / "far" / NAMESPACE / "directory")
        self.cluster.roots["a"] = self.folder / "a"

    async def resolve(self, name: str, failed: Address | None) -> Address:
        return await self.router.resolve(name, None if failed is None else failed.epoch)

    async def find(self, name: str, failed: Address | None) -> Address:
        return await self.router.resolve(name, None if failed is None else failed.epoch, False)

    async def succession(self, name: str, epoch: int, wait_s: float) -> Any:
        return await self.router.succession(name, epoch, wait_s)

    def session(self, name: str) -> Any:
        return ConversationHandle(name, self).session()

    async def stored(self, name: str) -> list[str]:
        return [m["id"] async for m in self.session(name).history()]

    def lines(self, name: str) -> list[str]:
        folder = self.folder / "far" / NAMESPACE / conversation_key(name)
        return sorted(p.name for p in folder.iterdir() if p.is_dir())
