"""What the store is told, and rid of, behind the calls.

Each round writes the records that are due, then removes what no file needs any more. Nobody waits
for a round; one that fails is followed by the next, until the directory has nothing left to do.
"""

import asyncio
import contextlib
from typing import Final

from .replicated_directory import ReplicatedDirectory
from .replication.replicas import Record, Replicas

CLOSE_PATIENCE_S: Final = 5.0


class StoreKeeping:
    """Brings the store to what the directory says of it."""

    def __init__(self, directory: ReplicatedDirectory, replicas: Replicas) -> None:
        self._directory, self._replicas = directory, replicas
        self._turn = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None
        self._again = False

    def start(self) -> None:
        """Begin a round, or another after the one under way."""
        self._again = True
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._rounds())

    async def close(self) -> None:
        """End with a last round; what that does not do is done by the router that starts next."""
        self.start()
        assert self._running is not None
        await asyncio.wait([self._running], timeout=CLOSE_PATIENCE_S)
        self._running.cancel()
        await asyncio.wait([self._running])

    async def _rounds(self) -> None:
        while self._again:
            self._again = False
            with contextlib.suppress(Exception):  # upkeep begins a round every few seconds
                await self.write_records()
                await self.remove_spent()

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

        Raises: OSError, StorageError when that is not possible now.
        """
        spent = self._directory.spent
        for one in spent.due() if self._replicas.base.listed else ():
            await self._replicas.remove(one.name, one.up_to)
            await spent.removed(one)
