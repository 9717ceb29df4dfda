"""The router's directory and its replica: found, brought back, made again.

Rules:
- A directory has lines, as a conversation does: the one that is in use is noted in the file, and
  each time it is brought back from a replica it begins the next. A file whose line is not the
  newest is one that an earlier head left: it is moved aside, never used.
- Where no line is left, the directory is made again from the conversations' own lines. Quotas and
  times are those of their records; a conversation whose record is missing is opened to tell its
  name.

What it does not do: run, or serve anybody.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import apsw

from sessions_actor.database_file import remove_database
from sessions_actor.errors import StorageError
from sessions_actor.gate import META_TABLE
from sessions_actor.replica import ReplicaSpec, socket_path

from ..directory import DIRECTORY_FILE
from ..replicated_directory import LINE_KEY, ReplicatedDirectory
from .engine import EngineError, log_files
from .paths import DIRECTORY, directory_url, number, parse_number
from .replicas import Record, Replicas
from .restore import LIST_TIMEOUT_S, NothingToRestoreError, restore

SCRATCH_FILE: Final = "rebuild.sqlite"


@dataclass(frozen=True, slots=True)
class Home:
    """Where the directory's replica goes, and what has to be done before it is of use."""

    line: int
    restored: bool
    """It is as it was at some earlier moment: numbers given since then must not be given again."""
    rebuild: bool


async def prepare(root: Path, replicas: Replicas) -> Home:
    """Make sure that the directory's file is the newest there is, or absent when there is none.

    Raises: StorageError when the replicas cannot be read.
    """
    path = root / DIRECTORY_FILE
    own = await asyncio.to_thread(_line_of, path)
    newest = await _newest_line(replicas)
    if own is not None and own >= newest:
        return Home(own, restored=False, rebuild=False)
    if path.exists() and newest:
        _move_aside(path)
    for line in range(newest, 0, -1):
        url = str(directory_url(replicas.base, line))
        with contextlib.suppress(NothingToRestoreError):
            await restore(url, path)
            return Home(newest + 1, restored=True, rebuild=False)
    return Home(newest + 1, restored=False, rebuild=not path.exists())


def spec(root: Path, replicas: Replicas, home: Home) -> ReplicaSpec:
    """Return what the open directory needs to know of its replica."""
    settings = replicas.settings
    return ReplicaSpec(
        str(directory_url(replicas.base, home.line)),
        settings.durability,
        settings.replica_timeout_s,
        socket_path(root),
    )


async def rebuild(root: Path, directory: ReplicatedDirectory, replicas: Replicas) -> int:
    """Fill an empty directory with the conversations whose replicas are there; returns how many.

    Raises: StorageError, OSError when they cannot be read; StorageError where they cannot be
        listed.
    """
    newest: dict[str, Record] = {}
    unrecorded: dict[str, int] = {}
    async for key, generation, record in replicas.records():
        if record is None:
            unrecorded[key] = generation
        else:
            newest[key] = record  # they come in order
    for key in unrecorded.keys() - newest.keys():
        url = str(replicas.base.below(*key.split("/"), number(unrecorded[key])))
        record = await _read_record(root, url, unrecorded[key])
        if record is not None:
            newest[key] = record
    for record in newest.values():
        if record.deleted_at is None:
            await directory.find_again(
                record.name,
                epoch=record.epoch,
                generation=record.generation,
                quota_bytes=record.quota_bytes,
                created_at=record.created_at,
            )
    if newest:
        await directory.skip_ahead(
            epoch=max(record.epoch for record in newest.values()),
            generation=max(record.generation for record in newest.values()),
        )
    return sum(record.deleted_at is None for record in newest.values())


async def _read_record(root: Path, url: str, generation: int) -> Record | None:
    """Open a replica to see whose it is."""
    path = root / SCRATCH_FILE
    with contextlib.suppress(StorageError):
        remove_database(path)
    try:
        found = await restore(url, path)
    except NothingToRestoreError:
        return None
    finally:
        with contextlib.suppress(StorageError):
            remove_database(path)
    if found.name is None:
        return None
    return Record(found.name, generation, found.epoch, found.created_at or 0, None)


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


def _line_of(path: Path) -> int | None:
    """Read the line that a directory's file is in; 0 for one that was never replicated."""
    if not path.exists():
        return None
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            query = f"SELECT value FROM {META_TABLE} WHERE key = ?"
            row = db.execute(query, (LINE_KEY,)).fetchone()
        finally:
            db.close()
    except apsw.Error:
        return 0
    return 0 if row is None else int(str(row[0]))


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
