"""The router's directory and its replica: found, brought back, made again.

Rules:
- A directory has lines, as a conversation does: the one that is in use is noted in the file, and
  each time it is brought back from a replica it begins the next. A file whose line is not the
  newest is one that an earlier head left: it is moved aside, never used.
- What a new line lacks is noted in the file by the write that begins the line, and struck off when
  it is done: a start that was interrupted goes on there.
- Where no line is left, the directory is made again from the conversations' own lines. Quotas and
  times are those of their records; a line above those that have one is opened to tell its name.

What it does not do: run, or serve anybody.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import apsw

from sessions_actor.database_file import remove_database, sync_folder
from sessions_actor.errors import NothingToRestoreError, StorageError
from sessions_actor.gate import META_TABLE
from sessions_actor.replica import socket_path

from ..directory import DIRECTORY_FILE
from ..entries import COPY_PENDING, LINE_KEY, PENDING_KEY
from ..replicated_directory import ReplicatedDirectory
from .engine import EngineError, log_files
from .paths import DIRECTORY, conversation_key, directory_url, number, parse_number
from .replicas import Record, Replicas
from .restore import LIST_TIMEOUT_S, last_made, restore

SCRATCH_FILE: Final = "rebuild.sqlite"


class Pending(StrEnum):
    """What a line that was begun lacks before its directory is of use; each includes the first."""

    COPY = COPY_PENDING
    """Its first copy: until then there may be no trace of the line in the store."""

    SKIP = "skip"
    """It is as it was at some earlier moment: numbers given since must not be given again."""

    REBUILD = "rebuild"
    """Nothing was left of it: the conversations' own lines have to be gone through."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where the directory's replica goes, and what has to be done before it is of use."""

    line: int
    pending: Pending | None


async def prepare(root: Path, replicas: Replicas) -> Home:
    """Make sure that the directory's file is the newest there is, or absent when there is none.

    Raises: StorageError when the replicas cannot be read, or are not those of the file.
    """
    path = root / DIRECTORY_FILE
    own = await asyncio.to_thread(_home_of, path)
    newest = await _newest_line(replicas)
    if own is not None:
        if own.line > newest and own.pending is None:
            raise StorageError(str(path), _elsewhere(own.line, replicas))
        if own.line >= newest:
            return own if own.line else Home(1, Pending.COPY)
        _move_aside(path)
    for line in range(newest, -1, -1):
        with contextlib.suppress(NothingToRestoreError):
            return await _bring_back(root, str(directory_url(replicas.base, line)), newest + 1)
    return Home(newest + 1, Pending.REBUILD)


async def begin(
    root: Path, directory: ReplicatedDirectory, replicas: Replicas, found: Home
) -> None:
    """Have the open directory copied, and do what is pending; done again when interrupted.

    Raises: as `rebuild`; ReplicaUnavailableError when a line that is new cannot be copied.
    """
    spec = replace(
        replicas.spec_of(str(directory_url(replicas.base, found.line)), socket_path(root)),
        is_new=found.pending is not None,
    )
    directory.replicate(spec, found.line, replicas.keep, found.pending)
    if found.pending is Pending.SKIP:
        await directory.skip_ahead()
    if found.pending is Pending.REBUILD:
        await rebuild(root, directory, replicas)
    if found.pending is not None:
        await directory.settled()
    directory.hold_back()


async def rebuild(root: Path, directory: ReplicatedDirectory, replicas: Replicas) -> None:
    """Fill a directory with the conversations whose replicas are there.

    Where replicas cannot be listed it stays empty, and gives numbers above all that were given.
    Raises: StorageError, OSError when they cannot be read.
    """
    if not replicas.base.listed:
        # No deployment gives a number in every millisecond.
        now_ms = time.time_ns() // 1_000_000
        await directory.skip_ahead(epoch=now_ms, generation=now_ms)
        return
    newest: dict[str, Record] = {}
    unrecorded: dict[str, list[int]] = {}
    last = 0
    async for key, generation, record in replicas.records():
        last = max(last, generation)
        if record is None:
            unrecorded.setdefault(key, []).append(generation)
        else:
            newest[key] = record  # they come in order
            unrecorded.pop(key, None)
    for key, generations in unrecorded.items():
        for generation in reversed(generations):
            record = await _read_record(root, replicas, key, generation)
            if record is not None and await _goes_on(replicas, record, newest.get(key)):
                newest[key] = record
                break
    if last:
        epoch = max((record.epoch for record in newest.values()), default=0)
        await directory.skip_ahead(epoch=epoch, generation=last)
    for record in newest.values():
        if record.deleted_at is None:
            await directory.find_again(
                record.name,
                epoch=record.epoch,
                generation=record.generation,
                quota_bytes=record.quota_bytes,
                created_at=record.created_at,
            )


async def _goes_on(replicas: Replicas, record: Record, known: Record | None) -> bool:
    """Say whether a line that nobody recorded was written to after the newest that is recorded.

    Else a migration left it that was given up: its source served on.
    """
    if known is None:
        return True
    if known.deleted_at is not None:
        ended: datetime | None = datetime.fromtimestamp(known.deleted_at / 1000, UTC)
    else:
        ended = await last_made(replicas.url(known.name, known.generation))
    reached = await last_made(replicas.url(record.name, record.generation))
    return reached is not None and (ended is None or reached > ended)


async def _read_record(root: Path, replicas: Replicas, key: str, generation: int) -> Record | None:
    """Open a replica to see whose it is; None when it is not that of its folder."""
    url = str(replicas.base.below(*key.split("/"), number(generation)))
    scratch = _scratch(root)
    try:
        found = await restore(url, scratch)
    except NothingToRestoreError:
        return None
    except StorageError as error:
        reason = (
            f"no record says whose replica this is, and it cannot be read ({error.reason}): try"
            " again, or move it away to go on without it"
        )
        raise StorageError(url, reason) from error
    finally:
        _scratch(root)
    if found.name is None or conversation_key(found.name) != key:
        return None
    return Record(found.name, generation, found.epoch, found.created_at or 0, None)


async def _bring_back(root: Path, url: str, line: int) -> Home:
    """Restore the directory as the beginning of a line, marked so before it is in its place."""
    scratch = _scratch(root)
    await restore(url, scratch)
    before = _home_of(scratch)
    again = before is not None and before.pending is Pending.REBUILD
    home = Home(line, Pending.REBUILD if again else Pending.SKIP)
    db = apsw.Connection(str(scratch))
    try:
        db.executemany(
            f"INSERT INTO {META_TABLE} VALUES (?, ?)"
            " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            [(LINE_KEY, home.line), (PENDING_KEY, home.pending)],
        )
        db.pragma("journal_mode", "delete")  # the one file is all there is
    finally:
        db.close()
    scratch.rename(root / DIRECTORY_FILE)
    sync_folder(str(root))
    return home


def _scratch(root: Path) -> Path:
    """Return where a replica is restored to be looked at; nothing is there."""
    path = root / SCRATCH_FILE
    with contextlib.suppress(StorageError):
        remove_database(path)
    return path


def _elsewhere(line: int, replicas: Replicas) -> str:
    return (
        f"its replica is line {line}, of which there is no trace at {replicas.base}: mount or name"
        " the store that it was copied to, or copy what is there to the new one. If that is lost,"
        " start once with durability 'local' and without a replica_url: all is copied anew then"
    )


async def _newest_line(replicas: Replicas) -> int:
    """Return the number of the newest line there is a trace of; 0 for none."""
    if replicas.base.listed:
        try:
            names = await asyncio.to_thread(replicas.objects.names, DIRECTORY)
        except OSError as error:
            reason = f"the directory's replicas cannot be listed ({error})"
            raise StorageError(str(replicas.base), reason) from error
        numbers = [parse_number(name.rstrip("/")) for name in names]
        return max((one for one in numbers if one is not None), default=0)
    line = 0
    while True:
        url = str(directory_url(replicas.base, line + 1))
        try:
            if not await log_files(url, timeout_s=LIST_TIMEOUT_S):
                return line
        except EngineError as error:
            raise StorageError(url, f"cannot be listed: {error}") from None
        line += 1


def _home_of(path: Path) -> Home | None:
    """Read what a directory's file says of its replica: line 0 when it was never replicated."""
    if not path.exists():
        return None
    known: dict[str, Any] = {}
    with contextlib.suppress(apsw.Error):
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            rows: Any = db.execute(f"SELECT key, value FROM {META_TABLE}")
            known = dict(rows)
        finally:
            db.close()
    pending = known.get(PENDING_KEY)
    return Home(int(known.get(LINE_KEY, 0)), None if pending is None else Pending(pending))


def _move_aside(path: Path) -> None:
    """Keep a directory that is not the newest, out of the way."""
    number = 1
    while (aside := path.with_name(f"{path.name}.old-{number}")).exists():
        number += 1
    for suffix in ("-wal", ""):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    for suffix in ("-shm",):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    with contextlib.suppress(StorageError):
        remove_database(path)
