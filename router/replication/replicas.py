"""What a router knows and does about replicas: where each lies, whose it is, what may go.

Rules:
- A conversation's records (`whose line is this`) are written once it is given a file, and marked
  when it is deleted, so that a directory can be built again from what lies below the replica URL.
- Lines are removed when they are past their time, never because a newer one exists: moments before
  a move or a fail-over can be restored as well.

What it does not do: activate, or change the directory.
"""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Final

from sessions_actor.errors import ConversationNotFoundError, NothingToRestoreError, StorageError
from sessions_actor.names import check_name
from sessions_actor.replica import Durability, ReplicaSpec

from ..entries import LINE_STALE
from ..settings import Settings
from ..spent import Keep
from .daemon import DaemonTerms
from .engine import EngineError, find_program, log_files
from .objects import Objects, open_objects
from .paths import (
    CONVERSATIONS,
    RECORD_SUFFIX,
    ReplicaUrl,
    conversation_key,
    deployment_url,
    line_key,
    line_url,
    local_path,
    parse_number,
    record_key,
)
from .restore import LIST_TIMEOUT_S, restore_points

PROBE_KEY: Final = "probe"
PROBE_TIMEOUT_S: Final = 30.0
# A file below a folder of replicas that tells it from one of its name on a node without the share.
MARK_PREFIX: Final = "mark-"


