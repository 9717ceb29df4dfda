"""Every statement over the message tables of one file.

Rules: reads may run at any time and hold no cursor open; writes run inside an operation of the
storage's group (`Storage.perform`), hold no await and decide nothing that the plan has decided.
What is kept in memory (the tail of a session, the parents that no row has) is derived from rows,
and forgotten whenever the storage rolls something back.

It does not parse messages, dispatch events or plan paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..attachments import Payload
from ..overlays import COMPACTION_PREFIX
from ..records import Compaction, iso_from_ms
from ..storage import Storage
from . import schema
from .deletion import delete
from .payloads import Payloads
from .sql import Database, marks, windows
from .tails import Tail, Tails
from .walks import SIZED_WALK, WALK, PathRow

_MISSING_KEY = "cf_agents:sessions_missing_parents"

_EXISTS = f"SELECT 1 FROM {schema.MESSAGES} WHERE session_id = ? AND id = ?"
_INSERT = (
    f"INSERT INTO {schema.MESSAGES} (session_id, id, seq, parent_id, role, content,"
    " content_chunks, token_estimate, created_at, content_hash)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class StoredRow(NamedTuple):
    """What an update must know of the row it replaces."""

    content_chunks: int
    token_estimate: int
    content_hash: str | None


class NewRow(NamedTuple):
    """A row to insert, decided to the last byte."""

    id: str
    role: str
    slices: Sequence[str]
    payloads: Mapping[str, Payload]
    references: Sequence[str]
    token_estimate: int
    content_hash: str | None


class StoredMessage(NamedTuple):
    """One row as it is stored: every column and every slice."""

    seq: int
    id: str
    parent_id: str | None
    type: str
    role: str
    token_estimate: int
    created_at: float
    content_hash: str | None
    slices: list[bytes]


class Store:
    """The rows of every session in one file."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._db: Database = storage.connection
        # A cursor kept for statements without rows left over costs half of `db.execute`.
        self._short = self._db.cursor().execute
        self.payloads = Payloads(self._db)
        self.tails = Tails(storage)
        self._missing_parents: dict[str, set[str]] = {}
        self._marked: set[str] | None = None
        storage.on_rollback(self.forget)

    def forget(self) -> None:
        """Drop what is remembered of rows: something was rolled back."""
        self.tails.forget()
        self._missing_parents.clear()
        self._marked = None

    # ------------------------------------------------------------------ single rows

    def exists(self, session_id: str, message_id: str) -> bool:
        """Tell whether the session holds the row. Cost: one row read."""
        return self._short(_EXISTS, (session_id, message_id)).get is not None

    def stored_row(self, session_id: str, message_id: str) -> StoredRow | None:
        """Read what an update needs, without content."""
        row = self._db.execute(
            f"SELECT content_chunks, token_estimate, content_hash FROM {schema.MESSAGES}"
            " WHERE session_id = ? AND id = ?",
            (session_id, message_id),
        ).fetchone()
        return None if row is None else StoredRow(*row)

    def parent_of(self, session_id: str, message_id: str) -> str | None:
        """Read the parent id of a row; None for a root and for an unknown id."""
        row = self._db.execute(
            f"SELECT parent_id FROM {schema.MESSAGES} WHERE session_id = ? AND id = ?",
            (session_id, message_id),
        ).fetchone()
        return None if row is None else row[0]

    def seq_of(self, session_id: str, message_id: str) -> int | None:
        """Read the `seq` of a row; None for an unknown id."""
        row = self._db.execute(
            f"SELECT seq FROM {schema.MESSAGES} WHERE session_id = ? AND id = ?",
            (session_id, message_id),
        ).fetchone()
        return None if row is None else row[0]

    def text(self, session_id: str, message_id: str) -> bytes | None:
        """Read the stored JSON of one message, all slices joined."""
        return self.texts(session_id, [message_id]).get(message_id)

    def texts(self, session_id: str, ids: Sequence[str]) -> dict[str, bytes]:
        """Read the stored JSON of some messages. Cost: a row per message and per slice."""
        found: dict[str, bytes] = {}
        for window in windows(ids):
            continued = []
            for message_id, content, chunks in self._db.execute(
                f"SELECT id, CAST(content AS BLOB), content_chunks FROM {schema.MESSAGES}"
                f" WHERE session_id = ? AND id IN ({marks(len(window))})",
                (session_id, *window),
            ):
                found[message_id] = content
                if chunks:
                    continued.append(message_id)
            for message_id in continued:
                rest = self._db.execute(
                    f"SELECT CAST(content AS BLOB) FROM {schema.CONTINUATIONS}"
                    " WHERE session_id = ? AND id = ? ORDER BY idx",
                    (session_id, message_id),
                ).fetchall()
                found[message_id] = b"".join([found[message_id], *(row[0] for row in rest)])
        return found

    def small_texts(
        self, session_id: str, ids: Sequence[str], limit: int
    ) -> dict[str, tuple[str, str, bytes | None]]:
        """Read (id, role, stored JSON) of some messages by id; None for a text above `limit`."""
        found = self._db.execute(
            "SELECT id, role, CASE WHEN content_chunks = 0 AND octet_length(content) <= ?1"
            f" THEN CAST(content AS BLOB) END FROM {schema.MESSAGES}"
            f" WHERE session_id = ?2 AND id IN ({marks(len(ids))})",
            (limit, session_id, *ids),
        )
        return {row[0]: row for row in found}

    def tail(self, session_id: str) -> Tail:
        """Find the active leaf and the next `seq`; see `Tails.get`."""
        return self.tails.get(session_id)

    def session_ids(self) -> list[str]:
        """List the sessions that hold anything, in order. Cost: a key seek per session."""
        found: set[str] = set()
        for table in (schema.MESSAGES, schema.COMPACTIONS, schema.CONFIG):
            query = f"SELECT MIN(session_id) FROM {table}"
            (row,) = self._db.execute(query).fetchall()
            while row[0] is not None:
                found.add(row[0])
                (row,) = self._db.execute(f"{query} WHERE session_id > ?", (row[0],)).fetchall()
        return sorted(found)

    def children(self, session_id: str, parent_id: str) -> list[str]:
        """List a row's children in `seq` order. Cost: a scan of the session's keys."""
        query = (
            f"SELECT id FROM {schema.MESSAGES} WHERE session_id = ? AND parent_id = ?"
            " ORDER BY seq, id"
        )
        return [row[0] for row in self._db.execute(query, (session_id, parent_id))]

    def scan_keys(self, session_id: str, after_id: str, limit: int) -> list[tuple[int, str]]:
        """List (seq, id) in the order of ids, past an id."""
        found: list[tuple[int, str]] = self._db.execute(
            f"SELECT seq, id FROM {schema.MESSAGES} WHERE session_id = ? AND id > ?"
            " ORDER BY id LIMIT ?",
            (session_id, after_id, limit),
        ).fetchall()
        return found

    def stored_message(self, session_id: str, message_id: str) -> StoredMessage | None:
        """Read one row with all its columns and slices."""
        row = self._db.execute(
            "SELECT seq, id, parent_id, type, role, token_estimate, created_at, content_hash,"
            f" CAST(content AS BLOB), content_chunks FROM {schema.MESSAGES}"
            " WHERE session_id = ? AND id = ?",
            (session_id, message_id),
        ).fetchone()
        if row is None:
            return None
        slices = [row[8]]
        if row[9]:
            slices += [
                found[0]
                for found in self._db.execute(
                    f"SELECT CAST(content AS BLOB) FROM {schema.CONTINUATIONS}"
                    " WHERE session_id = ? AND id = ? ORDER BY idx",
                    (session_id, message_id),
                )
            ]
        seq, found_id, parent_id, kind, role, tokens, created_at, digest = row[:8]
        return StoredMessage(
            seq, found_id, parent_id, kind, role, tokens, created_at, digest, slices
        )

    # ------------------------------------------------------------------ paths

    def walk(self, session_id: str, start_id: str, limit: int) -> list[tuple[str, str | None]]:
        """Follow parents from a row, it included: at most `limit` (id, parent_id)."""
        return list(self._db.execute(WALK, (session_id, start_id, limit)))

    def sized_walk(
        self, session_id: str, start_id: str, limit: int, text_bytes: int = -1
    ) -> list[PathRow]:
        """Follow parents as `walk` does, with each row's role, bytes and token estimate.

        Args: texts of up to `text_bytes` in one slice come along.
        """
        found = self._db.execute(SIZED_WALK, (session_id, start_id, limit, text_bytes))
        rows = list(map(PathRow._make, found))
        if any(row.held for row in rows):
            rows = [self._with_payloads(session_id, row) if row.held else row for row in rows]
        return rows

    def _with_payloads(self, session_id: str, row: PathRow) -> PathRow:
        text = row.text or self.text(session_id, row.id)
        assert text is not None
        size = row.bytes + self.payloads.bytes_of(session_id, row.id, text)
        return row._replace(bytes=size)

    # ------------------------------------------------------------------ writes

    def insert(self, session_id: str, row: NewRow, parent_id: str | None, created_at: float) -> int:
        """Insert one message at the tail; returns its `seq`.

        Cost: a row per slice, payload chunk and reference.
        """
        seq = self.tail(session_id).next_seq
        self._insert(session_id, row, seq, parent_id, created_at)
        self.tails.set(session_id, Tail(row.id, seq + 1))
        missing = self._missing_parents.get(session_id)
        if missing is not None:
            missing.discard(row.id)
        return seq

    def lift(self, row: NewRow, seq: int, parent_id: str | None, created_at: float) -> None:
        """Insert a message of the default session at its old place; what followed it follows."""
        self._insert("", row, seq, parent_id, created_at)
        self._db.execute(
            f"UPDATE {schema.MESSAGES} SET parent_id = ? WHERE session_id = '' AND seq = ?"
            " AND parent_id IS ?",
            (row.id, seq + 1, parent_id),
        )
        self.forget()

    def _insert(
        self, session_id: str, row: NewRow, seq: int, parent_id: str | None, created_at: float
    ) -> None:
        for digest, payload in row.payloads.items():
            self.payloads.put(digest, payload)
        self._short(
            _INSERT,
            (
                session_id,
                row.id,
                seq,
                parent_id,
                row.role,
                row.slices[0],
                len(row.slices) - 1,
                row.token_estimate,
                created_at,
                row.content_hash,
            ),
        )
        if len(row.slices) > 1:
            self._write_continuations(session_id, row)
        for digest in row.references:
            self.payloads.refer(session_id, row.id, digest)

    def replace(self, session_id: str, row: NewRow, old_chunks: int) -> None:
        """Replace a message's content; seq, parent and created_at stay."""
        for digest, payload in row.payloads.items():
            self.payloads.put(digest, payload)
        self._db.execute(
            f"UPDATE {schema.MESSAGES} SET role = ?, content = ?, content_chunks = ?,"
            " token_estimate = ?, content_hash = ? WHERE session_id = ? AND id = ?",
            (
                row.role,
                row.slices[0],
                len(row.slices) - 1,
                row.token_estimate,
                row.content_hash,
                session_id,
                row.id,
            ),
        )
        if old_chunks > len(row.slices) - 1:
            self._db.execute(
                f"DELETE FROM {schema.CONTINUATIONS} WHERE session_id = ? AND id = ? AND idx > ?",
                (session_id, row.id, len(row.slices) - 1),
            )
        self._write_continuations(session_id, row)
        self.payloads.replace_references(session_id, row.id, row.references)

    def insert_stored(self, session_id: str, row: StoredMessage) -> None:
        """Insert a row of another file as it was stored there."""
        self._db.execute(
            f"INSERT INTO {schema.MESSAGES} (session_id, id, seq, parent_id, type, role, content,"
            " content_chunks, token_estimate, created_at, content_hash)"
            " VALUES (?, ?, ?, ?, ?, ?, CAST(? AS TEXT), ?, ?, ?, ?)",
            (
                session_id,
                row.id,
                row.seq,
                row.parent_id,
                row.type,
                row.role,
                row.slices[0],
                len(row.slices) - 1,
                row.token_estimate,
                row.created_at,
                row.content_hash,
            ),
        )
        for idx, piece in enumerate(row.slices[1:], 1):
            self._db.execute(
                f"INSERT INTO {schema.CONTINUATIONS} (session_id, id, idx, content)"
                " VALUES (?, ?, ?, CAST(? AS TEXT))",
                (session_id, row.id, idx, piece),
            )

    def stamp(self, session_id: str, message_id: str, content_hash: str) -> None:
        """Stamp the digest on a row of a file that predates the column."""
        self._db.execute(
            f"UPDATE {schema.MESSAGES} SET content_hash = ? WHERE session_id = ? AND id = ?",
            (content_hash, session_id, message_id),
        )

    def _write_continuations(self, session_id: str, row: NewRow) -> None:
        for idx in range(1, len(row.slices)):
            self._db.execute(
                f"INSERT OR REPLACE INTO {schema.CONTINUATIONS} (session_id, id, idx, content)"
                " VALUES (?, ?, ?, ?)",
                (session_id, row.id, idx, row.slices[idx]),
            )

    def delete(self, session_id: str, ids: Iterable[str]) -> dict[str, str | None]:
        """Delete rows; see `deletion.delete`."""
        survivors = delete(self._db, self.payloads, session_id, ids)
        self.tails.deleted(session_id, survivors)
        return survivors

    def clear(self, session_id: str) -> None:
        """Delete everything of one session but its configuration."""
        query = f"SELECT DISTINCT hash FROM {schema.REFERENCES} WHERE session_id = ?"
        orphans = [row[0] for row in self._db.execute(query, (session_id,))]
        for table in (
            schema.MESSAGES,
            schema.CONTINUATIONS,
            schema.COMPACTIONS,
            schema.REFERENCES,
        ):
            self._db.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))
        self.payloads.collect(orphans)
        self.tails.set(session_id, Tail(None, 1))
        self._missing_parents.pop(session_id, None)

    # ------------------------------------------------------------------ imports

    def closes_cycle(self, session_id: str, message_id: str, parent_id: str | None) -> bool:
        """Tell whether a new row under this parent would be its own ancestor.

        That takes a row that names the new id as its parent already. Only imports write such
        rows, and then a mark says so: without it the answer is known.
        """
        if parent_id == message_id:
            return True
        if parent_id is None or session_id not in self._sessions_missing_parents():
            return False
        if message_id not in self._missing_parents_of(session_id):
            return False
        at: str | None = parent_id
        seen: set[str] = set()
        while at is not None and at not in seen:
            seen.add(at)
            rows = self.walk(session_id, at, 2000)
            if any(row[1] == message_id for row in rows):
                return True
            at = rows[-1][1] if rows else None
        return False

    def note_parent(self, session_id: str, parent_id: str | None) -> None:
        """Mark a session when an imported row names a parent that is not there yet."""
        if parent_id is None or self.exists(session_id, parent_id):
            return
        marked = self._sessions_missing_parents()
        if session_id not in marked:
            self.storage.kv.put(_MISSING_KEY, sorted({*marked, session_id}))
            self._marked = None
        elif session_id in self._missing_parents:
            self._missing_parents[session_id].add(parent_id)

    def _sessions_missing_parents(self) -> set[str]:
        if self._marked is None:
            self._marked = set(self.storage.kv.get(_MISSING_KEY) or ())
        return self._marked

    def _missing_parents_of(self, session_id: str) -> set[str]:
        """Parents that rows name and no row is. Cost: the first time, a scan of the keys."""
        missing = self._missing_parents.get(session_id)
        if missing is None:
            found = self._db.execute(
                f"SELECT DISTINCT m.parent_id FROM {schema.MESSAGES} m"
                " WHERE m.session_id = ?1 AND m.parent_id IS NOT NULL AND NOT EXISTS"
                f" (SELECT 1 FROM {schema.MESSAGES} p"
                "   WHERE p.session_id = ?1 AND p.id = m.parent_id)",
                (session_id,),
            )
            missing = self._missing_parents[session_id] = {row[0] for row in found}
        return missing

    # ------------------------------------------------------------------ overlays

    def compactions(self, session_id: str) -> list[Compaction]:
        """List a session's overlays in the order of their records."""
        return [
            Compaction(row[0], row[1], row[2], row[3], iso_from_ms(row[4]))
            for row in self._db.execute(
                "SELECT id, summary, from_message_id, to_message_id, created_at"
                f" FROM {schema.COMPACTIONS} WHERE session_id = ? ORDER BY seq, id",
                (session_id,),
            )
        ]

    def is_overlay(self, session_id: str, message_id: str) -> bool:
        """Tell whether the id is that of an overlay this session renders itself."""
        if not message_id.startswith(COMPACTION_PREFIX):
            return False
        query = f"SELECT 1 FROM {schema.COMPACTIONS} WHERE session_id = ? AND id = ?"
        key = (session_id, message_id[len(COMPACTION_PREFIX) :])
        return self._db.execute(query, key).fetchone() is not None

    def insert_compaction(self, session_id: str, overlay: Compaction, created_at: int) -> None:
        """Store one overlay. Cost: one row."""
        self._db.execute(
            f"INSERT INTO {schema.COMPACTIONS}"
            " (session_id, id, seq, summary, from_message_id, to_message_id, created_at)"
            f" VALUES (?1, ?2, (SELECT COALESCE(MAX(seq), 0) + 1 FROM {schema.COMPACTIONS}"
            "   WHERE session_id = ?1), ?3, ?4, ?5, ?6)",
            (
                session_id,
                overlay.id,
                overlay.summary,
                overlay.from_message_id,
                overlay.to_message_id,
                created_at,
            ),
        )

    # ------------------------------------------------------------------ configuration

    def config(self, session_id: str) -> dict[str, str]:
        """Read a session's configuration."""
        query = f"SELECT key, value FROM {schema.CONFIG} WHERE session_id = ? ORDER BY key"
        return dict(self._db.execute(query, (session_id,)).fetchall())

    def insert_config(self, session_id: str, entries: Mapping[str, str]) -> int:
        """Store configuration; known keys are left alone. Returns how many were new."""
        count = 0
        for key, value in entries.items():
            self._db.execute(
                f"INSERT OR IGNORE INTO {schema.CONFIG} (session_id, key, value) VALUES (?, ?, ?)",
                (session_id, key, value),
            )
            count += self._db.changes()
        return count


Clock = Callable[[], int]
"""Milliseconds since the epoch, as a row's `created_at` holds them."""
