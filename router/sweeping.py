"""Removing files that no conversation needs any more.

An actor that is cut off or frozen may carry out an order late, and make the file of a migration
that was given up once more. So a file is removed as soon as it may be, and again after a while;
only then is its note struck off.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from .cluster import answer
from .directory import Directory, Waste
from .pool import Pool

SWEEP_TIMEOUT_S: Final = 10.0
# Files removed at a time.
SWEEP_MAX: Final = 100
# After so long nobody makes a file any more that was given up.
LATE_S: Final = 60.0


class Sweeping:
    """Removes what the directory notes as waste, by actors that mount its disk."""

    def __init__(self, directory: Directory, pool: Pool, now: Callable[[], float]) -> None:
        self._directory, self._pool, self._now = directory, pool, now
        self._removed: dict[Waste, float] = {}

    async def sweep(self, disk_id: str) -> None:
        """Remove files from a disk; those that could not be removed are left for the next time."""
        now = self._now()
        waste = [
            one
            for one in self._directory.waste(disk_id, SWEEP_MAX + len(self._removed))
            if now - self._removed.get(one, -LATE_S) >= LATE_S
        ][:SWEEP_MAX]
        slot = self._pool.slot_on_disk(disk_id)
        if not waste or slot is None:
            return
        asked = answer(slot.actor.remove_files.remote([one.file for one in waste]))
        try:
            gone = set(await asyncio.wait_for(asked, SWEEP_TIMEOUT_S))
        except TimeoutError:  # that actor is busy or frozen; the files lie well until later
            return
        for one in waste:
            if one.file in gone and one not in self._removed:
                self._removed[one] = now
                gone.remove(one.file)
        over = [one for one in waste if one.file in gone]
        for one in over:
            del self._removed[one]
        await self._directory.removed(over)
