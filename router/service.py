"""The router as a Ray actor: named, detached, started again when it dies.

Its methods are the router's; everything that may fail waits until the first call, because an
actor whose construction fails cannot say why.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import ray

from sessions_actor.actor import check_writable
from sessions_actor.channel import Address, Succession
from sessions_actor.database_file import private
from sessions_actor.disk import root_here
from sessions_actor.errors import OutputGateBrokenError, SessionsActorError, StorageError
from sessions_actor.lease import lease_clock
from sessions_actor.observing import set_up

from . import reports
from .administration import Administration
from .agent import NodeFacts
from .cluster import RayCluster
from .directory import Directory
from .jobs import Jobs
from .leases import Grant, Leases
from .models import (
    ConversationInfo,
    JobInfo,
    JobReport,
    MigrationProgress,
    MigrationReport,
    NodeInfo,
    RestorePoint,
    RestoreReport,
)
from .observing import Watch
from .recovery import Recovery
from .relocation import Relocation
from .replicated_directory import ReplicatedDirectory
from .replication import home
from .replication.daemon import Daemon
from .replication.replicas import Replicas
from .router import Router
from .settings import Settings
from .shards import WHOLE, Shard
from .through import made
from .upkeep import Upkeep

AnyDirectory = TypeVar("AnyDirectory", bound=Directory)

DEPLOYMENT_FILE: Final = "deployment.json"
ROUTER_CALLS_MAX: Final = 10_000
# Leases are granted on a thread of its own: whatever keeps the router busy, they are renewed.
LEASES: Final = "leases"
# How long the directory of a router that died may stay locked while its process goes.
DIRECTORY_WAIT_S: Final = 10.0
DAEMON_WAIT_S: Final = 30.0
# A router whose directory broke ends after this: callers are told why first.
BROKEN_LINGER_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """The router's parts, started."""

    router: Router
    upkeep: Upkeep
    administration: Administration
    relocation: Relocation
    jobs: Jobs
    watch: Watch
    shard: Shard
    replication: asyncio.Task[None] | None = None
    """The replication daemon of the router's own disk."""

    @classmethod
    async def start(
        cls,
        settings: Settings,
        namespace: str,
        granting: Callable[[Router], None],
        shard: Shard = WHOLE,
    ) -> Self:
        """Open the directory and settle what an earlier router left.

        Args: `granting` is called as soon as leases may be granted, before all is settled.
        Raises: StorageError.
        """
        root = root_here(str(settings.storage_root))
        check_writable(root)
        replicas = Replicas.open(settings, namespace)
        replication: asyncio.Task[None] | None = None
        if replicas is None:
            directory = await _open_directory(root, partial(Directory, shard=shard))
            directory.leave_replica()
        else:
            directory, replication = await _open_replicated(root, replicas)
        upkeep: Upkeep | None = None
        jobs: Jobs | None = None
        try:
            cluster = RayCluster(
                namespace,
                str(settings.storage_root),
                settings.actor_cpus,
                shard.router_name,
                [one.router_name for one in shard.all],
                settings.observing,
                None if replicas is None else replicas.terms,
                shard.actor_prefix,
            )
            leases = Leases(settings.lease_ttl_s, lease_clock)
            router = Router(settings, root, directory, cluster, leases, replicas, shard)
            upkeep = Upkeep(router)
            node_id = ray.get_runtime_context().get_node_id()
            await upkeep.start(node_id, lambda: granting(router))
            relocation = Relocation(router)
            jobs = Jobs(router, relocation)
            await jobs.resume()
            upkeep.chores.append(jobs.heed)
            if shard.index == 0:
                _note_deployment(root, namespace)
            await made(directory.prove())  # a store that is away keeps nobody from reading
        except BaseException as error:
            if jobs is not None:
                await jobs.close()
            if upkeep is not None:
                await upkeep.abandon()
            with contextlib.suppress(OutputGateBrokenError):
                directory.close()
            await _end(replication)
            if isinstance(error, OutputGateBrokenError):
                reason = f"the router cannot write its directory ({error.reason}); make room there"
                raise StorageError(error.path, reason) from error
            raise
        watch = Watch(router, node_id)
        administration = Administration(router)
        return cls(router, upkeep, administration, relocation, jobs, watch, shard, replication)

    async def close(self) -> None:
        """Hibernate everything and close the directory."""
        self.watch.end()
        await self.jobs.close()
        await self.upkeep.close()
        await _end(self.replication)
        if self.shard.index == 0:
            with contextlib.suppress(OSError):
                (self.router.root / DEPLOYMENT_FILE).unlink()


