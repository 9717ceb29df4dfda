"""What is done on the node that has a conversation's file; crosses to its actor by name.

Chores (`root` first) work on a node's disk for a conversation that nobody serves. Steps (`site`
first) run at the owner while it serves: a copy of the file as it is at one moment, and the
comparison of a replica with it.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import apsw

from sessions_actor.database_file import (
    ENGINE_PREFIX,
    FileLock,
    make_parent,
    private,
    remove_database,
)
from sessions_actor.errors import NothingToRestoreError, StorageCorruptError, StorageError
from sessions_actor.gate import META_TABLE
from sessions_actor.replica import Replica, ReplicaSpec, check_mark, forget_file, socket_path
from sessions_actor.storage import Storage
from sessions_actor.transfer import digests_of

from .restore import Restored, check_restored, restore
from .scratch import Scratch

# Pages that a copy takes over between two looks whether it was given up: 1 MiB.
COPY_PAGES: Final = 256
WINDOW_BYTES_MAX: Final = 4 * 1024 * 1024
# How often a comparison looks for a moment at which nothing is written.
QUIET_TRIES_MAX: Final = 50

# How long a file that nobody waits for may take to its replica: it may be copied whole.
COPY_TIMEOUT_S: Final = 60.0
# How long a share may take to say whether a folder of replicas is there.
MARK_TIMEOUT_S: Final = 10.0

# How long a copy stays whose reader says nothing.
COPY_KEPT_S: Final = 600.0


class Source(NamedTuple):
    """A replica to restore from, and the transaction that it must hold at least.

    `mark` is that of its folder; see `ReplicaSpec`.
    """

    url: str
    position: int
    mark: str = ""


# ------------------------------------------------------------------------------------- chores


async def bring_back(
    root: Path,
    file: str,
    name: str,
    epoch: int | None,
    sources: Sequence[Source],
    at: datetime | None = None,
    rename_to: str | None = None,
) -> Restored | None:
    """Restore a conversation's file from the first of several replicas that holds anything.

    What an attempt before this one left is removed first. The file is locked until it is whole:
    nobody opens or removes it meanwhile.

    Args:
        epoch: refuse a file that is ahead of this one; None: the caller compares.
        rename_to: the conversation that the file becomes, when it is another.
    Returns: None when no replica holds anything.
    Raises: StorageCorruptError for a replica that is not sound, not this conversation's or lacks
        something that was confirmed; StorageError; ReplicaUnavailableError where the folder of
        replicas is not mounted.
    """
    target = root / file
    for source in sources:
        await check_mark(source.mark, MARK_TIMEOUT_S)
    await forget_file(root, file)
    await asyncio.to_thread(remove_database, target)
    make_parent(str(target))
    lock = FileLock(str(target))
    lock.acquire()
    try:
        found = await _first_of(sources, target, at)
        if found is None:
            return None
        source, restored = found
        check_restored(restored, name, epoch)
        if at is None and restored.position < source.position:
            check = f"ends at transaction {restored.position}, {source.position} was confirmed"
            raise StorageCorruptError(source.url, f"the replica {check}")
        if rename_to is not None:
            _become(target, rename_to)
    except BaseException:
        lock.release()
        remove_database(target)
        raise
    finally:
        lock.release()
    return restored


async def _first_of(
    sources: Sequence[Source], target: Path, at: datetime | None
) -> tuple[Source, Restored] | None:
    for source in sources:
        with contextlib.suppress(NothingToRestoreError):
            return source, await restore(source.url, target, at=at)
    return None


def _become(target: Path, name: str) -> None:
    """Make a restored file another conversation's, which nobody has owned yet."""
    db = apsw.Connection(str(target))
    try:
        db.execute(f"UPDATE {META_TABLE} SET value = ? WHERE key = 'name'", (name,))
        db.execute(f"UPDATE {META_TABLE} SET value = 0 WHERE key = 'epoch'")
    finally:
        db.close()


