"""The copy at the heart of a migration: everything a source owns, into a target's file.

A small conversation is sealed, copied and compared. A large one is copied while it is served: its
windows first, then, in rounds, what changed meanwhile; at a moment when both ends hold the same,
all of it is compared while the source goes on serving; then come the seal, the last changes and a
comparison of these. So the time for which callers wait does not grow with the conversation. Where
writes wait for a replica, the target's first one is made before the seal as well.

Windows go from actor to actor: the router handles references and cursors, never the rows. A copy
that ends has been verified: row counts and content digests, table by table.

What it does not do: choose a target, take a lock, or change the directory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from sessions_actor import transfer_steps as steps
from sessions_actor.errors import MigrationFailedError
from sessions_actor.limits import MIB, WINDOW_BYTES_MAX
from sessions_actor.replica import Durability, ReplicaSpec
from sessions_actor.sessions import schema
from sessions_actor.transfer import Manifest, Place, TableDigest, Window

from .models import MigrationPhase
from .replication.chores import copy_ahead_step

# Up to here a copy under the seal is over before anyone notices.
SEALED_COPY_BYTES_MAX: Final = 2 * MIB
# Windows that are read while the source serves are small: callers wait for one.
LIVE_WINDOW_BYTES: Final = MIB // 2
# Windows on their way at once: one is read while another is written.
WINDOWS_IN_FLIGHT: Final = 3
# Rounds end when so few changed rows are left, or when a writer outruns them.
ROWS_LEFT_MAX: Final = 64
ROUNDS_MAX: Final = 200

assert LIVE_WINDOW_BYTES <= WINDOW_BYTES_MAX

Seal = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class End:
    """One side of a copy: an actor, and the epoch under which it holds the file.

    `replica` is where the file is to be copied before its conversation is served from it.
    """

    actor: Any
    name: str
    epoch: int
    file: str = ""
    replica: ReplicaSpec | None = None

    async def run(self, step: Any, *args: Any) -> Any:
        """Run one step there and wait for its result."""
        return await self.actor.transfer.remote(self.name, self.epoch, step, *args)

    async def replicate(self) -> None:
        """Copy what has arrived to the replica that writes will wait for, if they will.

        Raises: ReplicaUnavailableError.
        """
        if self.replica is not None and self.replica.durability is Durability.REPLICATED:
            await self.run(copy_ahead_step, self.file, self.replica)


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied and found equal at both ends.

    Of a conversation that was written to meanwhile, these are the tables at the moment of the
    comparison; what changed later was compared row by row.
    """

    tables: dict[str, TableDigest]
    messages: int
    bytes: int


@dataclass(slots=True)
class Gauge:
    """How far a migration has come: who migrates writes it, anyone reads it.

    `bytes` and `rows` count what arrived, changes that followed included; `bytes_total` is the
    source's size when the copy began, known from then on.
    """

    phase: MigrationPhase = "waiting"
    bytes: int = 0
    bytes_total: int | None = None
    rows: int = 0
    tell: Callable[[str], object] = lambda phase: None
    """Is told of each phase that begins, and of the seal."""

    def enter(self, phase: MigrationPhase) -> None:
        """Begin a phase."""
        self.phase = phase
        self.tell(phase)


async def copy(name: str, source: End, target: End, seal: Seal, gauge: Gauge) -> Copied:
    """Copy a conversation and verify it; when this returns, the source is sealed.

    Args: `seal` lets the source's callers wait; `gauge` is kept up to date.
    Raises: MigrationFailedError naming the phase when the copies differ; what a step raised, Ray's
        errors when an actor died. The source's file is untouched by all of it.
    Cost: reads and writes everything once, and reads it once more on both sides to compare.
    """
    gauge.bytes_total = await source.run(steps.size_step)
    live = gauge.bytes_total > SEALED_COPY_BYTES_MAX
    gauge.enter("copying")
    if not live:
        await seal()
    manifest = await source.run(steps.describe_step, live)
    await target.run(steps.begin_step, manifest)
    window_bytes = LIVE_WINDOW_BYTES if live else WINDOW_BYTES_MAX
    await _copy_rows(source, target, manifest, window_bytes, gauge)
    size = gauge.bytes
    if live:
        gauge.enter("catching up")
        await _catch_up(source, target, gauge)
        await _write(target, await source.run(steps.snapshot_step), gauge)
    gauge.enter("verifying")
    tables = await _compare(name, source, target, manifest, live)
    keys, sent = {}, None
    if live:
        await target.replicate()
        await _catch_up(source, target, gauge)
        gauge.enter("sealed")
        await seal()
        window, keys, sent = await source.run(steps.last_step)
        await _write(target, window, gauge)
    arrived = await target.run(steps.finish_step, manifest, keys)
    if live and sent != arrived:
        raise MigrationFailedError(name, "verify", "rows that changed meanwhile differ")
    messages = tables[schema.MESSAGES].rows if schema.MESSAGES in tables else 0
    return Copied(tables, messages, size)


async def _compare(
    name: str, source: End, target: End, manifest: Manifest, live: bool
) -> dict[str, TableDigest]:
    """Compare every table, at a moment when both ends hold the same."""
    digest = steps.snapshot_digest_step if live else steps.digest_step
    sent, arrived = await asyncio.gather(source.run(digest), target.run(steps.index_step, manifest))
    for table in sorted({*sent, *arrived}):
        if sent.get(table) != arrived.get(table):
            reason = f"table {table}: {sent.get(table)} became {arrived.get(table)}"
            raise MigrationFailedError(name, "verify", reason)
    found: dict[str, TableDigest] = arrived
    return found


async def _catch_up(source: End, target: End, gauge: Gauge) -> None:
    """Send what changed until next to nothing is left."""
    for _ in range(ROUNDS_MAX):
        window, left = await source.run(steps.changes_step, LIVE_WINDOW_BYTES)
        if window:
            await _write(target, window, gauge)
        if left == 0 and sum(len(rows) for _, _, rows in window) <= ROWS_LEFT_MAX:
            return


async def _write(target: End, window: Window, gauge: Gauge) -> None:
    _count(gauge, await target.run(steps.write_step, window))


def _count(gauge: Gauge, written: steps.Written) -> None:
    gauge.bytes += written.bytes
    gauge.rows += written.rows


async def _copy_rows(
    source: End, target: End, manifest: Manifest, window_bytes: int, gauge: Gauge
) -> None:
    """Stream all windows, a few in flight."""
    writes: deque[Any] = deque()
    place: Place | None = None
    try:
        while True:
            window, place_ref = source.actor.transfer.options(num_returns=2).remote(
                source.name, source.epoch, steps.read_step, manifest, place, window_bytes
            )
            writes.append(
                target.actor.transfer.remote(target.name, target.epoch, steps.write_step, window)
            )
            place = await place_ref
            if place is None:
                break
            while len(writes) >= WINDOWS_IN_FLIGHT:
                _count(gauge, await writes.popleft())
        while writes:
            _count(gauge, await writes.popleft())
    finally:
        # After a failure: no write may still be under way when the target is thrown away.
        await asyncio.gather(*writes, return_exceptions=True)
