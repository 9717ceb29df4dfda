"""A session's rows in the order they were written: what an export or a migration streams.

No table is ordered by `seq`, so the order is made once, by a scan of the keys, in a temporary
file that no one else sees and that goes with the connection; writes of this activation are
added as they happen. A window is read by its place in it, and a row that is gone is passed over.

Two forms: messages as they were written, for `history_rows()`; rows as they are stored, payloads
outside, for a move to another file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

import apsw

from .sql import Database
from .store import Store, StoredMessage

_SCAN_ROWS = 10_000
_WINDOW_ROWS = 200
BEFORE_ALL = -(2**63)


class RowText(NamedTuple):
    """One row with its message as compact JSON, payloads inline."""

    seq: int
    parent_id: str | None
    created_at: float
    text: bytes


class RowOrder:
    """The ids of one session by `seq`."""

    def __init__(self, store: Store, session_id: str) -> None:
        self._store, self.session_id = store, session_id
        self._scratch: Database = apsw.Connection(
            ""
        )  # a private temporary file, deleted when closed
        self._scratch.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
        self._scratch.execute(
            "CREATE TABLE written (seq INTEGER, id TEXT, PRIMARY KEY (seq, id)) WITHOUT ROWID"
        )
        self._scanned_to: str | None = ""
        self._lock = asyncio.Lock()

    def close(self) -> None:
        """Drop the temporary file."""
        self._scratch.close()

    def add(self, seq: int, message_id: str) -> None:
        """Add a row that was just written."""
        self._scratch.execute("INSERT OR IGNORE INTO written VALUES (?, ?)", (seq, message_id))

    async def build(self) -> None:
        """Scan the session's keys, once; others run between the windows of the scan."""
        async with self._lock:
            while self._scanned_to is not None:
                rows = self._store.scan_keys(self.session_id, self._scanned_to, _SCAN_ROWS)
                with self._scratch:
                    self._scratch.executemany("INSERT OR IGNORE INTO written VALUES (?, ?)", rows)
                self._scanned_to = rows[-1][1] if len(rows) == _SCAN_ROWS else None
                await asyncio.sleep(0)

    def ids_after(
        self, after_seq: int, count: int = _WINDOW_ROWS
    ) -> tuple[list[tuple[int, str]], bool]:
        """Ids past a place, rows of one `seq` never parted, and whether there are more."""
        query = "SELECT seq FROM written WHERE seq > ? ORDER BY seq LIMIT 1 OFFSET ?"
        last = self._scratch.execute(query, (after_seq, count - 1)).fetchone()
        ids = self._scratch.execute(
            "SELECT seq, id FROM written WHERE seq > ? AND seq <= ? ORDER BY seq, id",
            (after_seq, 2**63 - 1 if last is None else last[0]),
        ).fetchall()
        return ids, last is not None

    def stored_window(
        self, after_seq: int, max_bytes: int
    ) -> tuple[list[StoredMessage], int | None]:
        """Read the rows after a place as they are stored.

        Returns: rows worth about `max_bytes` (a larger row stands alone), and the place to go on
            from; None at the end.
        """
        ids, more = self.ids_after(after_seq)
        rows: list[StoredMessage] = []
        size = 0
        for seq, message_id in ids:
            if rows and size >= max_bytes and seq != rows[-1].seq:
                return rows, rows[-1].seq
            row = self._store.stored_message(self.session_id, message_id)
            if row is not None and row.seq == seq:
                rows.append(row)
                size += sum(map(len, row.slices))
        return rows, ids[-1][0] if more else None

    def text_window(self, after_seq: int, max_bytes: int) -> tuple[list[RowText], int | None]:
        """Read the rows after a place with their messages, as `stored_window` does."""
        ids, more = self.ids_after(after_seq)
        rows: list[RowText] = []
        size = 0
        for seq, message_id in ids:
            if rows and size >= max_bytes and seq != rows[-1].seq:
                return rows, rows[-1].seq
            row = self._store.stored_message(self.session_id, message_id)
            if row is not None and row.seq == seq:
                text = self._store.payloads.inline(
                    self.session_id, message_id, b"".join(row.slices)
                )
                rows.append(RowText(seq, row.parent_id, row.created_at, text))
                size += len(text)
        return rows, ids[-1][0] if more else None


def import_stored(store: Store, session_id: str, rows: Iterable[StoredMessage]) -> int:
    """Write rows of another file as they were stored there; known ids are left alone.

    An operation: runs inside the storage's group. Returns how many were written.
    """
    count = 0
    for row in rows:
        if store.exists(session_id, row.id):
            continue
        store.insert_stored(session_id, row)
        count += 1
    store.forget()
    return count
