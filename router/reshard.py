"""Split a deployment's directory over another number of routers, while nothing serves it.

The new files are made whole in a folder beside the old ones; a note in it says that they are. From
then on they are what counts: they are put in the old ones' place, and if that was interrupted,
asking again finishes it. Until then the old files are as they were. No conversation is touched.

What it does not do: run beside a router. Every directory is locked meanwhile, and conversations
that somebody may still own are a reason to refuse.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from sessions_actor.database_file import private
from sessions_actor.errors import StorageError
from sessions_actor.storage import Storage

from .directory import DIRECTORY_BYTES_MAX, FLOOR, GENERATION, RESHARDING, SHARDS, Directory
from .entries import LINE_KEY
from .shards import DIRECTORY_FILE, SHARDS_MAX, Shard, shard_of

_READY: Final = "ready"
_BESIDE: Final = ("", "-wal", "-shm")


class Resharded(NamedTuple):
    """How many conversations there are, and over how many routers they were and are split."""

    conversations: int
    before: int
    after: int


def reshard(root: Path, count: int) -> Resharded:
    """Split the directory of a storage root over `count` routers.

    Raises: ValueError for a number that cannot be; StorageError when something serves the
        deployment, did not come to rest, or is replicated.
    Cost: one walk over the conversations' rows, and disk for a second copy of them.
    """
    if not 1 <= count <= SHARDS_MAX:
        raise ValueError(f"count: from 1 to {SHARDS_MAX}, not {count}")
    folder = root / RESHARDING
    interrupted = _ready(folder)
    if interrupted is None:
        shutil.rmtree(folder, ignore_errors=True)
    elif interrupted.after != count:
        raise ValueError(
            f"count: splitting over {interrupted.after} was interrupted, finish that first"
        )
    else:
        _put_in_place(root, interrupted)
        return interrupted
    before = _recorded(root)
    with _locked(root, before) as directories:
        done = Resharded(sum(one.count() for one in directories), before, count)
        if before == count:
            return done
        _check_rest(root, directories)
        folder.mkdir(mode=0o700)
        for shard in Shard(0, count).all:
            _fill(root, folder, shard, before)
        _note(folder / _READY, done)
    _put_in_place(root, done)
    return done


def _recorded(root: Path) -> int:
    """Return over how many routers a directory is split.

    Raises: StorageError when there is none, or it is open.
    """
    file = root / DIRECTORY_FILE
    if not file.exists():
        raise StorageError(str(file), "there is no directory here; give --storage-root")
    storage = Storage(file, quota_bytes=DIRECTORY_BYTES_MAX)
    with closing(storage):
        if storage.meta.get(LINE_KEY) is not None:
            reason = "a directory that is replicated, or was once, has one router; see README"
            raise StorageError(str(file), reason)
        return int(storage.meta.get(SHARDS) or 1)


@contextlib.contextmanager
def _locked(root: Path, count: int) -> Iterator[list[Directory]]:
    """Open all files of a directory, so that nobody else does."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(closing(Directory(root, shard=shard)))
            for shard in Shard(0, count).all
        ]


def _check_rest(root: Path, directories: list[Directory]) -> None:
    awake = sum(len(directory.unsettled()) for directory in directories)
    running = sum(len(directory.jobs.running()) for directory in directories)
    if awake or running:
        raise StorageError(
            str(root),
            f"{awake} conversations are not hibernated and {running} jobs have not ended: let the"
            " deployment come to rest and end it with `sessions-actor up` and Ctrl-C, then ask"
            " again",
        )


def _fill(root: Path, folder: Path, shard: Shard, before: int) -> None:
    """Make one of the new files."""
    Directory(folder, shard=shard).close()
    with closing(apsw.Connection(str(folder / shard.directory_file))) as new:
        new.execute("PRAGMA synchronous = FULL")
        new.create_scalar_function("shard_of", _shard_of, 2)
        for old in Shard(0, before).all:
            new.execute("ATTACH ? AS old", (str(root / old.directory_file),))
            with new:
                _copy(new, shard)
            new.execute("DETACH old")
        new.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _shard_of(*arguments: Any) -> int:
    name, count = arguments
    return shard_of(name.decode(), count)


def _copy(new: apsw.Connection, shard: Shard) -> None:
    def columns(table: str) -> str:
        return ", ".join(row[1] for row in new.execute(f"PRAGMA main.table_info({table})"))

    mine = columns("conversations")
    new.execute(
        f"INSERT INTO main.conversations ({mine}) SELECT {mine} FROM old.conversations"
        " WHERE shard_of(name, ?) = ?",
        (shard.count, shard.index),
    )
    if shard.index == 0:
        new.execute("INSERT OR IGNORE INTO main.waste SELECT * FROM old.waste")
    # A term that was granted is never granted again, also by another router of the same name.
    nodes = columns("nodes")
    new.execute(
        f"INSERT INTO main.nodes ({nodes}) SELECT {nodes} FROM old.nodes WHERE true"
        " ON CONFLICT (node_id) DO UPDATE SET term = max(term, excluded.term)"
    )
    for key in (FLOOR, GENERATION):
        new.execute(
            "INSERT INTO main.sessions_actor_meta (key, value)"
            " SELECT key, value FROM old.sessions_actor_meta WHERE key = ?"
            " ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)",
            (key,),
        )


def _put_in_place(root: Path, done: Resharded) -> None:
    """Put the new files where the old ones are; it may be begun again."""
    folder = root / RESHARDING
    for index in range(max(done.before, done.after)):
        name = Shard(index, SHARDS_MAX).directory_file
        new = folder / name
        if index < done.after and not new.exists():
            continue  # it is there already
        for suffix in _BESIDE[1:] if index < done.after else _BESIDE:
            (root / f"{name}{suffix}").unlink(missing_ok=True)
        if index < done.after:
            new.replace(root / name)
    _sync(root)
    shutil.rmtree(folder)


def _ready(folder: Path) -> Resharded | None:
    """Return what an interrupted run had finished making."""
    try:
        return Resharded(*map(int, (folder / _READY).read_text().split()))
    except FileNotFoundError:
        return None


def _note(file: Path, done: Resharded) -> None:
    """Say durably that the new files are whole."""
    draft = file.with_suffix(".draft")
    with open(draft, "w", opener=private) as text:
        text.write(" ".join(map(str, done)))
        text.flush()
        os.fsync(text.fileno())
    _sync(file.parent)
    draft.replace(file)
    _sync(file.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
