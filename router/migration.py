"""The copy at the heart of a migration: everything a sealed source owns, into a target's file.

The router seals the source before and switches the directory after; this is what lies between.
Windows go from actor to actor: the router handles references and cursors, never the rows. A copy
that ends has been verified: row counts and content digests, table by table.

What it does not do: choose a target, take a lock, or change the directory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from sessions_actor import transfer
from sessions_actor.errors import MigrationFailedError
from sessions_actor.limits import WINDOW_BYTES_MAX
from sessions_actor.sessions import schema
from sessions_actor.transfer import TableDigest

# Windows on their way at once: one is read while another is written.
WINDOWS_IN_FLIGHT: Final = 3


@dataclass(frozen=True, slots=True)
class End:
    """One side of a copy: an actor, and the epoch under which it holds the file."""

    actor: Any
    epoch: int

    async def run(self, step: Any, *args: Any) -> Any:
        """Run one step there and wait for its result."""
        return await self.actor.transfer.remote(self.epoch, step, *args)


@dataclass(frozen=True, slots=True)
class Copied:
    """What a verified copy holds."""

    tables: dict[str, TableDigest]
    messages: int
    bytes: int


async def copy(name: str, source: End, target: End) -> Copied:
    """Copy a sealed conversation and verify it.

    Raises: MigrationFailedError naming the phase when the copies differ; what a step raised, Ray's
        errors when an actor died. The source is untouched by all of it.
    Cost: reads and writes everything once, and reads it once more on both sides to compare.
    """
    manifest = await source.run(transfer.describe_step)
    await target.run(transfer.begin_step, manifest)
    size = await _copy_rows(source, target, manifest)
    sent, arrived = await asyncio.gather(
        source.run(transfer.digest_step), target.run(transfer.finish_step, manifest)
    )
    for table in sorted({*sent, *arrived}):
        if sent.get(table) != arrived.get(table):
            raise MigrationFailedError(
                name, "verify", f"table {table}: {sent.get(table)} became {arrived.get(table)}"
            )
    messages = arrived[schema.MESSAGES].rows if schema.MESSAGES in arrived else 0
    return Copied(arrived, messages, size)


async def _copy_rows(source: End, target: End, manifest: transfer.Manifest) -> int:
    """Stream all windows, a few in flight; returns the bytes that arrived."""
    writes: deque[Any] = deque()
    size = 0
    place: transfer.Place | None = None
    try:
        while True:
            window, place_ref = source.actor.transfer.options(num_returns=2).remote(
                source.epoch, transfer.read_step, manifest, place, WINDOW_BYTES_MAX
            )
            writes.append(target.actor.transfer.remote(target.epoch, transfer.write_step, window))
            place = await place_ref
            if place is None:
                break
            while len(writes) >= WINDOWS_IN_FLIGHT:
                size += await writes.popleft()
        while writes:
            size += await writes.popleft()
    finally:
        # After a failure: no write may still be under way when the target is thrown away.
        await asyncio.gather(*writes, return_exceptions=True)
    return size
