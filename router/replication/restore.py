"""Files brought back from their replicas: whole, checked, and only then in place.

A restore writes beside its target and renames at the end, so that a crash leaves either nothing or
a sound file. What was restored is checked before anybody opens it: SQLite finds it sound, it is
the conversation's, and it is no newer than its directory knows.
"""

import asyncio
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import apsw

from sessions_actor.database_file import DRAFT_SUFFIX, make_parent, remove_draft, sync_folder
from sessions_actor.errors import NothingToRestoreError, StorageCorruptError, StorageError
from sessions_actor.gate import META_TABLE

from .engine import HEADER_BYTES, EngineError, LogFile, log_files, made_at, run
from .objects import Objects, open_objects
from .paths import ReplicaUrl

RESTORE_TIMEOUT_S: Final = 3600.0
LIST_TIMEOUT_S: Final = 60.0
_NOTHING: Final = re.compile(r"no matching backup files|no backups? found|no snapshots?", re.I)
_NOT_THEN: Final = re.compile(r"timestamp does not exist", re.I)


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restored file says of itself, and the last transaction it holds."""

    path: str
    position: int
    name: str | None
    epoch: int
    created_at: int | None
    file_bytes: int


async def restore(
    url: str,
    target: Path,
    *,
    at: datetime | None = None,
    up_to: int | None = None,
    thorough: bool = False,
) -> Restored:
    """Restore a replica into a file that is not there yet.

    Args:
        at: as it was at this moment; None: as it is.
        up_to: as it was after this transaction.
        thorough: check every index against its table as well. Reads the file once more.
    Raises: NothingToRestoreError; StorageError when the replica cannot be read or the file not
        written; StorageCorruptError when what was restored is not sound.
    Cost: reads the newest whole copy and what followed it.
    """
    if target.exists():
        raise StorageError(str(target), "is there already; a restore replaces nothing")
    make_parent(str(target))
    draft = target.with_name(target.name + DRAFT_SUFFIX)
    remove_draft(target)
    try:
        moment = [] if at is None else await _moment(url, at)
        if up_to is not None:
            moment = ["-txid", f"{up_to:016x}"]
        position = await _run(url, draft, moment, at, "full" if thorough else "quick")
        restored = await asyncio.to_thread(_look, draft, target, position)
        await asyncio.to_thread(_put_in_place, draft, target)
    finally:
        remove_draft(target)
    return restored


async def _run(url: str, draft: Path, moment: list[str], at: datetime | None, check: str) -> int:
    order = ["restore", "-json", "-integrity-check", check, "-o", str(draft)]
    try:
        text = await run([*order, *moment, url], timeout_s=RESTORE_TIMEOUT_S)
    except EngineError as error:
        reason = str(error)
        if _NOTHING.search(reason):
            raise NothingToRestoreError(url, "there is no replica here") from None
        if at is not None and _NOT_THEN.search(reason):
            return await _beyond(url, draft, at, check)
        if "integrity" in reason:
            raise StorageCorruptError(url, reason) from None
        raise StorageError(url, f"cannot be restored: {reason}") from None
    match = re.search(r'"txid":\s*"([0-9a-f]+)"', text)
    return 0 if match is None else int(match[1], 16)


async def _moment(url: str, at: datetime) -> list[str]:
    """Return the options that restore to a moment.

    A transaction where the files of single syncs are still there: their headers tell when each was
    made, to the millisecond. The time otherwise, which the engine compares with when a file was
    stored: in some stores to the second.
    """
    text = _text_of(at)
    place = ReplicaUrl.parse(url)
    if not place.listed:
        return ["-timestamp", text]
    try:
        files = await log_files(url, timeout_s=LIST_TIMEOUT_S)
    except EngineError as error:
        raise StorageError(url, f"cannot be listed: {error}") from None
    single = sorted((file for file in files if file.level == 0), key=_last_of)
    # They were made in the order of their transactions.
    objects = await _headers(place)
    low, high = 0, len(single)
    while low < high:
        middle = (low + high) // 2
        if await _made_at(objects, place, single[middle]) <= at:
            low = middle + 1
        else:
            high = middle
    return ["-txid", f"{single[low - 1].last:016x}"] if low else ["-timestamp", text]


async def _beyond(url: str, draft: Path, at: datetime, check: str) -> int:
    """Restore as of a moment outside of what the replica holds: its end, or nothing."""
    points = await restore_points(url)
    if not points or at < points[0]:
        raise NothingToRestoreError(url, f"holds nothing of {at.isoformat()}")
    return await _run(url, draft, [], None, check)


async def restore_points(url: str) -> list[datetime]:
    """List the moments that a replica can be restored to, oldest first.

    The first is exact where the replica can be read, the others are to the second.
    Raises: StorageError when it cannot be read.
    """
    try:
        files = await log_files(url, timeout_s=LIST_TIMEOUT_S)
    except EngineError as error:
        raise StorageError(url, f"cannot be listed: {error}") from None
    first = min((file for file in files if file.first == 1), key=_last_of, default=None)
    if first is None:
        return []
    place = ReplicaUrl.parse(url)
    begun = await _made_at(await _headers(place), place, first)
    others = {datetime.fromisoformat(file.at) for file in files if file.last >= first.last}
    return [begun, *sorted(other for other in others if other > begun)]


async def last_made(url: str) -> datetime | None:
    """Return when the last transaction of a replica was copied; None when it holds nothing.

    Raises: StorageError when it cannot be read.
    """
    try:
        files = await log_files(url, timeout_s=LIST_TIMEOUT_S)
    except EngineError as error:
        raise StorageError(url, f"cannot be listed: {error}") from None
    if not files:
        return None
    place = ReplicaUrl.parse(url)
    objects = await _headers(place)
    # Several end there when they were put together: the first of them was made at that moment.
    end = max(map(_last_of, files))
    return min([await _made_at(objects, place, file) for file in files if file.last == end])


def _last_of(file: LogFile) -> int:
    return file.last


async def _headers(url: ReplicaUrl) -> Objects | None:
    """Open what headers are read from; None where only the engine can read."""
    return await asyncio.to_thread(open_objects, url) if url.listed else None


async def _made_at(objects: Objects | None, url: ReplicaUrl, file: LogFile) -> datetime:
    """Return when a file was made; to the second where its header cannot be read."""
    made: datetime | None = None
    if objects is not None:
        key = file.key(url.scheme)
        try:
            head = await asyncio.to_thread(objects.get, key, HEADER_BYTES)
        except OSError as error:
            raise StorageError(str(url), f"cannot be read: {error}") from error
        made = None if head is None else made_at(head)
    return made or datetime.fromisoformat(file.at)


def _look(draft: Path, target: Path, position: int) -> Restored:
    """Read what a restored file says of itself."""
    known: dict[str, Any] = {}
    try:
        db = apsw.Connection(str(draft), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            there = db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (META_TABLE,))
            if there.fetchone():
                rows: Any = db.execute(f"SELECT key, value FROM {META_TABLE}")
                known = dict(rows)
        finally:
            db.close()
    except apsw.Error as error:
        raise StorageCorruptError(str(target), f"restored, but {error}") from error
    return Restored(
        str(target),
        position,
        known.get("name"),
        int(known.get("epoch") or 0),
        known.get("created_at"),
        draft.stat().st_size,
    )


def _put_in_place(draft: Path, target: Path) -> None:
    os.chmod(draft, 0o600)
    with open(draft, "rb") as file:
        os.fsync(file.fileno())
    os.rename(draft, target)
    sync_folder(str(target.parent))


def check_restored(found: Restored, name: str, epoch: int | None) -> None:
    """Refuse a restored file that is not the conversation's, or ahead of an epoch.

    Raises: StorageCorruptError.
    """
    if found.name != name:
        raise StorageCorruptError(found.path, f"the replica holds {found.name!r}, not {name!r}")
    if epoch is not None and found.epoch > epoch:
        check = f"the replica carries epoch {found.epoch}, the directory {epoch}"
        raise StorageCorruptError(found.path, check)


def _text_of(at: datetime) -> str:
    if at.tzinfo is None:
        raise ValueError("a moment to restore to has a time zone")
    # The engine compares milliseconds; whatever was copied within this one belongs to it.
    return (at.astimezone(UTC) + timedelta(milliseconds=1)).isoformat(timespec="milliseconds")