@dataclass(frozen=True, slots=True)
class Record:
    """Whose line it is; times are in ms. `deleted_at` is set when the conversation was deleted."""

    name: str
    generation: int
    epoch: int
    created_at: int
    quota_bytes: int | None
    deleted_at: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a conversation, and the moments that it can be restored to."""

    generation: int
    url: str
    points: tuple[datetime, ...]


class Replicas:
    """The replicas of one deployment; None of it is there without a replica URL (`open`)."""

    def __init__(self, settings: Settings, namespace: str) -> None:
        assert settings.replica_url is not None
        self.settings = settings
        self.base: ReplicaUrl = deployment_url(settings.replica_url, namespace)
        self._objects: Objects | None = None
        self.mark = ""  # what says that a folder is mounted, once `check` has found or made it

    @classmethod
    def open(cls, settings: Settings, namespace: str) -> "Replicas | None":
        """Return the replicas of a deployment that has them."""
        if settings.durability is Durability.LOCAL:
            return None
        return cls(settings, namespace)

    @property
    def terms(self) -> DaemonTerms:
        """What daemons are told."""
        return DaemonTerms(self.settings.replica_retention_s, self.settings.replica_exact_s)

    @property
    def keep(self) -> Keep:
        """How long replicas are kept that no file needs any more."""
        settings = self.settings
        return Keep(
            int(settings.replica_retention_s * 1000), int(settings.replica_delete_grace_s * 1000)
        )

    @property
    def objects(self) -> Objects:
        """The store below the URL.

        Raises: StorageError where it cannot be listed.
        """
        if self._objects is None:
            self._objects = open_objects(self.base)
        return self._objects

    async def check(self) -> None:
        """Make sure that replicas can be written and read, before anything relies on them.

        Raises: StorageError that says what is missing.
        """
        await asyncio.to_thread(find_program)
        url = str(self.base)
        if not self.base.listed:
            try:
                await log_files(str(self.base.below(PROBE_KEY)), timeout_s=PROBE_TIMEOUT_S)
            except EngineError as error:
                raise StorageError(url, f"replicas cannot be reached: {error}") from None
            return

        def probe() -> None:
            data = str(time.time_ns()).encode()
            self.objects.put(PROBE_KEY, data)
            if self.objects.get(PROBE_KEY) != data:
                raise OSError("what was written does not read back")
            self.objects.remove(PROBE_KEY)
            if self.base.scheme == "file":
                self.mark = f"{local_path(self.base)}/{self._marked()}"

        try:
            await asyncio.wait_for(asyncio.to_thread(probe), PROBE_TIMEOUT_S)
        except TimeoutError:
            raise StorageError(url, f"no answer within {PROBE_TIMEOUT_S:g} s") from None
        except (OSError, StorageError) as error:
            reason = f"replicas cannot be written ({error}); check the URL and the credentials"
            raise StorageError(url, reason) from error

    def _marked(self) -> str:
        """Return the key of the folder's mark, which is made once."""
        for name in self.objects.names(""):
            if name.startswith(MARK_PREFIX):
                return name
        key = MARK_PREFIX + uuid.uuid4().hex
        self.objects.put(key, b"Nodes that lack this file write no replicas here.\n")
        return key

    def spec(self, name: str, generation: int, line: int) -> ReplicaSpec:
        """Return what an activation needs to know of its file's replica.

        Args: `line` is the one that is complete; see `Entry`.
        """
        spec = self.spec_of(self.url(name, generation))
        return replace(spec, is_new=line != generation, is_stale=line == LINE_STALE)

    def spec_of(self, url: str, socket: str = "") -> ReplicaSpec:
        """Return what whoever has a file open needs to know of its replica."""
        settings = self.settings
        return ReplicaSpec(url, settings.durability, settings.replica_timeout_s, socket, self.mark)

    def url(self, name: str, generation: int) -> str:
        """Return where the replica of one of a conversation's files lies."""
        return str(line_url(self.base, name, generation))

    # ------------------------------------------------------------------------------ records

    async def note(self, record: Record) -> None:
        """Write down whose a line is.

        Raises: OSError when the store cannot be written.
        """
        if self.base.listed:
            data = json.dumps(asdict(record)).encode()
            await asyncio.to_thread(
                self.objects.put, record_key(record.name, record.generation), data
            )

    async def records(self) -> AsyncIterator[tuple[str, int, Record | None]]:
        """Go through all lines: the folder of a conversation, a generation, and whose it is.

        A line that holds nothing counts only as the mark of a deletion.
        Raises: OSError, StorageError.
        Cost: one listing for each conversation, one small read for each line.
        """
        objects = self.objects
        for spread in await asyncio.to_thread(objects.names, CONVERSATIONS):
            folder = f"{CONVERSATIONS}/{spread.rstrip('/')}"
            for stem in await asyncio.to_thread(objects.names, folder):
                key = f"{folder}/{stem.rstrip('/')}"
                begun = set(await self._generations(key))
                for generation in await self._generations(key, rests=True):
                    path = f"{key}/{generation:016x}{RECORD_SUFFIX}"
                    record = _record(await asyncio.to_thread(objects.get, path))
                    if generation in begun or (record is not None and record.deleted_at):
                        yield key, generation, record

    async def _generations(
        self, key: str, *, recorded: bool = False, rests: bool = False
    ) -> list[int]:
        """List the lines of a conversation; only those with a record, which are its own for sure.

        A migration that was given up at its end leaves a line without one, a removal that was cut
        short a record without its line: with `rests`, those too.
        """
        found = await asyncio.to_thread(self.objects.names, key)
        suffixes = (RECORD_SUFFIX, "/") if rests else (RECORD_SUFFIX if recorded else "/",)
        numbers = {
            parse_number(name.removesuffix(suffix))
            for name in found
            for suffix in suffixes
            if name.endswith(suffix)
        }
        return sorted(one for one in numbers if one is not None)

    # ------------------------------------------------------------------------------ lines

    async def lines(self, name: str, known: tuple[int, ...] = ()) -> list[Line]:
        """Return a conversation's lines that hold something, the oldest first.

        Args: `known` are generations that are its own in any case.
        Raises: OSError, StorageError.
        """
        check_name(name)
        generations = list(known)
        if self.base.listed:
            generations += await self._generations(conversation_key(name), recorded=True)
        found = []
        for generation in sorted(set(generations)):
            url = self.url(name, generation)
            points = await restore_points(url)
            if points:
                found.append(Line(generation, url, tuple(points)))
        return found

    async def line_at(
        self, name: str, at: datetime | None, *, known: tuple[int, ...] = (), newest: int | None
    ) -> Line:
        """Return the line that held a conversation at a moment; the newest for None.

        Args: `newest` bounds the generation: a later one was never the conversation's.
        Raises: ConversationNotFoundError when there is no line; NothingToRestoreError when none
            reaches back that far.
        """
        lines = [
            line
            for line in await self.lines(name, known)
            if newest is None or line.generation <= newest
        ]
        if not lines:
            raise ConversationNotFoundError(name)
        reach = [line for line in lines if at is None or line.points[0] <= at]
        if not reach:
            first = min(line.points[0] for line in lines)
            raise NothingToRestoreError(
                lines[0].url,
                f"its replica begins at {first.isoformat()}: name a moment from then on",
            )
        return reach[-1]

    async def remove(self, name: str, up_to: int) -> None:
        """Remove a conversation's lines up to a generation, with their records.

        Raises: OSError; StorageError where replicas cannot be removed.
        """
        for generation in await self._generations(conversation_key(name), rests=True):
            if generation <= up_to:
                await asyncio.to_thread(self.objects.remove, line_key(name, generation) + "/")
                await asyncio.to_thread(self.objects.remove, record_key(name, generation))


def _record(data: bytes | None) -> Record | None:
    if data is None:
        return None
    with contextlib.suppress(ValueError, TypeError):
        return Record(**json.loads(data))
    return None


__all__ = ["LIST_TIMEOUT_S", "Line", "Record", "Replicas"]
