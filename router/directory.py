"""The directory: which conversations there are, who owns each, where its file lies. Durable.

Rules:
- A change of ownership is one statement that compares the epoch it saw and sets the next: of two
  that race, one wins and the other is told.
- An epoch never returns: not when a conversation is deleted and made again under its name (a new
  one starts above the highest epoch of any that was deleted), and not after a migration that was
  given up (`promised` holds the highest epoch that any owner-to-be was told).
- A file belongs to a *disk*, not to a node: nodes get new ids at every start, disks do not. Its
  name carries a number that no other file is ever given (its generation), so no path is used twice.
- A file that no conversation needs any more is noted as waste by the very statement that lets go
  of it, and struck off when it is gone. So are replicas, each kept for a time (`keep`), and the
  records that tell whose they are (`records`).

What it does not do: talk to actors or nodes, or decide anything. It is not the caller's cache.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from sessions_actor.codec import dumps, loads
from sessions_actor.errors import StorageError
from sessions_actor.limits import NAME_BYTES_MAX
from sessions_actor.names import check_name
from sessions_actor.storage import Storage

from .due_records import SCHEMA as DUE_SCHEMA
from .due_records import DueRecords
from .entries import (
    CONVERSATIONS_FOLDER,
    COPY_PENDING,
    LINE_KEY,
    LINE_STALE,
    PENDING_KEY,
    TRANSITIONS,
    Entry,
    NodeRow,
    Owner,
    State,
    Waste,
    file_of,
    sources,
)
from .job_log import JobLog
from .shards import DIRECTORY_FILE, WHOLE, Shard
from .spent import SCHEMA as SPENT_SCHEMA
from .spent import SpentLines

__all__ = [
    "CONVERSATIONS_FOLDER",
    "DIRECTORY_FILE",
    "TRANSITIONS",
    "Directory",
    "Entry",
    "NodeRow",
    "Owner",
    "State",
    "Waste",
    "file_of",
    "sources",
]

DIRECTORY_BYTES_MAX: Final = 1 << 40
PAGE_NAMES_MAX: Final = 1000
SCHEMA_VERSION: Final = 3

assert NAME_BYTES_MAX * PAGE_NAMES_MAX < DIRECTORY_BYTES_MAX


_SCHEMA = """
CREATE TABLE IF NOT EXISTS conversations (
  name BLOB PRIMARY KEY NOT NULL,
  state TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  disk_id TEXT NOT NULL,
  node_id TEXT,
  actor TEXT,
  quota_bytes INTEGER,
  file_bytes INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  last_active_at INTEGER NOT NULL,
  target TEXT,
  promised INTEGER NOT NULL DEFAULT 0,
  has_file INTEGER NOT NULL DEFAULT 0,
  line INTEGER NOT NULL DEFAULT 0,
  position INTEGER NOT NULL DEFAULT 0,
  behind_since INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS conversations_owned ON conversations (state)
  WHERE state <> 'hibernated';
CREATE TABLE IF NOT EXISTS waste (
  disk_id TEXT NOT NULL, file TEXT NOT NULL, PRIMARY KEY (disk_id, file)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS nodes (
  node_id TEXT PRIMARY KEY NOT NULL, disk_id TEXT NOT NULL, draining INTEGER NOT NULL,
  machine_id TEXT NOT NULL DEFAULT '', term INTEGER NOT NULL DEFAULT 1
) WITHOUT ROWID;
"""

_COLUMNS = (
    "name, state, epoch, generation, disk_id, node_id, actor, quota_bytes, file_bytes,"
    " created_at, last_active_at, line, position, has_file, target"
)
NEXT_EPOCH = "max(epoch, promised) + 1"
FLOOR = "epoch_floor"
SCHEMA_KEY = "directory_schema"
SHARDS = "router_shards"
# The folder in which a directory is split anew; while it is there the files may be of two kinds.
RESHARDING = "resharding"
GENERATION = "generation"


def _among(states: Sequence[State]) -> str:
    return ", ".join(f"'{state}'" for state in states)


class Directory:
    """The durable map from names to owners.

    Methods that write return once the change is durable.
    Raises: StorageError when the file cannot be opened, or another router has it open.
    """

    def __init__(
        self, root: Path, *, shard: Shard = WHOLE, now_ms: Callable[[], int] | None = None
    ) -> None:
        file = root / shard.directory_file
        self._storage = Storage(file, quota_bytes=DIRECTORY_BYTES_MAX)
        self.on_broken = self._storage.on_broken
        try:
            self._check_shard(shard, file)
        except BaseException:
            self._storage.close()
            raise
        self.now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self.spent = SpentLines(self._storage, self.now_ms)
        self.records = DueRecords(self._storage)
        self.replicas_follow = False
        """Whether replicas follow what is acknowledged, so that any may lack its end."""
        self._storage.sql.exec(_SCHEMA + SPENT_SCHEMA + DUE_SCHEMA)
        self._upgrade()
        self.jobs = JobLog(self._storage, self.now_ms)
        self._storage.meta.put({SCHEMA_KEY: SCHEMA_VERSION})
        if self._storage.meta.get(GENERATION) is None:
            last = self._storage.fetch("SELECT max(generation) FROM conversations")[0][0] or 0
            floor = self._storage.meta.get(FLOOR) or 0
            self._storage.meta.put({GENERATION: max(last, floor)})

    def _check_shard(self, shard: Shard, file: Path) -> None:
        """Make sure that the file is one of as many as the routers that open them."""
        if (file.parent / RESHARDING / "ready").exists():
            raise StorageError(
                str(file),
                "splitting it anew was interrupted: finish it with `sessions-actor reshard`",
            )
        meta = self._storage.meta
        recorded = meta.get(SHARDS)
        if recorded is None and meta.get(SCHEMA_KEY) is not None:
            recorded = 1  # it was made before there could be several
        if recorded not in (None, shard.count):
            raise StorageError(
                str(file),
                f"this deployment's directory is split over {recorded} routers, not"
                f" {shard.count}: set SESSIONS_ACTOR_ROUTER_SHARDS={recorded}, or split it anew"
                f" while nothing serves it, with `sessions-actor reshard {shard.count}`",
            )
        meta.put({SHARDS: shard.count})

    def _upgrade(self) -> None:
        """Bring a file of an earlier version up to this one."""
        columns = {row[1] for row in self._storage.fetch("PRAGMA table_info(nodes)")}
        if "term" not in columns:
            self._storage.sql.exec(
                "ALTER TABLE nodes ADD COLUMN machine_id TEXT NOT NULL DEFAULT '';"
                "ALTER TABLE nodes ADD COLUMN term INTEGER NOT NULL DEFAULT 1"
            )
        columns = {row[1] for row in self._storage.fetch("PRAGMA table_info(conversations)")}
        if "promised" not in columns:
            self._storage.sql.exec(
                "ALTER TABLE conversations ADD COLUMN promised INTEGER NOT NULL DEFAULT 0;"
                "ALTER TABLE conversations ADD COLUMN has_file INTEGER NOT NULL DEFAULT 0;"
                "UPDATE conversations SET has_file = file_bytes > 0"
            )
        if "line" not in columns:
            self._storage.sql.exec(
                "ALTER TABLE conversations ADD COLUMN line INTEGER NOT NULL DEFAULT 0;"
                "ALTER TABLE conversations ADD COLUMN position INTEGER NOT NULL DEFAULT 0"
            )
        if "behind_since" not in columns:
            self._storage.sql.exec(
                "ALTER TABLE conversations ADD COLUMN behind_since INTEGER NOT NULL DEFAULT 0"
            )
        self._storage.sql.exec(
            "CREATE INDEX IF NOT EXISTS conversations_behind ON conversations (behind_since)"
            " WHERE behind_since > 0"
        )

    def leave_replica(self) -> None:
        """Note that nobody copies the file: a replica that it had lacks what is written now."""
        known = self._storage.meta.get_all()
        if LINE_KEY in known and known.get(PENDING_KEY) is None:
            self._storage.meta.put({PENDING_KEY: COPY_PENDING})

    async def finish_replica(self) -> None:
        """Let go of what copies the file, as the last thing before `close`; here nothing does."""

    async def prove(self) -> None:
        """Make sure that the file can be written.

        Raises: OutputGateBrokenError.
        """
        self._storage.meta.put({"proved_at": self.now_ms()})
        await self._storage.durable()

    def close(self) -> None:
        """Commit and close the file."""
        self._storage.close()

    # ------------------------------------------------------------------------------- reads

    def get(self, name: str) -> Entry | None:
        """Return a conversation's row, or None."""
        row = self._storage.fetch_one(
            f"SELECT {_COLUMNS} FROM conversations WHERE name = ?", (check_name(name),)
        )
        return None if row is None else _entry(row)

    def page(self, prefix: str = "", after: str | None = None, limit: int = 100) -> list[str]:
        """List names in the order of their UTF-8 bytes, those after a name when one is given.

        Cost: the rows returned.
        """
        low = prefix.encode()
        bounds = ["name >= ?", "state <> 'deleting'"]
        params: list[Any] = [low]
        high = _successor(low)
        if high is not None:
            bounds.append("name < ?")
            params.append(high)
        if after is not None:
            bounds.append("name > ?")
            params.append(after.encode())
        rows = self._storage.fetch(
            f"SELECT name FROM conversations WHERE {' AND '.join(bounds)} ORDER BY name LIMIT ?",
            (*params, limit),
        )
        return [row[0].decode() for row in rows]

    def unsettled(self) -> list[Entry]:
        """Return every conversation that does not hibernate."""
        rows = self._storage.fetch(
            f"SELECT {_COLUMNS} FROM conversations WHERE state <> 'hibernated'"
        )
        return [_entry(row) for row in rows]

    def on_disk(self, disk_id: str, after: str | None, limit: int) -> list[Entry]:
        """Return conversations whose file lies on a disk, ordered by name."""
        rows = self._storage.fetch(
            f"SELECT {_COLUMNS} FROM conversations WHERE disk_id = ? AND name > ?"
            " AND state <> 'deleting' ORDER BY name LIMIT ?",
            (disk_id, b"" if after is None else after.encode(), limit),
        )
        return [_entry(row) for row in rows]

    def count_on_disk(self, disk_id: str) -> int:
        """Return how many conversations lie on a disk. Cost: a scan."""
        return int(
            self._storage.fetch(
                "SELECT count(*) FROM conversations WHERE disk_id = ? AND state <> 'deleting'",
                (disk_id,),
            )[0][0]
        )

    def sizes(self, after: str | None, limit: int) -> list[tuple[str, str, int]]:
        """Return where conversations lie and how large they last were: (name, disk, bytes)."""
        rows = self._storage.fetch(
            "SELECT name, disk_id, file_bytes FROM conversations WHERE name > ?"
            " AND state <> 'deleting' ORDER BY name LIMIT ?",
            (b"" if after is None else after.encode(), limit),
        )
        return [(name.decode(), disk_id, size) for name, disk_id, size in rows]

    def count(self) -> int:
        """Return how many conversations there are. Cost: a scan of the index."""
        return int(self._storage.fetch("SELECT count(*) FROM conversations")[0][0])

    def count_states(self) -> dict[State, int]:
        """Count the conversations that do not hibernate, by state. Cost: reads those alone."""
        rows = self._storage.fetch(
            "SELECT state, count(*) FROM conversations WHERE state <> 'hibernated' GROUP BY state"
        )
        return {State(state): count for state, count in rows}

    def count_after(self, after: bytes, limit: int) -> tuple[int, bytes | None]:
        """Count at most so many conversations behind a name, in bytes; the last one's name."""
        rows = self._storage.fetch(
            "SELECT count(*), max(name) FROM"
            " (SELECT name FROM conversations WHERE name > ? ORDER BY name LIMIT ?)",
            (after, limit),
        )
        count, last = rows[0]
        return count, last

    async def durable(self) -> None:
        """Wait until everything that a read may have seen is durable."""
        await self._storage.durable()

    # --------------------------------------------------------------------------- ownership

    async def create(self, name: str, owner: Owner) -> Entry | None:
        """Make a conversation, active with its first owner; None when the name exists."""
        now = self.now_ms()

        def op() -> Entry | None:
            if self.get(name) is not None:
                return None
            epoch = (self._storage.meta.get(FLOOR) or 0) + 1
            created = self._apply(
                f"INSERT INTO conversations VALUES (?, '{State.ACTIVE}', ?, ?, ?, ?, ?,"
                " NULL, 0, ?, ?, NULL, 0, 0, 0, 0, 0)",
                (
                    check_name(name),
                    epoch,
                    self._next_generation(),
                    owner.disk_id,
                    owner.node_id,
                    owner.actor,
                    now,
                    now,
                ),
            )
            assert created is not None
            self.records.note(created)
            return created

        return await self._storage.submit(op)

    def _next_generation(self) -> int:
        """Number a new file, inside an op: no other was or will be given this number."""
        generation: int = self._storage.meta.get(GENERATION) + 1
        self._storage.meta.put({GENERATION: generation})
        return generation

    async def activate(self, name: str, epoch: int, owner: Owner) -> Entry | None:
        """Give a conversation to an owner under the next epoch; None when the epoch moved on."""
        return await self._change(
            f"UPDATE conversations SET state = '{State.ACTIVE}', epoch = {NEXT_EPOCH}, node_id = ?,"
            " actor = ?, target = NULL, last_active_at = max(last_active_at, ?),"
            f" behind_since = iif(line = {LINE_STALE}, behind_since, 0)"
            f" WHERE name = ? AND epoch = ? AND disk_id = ?"
            f" AND state IN ({_among(sources(State.ACTIVE))})",
            (
                owner.node_id,
                owner.actor,
                self.now_ms(),
                check_name(name),
                epoch,
                owner.disk_id,
            ),
        )

    async def note_file(self, name: str, epoch: int) -> None:
        """Note that a first owner has started: from now on the file is there."""
        await self._change(
            "UPDATE conversations SET has_file = 1 WHERE name = ? AND epoch = ?",
            (check_name(name), epoch),
        )

    async def raise_epoch(self, name: str, epoch: int, at_least: int) -> Entry | None:
        """Follow a file that carries a later epoch than this directory knew of."""
        return await self._change(
            "UPDATE conversations SET epoch = ? WHERE name = ? AND epoch = ? AND epoch < ?",
            (at_least, check_name(name), epoch, at_least),
        )

    async def hibernate(
        self,
        name: str,
        epoch: int,
        *,
        file_bytes: int | None,
        last_active_at: int | None,
        position: int = 0,
        behind: bool | None = None,
    ) -> Entry | None:
        """Note that nobody owns a conversation; None when another epoch does.

        Args:
            position: where its replica is complete, as far as that is known.
            behind: whether its replica lacks something; None: nobody could tell.
        """
        has_replica, unknown = self.records.is_on, behind is None
        lacks = has_replica and (self.replicas_follow if behind is None else behind)
        return await self._change(
            f"UPDATE conversations SET state = '{State.HIBERNATED}', node_id = NULL, actor = NULL,"
            " target = NULL, file_bytes = coalesce(?, file_bytes),"
            " last_active_at = max(last_active_at, coalesce(?, 0)),"
            " line = iif(?3 > 0, generation, line), position = iif(?3 > 0, ?3, position),"
            " behind_since = iif(has_file AND (?6 OR (?7 AND line <> generation)), ?8, 0)"
            f" WHERE name = ?4 AND epoch = ?5 AND state IN ({_among(sources(State.HIBERNATED))})",
            (
                *(file_bytes, last_active_at, position, check_name(name), epoch),
                *(lacks, has_replica and unknown, self.now_ms()),
            ),
        )

    async def forget_new(self, name: str, epoch: int) -> None:
        """Undo `create` when the first activation failed: no file holds anything yet."""
        await self._remove(name, epoch, State.ACTIVE)

    # -------------------------------------------------------------------------- migration

    async def begin_migration(self, name: str, epoch: int, target: Owner) -> Entry | None:
        """Note where a conversation is going; its owner stays. The target's epoch is the next.

        Its file is one that no earlier attempt used: what that left may not be removed yet.
        """

        def op() -> Entry | None:
            place = {"generation": self._next_generation()}
            return self._apply(
                f"UPDATE conversations SET state = '{State.MIGRATING}', promised = {NEXT_EPOCH},"
                f" target = json_set(?, '$.epoch', {NEXT_EPOCH})"
                f" WHERE name = ? AND epoch = ? AND state IN ({_among(sources(State.MIGRATING))})",
                (dumps({**target._asdict(), **place}).decode(), check_name(name), epoch),
            )

        return await self._storage.submit(op)

    async def switch(self, name: str, epoch: int, target: Owner) -> Entry | None:
        """Make the target the owner, under the epoch it was promised and with its own file.

        The source's file becomes waste in the same transaction.
        """

        def op() -> Entry | None:
            before = self.get(name)
            if before is None or before.target is None:
                return None
            generation = before.target["generation"]
            after = self._apply(
                f"UPDATE conversations SET state = '{State.ACTIVE}', epoch = promised,"
                " generation = ?, disk_id = ?, node_id = ?, actor = ?, target = NULL"
                f" WHERE name = ? AND epoch = ? AND state = '{State.MIGRATING}'",
                (generation, target.disk_id, target.node_id, target.actor, check_name(name), epoch),
            )
            if after is not None:
                self._note_waste(before.disk_id, before.file)
                self.spent.left(name, before.generation)
                self.records.note(before)
                self.records.note(after)
            return after

        return await self._storage.submit(op)

    async def abandon_migration(self, name: str, epoch: int) -> Entry | None:
        """Leave the source as the owner; the target's file becomes waste."""

        def op() -> Entry | None:
            before = self.get(name)
            after = self._apply(
                f"UPDATE conversations SET state = '{State.ACTIVE}', target = NULL"
                f" WHERE name = ? AND epoch = ? AND state = '{State.MIGRATING}'",
                (check_name(name), epoch),
            )
            if after is not None and before is not None and before.target is not None:
                target = before.target
                self._note_waste(target["disk_id"], file_of(name, target["generation"]))
            return after

        return await self._storage.submit(op)

    # --------------------------------------------------------------------------- deletion

    async def begin_delete(self, name: str, epoch: int) -> Entry | None:
        """Take a conversation out of sight; None when the epoch moved on."""
        return await self._change(
            f"UPDATE conversations SET state = '{State.DELETING}'"
            f" WHERE name = ? AND epoch = ? AND state IN ({_among(sources(State.DELETING))})",
            (check_name(name), epoch),
        )

    async def finish_delete(self, name: str, epoch: int) -> None:
        """Forget a conversation and note its file as waste."""
        await self._remove(name, epoch, State.DELETING)

    async def _remove(self, name: str, epoch: int, state: State) -> None:
        def op() -> None:
            before = self.get(name)
            if before is None or before.epoch != epoch or before.state is not state:
                return
            ((promised,),) = self._storage.fetch(
                "SELECT promised FROM conversations WHERE name = ?", (check_name(name),)
            )
            self._storage.write("DELETE FROM conversations WHERE name = ?", (check_name(name),))
            self._note_waste(before.disk_id, before.file)
            # A migration that was given up may have left a line above the present one.
            self.spent.deleted(name, self._storage.meta.get(GENERATION))
            self.records.note(before, deleted_at=self.now_ms())
            floor = self._storage.meta.get(FLOOR) or 0
            self._storage.meta.put({FLOOR: max(floor, epoch, promised)})

        await self._storage.submit(op)

    # ------------------------------------------------------------------------------- facts

    async def set_quota(self, name: str, quota_bytes: int | None) -> Entry | None:
        """Give a conversation a quota of its own; None takes it away."""
        return await self._change(
            "UPDATE conversations SET quota_bytes = ? WHERE name = ?",
            (quota_bytes, check_name(name)),
        )

    def waste(self, disk_id: str, limit: int = 100) -> list[Waste]:
        """Return files on a disk that may be removed."""
        rows = self._storage.fetch(
            "SELECT disk_id, file FROM waste WHERE disk_id = ? LIMIT ?", (disk_id, limit)
        )
        return [Waste(*row) for row in rows]

    async def removed(self, files: Sequence[Waste]) -> None:
        """Strike off files that are gone."""
        await self._storage.submit(
            lambda: self._storage.write_many(
                "DELETE FROM waste WHERE disk_id = ? AND file = ?", [tuple(file) for file in files]
            )
        )

    def _note_waste(self, disk_id: str, file: str) -> None:
        self._storage.write("INSERT OR IGNORE INTO waste VALUES (?, ?)", (disk_id, file))

    def nodes(self) -> dict[str, NodeRow]:
        """Return what is known of nodes by id."""
        rows = self._storage.fetch("SELECT node_id, disk_id, draining, machine_id, term FROM nodes")
        return {
            node_id: NodeRow(disk_id, bool(draining), machine_id, term)
            for node_id, disk_id, draining, machine_id, term in rows
        }

    async def note_node(
        self, node_id: str, disk_id: str, *, draining: bool, machine_id: str = ""
    ) -> None:
        """Remember a node's disk and machine, and whether it is being emptied."""
        await self._storage.submit(
            lambda: self._storage.write(
                "INSERT INTO nodes (node_id, disk_id, draining, machine_id) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (node_id) DO UPDATE SET disk_id = excluded.disk_id,"
                " draining = excluded.draining, machine_id = excluded.machine_id",
                (node_id, disk_id, draining, machine_id),
            )
        )

    async def note_term(self, node_id: str, term: int) -> None:
        """Remember that a node's lease entered a term; terms only rise."""
        await self._storage.submit(
            lambda: self._storage.write(
                "INSERT INTO nodes (node_id, disk_id, draining, term) VALUES (?, '', 0, ?)"
                " ON CONFLICT (node_id) DO UPDATE SET term = max(term, excluded.term)",
                (node_id, term),
            )
        )

    async def forget_nodes(self, node_ids: Sequence[str]) -> None:
        """Drop nodes that are gone for good: a node's id never returns.

        One that a conversation still names stays: its lease may not have run out.
        """
        await self._storage.submit(
            lambda: self._storage.write_many(
                "DELETE FROM nodes WHERE node_id = ? AND NOT EXISTS (SELECT 1 FROM conversations"
                " WHERE state <> 'hibernated' AND conversations.node_id = nodes.node_id)",
                [(node_id,) for node_id in node_ids],
            )
        )

    # ------------------------------------------------------------------------------ within

    def _apply(self, query: str, params: Sequence[Any]) -> Entry | None:
        """Run one changing statement inside an op; the row as it stands after it."""
        rows = list(self._storage.connection.execute(f"{query} RETURNING {_COLUMNS}", params))
        return _entry(rows[0]) if rows else None

    async def _change(self, query: str, params: Sequence[Any]) -> Entry | None:
        return await self._storage.submit(lambda: self._apply(query, params))


def _entry(row: Sequence[Any]) -> Entry:
    name, state, *rest, has_file, target = row
    target = None if target is None else loads(target)
    values = (name.decode(), State(state), *rest, bool(has_file), target)
    return Entry(*values)


def _successor(prefix: bytes) -> bytes | None:
    """Return the least bytes above everything that begins with a prefix; None for all names."""
    # No UTF-8 text holds the byte 0xFF, so the last byte can always be raised.
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else None
