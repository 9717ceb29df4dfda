"""The client: a deployment as Python sees it.

`connect()` joins the running cluster or starts a local one, makes sure that a router serves it,
and gives handles by name. A client that started its own cluster hibernates everything and ends it
when it is left.
"""

import asyncio
import contextlib
import uuid
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

import ray

from sessions_actor.handle import ConversationHandle
from sessions_actor.names import check_name

from .bootstrap import join_or_start
from .cluster import answer
from .merging import merge_active, merge_job, merge_jobs, merge_nodes, merge_reports, merged_names
from .models import (
    BackupReport,
    ConversationInfo,
    JobInfo,
    JobReport,
    MigrationProgress,
    MigrationReport,
    NodeInfo,
    RestorePoint,
    RestoreReport,
)
from .replication.backup import back_up, compare
from .resolver import RouterResolver
from .service import router_handle
from .settings import Settings
from .shards import shard_of
from .through import through

PAGE_NAMES: Final = 500
# Handles remembered with the owners they found.
HANDLES_KEPT: Final = 4096
SHUT_DOWN_TIMEOUT_S: Final = 20.0
PROGRESS_S: Final = 0.2
GIVE_UP_TIMEOUT_S: Final = 10.0


# `list` is a method's name here.
Lines = list[str]
Nodes = list[NodeInfo]
Infos = list[ConversationInfo]
Jobs = list[JobInfo]
Points = list[RestorePoint]


class NameList(AsyncIterator[str]):
    """Names in order, page by page: iterate over it, or await it for a list."""

    def __init__(self, names: AsyncIterator[str]) -> None:
        self._names = names

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        return await anext(self._names)

    def __await__(self) -> Generator[Any, None, list[str]]:
        return self._all().__await__()

    async def _all(self) -> list[str]:
        return [name async for name in self._names]


