"""Everything a conversation owns, out of one file and into another.

The messages of every session travel in write order, as they are stored (`history_rows()` into
`import_messages()`, with payloads outside the message); every other table, the host's own and
those below virtual tables included, by its key. Indexes, triggers and views are made last, so
that nothing fires or slows the copy. `digests()` gives row counts and content digests per table,
the same for two files that hold the same.

Left out is what belongs to the file and not to the conversation: the identity record and SQLite's
own statistics.

One call reads or writes one bounded window and holds nothing open between calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import marshal
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import apsw

from .gate import META_TABLE
from .sessions import schema
from .sessions.rows import BEFORE_ALL, RowOrder, import_stored
from .sessions.sql import Database
from .sessions.store import Store, StoredMessage
from .storage import Storage
from .tables import NOT_COPIED, SEQUENCES, Row, Table, tables_of
from .tracking import ChangeTracker

_BY_MESSAGE = (schema.MESSAGES, schema.CONTINUATIONS)
_WINDOW_ROWS = 1000
_CHANGED_ROWS = 100

Place = tuple[int, Any]
Window = list[tuple[str, str, list[Row]]]
"""What crosses: (kind, table or session id, rows). Kinds: "messages", "rows", "gone" (keys)."""


@dataclass(frozen=True, slots=True)
class TableDigest:
    """How many rows a table holds, and the SHA-256 of them all in key order."""

    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a file holds: the statements that make its schema, and the parts to copy in turn."""

    first: tuple[str, ...]
    indexes: tuple[str, ...]
    triggers: tuple[str, ...]
    sessions: tuple[str, ...]
    tables: tuple[str, ...]
    created_at: int | None


def _size(row: Row) -> int:
    return sum(
        len(value)
        if isinstance(value, str | bytes)
        else sum(map(len, value))
        if isinstance(value, list)
        else 8
        for value in row
    )


