"""Conversations whose disk is on no live node: brought back from their replicas, elsewhere.

Rules:
- Nothing is brought back while the old owner could still acknowledge: its node's lease has run out
  first. A disk that is missing without an owner may come back with its node, so that it is given
  as long.
- A conversation moves in the order restore, check, directory, activation. The directory's change
  compares the epoch and the disk it saw; until then the replica and the old file are untouched.
- The new file begins a line of its own (see `replication.paths`). The old file is waste: it is
  removed if its disk ever returns.
- Under `replicated`, everything acknowledged is in the line that is restored. A line that was
  complete once and is gone now, or a file that nobody copied yet, is an error, never an empty
  conversation. So is one that was not copied since replication was turned on: an older replica
  would lack what was acknowledged in between.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from sessions_actor.actor import MISSING_FILE
from sessions_actor.errors import StorageError

from . import reports
from .cluster import Slot, answer
from .directory import Entry, Owner, State, file_of
from .entries import LINE_STALE
from .replicated_directory import ReplicatedDirectory
from .replication.chores import Source, bring_back
from .replication.replicas import Replicas
from .replication.restore import RESTORE_TIMEOUT_S, Restored
from .store_keeping import StoreKeeping

if TYPE_CHECKING:
    from .router import Router

NEVER_COPIED: Final = (
    "its disk is on no node that lives, and it was not replicated yet: bring the disk back, or"
    " delete the conversation if the disk is lost for good"
)
NOT_COPIED_SINCE: Final = (
    "its disk is on no node that lives, and it was not replicated yet since replication was turned"
    " on: bring the disk back. What its replica holds from a time before that, if there is any,"
    " `sessions-actor restore` brings to another name; nothing later is left without the disk"
)
LOOK_S: Final = 0.1
WATCH_S: Final = 0.5


class FailOver:
    """Brings conversations back for a router."""

    def __init__(self, router: "Router", replicas: Replicas, now: Callable[[], float]) -> None:
        assert isinstance(router.directory, ReplicatedDirectory)
        self._router, self._now = router, now
        self.directory = router.directory
        self.replicas = replicas
        self.keeping = StoreKeeping(self.directory, replicas, router.pool, router.locks)
        self._missing: dict[str, float] = {}
        self._without_file: dict[str, int] = {}

    async def is_due(self, entry: Entry) -> bool:
        """Say whether a conversation's disk, or its file, is gone; waits until that is certain."""
        if self._without_file.get(entry.name) == entry.generation:
            return True
        if entry.disk_id in self._mounted():
            self._missing.pop(entry.disk_id, None)
            return False
        router = self._router
        await router.pool.refresh()
        since = self._missing.setdefault(entry.disk_id, self._now())
        patience_s = router.settings.lease_ttl_s
        while True:
            mounted = self._mounted()
            if entry.disk_id in mounted:
                self._missing.pop(entry.disk_id, None)
                return False
            # A node that has not told its disk yet may be the one, started again.
            waited_s = self._now() - since
            certain = entry.node_id is not None and None not in mounted
            if waited_s >= patience_s or certain:
                return bool(mounted)
            await asyncio.sleep(min(LOOK_S, patience_s))
            await router.pool.refresh()

    def is_missing(self, entry: Entry, error: Exception) -> bool:
        """Say whether an activation failed because the file is not where its disk is.

        Then somebody removed it, or put another disk in its place: it is brought back.
        """
        missing = isinstance(error, StorageError) and error.reason == MISSING_FILE
        if missing:
            self._without_file[entry.name] = entry.generation
        return missing

    async def takes(self, entry: Entry) -> bool:
        """Say whether a conversation must come back from its replica: its disk is gone for good.

        Nobody can acknowledge anything for it any more when this says so.
        """
        if entry.state is State.DELETING:
            return False
        # While a lease runs out, the processes start that serve what is brought back then.
        with self._router.pool.expecting(0 if entry.disk_id in self._mounted() else 1):
            if not await self.is_due(entry):
                return False
            await self.release(entry)
            return True

    async def unless_gone(self, disk_id: str, acquiring: Coroutine[Any, Any, Slot]) -> Slot | None:
        """Wait for an actor; None, and none is taken, when no live node mounts the disk."""
        asked = asyncio.ensure_future(acquiring)
        watching = asyncio.ensure_future(self._until_gone(disk_id))
        try:
            await asyncio.wait({asked, watching}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            asked.cancel()
            asked.add_done_callback(self._give_back)
            raise
        finally:
            watching.cancel()
        if asked.done():
            return asked.result()
        asked.cancel()
        asked.add_done_callback(self._give_back)
        return None

    def _give_back(self, asked: asyncio.Future[Slot]) -> None:
        if not asked.cancelled() and asked.exception() is None:
            self._router.pool.release(asked.result())

    async def _until_gone(self, disk_id: str) -> None:
        while disk_id in self._mounted():
            await asyncio.sleep(WATCH_S)
            await self._router.pool.refresh()

    def _mounted(self) -> set[str | None]:
        return {view.disk_id for view in self._router.pool.views()}

    async def release(self, entry: Entry) -> None:
        """Make sure that nobody acknowledges anything for a conversation any more."""
        router = self._router
        if entry.node_id is not None:
            await router.take_over.outlast(entry.node_id)
        if entry.state is not State.HIBERNATED:
            await router.take_over.settle(entry)

    async def claim(self, entry: Entry, slot: Slot) -> Entry | None:
        """Restore a conversation to an actor's disk and give it to that actor.

        Returns: the row as it stands then; None when another epoch came in between.
        Raises: StorageError, StorageCorruptError when its replica cannot be used.
        """
        if entry.line == LINE_STALE:
            raise StorageError(entry.file, NOT_COPIED_SINCE)
        async with self.directory.making(entry.name, slot.disk_id) as generation:
            found = await self._bring_back(entry, slot, generation)
            epoch = entry.epoch
            if found is not None and found.epoch > epoch:
                # The directory itself was brought back as it was earlier: follow the file.
                epoch = found.epoch
                await self.directory.raise_epoch(entry.name, entry.epoch, epoch)
            claimed = await self.directory.fail_over(
                entry.name,
                epoch,
                entry.disk_id,
                Owner(slot.node_id, slot.actor_name, slot.disk_id),
                generation=generation,
                has_file=found is not None,
            )
        if claimed is not None:
            self._without_file.pop(entry.name, None)
            position = None if found is None else found.position
            reports.failed_over(entry.name, claimed.epoch, slot.node_id, entry.disk_id, position)
        return claimed

    async def _bring_back(self, entry: Entry, slot: Slot, generation: int) -> Restored | None:
        """Restore a conversation to an actor's disk; None for one that never had a file."""
        restoring = slot.actor.chore.remote(
            bring_back, file_of(entry.name, generation), entry.name, None, self._sources(entry)
        )
        found: Restored | None = await asyncio.wait_for(answer(restoring), RESTORE_TIMEOUT_S)
        if found is None and entry.line > 0:
            url = self.replicas.url(entry.name, entry.line)
            raise StorageError(url, "the replica is gone, and so is the disk that it was made of")
        if found is None and entry.has_file:
            raise StorageError(entry.file, NEVER_COPIED)
        return found

    def _sources(self, entry: Entry) -> list[Source]:
        """The lines to look at in turn: the file's own, and the last that was complete."""
        sources = []
        for generation in dict.fromkeys((entry.generation, entry.line)):
            if generation > 0:
                position = entry.position if generation == entry.line else 0
                url = self.replicas.url(entry.name, generation)
                sources.append(Source(url, position, self.replicas.mark))
        return sources

    async def completed(self, entry: Entry, position: int) -> None:
        """Note that a file has an owner, and up to where its line is complete; 0: not known."""
        if entry.line != entry.generation:
            if position > 0:
                await self.directory.note_line(entry.name, entry.epoch, position)
            elif not self.directory.replicas_follow:
                # Its first copy takes long: `keeping` asks how far it has come.
                await self.directory.note_copying(entry.name, entry.epoch)
        self.keeping.start()
