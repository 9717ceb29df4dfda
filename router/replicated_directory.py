"""A directory that is replicated itself, over conversations that are.

It adds to the directory what replicas need: its own copy, changes of owner that give a conversation
another file because its disk is gone, and how far replicas are complete.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from sessions_actor.names import check_name
from sessions_actor.replica import Durability, Replica, ReplicaSpec

from .directory import FLOOR, GENERATION, NEXT_EPOCH, Directory
from .entries import (
    COPY_PENDING,
    LINE_KEY,
    LINE_STALE,
    PENDING_KEY,
    Entry,
    Owner,
    State,
    Waste,
    file_of,
)
from .spent import Keep

# Numbers left out when a directory is brought back: more than are given between two syncs.
SKIPPED: Final = 1_000_000
# The disk of a conversation that only its replica tells of.
NO_DISK: Final = ""


class ReplicatedDirectory(Directory):
    """The durable map from names to owners, and its replica; see the module."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._replica: Replica | None = None
        self._making: set[Waste] = set()

    def replicate(self, spec: ReplicaSpec, line: int, keep: Keep, pending: str | None) -> None:
        """Have this file copied as well, and note from now on which replicas are spent.

        Nothing waits for its replica until `hold_back`.

        Args: `line` is the number of the replica that `spec` tells of, `pending` what has to be
            done until `settled`.
        """
        self._storage.meta.put({LINE_KEY: line, PENDING_KEY: pending})
        self._replica, self.spent.keep = Replica(self._storage.path, spec), keep
        self.records.is_on = True
        self.replicas_follow = spec.durability is Durability.ASYNC
        if pending == COPY_PENDING:
            self._storage.transaction(self._forget_lines)
        self._replica.start(self._storage)

    def hold_back(self) -> None:
        """Have changes wait from now on until the replica has them, where durability says so."""
        assert self._replica is not None
        self._replica.hold_back(self._storage)

    def _forget_lines(self) -> None:
        """Note that the store may know nothing of what was written so far, or be another."""
        self._storage.write(
            f"UPDATE conversations SET line = iif(has_file, {LINE_STALE}, 0), position = 0,"
            " behind_since = iif(has_file AND behind_since = 0, ?, behind_since)",
            (self.now_ms(),),
        )

    def behind(self, after: tuple[int, str] | None, limit: int) -> list[tuple[int, Entry]]:
        """Return conversations whose replicas lack something, and since when, in ms.

        They sleep, or what was written before they woke may be missing (`LINE_STALE`).

        Args: `after` is the last of the page before: since when, and its name.
        """
        since, name = after or (0, "")
        rows = self._storage.fetch(
            "SELECT behind_since, name FROM conversations WHERE behind_since > 0"
            " AND (behind_since, name) > (?, ?) ORDER BY behind_since, name LIMIT ?",
            (since, name.encode(), limit),
        )
        found = [(since, self.get(name.decode())) for since, name in rows]
        return [(since, entry) for since, entry in found if entry is not None]

    def count_behind(self) -> tuple[int, float]:
        """Return how many those are, and for how many seconds the first has been so."""
        ((number, first),) = self._storage.fetch(
            "SELECT count(*), min(behind_since) FROM conversations WHERE behind_since > 0"
        )
        return number, 0.0 if first is None else max(0.0, (self.now_ms() - first) / 1000)

    async def caught_up(self, name: str, epoch: int, position: int) -> None:
        """Note that a sleeping conversation's replica is complete; 0: there is no file to copy."""

        def op() -> None:
            after = self._apply(
                "UPDATE conversations SET behind_since = 0, line = iif(?1 > 0, generation, line),"
                " position = iif(?1 > 0, ?1, position)"
                f" WHERE name = ?2 AND epoch = ?3 AND state = '{State.HIBERNATED}'",
                (position, check_name(name), epoch),
            )
            if after is not None and position > 0:
                self.records.note(after)

        await self._storage.submit(op)

    async def settled(self) -> None:
        """Note that nothing is pending, once the replica holds all there is.

        Raises: ReplicaUnavailableError.
        """
        assert self._replica is not None
        self._storage.flush()
        await self._replica.sync()
        await self._storage.submit(lambda: self._storage.meta.put({PENDING_KEY: None}))

    def close(self) -> None:
        """See `Directory.close`; a replica that was not finished stays as far as it came."""
        replica, self._replica = self._replica, None
        if replica is not None:
            replica.abandon()
        super().close()

    async def finish_replica(self) -> None:
        """Bring the replica up to date and let go of it, as the last thing before `close`."""
        replica, self._replica = self._replica, None
        if replica is not None and self._storage.broken is None:
            self._storage.flush()
            if await replica.finish():
                self._storage.copied()

    @contextlib.asynccontextmanager
    async def making(self, name: str, disk_id: str) -> AsyncIterator[int]:
        """Number a file that is made on a disk before a conversation is given it.

        It is noted as waste, which a router that follows this one removes; while this is open it
        is not told as such. `fail_over` and `place` strike it off.
        """

        made: list[Waste] = []

        def op() -> int:
            generation = self._next_generation()
            made.append(Waste(disk_id, file_of(name, generation)))
            self._making.update(made)
            self._note_waste(*made[-1])
            return generation

        try:
            yield await self._storage.submit(op)
        finally:
            self._making.difference_update(made)

    def waste(self, disk_id: str, limit: int = 100) -> list[Waste]:
        """See `Directory.waste`; what is being made is not told."""
        found = super().waste(disk_id, limit + len(self._making))
        return [one for one in found if one not in self._making][:limit]

    def lacks(self, name: str) -> bool:
        """Say whether the replica of a sleeping conversation may lack something of its file."""
        query = "SELECT behind_since > 0 OR line <> generation FROM conversations WHERE name = ?"
        row = self._storage.fetch_one(query, (check_name(name),))
        return row is not None and bool(row[0])

    async def place(self, name: str, disk_id: str, generation: int) -> Entry:
        """Make a conversation, asleep, of a file that lies on a disk; its replica is behind.

        Raises: ValueError when the name exists.
        """
        now = self.now_ms()

        def op() -> Entry:
            if self.get(name) is not None:
                raise ValueError(f"{name!r} exists already: give another name")
            epoch = (self._storage.meta.get(FLOOR) or 0) + 1
            placed = self._apply(
                "INSERT INTO conversations (name, state, epoch, generation, disk_id, file_bytes,"
                " created_at, last_active_at, has_file, behind_since)"
                f" VALUES (?, '{State.HIBERNATED}', ?, ?, ?, 0, ?, ?, 1, ?)",
                (check_name(name), epoch, generation, disk_id, now, now, now),
            )
            assert placed is not None
            self._strike_off(Waste(disk_id, placed.file))
            self.records.note(placed)
            return placed

        return await self._storage.submit(op)

    def _strike_off(self, waste: Waste) -> None:
        self._storage.write("DELETE FROM waste WHERE disk_id = ? AND file = ?", tuple(waste))

    async def fail_over(
        self,
        name: str,
        epoch: int,
        disk_id: str,
        owner: Owner,
        *,
        generation: int,
        has_file: bool,
        asleep: bool = False,
    ) -> Entry | None:
        """Give a conversation whose disk is gone to an owner, with a file of its own.

        Its old file becomes waste if there is another copy of it, its replica until now is kept
        for a time.

        Args:
            has_file: whether there was anything to bring back.
            asleep: leave it without an owner, on that one's disk; no line holds its content yet.
        Returns: None when the epoch moved on or somebody owns it.
        """

        def op() -> Entry | None:
            before = self.get(name)
            after = self._apply(
                f"UPDATE conversations SET state = ?, epoch = {NEXT_EPOCH},"
                " generation = ?, has_file = ?, disk_id = ?, node_id = ?, actor = ?,"
                " target = NULL, behind_since = ?, last_active_at = max(last_active_at, ?),"
                " line = iif(?, 0, line), position = iif(?, 0, position)"
                f" WHERE name = ? AND epoch = ? AND disk_id = ? AND state = '{State.HIBERNATED}'",
                (
                    State.HIBERNATED if asleep else State.ACTIVE,
                    generation,
                    has_file,
                    owner.disk_id,
                    None if asleep else owner.node_id,
                    None if asleep else owner.actor,
                    self.now_ms() if asleep else 0,
                    self.now_ms(),
                    asleep,
                    asleep,
                    check_name(name),
                    epoch,
                    disk_id,
                ),
            )
            if after is not None and before is not None:
                if has_file and before.disk_id != NO_DISK:
                    self._note_waste(before.disk_id, before.file)
                self.spent.left(name, before.generation)
                self._strike_off(Waste(after.disk_id, after.file))
                self.records.note(after)
            return after

        return await self._storage.submit(op)

    async def note_line(self, name: str, epoch: int, position: int) -> Entry | None:
        """Note that the replica of the present file is complete up to a transaction."""

        def op() -> Entry | None:
            after = self._apply(
                "UPDATE conversations SET line = generation, position = ?, behind_since = 0"
                " WHERE name = ? AND epoch = ?",
                (position, check_name(name), epoch),
            )
            if after is not None:
                self.records.note(after)
            return after

        return await self._storage.submit(op)

    async def note_copying(self, name: str, epoch: int) -> None:
        """Note that a conversation is served whose file is still copied for the first time."""
        await self._change(
            "UPDATE conversations SET behind_since = ?"
            " WHERE name = ? AND epoch = ? AND behind_since = 0",
            (self.now_ms(), check_name(name), epoch),
        )

    async def find_again(
        self, name: str, *, epoch: int, generation: int, quota_bytes: int | None, created_at: int
    ) -> None:
        """Put in a conversation that only its replica tells of; one that is known stays."""
        await self._change(
            "INSERT INTO conversations (name, state, epoch, generation, disk_id, quota_bytes,"
            " file_bytes, created_at, last_active_at, line, has_file)"
            f" VALUES (?, '{State.HIBERNATED}', ?, ?, '{NO_DISK}', ?, 0, ?, ?, ?, 1)"
            " ON CONFLICT (name) DO NOTHING",
            (check_name(name), epoch, generation, quota_bytes, created_at, created_at, generation),
        )

    async def skip_ahead(self, *, epoch: int = 0, generation: int = 0) -> None:
        """Leave numbers out that were given while this directory was not the one in use.

        Args: new conversations begin above `epoch`, and above every epoch so far; new files
            well above `generation`, and above every generation so far.
        """

        def op() -> None:
            floor = self._storage.meta.get(FLOOR) or 0
            last = self._storage.meta.get(GENERATION)
            self._storage.meta.put(
                {
                    FLOOR: max(floor, epoch) + SKIPPED,
                    GENERATION: max(last, generation) + SKIPPED,
                }
            )

        await self._storage.submit(op)