class Client:
    """A deployment. Made by `connect()`; enter it with `async with`."""

    def __init__(self, address: str | None, namespace: str, settings: Settings) -> None:
        self._address, self._namespace, self._asked = address, namespace, settings
        self._settings = settings
        self._owns_cluster = False
        self._resolver = RouterResolver(namespace, settings.call_timeout_s)
        self._handles: OrderedDict[str, ConversationHandle] = OrderedDict()

    # -------------------------------------------------------------------- coming and going

    @property
    def owns_cluster(self) -> bool:
        """Whether no cluster ran: this client started a private one, and ends it as it leaves."""
        return self._owns_cluster

    async def __aenter__(self) -> Self:
        self.join()
        try:
            await self.open()
        except BaseException:
            if self._owns_cluster:
                ray.shutdown()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
        self.leave()

    def join(self) -> None:
        """Bring this process into the cluster; blocks for as long as Ray takes."""
        self._owns_cluster = join_or_start(self._address, self._namespace, self._asked)

    async def open(self) -> None:
        """Make sure that a router serves the deployment.

        Raises: StorageError when its storage root cannot be used; ValueError when settings that
            were given explicitly are not those it runs with.
        """
        router = router_handle(self._namespace, self._asked)
        running = Settings.model_validate_json(await answer(router.settings.remote()))
        different = self._asked.conflicts(running)
        if different:
            told = "; ".join(
                f"{field} is {runs!r}, not {asked!r}" for field, (asked, runs) in different.items()
            )
            raise ValueError(
                f"this deployment runs with other settings ({told}): leave them out, or use"
                " another namespace"
            )
        client_side = self._asked.model_dump(include={"call_timeout_s", "log_to_driver"})
        self._settings = running.model_copy(update=client_side)
        self._resolver.bounds = running.bounds
        others = [
            router_handle(self._namespace, running, index)
            for index in range(1, running.router_shards)
        ]
        await asyncio.gather(*(answer(router.settings.remote()) for router in others))
        self._resolver.shards = running.router_shards

    async def close(self) -> None:
        """Hibernate what is active when the cluster is ours; otherwise it goes on serving."""
        if self._owns_cluster:
            with contextlib.suppress(Exception):  # what is active is durable all the same
                await asyncio.wait_for(self._ask_all("shut_down"), SHUT_DOWN_TIMEOUT_S)

    def leave(self) -> None:
        """End the cluster when it is ours."""
        self._handles.clear()
        if self._owns_cluster:
            self._owns_cluster = False
            ray.shutdown()

    @property
    def settings(self) -> Settings:
        """The settings in force: the deployment's, and this client's own timeouts."""
        return self._settings

    # ------------------------------------------------------------------------ conversations

    def get(self, name: str) -> ConversationHandle:
        """Return the handle of a conversation, which its first call creates. No I/O.

        Raises: ValueError unless the name is a string of 1 to 1,024 UTF-8 bytes.
        """
        handle = self._handles.get(name) if isinstance(name, str) else None
        if handle is None:
            handle = self._handles[name] = ConversationHandle(name, self._resolver)
            while len(self._handles) > HANDLES_KEPT:
                self._handles.popitem(last=False)
        else:
            self._handles.move_to_end(name)
        return handle

    def list(
        self, prefix: str = "", limit: int | None = None, *, after: str | None = None
    ) -> NameList:
        """List the conversations' names in the order of their UTF-8 bytes.

        Iterate over it (`async for`), or await it for all of them. Names made meanwhile appear if
        they come after what was read; none is skipped or repeated.

        Args: `after` begins behind a name, to go on where a list ended.
        """
        return NameList(self._names(prefix, limit, after))

    async def _names(self, prefix: str, limit: int | None, after: str | None) -> AsyncIterator[str]:
        async def page(index: int, last: str | None, count: int) -> Lines:
            found: Lines = await self._ask(index, "page", prefix, last, count)
            return found

        names = merged_names(page, self._resolver.shards, after, limit, PAGE_NAMES)
        async for name in names:
            yield name

    async def info(self, name: str) -> ConversationInfo:
        """Return what is known of a conversation; it stays asleep.

        Raises: ConversationNotFoundError.
        """
        found: ConversationInfo = await self._ask_of(name, "info", name)
        return found

    async def active(self, limit: int = 100) -> Infos:
        """List active conversations, the ones used last first; an owner that is silent comes first.

        Cost: a call to each active conversation, at most 2,000.
        """
        return merge_active(await self._ask_all("active", limit), limit)

    async def delete(self, name: str) -> bool:
        """Delete a conversation with its file; says whether there was one."""
        self._handles.pop(name, None)
        return bool(await self._ask_of(name, "delete", name))

    async def hibernate(self, name: str) -> None:
        """Let a conversation hibernate now; its next call wakes it.

        Raises: ConversationNotFoundError.
        """
        await self._ask_of(name, "hibernate", name)

    async def set_quota(self, name: str, quota_bytes: int | None) -> None:
        """Give a conversation a quota of its own from now on; None takes it away.

        Raises: ConversationNotFoundError; ValueError for less than 256 KiB.
        """
        await self._ask_of(name, "set_quota", name, quota_bytes)

    async def verify(self, name: str) -> Lines:
        """List what is wrong with a conversation: nothing when it is sound.

        Raises: ConversationNotFoundError.
        """
        await self.info(name)
        return await self.get(name).verify()

    # ------------------------------------------------------------------------------ replicas

    async def restore_points(self, name: str) -> Points:
        """List the moments that a conversation can be restored to, oldest first.

        Each is the second in which something was copied; a restore may name any moment from the
        first on. A deleted conversation has them until its grace is over.
        Raises: ConversationNotFoundError when it has no replica; StorageError; RuntimeError in a
            deployment without replicas.
        """
        found: Points = await self._ask_of(name, "restore_points", name)
        return found

    async def restore(
        self,
        name: str,
        *,
        at: datetime | None = None,
        to: str | None = None,
        in_place: bool = False,
    ) -> RestoreReport:
        """Bring back a conversation as it was at a moment, in a conversation beside it.

        Args:
            at: the moment, with its time zone; None: the newest that its replica holds.
            to: the name of the new conversation; None: the old one's with the moment. It must be
                free.
            in_place: give the conversation itself the content of that moment; what it holds now
                is kept under `to`.
        Raises: ConversationNotFoundError when it has no replica; NothingToRestoreError when that
            begins later; ValueError when the name is taken; StorageError; RuntimeError in a
            deployment without replicas.
        """
        report: RestoreReport = await self._ask_of(name, "restore", name, at, to, in_place)
        return report

    async def verify_replica(self, name: str) -> Lines:
        """Restore a conversation's replica elsewhere and compare every table; list what differs.

        Raises: ConversationNotFoundError; RuntimeError in a deployment without replicas;
            StorageError when the replica cannot be restored.
        Cost: reads the replica and the conversation once, where that is.
        """
        return await compare(self._resolver, name)

    async def back_up(
        self,
        folder: str | Path,
        names: Iterable[str] | None = None,
        *,
        progress: Callable[[int, str], object] | None = None,
    ) -> BackupReport:
        """Write a consistent copy of each conversation to a folder here, while all are served.

        A copy is the conversation's SQLite file as it was at one moment: `open_object` opens it.
        `backup.jsonl` beside the copies tells whose each is, with its size and SHA-256; a folder
        that holds an earlier backup gets the new copies in their place, each whole or not at all.

        Args:
            names: None: every conversation there is. What cannot be copied, or is not there, is
                in the report's `failed`; the others are copied all the same.
            progress: called with how many are done, and the name.
        Raises: StorageError when the folder cannot be written.
        """
        chosen = names if names is not None else await self.list()
        return await back_up(self._resolver, Path(folder), chosen, progress, listed=names is None)

    # ------------------------------------------------------------------------------- nodes

    async def migrate(
        self,
        name: str,
        node_id: str | None = None,
        *,
        progress: Callable[[MigrationProgress], object] | None = None,
    ) -> MigrationReport:
        """Move a conversation to another actor, verified, while it is read and written.

        Cancelling the caller cancels the migration, unless it has switched already; a process
        that dies leaves it to its end.

        Args:
            node_id: where to; else the best node, its own if there is no other.
            progress: is called from time to time.
        Raises: ConversationNotFoundError; ValueError for an unknown node; NoCapacityError;
            MigrationFailedError, and it goes on where it was.
        """
        ticket = uuid.uuid4().hex
        asked = asyncio.ensure_future(self._ask_of(name, "migrate", name, node_id, ticket))
        try:
            while progress is not None and not asked.done():
                step = await self._ask_of(name, "migration_progress", name)
                if step is not None:
                    progress(step)
                await asyncio.wait([asked], timeout=PROGRESS_S)
            await asyncio.wait([asked])
        except BaseException:
            await through(self._give_up(name, ticket, asked))
            raise
        report: MigrationReport = asked.result()
        return report

    async def _give_up(self, name: str, ticket: str, asked: "asyncio.Future[Any]") -> None:
        """Cancel a migration whose caller has gone, and wait until it has ended."""
        with contextlib.suppress(Exception):  # a router that is gone: it settles it when it starts
            told = self._ask_of(name, "cancel_migration", name, ticket)
            await asyncio.wait_for(told, GIVE_UP_TIMEOUT_S)
            await asyncio.wait([asked], timeout=GIVE_UP_TIMEOUT_S)
        asked.cancel()

    async def cancel_migration(self, name: str) -> bool:
        """Give up the migrations of a conversation, whoever asked for them; says if there was one.

        It goes on where it was, and who waits for the migration gets MigrationFailedError. One
        that has switched already comes to its end.
        """
        return bool(await self._ask_of(name, "cancel_migration", name, None))

    async def drain(
        self, node_id: str, *, progress: Callable[[JobInfo], object] | None = None
    ) -> JobReport:
        """Move every conversation off a node, which takes no new ones from then on.

        It is a job: it goes on if the caller leaves or the router restarts, and ends early only
        by `cancel_job()` or `undrain()`. Asking again joins it.

        Args: `progress` is called from time to time.
        Raises: ValueError for an unknown node; NoCapacityError when there is no other.
        """
        parts = await self._ask_all("start_drain", node_id, f"drain-{uuid.uuid4().hex[:8]}")
        return await self._follow(parts, progress)

    async def rebalance(self, *, progress: Callable[[JobInfo], object] | None = None) -> JobReport:
        """Even out bytes over the disks and active conversations over the nodes.

        Nothing moves while all are within a tenth of the average, or for less than 16 MiB; so a
        second run right after the first moves nothing. It is a job, as `drain()` is.

        Args: `progress` is called from time to time.
        """
        parts = await self._ask_all("start_rebalance", f"rebalance-{uuid.uuid4().hex[:8]}")
        return await self._follow(parts, progress)

    async def _follow(
        self, parts: Sequence[str], progress: Callable[[JobInfo], object] | None
    ) -> JobReport:
        """Wait for a job, telling how far it is.

        Args: `parts` are its ids, one for each router.
        """

        async def of_all(method: str) -> Any:
            asked = (self._ask(index, method, part) for index, part in enumerate(parts))
            return await asyncio.gather(*asked)

        report = asyncio.ensure_future(of_all("job_report"))
        try:
            while progress is not None and not report.done():
                progress(merge_job(await of_all("job_progress")))
                await asyncio.wait([report], timeout=PROGRESS_S)
            return merge_reports(await report)
        finally:
            report.cancel()

    async def jobs(self) -> Jobs:
        """List the jobs that run and the last ones that have ended, in the order they began."""
        return merge_jobs(await self._ask_all("jobs"))

    async def cancel_job(self, job_id: str) -> bool:
        """Give up a job; says whether it was running.

        What it has moved stays moved, what is on its way stays where it was, and a node that it
        was emptying takes conversations again.

        Raises: ValueError for an unknown job.
        """
        known = [
            (index, one)
            for index, jobs in enumerate(await self._ask_all("jobs"))
            for one in jobs
            if one.id == job_id
        ]
        if not known:
            raise ValueError(f"job: none is {job_id!r}, see jobs()")
        asked = (self._ask(index, "cancel_job", part.id) for index, part in known)
        cancelled = any(await asyncio.gather(*asked))
        (node_id,) = {part.node_id for _, part in known}
        if cancelled and node_id is not None:
            await self.undrain(node_id)  # also where the job's part had ended
        return cancelled

    async def undrain(self, node_id: str) -> None:
        """Let a node take conversations again; a drain under way is given up."""
        await self._ask_all("undrain", node_id)

    async def disks(self) -> dict[str, int]:
        """Return how many conversations lie on each disk; `nodes()` says who has which.

        Cost: one walk over the directory, in the router.
        """
        found: Counter[str] = Counter()
        for part in await self._ask_all("disks"):
            found.update(part)
        return dict(found)

    async def replicas_behind(self) -> tuple[int, float]:
        """Return how many sleeping conversations have a replica that lacks something of them.

        They are copied while they sleep, once their disk and the store are there.
        Returns: that, and for how many seconds the first has been so.
        """
        parts = await self._ask_all("replicas_behind")
        return sum(number for number, _ in parts), max(lag_s for _, lag_s in parts)

    async def nodes(self) -> Nodes:
        """List the live nodes."""
        return merge_nodes(await self._ask_all("nodes"))

    async def _ask(self, index: int, method: str, *args: Any) -> Any:
        """Ask one router."""
        return await self._resolver.ask(lambda router: getattr(router, method).remote(*args), index)

    async def _ask_of(self, name: str, method: str, *args: Any) -> Any:
        """Ask the router of a conversation."""
        check_name(name)
        return await self._ask(shard_of(name, self._resolver.shards), method, *args)

    async def _ask_all(self, method: str, *args: Any) -> Any:
        """Ask every router; returns the answers in their order."""
        asked = (self._ask(index, method, *args) for index in range(self._resolver.shards))
        return await asyncio.gather(*asked)


def connect(
    address: str | None = None,
    *,
    namespace: str = "sessions",
    settings: Settings | None = None,
) -> Client:
    """Return a client of the deployment in a namespace, to be entered with `async with`.

    Args:
        address: a Ray cluster's `host:port`; "auto" for a running one; "local" for a private one
            that ends with the client; None for a running one, else a private one.
        settings: those of the deployment if it starts here, and this client's timeouts.
    """
    return Client(address, namespace, settings or Settings())
