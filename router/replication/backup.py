"""Copies of conversations and checks of their replicas, asked for by a client.

Each is made by the conversation's owner while it serves (`chores`); the client asks for the steps
and writes what comes. An owner that changes meanwhile is found again and asked from the start.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from sessions_actor.channel import Address
from sessions_actor.database_file import make_parent, private, sync_folder
from sessions_actor.errors import ConversationNotFoundError, StaleEpochError, StorageError
from sessions_actor.names import file_stem
from sessions_actor.retry import is_lost

from ..cluster import answer
from ..models import BackupReport
from .chores import (
    WINDOW_BYTES_MAX,
    Copied,
    compare_step,
    copy_step,
    end_copy_step,
    read_copy_step,
)

T = TypeVar("T")

TRIES_MAX: Final = 5
COPIES_AT_ONCE: Final = 4
LIST_FILE: Final = "backup.jsonl"

Progress = Callable[[int, str], object]


class Finder(Protocol):
    """Finds owners of conversations that there are, and makes none."""

    async def find(self, name: str, failed: Address | None) -> Address:
        """See `RouterResolver.find`."""


async def compare(finder: Finder, name: str) -> list[str]:
    """Have a conversation's owner compare its replica with its file; list what differs."""

    async def ask(owner: Address) -> list[str]:
        found: list[str] = await _step(owner, compare_step)
        return found

    return await _at_owner(finder, name, ask)


async def back_up(
    finder: Finder,
    folder: Path,
    names: Iterable[str],
    progress: Progress | None,
    *,
    listed: bool = False,
) -> BackupReport:
    """Copy conversations to a folder; see `Client.back_up`.

    Args: `listed` says that the names are all that there were: one that is gone was deleted since.
    """
    try:
        make_parent(str(folder))
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StorageError(str(folder), f"{error.strerror}; choose another folder") from error
    failed: dict[str, str] = {}
    lines: list[dict[str, Any]] = []
    room = asyncio.Semaphore(COPIES_AT_ONCE)

    async def one(name: str) -> None:
        async with room:
            try:
                lines.append(await _copy(finder, folder, name))
            except Exception as error:  # whatever is wrong with one, the others are copied
                if not (listed and isinstance(error, ConversationNotFoundError)):
                    failed[name] = str(error) or type(error).__name__
            if progress is not None:
                progress(len(lines) + len(failed), name)

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(one(name))
    lines.sort(key=lambda line: str(line["name"]))
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    await asyncio.to_thread(_write_whole, folder / LIST_FILE, text.encode())
    return BackupReport(str(folder), len(lines), sum(line["bytes"] for line in lines), failed)


async def _copy(finder: Finder, folder: Path, name: str) -> dict[str, Any]:
    """Copy one conversation; returns its line of the list."""
    file = f"{file_stem(name)}.sqlite"
    target = folder / file

    async def ask(owner: Address) -> Copied:
        copied: Copied = await _step(owner, copy_step)
        try:
            await _fetch(owner, copied, target)
        finally:
            with contextlib.suppress(Exception):  # its owner removes it at its end as well
                await _step(owner, end_copy_step, copied.key)
        return copied

    copied = await _at_owner(finder, name, ask)
    return {"name": name, "file": file, "bytes": copied.bytes, "sha256": copied.sha256}


async def _fetch(owner: Address, copied: Copied, target: Path) -> None:
    """Write a copy that its owner holds, whole or not at all."""
    make_parent(str(target))
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    digest = hashlib.sha256()
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            offset = 0
            while offset < copied.bytes:
                data: bytes = await _step(
                    owner, read_copy_step, copied.key, offset, WINDOW_BYTES_MAX
                )
                if not data:
                    raise StorageError(str(target), "its copy ended early; ask again")
                digest.update(data)
                await asyncio.to_thread(_write_all, descriptor, data)
                offset += len(data)
            if digest.hexdigest() != copied.sha256:
                raise StorageError(str(target), "what arrived is not what was copied; ask again")
            await asyncio.to_thread(os.fsync, descriptor)
        finally:
            os.close(descriptor)
        draft.replace(target)
        sync_folder(str(target.parent))
    except OSError as error:
        raise StorageError(str(target), f"cannot be written: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)


async def _at_owner(finder: Finder, name: str, ask: Callable[[Address], Awaitable[T]]) -> T:
    """Ask a conversation's owner, and the next one when it is gone meanwhile."""
    failed: Address | None = None
    for _ in range(TRIES_MAX):
        owner = await finder.find(name, failed)
        try:
            return await ask(owner)
        except Exception as error:
            if not isinstance(error, StaleEpochError | KeyError) and not is_lost(error):
                raise
            failed = owner
    raise TimeoutError(f"{name!r} changed its owner {TRIES_MAX} times meanwhile: ask again")


async def _step(owner: Address, step: Any, *args: Any) -> Any:
    return await answer(owner.actor.transfer.remote(owner.name, owner.epoch, step, *args))


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _write_whole(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(draft, "xb", opener=private) as file:
            file.write(data)
        draft.replace(path)
        sync_folder(str(path.parent))
    except OSError as error:
        raise StorageError(str(path), f"cannot be written: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