async def copy_asleep(root: Path, file: str, replica: ReplicaSpec) -> int:
    """Bring the replica of a file that nobody has open up to date; `forget_file` lets go of it.

    Whoever opens the file meanwhile goes on with the daemon as this leaves it.
    Returns: the transaction up to which it is complete; 0 when the file is not there.
    Raises: ReplicaUnavailableError.
    """
    return await _copied(root, file, replica) if (root / file).exists() else 0


async def _copied(root: Path, file: str, replica: ReplicaSpec) -> int:
    timeout_s = max(replica.timeout_s, COPY_TIMEOUT_S)
    here = dataclasses.replace(replica, socket=socket_path(root), timeout_s=timeout_s)
    copy = Replica(str(root / file), here)
    try:
        await copy.sync()
    finally:
        copy.abandon()
    return copy.position


# -------------------------------------------------------------------------------------- steps


class ReplicatedSite(Protocol):
    """Where a step works: an open file, its replica, and what one step keeps for the next."""

    storage: Storage
    replica: Replica | None
    kept: dict[str, Any]


class Copied(NamedTuple):
    """A copy that is ready to be read: its key, its size and the SHA-256 of its bytes."""

    key: str
    bytes: int
    sha256: str


async def complete_step(site: ReplicatedSite) -> int:
    """Bring the replica up to date; returns the transaction up to which it is complete.

    Raises: RuntimeError when there is no replica; ReplicaUnavailableError.
    """
    if site.replica is None:
        raise RuntimeError("the conversation has no replica: durability is local")
    await site.storage.durable()
    await site.replica.sync()
    return site.replica.position


async def copy_ahead_step(site: ReplicatedSite, file: str, replica: ReplicaSpec) -> None:
    """Copy what a target has received to its replica, while its source still serves.

    From now on the log is the daemon's to read: the file's closing leaves it.

    Args: `file` is the path below the storage root.
    Raises: ReplicaUnavailableError.
    """
    root = Path(site.storage.path.removesuffix(file))
    site.storage.replicate(None)
    await site.storage.durable()
    await _copied(root, file, replica)


async def copy_step(site: ReplicatedSite) -> Copied:
    """Copy the file as it is now beside itself, while it is served; `read_copy_step` reads it.

    A copy that nobody reads from for COPY_KEPT_S is taken for given up and removed.

    Raises: StorageError when there is no room for it.
    Cost: the file's size on its disk until `end_copy_step`.
    """
    await site.storage.durable()
    try:
        scratch = Scratch(Path(site.storage.path), _size(site.storage))
    except OSError as error:
        raise StorageError(site.storage.path, f"cannot be copied: {error}") from error
    key = scratch.path.name
    site.kept[key] = scratch
    try:
        size, sha256 = await asyncio.to_thread(_copy, _seen_now(site.storage), scratch.path)
        if key not in site.kept:
            raise StorageError(site.storage.path, "was let go of meanwhile; copy it again")
    except BaseException as error:
        site.kept.pop(key, None)
        scratch.close()
        if isinstance(error, apsw.Error | OSError):
            raise StorageError(site.storage.path, f"cannot be copied: {error}") from error
        raise
    scratch.used_at = asyncio.get_running_loop().time()
    _expire(site.kept, key)
    return Copied(key, size, sha256)


def _expire(kept: dict[str, Any], key: str) -> None:
    """Remove a copy once nobody has read from it for long; holds nothing of the file it is of."""
    copy: Scratch | None = kept.get(key)
    if copy is None:
        return
    loop = asyncio.get_running_loop()
    left_s = copy.used_at + COPY_KEPT_S - loop.time()
    if left_s > 0:
        loop.call_later(left_s, _expire, kept, key)
    else:
        kept.pop(key).close()


