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
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import apsw

from .gate import META_TABLE
from .sessions import schema
from .sessions.rows import BEFORE_ALL, RowOrder, import_stored
from .sessions.sql import Database
from .sessions.store import Store, StoredMessage
from .storage import Storage

_BY_MESSAGE = (schema.MESSAGES, schema.CONTINUATIONS)
_SEQUENCES = "sqlite_sequence"
_WINDOW_ROWS = 1000

Row = tuple[Any, ...]
Place = tuple[int, Any]
Window = list[tuple[str, str, list[Row]]]
"""What crosses: (kind, table or session id, rows), kind "messages" or "rows"."""


@dataclass(frozen=True, slots=True)
class TableDigest:
    """How many rows a table holds, and the SHA-256 of them all in key order."""

    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a file holds: the statements that make its schema, and the parts to copy in turn."""

    first: tuple[str, ...]
    last: tuple[str, ...]
    sessions: tuple[str, ...]
    tables: tuple[str, ...]
    created_at: int | None


@dataclass(frozen=True, slots=True)
class _Table:
    """How to read one table by its key and write it again."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]

    @classmethod
    def of(cls, db: Database, name: str) -> _Table:
        rows = db.execute(
            "SELECT name, pk FROM pragma_table_xinfo(?) WHERE hidden = 0", (name,)
        ).fetchall()
        columns = tuple(row[0] for row in rows)
        ((without_rowid,),) = db.execute(
            "SELECT wr FROM pragma_table_list(?) WHERE schema = 'main'", (name,)
        ).fetchall()
        if without_rowid:
            key = tuple(row[0] for row in sorted(rows, key=lambda row: row[1]) if row[1])
        else:
            taken = {column.lower() for column in columns}
            alias = next(a for a in ("rowid", "_rowid_", "oid") if a not in taken)
            key, columns = (alias,), (alias, *columns)
        return cls(name, columns, key)

    def window(self, db: Database, after: Row | None, limit: int) -> list[Row]:
        """Read rows past a key. The key's values end each row."""
        key = ", ".join(map(_quoted, self.key))
        names = ", ".join(map(_quoted, (*self.columns, *self.key)))
        where = "" if after is None else f" WHERE ({key}) > ({', '.join('?' * len(after))})"
        query = f"SELECT {names} FROM {_quoted(self.name)}{where} ORDER BY {key} LIMIT ?"
        return list(db.execute(query, (*(after or ()), limit)))

    def insert(self, db: Database, rows: Sequence[Row]) -> None:
        """Write rows as they were; a row of the same key is replaced."""
        names, marks = ", ".join(map(_quoted, self.columns)), ", ".join("?" * len(self.columns))
        db.executemany(
            f"INSERT OR REPLACE INTO {_quoted(self.name)} ({names}) VALUES ({marks})", rows
        )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


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

    def close(self) -> None:
        """Let go of temporary files."""
        for order in self._orders.values():
            order.close()
        self._orders.clear()

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
            if not name.startswith("sqlite_") and name not in shadows and name != META_TABLE:
                statements[kind].append(text)
        tables = tables_of(self._db)
        return Manifest(
            tuple(statements["table"]),
            tuple(statements["index"] + statements["view"] + statements["trigger"]),
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
                self.close()
                order = self._orders[session_id] = RowOrder(self._store, session_id)
                await order.build()
            rows, seq = order.stored_window(after or BEFORE_ALL, max_bytes)
            here: Window = [("messages", session_id, [tuple(row) for row in rows])]
            return here, self._next(manifest, part, seq)
        name = manifest.tables[part - len(manifest.sessions)]
        table = _Table.of(self._db, name)
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

    async def finish(self, manifest: Manifest) -> None:
        """Create indexes, views and triggers."""
        await self._storage.submit(lambda: self._create(manifest.last))

    def _create(self, statements: Sequence[str]) -> None:
        for statement in statements:
            self._db.execute(statement)

    def _write(self, window: Window) -> int:
        assert self._store is not None, "begin() comes first"
        size = 0
        for kind, name, rows in window:
            if kind == "messages":
                import_stored(self._store, name, (StoredMessage(*row) for row in rows))
            elif rows:
                if name == _SEQUENCES:
                    self._db.execute(f"DELETE FROM {name}")
                _Table.of(self._db, name).insert(self._db, rows)
            size += sum(map(_size, rows))
        return size


def tables_of(db: Database) -> list[str]:
    """List the tables that hold a conversation, those below virtual tables included."""
    found = db.execute(
        "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type IN ('table', 'shadow')"
        " ORDER BY name = ?, name",
        (_SEQUENCES,),
    )
    return [
        name
        for (name,) in found
        if name != META_TABLE and (name == _SEQUENCES or not name.startswith("sqlite_"))
    ]


async def digests(storage: Storage) -> dict[str, TableDigest]:
    """Count and digest the rows of every table. Cost: reads everything once, others run between.

    Two files hold the same conversation when these are equal.
    """
    db: Database = storage.connection
    found = {}
    for name in tables_of(db):
        table, total, count = _Table.of(db, name), hashlib.sha256(), 0
        after: Row | None = None
        while rows := table.window(db, after, _WINDOW_ROWS):
            for row in rows:
                for value in row[: len(table.columns)]:
                    total.update(_encoded(value))
            count += len(rows)
            after = rows[-1][len(table.columns) :]
            await asyncio.sleep(0)
        found[name] = TableDigest(count, total.hexdigest())
    return found


def _encoded(value: object) -> bytes:
    """Write one value so that no two different rows read alike."""
    if value is None:
        return b"n"
    if isinstance(value, str):
        data = value.encode()
        return b"s%d:" % len(data) + data
    if isinstance(value, bytes):
        return b"b%d:" % len(value) + value
    if isinstance(value, int):
        return b"i%d:" % value
    assert isinstance(value, float)
    return b"f" + struct.pack("<d", value)


# ---------------------------------------------------------------- steps, as an actor runs them


class StepSite(Protocol):
    """Where a step works: an open file, and what one step keeps for the next."""

    storage: Storage
    kept: dict[str, Any]


async def describe_step(site: StepSite) -> Manifest:
    """At the source: begin a copy."""
    outgoing = site.kept["outgoing"] = Outgoing(site.storage)
    await site.storage.durable()
    return outgoing.manifest()


async def read_step(
    site: StepSite, manifest: Manifest, place: Place | None, max_bytes: int
) -> tuple[Window, Place | None]:
    """At the source: read the next window; see `Outgoing.window`."""
    outgoing: Outgoing = site.kept["outgoing"]
    return await outgoing.window(manifest, place, max_bytes)


async def begin_step(site: StepSite, manifest: Manifest) -> None:
    """At the target: make the tables."""
    incoming = site.kept["incoming"] = Incoming(site.storage)
    await incoming.begin(manifest)


async def write_step(site: StepSite, window: Window) -> int:
    """At the target: write one window; returns its bytes."""
    incoming: Incoming = site.kept["incoming"]
    return await incoming.write(window)


async def finish_step(site: StepSite, manifest: Manifest) -> dict[str, TableDigest]:
    """At the target: make indexes, views and triggers, and digest what arrived."""
    incoming: Incoming = site.kept["incoming"]
    await incoming.finish(manifest)
    return await digests(site.storage)


async def digest_step(site: StepSite) -> dict[str, TableDigest]:
    """At the source: digest what was read."""
    return await digests(site.storage)
