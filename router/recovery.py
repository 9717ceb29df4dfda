"""Conversations as they were: restored beside the present one, or in its place.

Rules:
- A restore never writes over anything. Beside: it makes a conversation of another name. In place:
  what is there now is first restored under a name of its own, and kept.
- A file is brought first and named by one statement then: a restore that is cut off anywhere
  leaves every conversation as it was, and what it brought is waste.
- Which replica is read is decided by time: the newest line that reaches back to the moment.

What it does not do: change a replica. The restored conversation begins a line of its own, so that
the moments before a restore in place can still be restored.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from sessions_actor.errors import ConversationNotFoundError, NothingToRestoreError, StorageError
from sessions_actor.names import check_name
from sessions_actor.records import iso_from_ms
from sessions_actor.retry import is_lost

from .cluster import Slot, answer
from .directory import Entry, Owner, State, file_of
from .failover import FailOver
from .models import RestorePoint, RestoreReport
from .placement import candidates
from .replicated_directory import ReplicatedDirectory
from .replication.chores import Source, bring_back
from .replication.replicas import Line
from .replication.restore import RESTORE_TIMEOUT_S
from .router import Router
from .through import made, through

SEAL_PATIENCE_S: Final = 5.0
# How many actors may be lost at one restore.
TRIES_MAX: Final = 4


class _File(NamedTuple):
    """A restored file that no row names yet: where it lies, and its number."""

    node_id: str
    disk_id: str
    generation: int


class Recovery:
    """Restores over a router."""

    def __init__(self, router: Router) -> None:
        self._router = router

    @property
    def _failover(self) -> FailOver:
        if self._router.failover is None:
            raise RuntimeError("there are no replicas: durability is 'local'; see README")
        return self._router.failover

    @property
    def _directory(self) -> ReplicatedDirectory:
        return self._failover.directory

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
        async with self._router.locks.hold(to), contextlib.AsyncExitStack() as held:
            self._is_free(to)
            found = await self._bring(held, name, line, at, to)
            await made(self._directory.place(to, found.disk_id, found.generation))
            node_id = await self._start(to)
        return _report(to, name, at, line, node_id)

    async def _in_place(self, name: str, at: datetime | None, keep_as: str | None) -> RestoreReport:
        """Give a conversation a file as it was, after keeping what it holds now."""
        line = await self._line(name, at)
        kept = keep_as or _named_after(name, datetime.now(UTC))
        if kept == name:
            raise ValueError(f"{name!r} cannot be kept under its own name: give another")
        async with self._both(name, kept), contextlib.AsyncExitStack() as held:
            self._router.entry(name)
            self._is_free(kept)
            entry = await self._asleep(name)
            present = await self._line(name, None)
            if present.generation != entry.generation:
                raise StorageError(entry.file, "its replica is not to be seen; ask again")
            now = await self._bring(held, name, present, None, kept, entry.position)
            then = await self._bring(held, name, line, at, name)
            await made(self._directory.place(kept, now.disk_id, now.generation))
            await made(
                self._directory.fail_over(
                    name,
                    entry.epoch,
                    entry.disk_id,
                    Owner(then.node_id, "", then.disk_id),
                    generation=then.generation,
                    has_file=True,
                    asleep=True,
                )
            )
            if self._router.entry(name).generation != then.generation:
                raise StorageError(entry.file, "somebody woke it meanwhile; ask again")
            node_id = await self._start(name)
        return _report(name, name, at, line, node_id, kept)

    async def _asleep(self, name: str) -> Entry:
        """Hibernate a conversation with a replica that is complete; the caller holds its lock."""
        router = self._router
        serving = router.serving(name)
        if serving is not None:
            await router.let_go_locked(serving, patience_s=SEAL_PATIENCE_S)
        entry = router.entry(name)
        if entry.state is not State.HIBERNATED:
            raise StorageError(entry.file, "it cannot hibernate now; ask again")
        if self._directory.lacks(name):
            # Its owner was killed, or the store was away: the file has what the replica lacks.
            if not any(view.disk_id == entry.disk_id for view in router.pool.views()):
                raise StorageError(
                    entry.file,
                    "its replica lacks the end, and its disk is on no node that lives: bring the"
                    " disk back, or restore to another name",
                )
            slot = await self._slot(name, entry.disk_id)
            try:
                await self._failover.keeping.complete(entry, slot)
            except BaseException as error:
                await through(router.give_back(slot, error))
                raise
            router.pool.release(slot)
            entry = router.entry(name)
        return entry

    # ------------------------------------------------------------------------------ within

    def _is_free(self, to: str) -> None:
        check_name(to)
        if self._directory.get(to) is not None:
            raise ValueError(f"{to!r} exists already: restore to another name")

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

    async def _slot(self, to: str, disk_id: str | None = None) -> Slot:
        router = self._router
        return await router.pool.acquire(
            to, lambda nodes: candidates(nodes, disk_id), router.settings.capacity_wait_s
        )

    async def _bring(
        self,
        held: contextlib.AsyncExitStack,
        name: str,
        line: Line,
        at: datetime | None,
        to: str,
        position: int = 0,
    ) -> _File:
        """Restore a line to a new file of a conversation, on any node.

        What no row is given until `held` is left is waste.
        """
        router = self._router
        source = Source(line.url, position, self._failover.replicas.mark)
        for left in reversed(range(TRIES_MAX)):
            slot = await self._slot(to)
            try:
                making = self._directory.making(to, slot.disk_id)
                generation = await held.enter_async_context(making)
                rename_to = None if to == name else to
                bringing = slot.actor.chore.remote(
                    bring_back, file_of(to, generation), name, None, [source], at, rename_to
                )
                found = await asyncio.wait_for(answer(bringing), RESTORE_TIMEOUT_S)
            except BaseException as error:
                await through(router.give_back(slot, error))
                if is_lost(error):
                    if left:
                        continue
                    raise StorageError(line.url, "its restores were cut off; ask again") from error
                raise
            router.pool.release(slot)
            if found is None:
                raise NothingToRestoreError(line.url, "nothing is left of that moment")
            return _File(slot.node_id, slot.disk_id, generation)
        raise AssertionError

    async def _start(self, name: str) -> str:
        """Have what was restored served, which replicates it as well; returns the node."""
        try:
            return (await self._router.activate(name)).slot.node_id
        except Exception as error:
            raise StorageError(
                self._router.entry(name).file,
                f"{name!r} is restored, but did not start yet ({error}): call it, do not restore it"
                " again",
            ) from error


def _report(
    name: str, source: str, at: datetime | None, line: Line, node_id: str, kept: str | None = None
) -> RestoreReport:
    text = None if at is None else _text(at)
    return RestoreReport(name, source, text, line.generation, kept, node_id)


def _text(moment: datetime) -> str:
    return iso_from_ms(int(moment.timestamp() * 1000))


def _named_after(name: str, at: datetime | None) -> str:
    moment = datetime.now(UTC) if at is None else at
    return f"{name} @ {_text(moment)}"