async def read_copy_step(site: ReplicatedSite, key: str, offset: int, size: int) -> bytes:
    """Read some bytes of a copy.

    Raises: KeyError when it is not there any more.
    """
    copy: Scratch = site.kept[key]
    copy.used_at = asyncio.get_running_loop().time()

    def read() -> bytes:
        with open(copy.path, "rb") as file:
            file.seek(offset)
            return file.read(min(size, WINDOW_BYTES_MAX))

    return await asyncio.to_thread(read)


async def end_copy_step(site: ReplicatedSite, key: str) -> None:
    """Remove a copy."""
    copy: Scratch | None = site.kept.pop(key, None)
    if copy is not None:
        await asyncio.to_thread(copy.close)


async def compare_step(site: ReplicatedSite) -> list[str]:
    """Restore the replica elsewhere and compare it with the file; returns what differs.

    Raises: RuntimeError when there is no replica; StorageError; ReplicaUnavailableError.
    Cost: reads the replica and both files once.
    """
    replica, storage = site.replica, site.storage
    if replica is None:
        raise RuntimeError("the conversation has no replica: durability is local")
    seen, position = await _quiet_moment(storage, replica)
    ours = asyncio.create_task(asyncio.to_thread(_digest_and_close, seen))
    try:
        theirs = await _digest_replica(replica.url, position, storage)
    finally:
        expected = await ours
    return [
        f"table {name}: {expected.get(name)} here, {theirs.get(name)} in the replica"
        for name in sorted(expected.keys() | theirs.keys())
        if expected.get(name) != theirs.get(name)
    ]


async def _digest_replica(url: str, position: int, storage: Storage) -> dict[str, Any]:
    scratch = Scratch(Path(storage.path), _size(storage))
    try:
        await restore(url, scratch.path, up_to=position, thorough=True)
        return await asyncio.to_thread(_digest_file, scratch.path)
    finally:
        await asyncio.to_thread(scratch.close)


def _size(storage: Storage) -> int:
    """Return how large a copy of an open file becomes."""
    return int(storage.connection.pragma("page_count") * storage.connection.pragma("page_size"))


async def _quiet_moment(storage: Storage, replica: Replica) -> tuple[apsw.Connection, int]:
    """Find a transaction of the replica that is what a reader sees of the file."""
    for _ in range(QUIET_TRIES_MAX):
        await storage.durable()
        changes = storage.connection.total_changes()
        seen = _seen_now(storage)
        try:
            await replica.sync()
            if storage.connection.total_changes() == changes:
                return seen, replica.position
        except BaseException:
            seen.close()
            raise
        seen.close()
    raise StorageError(storage.path, "is written too often to be compared; try again")


def _seen_now(storage: Storage) -> apsw.Connection:
    """Open a connection that goes on seeing the file as it is now."""
    seen = apsw.Connection(storage.path, flags=apsw.SQLITE_OPEN_READONLY)
    seen.execute("BEGIN")
    seen.execute("SELECT 1 FROM sqlite_schema").fetchall()
    return seen


def _copy(seen: apsw.Connection, path: Path) -> tuple[int, str]:
    """Copy what a connection sees, page by page, without what the engine keeps in it."""
    try:
        with open(path, "xb", opener=private):
            pass
        copy = apsw.Connection(str(path))
        try:
            with copy.backup("main", seen, "main") as backup:
                while not backup.done:
                    backup.step(COPY_PAGES)
            copy.pragma("journal_mode", "delete")
            tables = copy.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
            for (table,) in tables:
                if str(table).startswith(ENGINE_PREFIX):
                    copy.execute(f'DROP TABLE "{table}"')
        finally:
            copy.close()
    finally:
        seen.close()
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(WINDOW_BYTES_MAX):
            digest.update(block)
        size = file.tell()
    return size, digest.hexdigest()


def _digest_and_close(seen: apsw.Connection) -> dict[str, Any]:
    try:
        return dict(digests_of(seen))
    finally:
        seen.close()


def _digest_file(path: Path) -> dict[str, Any]:
    return _digest_and_close(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY))
