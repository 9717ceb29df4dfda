"""What people ask of a deployment: look, list, set quotas, hibernate, delete."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Final

from sessions_actor.actor import Description
from sessions_actor.disk import file_bytes
from sessions_actor.names import check_name
from sessions_actor.records import iso_from_ms
from sessions_actor.retry import is_lost

from . import reports
from .cluster import answer
from .directory import Entry, State
from .models import ConversationInfo, NodeInfo
from .router import Router, Serving
from .settings import QUOTA_BYTES_MIN
from .through import made, through

# How long calls that take long may go on before a conversation that must hibernate cuts them short.
PATIENCE_S: Final = 5.0
DISCARD_TIMEOUT_S: Final = 30.0
# Owners asked about themselves at once.
ACTIVE_MAX: Final = 2000
PAGE_ROWS: Final = 1000


class Administration:
    """A deployment's facts and chores over a router."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def info(self, name: str) -> ConversationInfo:
        """Return what is known of a conversation, without activating it.

        Raises: ConversationNotFoundError.
        """
        router = self._router
        entry = router.entry(name)
        serving = router.serving(name)
        found = None if serving is None else await self._describe(serving)
        await router.directory.durable()
        if serving is None or found is None:
            return _info(router, entry, self._size(entry))
        return _info(router, entry, found.file_bytes, serving, found)

    async def _describe(self, serving: Serving) -> Description | None:
        """Ask an owner about itself; None when it does not answer."""
        limit = self._router.settings.lease_ttl_s
        try:
            return await self._router.cluster.describe(serving.slot.actor, limit)
        except Exception as error:
            if not is_lost(error) and not isinstance(error, TimeoutError):
                raise
            return None

    def _size(self, entry: Entry) -> int:
        """Return a sleeping file's size: looked up where its disk is here, else as last known."""
        if entry.disk_id != self._router.disk_id:
            return entry.file_bytes
        return file_bytes(self._router.root, entry.file) or 0

    async def page(self, prefix: str, after: str | None, limit: int) -> list[str]:
        """List names in the order of their UTF-8 bytes."""
        names = self._router.directory.page(prefix, after, limit)
        await self._router.directory.durable()
        return names

    async def active(self, limit: int) -> list[ConversationInfo]:
        """Return what is known of active conversations, the ones used last first.

        An owner that does not answer within a lease is told of without its place, and comes
        first. Cost: a call to each owner, at most `ACTIVE_MAX`.
        """
        router = self._router
        servings = sorted(router.servings(), key=lambda one: one.used_at)[-ACTIVE_MAX:]
        described = await asyncio.gather(*map(self._describe, servings))
        found = []
        for serving, about in zip(servings, described, strict=True):
            entry = router.directory.get(serving.name)
            if entry is not None and about is not None:
                found.append(_info(router, entry, about.file_bytes, serving, about))
            elif entry is not None:
                found.append(replace(_info(router, entry, self._size(entry)), state="active"))
        found.sort(key=lambda info: info.last_active_at, reverse=True)
        found.sort(key=lambda info: info.pid is not None)
        return found[:limit]

    async def disks(self) -> dict[str, int]:
        """Return how many conversations lie on each disk. Cost: one walk over the directory."""
        found: Counter[str] = Counter()
        after: str | None = None
        while page := self._router.directory.sizes(after, PAGE_ROWS):
            found.update(disk for _, disk, _ in page)
            after = page[-1][0]
            await asyncio.sleep(0)  # others are served between two pages
        return dict(found)

    def replicas_behind(self) -> tuple[int, float]:
        """Return how many sleeping conversations' replicas lack something, and for how many s."""
        failover = self._router.failover
        return (0, 0.0) if failover is None else failover.directory.count_behind()

    async def nodes(self) -> list[NodeInfo]:
        """List the live nodes."""
        pool = self._router.pool
        await pool.refresh()
        return [
            NodeInfo(
                node_id=view.node_id,
                address=pool.nodes[view.node_id].address,
                state="draining" if view.draining else "alive",
                disk_id=view.disk_id,
                active=view.active,
                idle=view.idle,
                max_active=view.max_active,
            )
            for view in pool.views()
        ]

    async def hibernate(self, name: str) -> None:
        """Hibernate a conversation; one that hibernates already stays so.

        Raises: ConversationNotFoundError.
        """
        router = self._router
        async with router.locks.hold(name):
            router.entry(name)
            await self._put_to_sleep(name)

    async def set_quota(self, name: str, quota_bytes: int | None) -> None:
        """Give a conversation a quota of its own from now on; None takes it away.

        Raises: ValueError for less than 256 KiB; ConversationNotFoundError.
        """
        if quota_bytes is not None and quota_bytes < QUOTA_BYTES_MIN:
            raise ValueError(f"quota_bytes: at least {QUOTA_BYTES_MIN}, not {quota_bytes}")
        router = self._router
        async with router.locks.hold(name):
            router.entry(name)
            await router.directory.set_quota(name, quota_bytes)
            await self._put_to_sleep(name)

    async def _put_to_sleep(self, name: str) -> None:
        serving = self._router.serving(name)
        if serving is not None:
            await self._router.let_go_locked(serving, patience_s=PATIENCE_S)

    async def delete(self, name: str) -> bool:
        """Delete a conversation and its file; says whether there was one.

        Raises: ReplicaUnavailableError when it is deleted and the directory's replica does not
            know; asking again, which finds nothing, tells when it does.
        """
        check_name(name)
        router = self._router
        async with router.locks.hold(name):
            entry = router.directory.get(name)
            if entry is None:
                await router.directory.durable()
                return False
            await through(self._delete(entry))
        reports.deleted(name, entry.epoch)
        await router.sweeping.sweep(entry.disk_id)
        await router.directory.durable()
        return True

    async def _delete(self, entry: Entry) -> None:
        """Carry a deletion out, all of it. The caller holds the lock."""
        router, name = self._router, entry.name
        if entry.state is State.MIGRATING:
            await made(router.directory.abandon_migration(name, entry.epoch))
        if entry.state is not State.DELETING:
            await made(router.directory.begin_delete(name, entry.epoch))
        serving = router.serving(name)
        if serving is not None:
            router.forget(serving)
            await self._discard(serving)
        if entry.node_id is not None and entry.node_id not in router.pool.nodes:
            await router.take_over.outlast(entry.node_id)
        await made(router.directory.finish_delete(name, entry.epoch))
        if router.failover is not None:
            router.failover.keeping.start()

    async def _discard(self, serving: Serving) -> None:
        """Have an owner end without keeping anything."""
        try:
            asked = answer(serving.slot.actor.discard.remote(serving.name, serving.epoch))
            await asyncio.wait_for(asked, DISCARD_TIMEOUT_S)
        except Exception:  # dead or silent: recovering its actor shows which
            await self._router.recover(serving.slot)
        else:
            self._router.pool.release(serving.slot)


def _info(
    router: Router,
    entry: Entry,
    size: int,
    serving: Serving | None = None,
    found: Description | None = None,
) -> ConversationInfo:
    active_at = entry.last_active_at
    if found is not None:
        active_at = max(active_at, found.last_active_at)
    migrating = entry.state is State.MIGRATING
    return ConversationInfo(
        name=entry.name,
        state="migrating" if migrating else "hibernated" if serving is None else "active",
        epoch=entry.epoch,
        node_id=None if serving is None else serving.slot.node_id,
        actor_id=None if serving is None else serving.slot.actor_id,
        pid=None if serving is None else serving.slot.pid,
        file_bytes=size,
        quota_bytes=entry.quota_bytes or router.settings.quota_bytes,
        created_at=iso_from_ms(entry.created_at),
        last_active_at=iso_from_ms(active_at),
        replica_lag_s=None if found is None or router.failover is None else found.replica_lag_s,
    )
