"""Conversations as they were: restored beside the present one, or in its place.

Rules:
- A restore never writes over anything. Beside: it makes a conversation of another name. In place:
  what is there now is first restored under a name of its own, and kept.
- Which replica is read is decided by time: the newest line that reaches back to the moment.

What it does not do: change a replica. The restored conversation begins a line of its own, so that
the moments before a restore in place can still be restored.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

from sessions_actor.errors import ConversationNotFoundError, StorageError
from sessions_actor.names import check_name
from sessions_actor.records import iso_from_ms

from .cluster import Slot, answer
from .directory import Entry, Owner, State, file_of
from .failover import FailOver
from .models import RestorePoint, RestoreReport
from .placement import candidates
from .replication.chores import Source, bring_back, drop_file
from .replication.replicas import Line
from .replication.restore import RESTORE_TIMEOUT_S, NothingToRestoreError
from .router import Router
from .through import made

SEAL_PATIENCE_S: Final = 5.0


class Recovery:
    """Restores over a router."""

    def __init__(self, router: Router) -> None:
        self._router = router

    @property
    def _failover(self) -> FailOver:
        if self._router.failover is None:
            raise RuntimeError("there are no replicas: durability is 'local'; see README")
        return self._router.failover

    async def points(self, name: str) -> list[RestorePoint]:
        """List the moments that a conversation can be restored to, oldest first.

        Each is the second of a copy; a restore may name any moment from the first on.
        Raises: ConversationNotFoundError when it has no replica; StorageError; RuntimeError.
        """
        lines = await self._failover.replicas.lines(name, self._known(name))
        if not lines:
            raise ConversationNotFoundError(name)
        return [
            RestorePoint(_text(point), line.generation) for line in lines for point in line.points
        ]

    async def restore(
        self, name: str, at: datetime | None, to: str | None, *, in_place: bool
    ) -> RestoreReport:
        """Restore a conversation as it was; see `Client.restore`."""
        if at is not None and at.tzinfo is None:
            raise ValueError("at: a moment with a time zone, say datetime.now(UTC)")
        if in_place:
            return await self._in_place(name, at, to)
        return await self._beside(name, at, to or _named_after(name, at))

    async def _beside(self, name: str, at: datetime | None, to: str) -> RestoreReport:
        """Make another conversation of what a replica holds."""
        line = await self._line(name, at)
        async with self._router.locks.hold(to):
            self._is_free(to)
            return await self._make(name, line, at, to)

    def _is_free(self, to: str) -> None:
        check_name(to)
        if self._router.directory.get(to) is not None:
            raise ValueError(f"{to!r} exists already: restore to another name")

    async def _make(
        self, name: str, line: Line, at: datetime | None, to: str, position: int = 0
    ) -> RestoreReport:
        """Make a conversation of a line, one of a name that is free. The caller holds its lock."""
        router = self._router
        slot = await self._slot(to)
        try:
            claimed = await router.directory.create(
                to, Owner(slot.node_id, slot.actor_name, slot.disk_id)
            )
        except BaseException:
            router.pool.release(slot)
            raise
        assert claimed is not None
        try:
            await self._bring(slot, claimed.file, name, line, at, rename_to=to, position=position)
        except BaseException:
            await made(router.directory.forget_new(to, claimed.epoch))
            router.pool.release(slot)
            raise
        return await self._begin(claimed, slot, name, line, at, kept=None, is_new=True)

    async def _in_place(self, name: str, at: datetime | None, keep_as: str | None) -> RestoreReport:
        """Give a conversation a file as it was, after keeping what it holds now."""
        router = self._router
        line = await self._line(name, at)
        kept = keep_as or _named_after(name, datetime.now(UTC))
        if kept == name:
            raise ValueError(f"{name!r} cannot be kept under its own name: give another")
        async with self._both(name, kept):
            entry = router.entry(name)
            self._is_free(kept)
            serving = router.serving(name)
            if serving is not None:
                await router.let_go_locked(serving, patience_s=SEAL_PATIENCE_S)
                entry = router.entry(name)
            if entry.state is not State.HIBERNATED:
                raise StorageError(entry.file, "it cannot hibernate now; ask again")
            # Its replica is complete: hibernating brought it up to date.
            if entry.line != entry.generation:
                raise StorageError(entry.file, "its replica is not complete; ask again")
            present = await self._line(name, None)
            if present.generation != entry.generation:
                raise StorageError(entry.file, "its replica is not to be seen; ask again")
            await self._make(name, present, None, kept, entry.position)
            slot = await self._slot(name)
            try:
                generation = await self._failover.directory.reserve_generation()
                file = file_of(name, generation)
                await self._bring(slot, file, name, line, at)
                claimed = await self._failover.directory.fail_over(
                    name,
                    entry.epoch,
                    entry.disk_id,
                    Owner(slot.node_id, slot.actor_name, slot.disk_id),
                    generation=generation,
                    has_file=True,
                )
                if claimed is None:
                    await answer(slot.actor.chore.remote(drop_file, file))
                    raise StorageError(file, "somebody woke it meanwhile; ask again")
            except BaseException:
                router.pool.release(slot)
                raise
            return await self._begin(claimed, slot, name, line, at, kept=kept, is_new=False)

    # ------------------------------------------------------------------------------ within

    @contextlib.asynccontextmanager
    async def _both(self, *names: str) -> AsyncIterator[None]:
        """Hold several names' locks, always in the same order."""
        async with contextlib.AsyncExitStack() as held:
            for name in sorted(names):
                await held.enter_async_context(self._router.locks.hold(name))
            yield

    async def _line(self, name: str, at: datetime | None) -> Line:
        check_name(name)
        entry = self._router.directory.get(name)
        newest = None if entry is None else entry.generation
        return await self._failover.replicas.line_at(
            name, at, known=self._known(name), newest=newest
        )

    def _known(self, name: str) -> tuple[int, ...]:
        directory = self._router.directory
        entry, due = directory.get(name), directory.records.generations(name)
        own = () if entry is None else (entry.generation, entry.line)
        return tuple({one for one in own if one > 0}.union(due))

    async def _slot(self, name: str) -> Slot:
        router = self._router
        return await router.pool.acquire(
            name, lambda nodes: candidates(nodes, None), router.settings.capacity_wait_s
        )

    async def _bring(
        self,
        slot: Slot,
        file: str,
        name: str,
        line: Line,
        at: datetime | None,
        *,
        rename_to: str | None = None,
        position: int = 0,
    ) -> None:
        source = Source(line.url, position, self._failover.replicas.mark)
        bringing = slot.actor.chore.remote(bring_back, file, name, None, [source], at, rename_to)
        if await asyncio.wait_for(answer(bringing), RESTORE_TIMEOUT_S) is None:
            raise NothingToRestoreError(line.url, "nothing is left of that moment")

    async def _begin(
        self,
        claimed: Entry,
        slot: Slot,
        source: str,
        line: Line,
        at: datetime | None,
        *,
        kept: str | None,
        is_new: bool,
    ) -> RestoreReport:
        serving = await self._router.start(claimed, slot, is_new=is_new)
        if serving is None:
            raise StorageError(claimed.file, "it was restored but did not start; ask again")
        return RestoreReport(
            name=claimed.name,
            source=source,
            at=None if at is None else _text(at),
            generation=line.generation,
            kept_as=kept,
            node_id=slot.node_id,
        )


def _text(moment: datetime) -> str:
    return iso_from_ms(int(moment.timestamp() * 1000))


def _named_after(name: str, at: datetime | None) -> str:
    moment = datetime.now(UTC) if at is None else at
    return f"{name} @ {_text(moment)}"
