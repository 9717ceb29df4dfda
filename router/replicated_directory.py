"""A directory that is replicated itself, over conversations that are.

It adds to the directory what replicas need: its own copy, changes of owner that give a conversation
another file because its disk is gone, and how far replicas are complete.
"""

from pathlib import Path
from typing import Final

from sessions_actor.names import check_name
from sessions_actor.replica import Durability, Replica, ReplicaSpec

from .directory import FLOOR, GENERATION, NEXT_EPOCH, Directory
from .entries import COPY_PENDING, LINE_KEY, LINE_STALE, PENDING_KEY, Entry, Owner, State
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

    def replicate(self, spec: ReplicaSpec, line: int, keep: Keep, pending: str | None) -> None:
        """Have this file copied as well, and note from now on which replicas are spent.

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
            await replica.finish()

    async def reserve_generation(self) -> int:
        """Number a file that is made before the conversation is given it."""
        return await self._storage.submit(self._next_generation)

    async def fail_over(
        self,
        name: str,
        epoch: int,
        disk_id: str,
        owner: Owner,
        *,
        generation: int,
        has_file: bool,
    ) -> Entry | None:
        """Give a conversation whose disk is gone to an owner, with a file of its own.

        Its old file becomes waste if there is another copy of it, its replica until now is kept
        for a time.

        Args: `has_file` says whether there was anything to bring back.
        Returns: None when the epoch moved on or somebody owns it.
        """

        def op() -> Entry | None:
            before = self.get(name)
            after = self._apply(
                f"UPDATE conversations SET state = '{State.ACTIVE}', epoch = {NEXT_EPOCH},"
                " generation = ?, has_file = ?, disk_id = ?, node_id = ?, actor = ?,"
                " target = NULL, behind_since = 0, last_active_at = max(last_active_at, ?)"
                f" WHERE name = ? AND epoch = ? AND disk_id = ? AND state = '{State.HIBERNATED}'",
                (
                    generation,
                    has_file,
                    owner.disk_id,
                    owner.node_id,
                    owner.actor,
                    self.now_ms(),
                    check_name(name),
                    epoch,
                    disk_id,
                ),
            )
            if after is not None and before is not None:
                if has_file and before.disk_id != NO_DISK:
                    self._note_waste(before.disk_id, before.file)
                self.spent.left(name, before.generation)
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