class RouterActor:
    """Serves a deployment; made by `router_handle`."""

    def __init__(self, settings: str, namespace: str, index: int = 0) -> None:
        self._settings = Settings.model_validate_json(settings)
        self._shard = Shard(index, self._settings.router_shards)
        set_up(self._settings.observing, "router", node=ray.get_runtime_context().get_node_id())
        self._namespace = namespace
        self._deployment: Deployment | None = None
        self._granting: Router | None = None
        self._starting = asyncio.Lock()

    async def settings(self) -> str:
        """Start if need be; return the deployment's settings as JSON.

        Raises: StorageError when the storage root cannot be used, or another router uses it.
        """
        await self._started()
        return self._settings.model_dump_json()

    async def _started(self) -> "Deployment":
        if self._deployment is None:
            async with self._starting:
                if self._deployment is None:
                    try:
                        self._deployment = await Deployment.start(
                            self._settings, self._namespace, self._grant, self._shard
                        )
                    except BaseException:
                        self._granting = None
                        raise
                    self._deployment.router.directory.on_broken(self._directory_broke)
        return self._deployment

    def _directory_broke(self, error: SessionsActorError) -> None:
        """End the process: Ray starts it again, and what waits is asked of the next life.

        That one tells its callers as StorageError when it cannot write either, and goes on.
        """
        reports.directory_broken(error)
        asyncio.get_running_loop().call_later(BROKEN_LINGER_S, os._exit, 1)

    def _grant(self, router: Router) -> None:
        self._granting = router

    def renew(self, facts: NodeFacts) -> Grant | None:
        """Grant a node its lease; None while the router starts or does not know the node.

        Runs on a thread of its own, in the group LEASES.
        """
        router = self._granting
        return None if router is None else router.renew(facts)

    async def shut_down(self) -> None:
        """Hibernate everything and close the directory; the next call starts again."""
        async with self._starting:
            deployment, self._deployment = self._deployment, None
            self._granting = None
            if deployment is not None:
                await deployment.close()

    # ------------------------------------------------------------------- for the handles

    async def resolve(self, name: str, failed_epoch: int | None, create: bool = True) -> Address:
        """See `Router.resolve`."""
        return await (await self._started()).router.resolve(name, failed_epoch, create)

    async def succession(self, name: str, epoch: int, wait_s: float) -> Succession | None:
        """See `Router.succession`."""
        return await (await self._started()).router.succession(name, epoch, wait_s)

    # -------------------------------------------------------------------- for the client

    async def page(self, prefix: str, after: str | None, limit: int) -> list[str]:
        """See `Administration.page`."""
        return await (await self._started()).administration.page(prefix, after, limit)

    async def info(self, name: str) -> ConversationInfo:
        """See `Administration.info`."""
        return await (await self._started()).administration.info(name)

    async def active(self, limit: int) -> list[ConversationInfo]:
        """See `Administration.active`."""
        return await (await self._started()).administration.active(limit)

    async def disks(self) -> dict[str, int]:
        """See `Administration.disks`."""
        return await (await self._started()).administration.disks()

    async def replicas_behind(self) -> tuple[int, float]:
        """See `Administration.replicas_behind`."""
        return (await self._started()).administration.replicas_behind()

    async def delete(self, name: str) -> bool:
        """See `Administration.delete`."""
        return await (await self._started()).administration.delete(name)

    async def hibernate(self, name: str) -> None:
        """See `Administration.hibernate`."""
        await (await self._started()).administration.hibernate(name)

    async def set_quota(self, name: str, quota_bytes: int | None) -> None:
        """See `Administration.set_quota`."""
        await (await self._started()).administration.set_quota(name, quota_bytes)

    async def nodes(self) -> list[NodeInfo]:
        """See `Administration.nodes`."""
        return await (await self._started()).administration.nodes()

    async def migrate(self, name: str, node_id: str | None, ticket: str) -> MigrationReport:
        """See `Relocation.migrate`."""
        return await (await self._started()).relocation.migrate(name, node_id, ticket)

    async def migration_progress(self, name: str) -> MigrationProgress | None:
        """See `Relocation.progress`."""
        return (await self._started()).relocation.progress(name)

    async def cancel_migration(self, name: str, ticket: str | None) -> bool:
        """See `Relocation.cancel`."""
        return (await self._started()).relocation.cancel(name, ticket)

    async def start_drain(self, node_id: str, job_id: str) -> str:
        """See `Jobs.start_drain`."""
        return await (await self._started()).jobs.start_drain(node_id, job_id)

    async def start_rebalance(self, job_id: str) -> str:
        """See `Jobs.start_rebalance`."""
        return await (await self._started()).jobs.start_rebalance(job_id)

    async def jobs(self) -> list[JobInfo]:
        """See `Jobs.all`."""
        return await (await self._started()).jobs.all()

    async def job_progress(self, job_id: str) -> JobInfo:
        """See `Jobs.progress`."""
        return await (await self._started()).jobs.progress(job_id)

    async def job_report(self, job_id: str) -> JobReport:
        """See `Jobs.report`."""
        return await (await self._started()).jobs.report(job_id)

    async def cancel_job(self, job_id: str) -> bool:
        """See `Jobs.cancel`."""
        return await (await self._started()).jobs.cancel(job_id)

    async def restore_points(self, name: str) -> list[RestorePoint]:
        """See `Recovery.points`."""
        return await Recovery((await self._started()).router).points(name)

    async def restore(
        self, name: str, at: datetime | None, to: str | None, in_place: bool
    ) -> RestoreReport:
        """See `Recovery.restore`."""
        recovery = Recovery((await self._started()).router)
        return await recovery.restore(name, at, to, in_place=in_place)

    async def undrain(self, node_id: str) -> None:
        """See `Jobs.undrain`."""
        await (await self._started()).jobs.undrain(node_id)


