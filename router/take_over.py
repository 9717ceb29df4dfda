"""Following an owner that the directory names and that nobody has seen end.

It may still be there: killed but not gone, frozen, or cut off with its node. So it is followed by
one on its machine, where the file's lock tells the two apart; elsewhere only once its node's lease
has run out and the term is ended, from when on it acknowledges nothing.
"""

import asyncio
from typing import Final

from . import reports
from .directory import Directory, Entry, State
from .leases import Leases
from .pool import Pool

# How often a router looks whether a node has told its machine.
MACHINE_LOOK_S: Final = 0.05


class TakeOver:
    """Brings the rows of owners that are gone, or cannot harm any more, to rest."""

    def __init__(self, directory: Directory, leases: Leases, pool: Pool) -> None:
        self._directory, self._leases, self._pool = directory, leases, pool

    async def outlast(self, node_id: str) -> None:
        """Return once nobody on a node can acknowledge anything that was bound there so far.

        Waits until the node's lease ran out, then ends its term. A node that lives renews nothing
        meanwhile: all that it serves is bound anew. Cost: up to `lease_ttl_s`.
        """
        with self._leases.withhold(node_id):
            term = None
            while term is None:
                await asyncio.sleep(self._leases.left_s(node_id))
                term = self._leases.end_term(node_id)
            await self._directory.note_term(node_id, term)
        reports.lease_lapsed(node_id, term)

    async def succeed(self, entry: Entry) -> str | None:
        """Prepare to follow an owner that the directory names and nobody has seen end.

        Returns: the machine whose file locks keep the two apart; None when nothing is left of it.
        """
        if entry.state is State.DELETING:
            await self._directory.finish_delete(entry.name, entry.epoch)
            return None
        if entry.state is State.MIGRATING:
            await self._directory.abandon_migration(entry.name, entry.epoch)
        if entry.node_id is None:
            return None
        await self._pool.refresh()
        while (machine_id := self._pool.machine(entry.node_id)) is None:
            # A router that has just started hears of a node's machine when the node renews.
            left_s = self._leases.left_s(entry.node_id)
            if left_s <= 0 or entry.node_id not in self._pool.nodes:
                break
            await asyncio.sleep(min(left_s, MACHINE_LOOK_S))
        if machine_id is not None and machine_id in map(self._pool.machine, self._pool.nodes):
            return machine_id
        await self.outlast(entry.node_id)
        await self.settle(entry)
        return None

    async def settle(self, entry: Entry) -> None:
        """Bring the row of a conversation that nobody serves to rest."""
        if entry.state is State.DELETING:
            await self._directory.finish_delete(entry.name, entry.epoch)
            return
        if entry.state is State.MIGRATING:
            await self._directory.abandon_migration(entry.name, entry.epoch)
        await self._directory.hibernate(
            entry.name, entry.epoch, file_bytes=None, last_active_at=None
        )
