"""Writers on conversations of several nodes, while a test does its worst; then the check."""

import asyncio
import contextlib
import itertools
import random
from typing import Any

from tests.cluster.conftest import until

from .alerts import Watch
from .writers import Ledger, Writer, compare

MOVES_AT_ONCE = 4

OUTAGES: list[str] = []
"""What the run's summary tells: for each test the longest wait of a writer."""


class Load:
    """Conversations of one deployment and the writers on each.

    Args: `pause_s` is the most seconds between two appends of a writer, some of several messages.
    """

    def __init__(
        self,
        client: Any,
        title: str,
        conversations: int,
        writers_each: int,
        pause_s: float = 0.0,
    ) -> None:
        self.client, self.title = client, title
        self.watch: Watch
        self.ledger = Ledger()
        self.names = [f"c{number}" for number in range(conversations)]
        self.writers = {
            name: [
                Writer(
                    client.get(name).session(),
                    f"{name}-{number}-",
                    self.ledger,
                    chance=random.Random(f"{name}-{number}") if pause_s else None,
                    pause_s=pause_s,
                )
                for number in range(writers_each)
            ]
            for name in self.names
        }

    async def spread(self, node_ids: list[str]) -> None:
        """Bring the conversations to nodes in turn, the last of them to the head."""
        await self.goes_on(1)
        places = [*node_ids, None]
        moves = zip(self.names, itertools.cycle(places), strict=False)
        room = asyncio.Semaphore(MOVES_AT_ONCE)

        async def move(name: str, node_id: str) -> None:
            async with room:
                await self.client.migrate(name, node_id)

        await asyncio.gather(*(move(name, place) for name, place in moves if place is not None))
        await self.goes_on(1)
        self.ledger.worst_s = 0.0

    def on(self, number: int) -> list[str]:
        """Return the conversations that were brought to the node of a number (2: the head)."""
        return self.names[number::3]

    async def goes_on(self, count: int, names: list[str] | None = None) -> None:
        """Wait until every writer had so many more messages acknowledged."""
        chosen = self.names if names is None else names
        await asyncio.gather(
            *(writer.came_to(count, 120) for name in chosen for writer in self.writers[name])
        )

    async def pids(self, names: list[str]) -> list[int]:
        """Return the processes that serve conversations now, waiting for those that wake."""

        async def awake() -> list[int] | None:
            found = [(await self.client.info(name)).pid for name in names]
            return None if None in found else found

        pids: list[int] = await until(awake, "every conversation has an actor", 60)
        return pids

    async def check(self) -> None:
        """End the writers; every acknowledged message is there, once, in its writer's order."""
        await self.goes_on(1)
        flat = [writer for some in self.writers.values() for writer in some]
        assert all(await asyncio.gather(*(writer.stop() for writer in flat)))
        for name, some in self.writers.items():
            handle = self.client.get(name)
            stored = [message["id"] async for message in handle.session().history()]
            assert compare(stored, some) == {}, name
            assert await handle.verify() == [], name
        OUTAGES.append(
            f"{self.title}: {self.ledger.worst_s:.1f} s ({self.ledger.acknowledged} acknowledged,"
            f" {sum(self.ledger.errors.values())} errors asked again)"
        )

    async def abandon(self) -> None:
        """Cancel what is left of the writers."""
        for some in self.writers.values():
            for writer in some:
                writer.task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await writer.task