def router_handle(namespace: str, settings: Settings, index: int = 0) -> Any:
    """Return the deployment's router, creating its actor when there is none.

    It runs on the head node: the directory lies on that node's disk.

    Args: `index` is that of the shard.
    """
    options: dict[str, Any] = {"concurrency_groups": {LEASES: 1}}
    head = {"node:__internal_head__": 0.001}
    actor = ray.remote(num_cpus=0, resources=head, **options)(RouterActor)
    return actor.options(
        name=Shard(index, settings.router_shards).router_name,
        namespace=namespace,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=ROUTER_CALLS_MAX,
    ).remote(settings.model_dump_json(), namespace, index)


async def _open_replicated(root: Path, replicas: Replicas) -> tuple[Directory, asyncio.Task[None]]:
    """Open the directory, brought back from its replica if need be, and have it copied.

    Returns: it, and what runs the replication daemon of the router's own disk.
    Raises: StorageError when replicas cannot be used.
    """
    await replicas.check()
    daemon = Daemon(root, replicas.terms)
    running = asyncio.create_task(daemon.run())
    directory: ReplicatedDirectory | None = None
    try:
        found = await home.prepare(root, replicas)
        directory = await _open_directory(root, ReplicatedDirectory)
        await daemon.ready(DAEMON_WAIT_S)
        await home.begin(root, directory, replicas, found)
    except BaseException:
        if directory is not None:
            directory.close()
        await _end(running)
        raise
    return directory, running


async def _open_directory(root: Path, kind: Callable[[Path], AnyDirectory]) -> AnyDirectory:
    """Open the directory, giving a router that died a moment to let go of it."""
    deadline = asyncio.get_running_loop().time() + DIRECTORY_WAIT_S
    while True:
        try:
            return kind(root)
        except StorageError as error:
            if "open already" not in error.reason:
                raise
            if asyncio.get_running_loop().time() >= deadline:
                reason = (
                    f"{error.reason}; it serves another deployment: join that one (see"
                    f" {DEPLOYMENT_FILE}) or set SESSIONS_ACTOR_STORAGE_ROOT to another folder"
                )
                raise StorageError(error.path, reason) from error
            await asyncio.sleep(0.1)


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


def _note_deployment(root: Path, namespace: str) -> None:
    """Leave word beside the data of where it is served."""
    note = {
        "address": ray.get_runtime_context().gcs_address,
        "namespace": namespace,
        "pid": os.getpid(),
    }
    draft = root / f"{DEPLOYMENT_FILE}.{os.getpid()}"
    with open(draft, "w", opener=private) as file:
        json.dump(note, file)
    draft.replace(root / DEPLOYMENT_FILE)
