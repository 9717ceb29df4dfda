"""What the store is told, and rid of, behind the calls.

Each round writes the records that are due and removes what no file needs any more; beside it
replicas of sleeping files are brought up to date. Nobody waits for a round; one that fails is
followed by the next, until the directory has nothing left to do.
"""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Final

from sessions_actor.replica import FIRST_COPY_TIMEOUT_S, forget_file

from . import reports
from .cluster import Slot, answer
from .directory import Entry, State
from .locks import NameLocks
from .pool import Pool
from .replicated_directory import ReplicatedDirectory
from .replication.chores import COPY_TIMEOUT_S, complete_step, copy_asleep
from .replication.replicas import Record, Replicas

CLOSE_PATIENCE_S: Final = 5.0
# When a replica that could not be removed is tried again.
RETRY_MS: Final = 600_000
# Sleeping files that are copied at a time.
COPIES_MAX: Final = 4


class StoreKeeping:
    """Brings the store to what the directory says of it."""

    def __init__(
        self, directory: ReplicatedDirectory, replicas: Replicas, pool: Pool, locks: NameLocks
    ) -> None:
        self._directory, self._replicas = directory, replicas
        self._pool, self._locks = pool, locks
        self._copying: asyncio.Task[None] | None = None
        self._copied: tuple[int, str] | None = None
        self._turn = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None
        self._again = False

    def start(self) -> None:
        """Begin a round, or another after the one under way."""
        self._begin()
        if self._copying is None or self._copying.done():
            self._copying = asyncio.create_task(_quietly(self.copy_asleep()))

    async def close(self) -> None:
        """End with a last round; what that does not do is done by the router that starts next."""
        if self._copying is not None:
            self._copying.cancel()
            await asyncio.wait([self._copying])
        running = self._begin()
        await asyncio.wait([running], timeout=CLOSE_PATIENCE_S)
        running.cancel()
        await asyncio.wait([running])

    def _begin(self) -> asyncio.Task[None]:
        self._again = True
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._rounds())
        return self._running

    async def _rounds(self) -> None:
        while self._again:
            self._again = False
            await _quietly(self.write_records())
            await _quietly(self.remove_spent())

    async def write_records(self) -> None:
        """Write the records that are due.

        Raises: OSError, SessionsActorError when that is not possible now.
        """
        async with self._turn:  # two that write one record could do so in the wrong order
            after = None
            while page := await self._directory.records.page(after):
                notes = (self._replicas.note(Record(*due)) for due in page)
                results = await asyncio.gather(*notes, return_exceptions=True)
                written = [due for due, failed in zip(page, results, strict=True) if not failed]
                await self._directory.records.written(written)
                for failed in filter(None, results):
                    raise failed
                after = page[-1]

    async def remove_spent(self) -> None:
        """Remove replicas that have been kept long enough.

        One that cannot be removed is told of and waits, so that it keeps no other.
        Raises: OSError, StorageError when that is not possible now.
        """
        spent = self._directory.spent
        for one in spent.due() if self._replicas.base.listed else ():
            try:
                await self._replicas.remove(one.name, one.up_to)
            except Exception as error:
                reports.replica_kept(one.name, error)
                await spent.postponed(one, RETRY_MS)
                raise
            await spent.removed(one)

    async def copy_asleep(self) -> None:
        """Bring replicas up to date that lack something of a file which nobody has open.

        Their owners ended while the store was away, or nobody has called them since replication
        was turned on; those that were called then are asked how far they have come. A file whose
        disk is on no node that lives waits for it; when the store does not answer, the rest waits
        for the next round, which goes on behind those that failed.
        """
        while page := self._directory.behind(self._copied, COPIES_MAX):
            since, last = page[-1]
            self._copied = since, last.name
            work = (self._copy(entry) for _, entry in page)
            results = await asyncio.gather(*work, return_exceptions=True)
            failed = [one for one in results if isinstance(one, BaseException)]
            if len(failed) == len(page):
                raise failed[0]
        self._copied = None

    async def _copy(self, entry: Entry) -> None:
        if entry.state is State.ACTIVE:
            await self._prove(entry)
        elif entry.state is State.HIBERNATED:
            await self._copy_file(entry)

    async def _prove(self, entry: Entry) -> None:
        """Note that the replica of a file that is served holds what was written before it woke."""
        for slot in self._pool.slots:
            if slot.actor_name == entry.actor:
                asked = slot.actor.transfer.remote(entry.name, entry.epoch, complete_step)
                position = await asyncio.wait_for(answer(asked), 2 * COPY_TIMEOUT_S)
                await self._directory.note_line(entry.name, entry.epoch, position)

    async def complete(self, entry: Entry, slot: Slot) -> None:
        """Bring the replica of a sleeping file up to date, by one who holds its name's lock.

        Args: `slot` is an actor of a node that mounts its disk.
        Raises: ReplicaUnavailableError; TimeoutError.
        """
        position = await self._copied_by(slot, entry)
        await answer(slot.actor.chore.remote(forget_file, entry.file))
        await self._directory.caught_up(entry.name, entry.epoch, position)

    async def _copied_by(self, slot: Slot, entry: Entry) -> int:
        is_new = entry.line != entry.generation
        replica = self._replicas.spec(entry.name, entry.generation, entry.line)
        asked = answer(slot.actor.chore.remote(copy_asleep, entry.file, replica))
        limit_s = FIRST_COPY_TIMEOUT_S if is_new else COPY_TIMEOUT_S
        slot.chores += 1
        try:
            return await asyncio.wait_for(asked, limit_s + COPY_TIMEOUT_S)
        finally:
            slot.chores -= 1

    async def _copy_file(self, entry: Entry) -> None:
        slot = self._pool.slot_on_disk(entry.disk_id)
        if slot is None or self._locks.is_held(entry.name):
            return
        position = await self._copied_by(slot, entry)
        async with self._locks.hold(entry.name):
            now = self._directory.get(entry.name)
            if now is None or now.state is State.HIBERNATED or now.generation != entry.generation:
                await answer(slot.actor.chore.remote(forget_file, entry.file))
            if now is not None and now.epoch == entry.epoch:
                await self._directory.caught_up(entry.name, entry.epoch, position)


async def _quietly(work: Awaitable[None]) -> None:
    with contextlib.suppress(Exception):  # upkeep begins another every few seconds
        await work
