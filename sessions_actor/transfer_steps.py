"""The steps of a migration, as the actors at its two ends run them; they cross by their names.

At the source a step works on the file that is being served, at the target on one that nobody has
opened yet. What one step leaves for the next is kept beside the file.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, Protocol

import apsw

from .storage import Storage
from .tables import Row
from .transfer import (
    Incoming,
    Manifest,
    Outgoing,
    Place,
    TableDigest,
    Window,
    digest_rows,
    digests,
    digests_of,
)


class StepSite(Protocol):
    """Where a step works: an open file, and what one step keeps for the next."""

    storage: Storage
    kept: dict[str, Any]


class Written(NamedTuple):
    """What one window brought."""

    bytes: int
    rows: int


# ------------------------------------------------------------------------------ at the source


async def size_step(site: StepSite) -> int:
    """Say how many bytes there are to copy."""
    return site.storage.used_bytes


async def describe_step(site: StepSite, track: bool) -> Manifest:
    """Begin a copy; changes are tracked from now on when the file is served meanwhile."""
    outgoing = site.kept["outgoing"] = Outgoing(site.storage)
    if track:
        assert outgoing.tracker.count == 0
    await site.storage.durable()
    return outgoing.manifest()


async def read_step(
    site: StepSite, manifest: Manifest, place: Place | None, max_bytes: int
) -> tuple[Window, Place | None]:
    """Read the next window; see `Outgoing.window`."""
    outgoing: Outgoing = site.kept["outgoing"]
    return await outgoing.window(manifest, place, max_bytes)


async def changes_step(site: StepSite, max_bytes: int) -> tuple[Window, int]:
    """Read what changed; returns it, and how many changed rows are left."""
    outgoing: Outgoing = site.kept["outgoing"]
    found = outgoing.changed_window(max_bytes)
    await site.storage.durable()
    return found


async def snapshot_step(site: StepSite) -> Window:
    """Read the rest of what changed, and begin to digest the file as it is at this moment."""
    outgoing: Outgoing = site.kept["outgoing"]
    window, seen = outgoing.snapshot()
    site.kept["digests"] = asyncio.create_task(asyncio.to_thread(_digest_and_close, seen))
    return window


def _digest_and_close(seen: apsw.Connection) -> dict[str, TableDigest]:
    try:
        return digests_of(seen)
    finally:
        seen.close()


async def snapshot_digest_step(site: StepSite) -> dict[str, TableDigest]:
    """Wait for the digests that `snapshot_step` began."""
    found: dict[str, TableDigest] = await site.kept["digests"]
    return found


async def last_step(site: StepSite) -> tuple[Window, dict[str, list[Row]], str]:
    """When sealed: read the last changes.

    Returns: them, the keys of all rows that changed since the snapshot, and their digest.
    Raises: RuntimeError when tables or indexes were made meanwhile: they were not copied.
    """
    outgoing: Outgoing = site.kept["outgoing"]
    if outgoing.tracker.schema_changed:
        raise RuntimeError("its tables or indexes changed while it was copied: ask again")
    window, left = outgoing.changed_window(float("inf"))
    assert left == 0
    keys = outgoing.recent_keys()
    await site.storage.durable()
    return window + outgoing.sequences(), keys, digest_rows(site.storage.connection, keys)


async def digest_step(site: StepSite) -> dict[str, TableDigest]:
    """Digest every table."""
    return await digests(site.storage)


# ------------------------------------------------------------------------------ at the target


async def begin_step(site: StepSite, manifest: Manifest) -> None:
    """Make the tables."""
    incoming = site.kept["incoming"] = Incoming(site.storage)
    await incoming.begin(manifest)


async def write_step(site: StepSite, window: Window) -> Written:
    """Write one window; returns how much that was."""
    incoming: Incoming = site.kept["incoming"]
    size = await incoming.write(window)
    return Written(size, sum(len(rows) for kind, _, rows in window if kind != "gone"))


async def index_step(site: StepSite, manifest: Manifest) -> dict[str, TableDigest]:
    """Make indexes and views, and digest what arrived."""
    incoming: Incoming = site.kept["incoming"]
    await incoming.index(manifest)
    return await digests(site.storage)


async def finish_step(site: StepSite, manifest: Manifest, keys: dict[str, list[Row]]) -> str:
    """Make triggers; returns the digest of the rows of some keys."""
    incoming: Incoming = site.kept["incoming"]
    await incoming.finish(manifest)
    return digest_rows(site.storage.connection, keys)