class Outgoing:
    """Reads a whole conversation, window by window."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._db: Database = storage.connection
        self._store = Store(storage)
        self._orders: dict[str, RowOrder] = {}
        self._tracker: ChangeTracker | None = None
        self._recent: dict[str, dict[Row, None]] | None = None

    def close(self) -> None:
        """Stop tracking, and let go of temporary files."""
        self._close_orders()
        if self._tracker is not None:
            self._tracker.stop()
            self._tracker = None

    def _close_orders(self) -> None:
        for order in self._orders.values():
            order.close()
        self._orders.clear()

    @property
    def tracker(self) -> ChangeTracker:
        """What changed since it was first asked for."""
        if self._tracker is None:
            self._tracker = ChangeTracker(self._db)
        return self._tracker

    def changed_window(self, max_bytes: float) -> tuple[Window, int]:
        """Read rows that changed since the copy began, as they are now.

        Returns: rows worth about `max_bytes`, and how many changed rows are left.
        """
        window: Window = []
        size = 0
        while size < max_bytes and (taken := self.tracker.take(_CHANGED_ROWS)) is not None:
            name, keys = taken
            if self._recent is not None:
                self._recent.setdefault(name, {}).update(dict.fromkeys(keys))
            rows, gone = Table.of(self._db, name).read(self._db, keys)
            window += [("gone", name, gone), ("rows", name, rows)]
            size += sum(map(_size, rows)) + sum(map(_size, gone))
        return window, self.tracker.count

    def snapshot(self) -> tuple[Window, apsw.Connection]:
        """Read every change that is left, and keep the file as it is at this moment for reading.

        Returns: the last changes, after which a copy equals the file, and a connection that goes
            on seeing it like that. The caller closes it.
        """
        window, left = self.changed_window(math.inf)
        assert left == 0
        self._storage.flush()
        self._recent = {}
        seen = apsw.Connection(self._storage.path, flags=apsw.SQLITE_OPEN_READONLY)
        seen.execute("BEGIN")
        seen.execute("SELECT 1 FROM sqlite_master").fetchall()
        return window + self.sequences(), seen

    def recent_keys(self) -> dict[str, list[Row]]:
        """Keys of the rows that changed since the snapshot, and were taken since."""
        return {name: list(keys) for name, keys in (self._recent or {}).items()}

    def sequences(self) -> Window:
        """Read the counters of AUTOINCREMENT, which no tracker sees."""
        if SEQUENCES not in tables_of(self._db):
            return []
        table = Table.of(self._db, SEQUENCES)
        rows = [row[: len(table.columns)] for row in table.window(self._db, None, _WINDOW_ROWS)]
        return [("rows", SEQUENCES, rows)]

    def manifest(self) -> Manifest:
        """Say what there is to copy."""
        statements: dict[str, list[str]] = {"table": [], "index": [], "trigger": [], "view": []}
        shadows = {
            row[0]
            for row in self._db.execute(
                "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'shadow'"
            )
        }
        for name, kind, text in self._db.execute(
            "SELECT name, type, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
        ):
            if not name.startswith(NOT_COPIED) and name not in shadows and name != META_TABLE:
                statements[kind].append(text)
        tables = tables_of(self._db)
        return Manifest(
            tuple(statements["table"]),
            tuple(statements["index"] + statements["view"]),
            tuple(statements["trigger"]),
            tuple(self._store.session_ids()) if schema.MESSAGES in tables else (),
            tuple(name for name in tables if name not in _BY_MESSAGE),
            self._storage.meta.get("created_at"),
        )

    async def window(
        self, manifest: Manifest, place: Place | None, max_bytes: int
    ) -> tuple[Window, Place | None]:
        """Read the next window of a copy. Cost: `max_bytes`, or one larger row.

        Args:
            place: where the last window ended; None at the start.

        Returns: the rows and the place to go on from; None when everything was read.
        """
        part, after = place or (0, None)
        if part < len(manifest.sessions):
            session_id = manifest.sessions[part]
            order = self._orders.get(session_id)
            if order is None:
                self._close_orders()
                order = self._orders[session_id] = RowOrder(self._store, session_id)
                await order.build()
            rows, seq = order.stored_window(after or BEFORE_ALL, max_bytes)
            here: Window = [("messages", session_id, [tuple(row) for row in rows])]
            return here, self._next(manifest, part, seq)
        name = manifest.tables[part - len(manifest.sessions)]
        table = Table.of(self._db, name)
        taken, size = [], 0
        found = table.window(self._db, after, _WINDOW_ROWS)
        for row in found:
            taken.append(row[: len(table.columns)])
            size += _size(taken[-1])
            if size >= max_bytes:
                break
        more = len(taken) < len(found) or len(found) == _WINDOW_ROWS
        key = found[len(taken) - 1][len(table.columns) :] if more else None
        return [("rows", name, taken)], self._next(manifest, part, key)

    def _next(self, manifest: Manifest, part: int, after: Any) -> Place | None:
        if after is not None:
            return part, after
        parts = len(manifest.sessions) + len(manifest.tables)
        return (part + 1, None) if part + 1 < parts else None


class Incoming:
    """Writes a whole conversation into a fresh file, which no host has opened yet."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._db: Database = storage.connection
        # Rows below virtual tables are written as they were; references come before referents.
        self._db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        self._db.execute("PRAGMA foreign_keys = OFF")
        self._store: Store | None = None

    async def begin(self, manifest: Manifest) -> None:
        """Create the tables of the source."""
        await self._storage.submit(lambda: self._create(manifest.first))
        if manifest.created_at is not None:
            self._storage.meta.put({"created_at": manifest.created_at})
        self._store = Store(self._storage)

    async def write(self, window: Window) -> int:
        """Write one window in one transaction; returns its bytes."""
        return await self._storage.submit(lambda: self._write(window))

    async def index(self, manifest: Manifest) -> None:
        """Create indexes and views, at a moment when the rows are consistent."""
        await self._storage.submit(lambda: self._create(manifest.indexes))

    async def finish(self, manifest: Manifest) -> None:
        """Create triggers: nothing is written by windows any more."""
        await self._storage.submit(lambda: self._create(manifest.triggers))

    def _create(self, statements: Sequence[str]) -> None:
        for statement in statements:
            self._db.execute(statement)

    def _write(self, window: Window) -> int:
        assert self._store is not None, "begin() comes first"
        size = 0
        for kind, name, rows in window:
            if kind == "messages":
                import_stored(self._store, name, (StoredMessage(*row) for row in rows))
            elif kind == "gone":
                Table.of(self._db, name).delete(self._db, rows)
            elif rows:
                if name == SEQUENCES:
                    self._db.execute(f"DELETE FROM {name}")
                Table.of(self._db, name).insert(self._db, rows)
            size += sum(map(_size, rows))
        return size


async def digests(storage: Storage) -> dict[str, TableDigest]:
    """Count and digest the rows of every table. Cost: reads everything once, others run between.

    Two files hold the same conversation when these are equal.
    """
    found = {}
    for name in tables_of(storage.connection):
        for digest in _digest_windows(storage.connection, name):
            if digest is not None:
                found[name] = digest
            await asyncio.sleep(0)
    return found


def digest_rows(db: Database, keys: Mapping[str, Sequence[Row]]) -> str:
    """Digest the rows of some keys, and which keys have none."""
    total = hashlib.sha256()
    for name in sorted(keys):
        total.update(marshal.dumps((name, Table.of(db, name).read(db, keys[name])), 2))
    return total.hexdigest()


def digests_of(db: Database) -> dict[str, TableDigest]:
    """Count and digest the rows of every table as one connection sees them."""
    return {
        name: next(digest for digest in _digest_windows(db, name) if digest is not None)
        for name in tables_of(db)
    }


def _digest_windows(db: Database, name: str) -> Iterator[TableDigest | None]:
    """Digest a table window by window: None after each, then the digest."""
    table, total, count = Table.of(db, name), hashlib.sha256(), 0
    after: Row | None = None
    while rows := table.window(db, after, _WINDOW_ROWS):
        # Version 2 writes equal values alike, whatever else refers to them.
        total.update(marshal.dumps(rows, 2))
        count += len(rows)
        after = rows[-1][len(table.columns) :]
        yield None
    yield TableDigest(count, total.hexdigest())
