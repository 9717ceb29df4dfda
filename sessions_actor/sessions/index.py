"""The full-text index of a file: built by the first search, kept by every write from then on.

A row stands under a rowid made of its session's number and the message's `seq`: a write finds it
without a scan, and rows are written in rising order, which FTS5 needs to gather them in memory.
The indexed text differs from the message in one thing: runs of CJK characters are set
apart, since the tokenizer takes such a run for one word; a query is treated alike.

The build goes through the messages in windows, each its own transaction, and remembers how far
it came: a crash, or a write in between, does no harm.

Source: specification, "Full-text search".
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Any, cast

from ..codec import loads, loads_for_texts
from ..limits import MIB, WINDOW_BYTES_MAX, WINDOW_ROWS_MAX
from ..messages import SessionMessage
from ..records import SearchResult
from ..storage import Storage
from . import schema
from .rows import BEFORE_ALL, RowOrder
from .sql import Database, windows
from .store import Store

_STATE_KEY = "cf_agents:sessions_index"
_FORM = 3
_SEQ_BITS = 40
_CROWDED = 1 << 62  # above: rows of damaged files, whose `seq` is taken or no place at all
_BUILD_BYTES = 2 * MIB
_BUILD_ROWS = 2000
# What FTS5 gathers in memory before it writes a segment: while building, all of a window.
_GATHER_BYTES, _GATHER_BYTES_BUILDING = MIB, 4 * MIB
_SMALL_BYTES = WINDOW_BYTES_MAX // WINDOW_ROWS_MAX

IndexRow = tuple[int, str, str, str, str]
_INSERT = (
    f"INSERT INTO {schema.INDEX} (rowid, id, session_id, role, content) VALUES (?, ?, ?, ?, ?)"
)
# Ranks are sorted before any row is looked up (the LIMIT keeps the two apart), and are FTS5's own
# function: its column `rank`, read beside ORDER BY, goes through the phrase's rows once more.
_MATCHES = f"""
SELECT hit.score, c.c0, c.c3, m.role, m.seq
FROM (SELECT rowid AS place, bm25({schema.INDEX}) AS score FROM {schema.INDEX}
  WHERE {schema.INDEX} MATCH ? ORDER BY score LIMIT -1) hit
CROSS JOIN {schema.INDEX}_content c ON c.id = hit.place
CROSS JOIN {schema.MESSAGES} m ON m.session_id = c.c1 AND m.id = c.c0
WHERE c.c1 = ?"""

_CJK = re.compile(
    "(["
    "\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c"
    "\u3041-\u30ff\u3100-\u312f\u3130-\u318f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
    "])"
)


def searchable(text: str) -> str:
    """Prepare text for the tokenizer: CJK set apart, lone surrogates replaced."""
    if not text.isascii():
        # Halves of one character are stored as that character, a half alone as itself.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        text = _CJK.sub(r" \1 ", text)
    return text


def is_plain(indexed: str) -> bool:
    """Tell whether an indexed text is for certain what the message holds, as it stands."""
    return indexed.isascii() or not ("\ufffd" in indexed or _CJK.search(indexed))


def text_parts(message: SessionMessage) -> list[str]:
    """List the texts of a message: what search finds and, joined, returns."""
    texts = []
    for part in message["parts"]:
        if isinstance(part, dict) and part.get("type") == "text":
            text = part.get("text")
            texts.append(text if isinstance(text, str) else "")
    return texts


def written_text(message: SessionMessage) -> str:
    """Join the texts of a message as a write indexes it."""
    return " ".join(text_parts(message))


def compact_text(message: SessionMessage) -> str:
    """Join the texts of a message as the build indexes it: without the empty ones."""
    return " ".join(filter(None, text_parts(message)))


def phrase(query: str) -> str:
    """Write a query as one FTS5 phrase."""
    return '"' + searchable(query).replace('"', '""').replace("\0", " ") + '"'


class Index:
    """The index of every session in one file. Writes run inside an operation of the store."""

    def __init__(self, storage: Storage, store: Store) -> None:
        self._storage, self._store = storage, store
        self._db: Database = storage.connection
        self._building = asyncio.Lock()
        self.open()
        storage.on_rollback(self.open)

    def open(self) -> None:
        """Read the state of the index from the file."""
        self.exists = schema.table_exists(self._db, schema.INDEX)
        state = self._storage.kv.get(_STATE_KEY) or {}
        self._form = state.get("form")
        self._built_to: tuple[str, int] | None = state.get("built_to")
        self._numbers: dict[str, int] = state.get("numbers", {})
        self._built_seqs: dict[str, int] = state.get("seqs", {})
        self._complete = self.exists and self._form == _FORM and self._built_to is None

    def _save(self) -> None:
        state = {
            "form": _FORM,
            "built_to": self._built_to,
            "numbers": self._numbers,
            "seqs": self._built_seqs,
        }
        self._storage.kv.put(_STATE_KEY, state)

    @property
    def foreign(self) -> bool:
        """Tell whether the file brought an index that another program made."""
        return self.exists and self._form != _FORM

    # ------------------------------------------------------------------ writes

    def put(self, session_id: str, message_id: str, role: str, message: SessionMessage) -> None:
        """Index a message that is stored, or bring its row up to date.

        An unchanged text writes nothing.
        """
        if self.exists:
            self._put(session_id, message_id, role, searchable(written_text(message)))

    def _put(self, session_id: str, message_id: str, role: str, text: str) -> None:
        rowid, old = self._find(session_id, message_id)
        if old is not None:
            if old == (role, text):
                return
            self._db.execute(f"DELETE FROM {schema.INDEX} WHERE rowid = ?", (rowid,))
        if text:
            self._db.execute(_INSERT, (rowid, message_id, session_id, role, text))

    def remove(self, session_id: str, message_ids: Iterable[str]) -> None:
        """Drop messages that are about to be deleted."""
        if not self.exists:
            return
        found = (self._find(session_id, message_id) for message_id in message_ids)
        for rowid in sorted({rowid for rowid, old in found if old is not None}):
            self._db.execute(f"DELETE FROM {schema.INDEX} WHERE rowid = ?", (rowid,))

    def clear(self, session_id: str) -> None:
        """Drop a session from the index."""
        number = self._numbers.get(session_id)
        if not self.exists or number is None:
            return
        first = number << _SEQ_BITS
        self._db.execute(
            f"DELETE FROM {schema.INDEX} WHERE rowid BETWEEN ? AND ?",
            (first, first + (1 << _SEQ_BITS) - 1),
        )
        self._db.execute(
            f"DELETE FROM {schema.INDEX} WHERE rowid >= ? AND session_id = ?",
            (_CROWDED, session_id),
        )

    def _number(self, session_id: str) -> int:
        number = self._numbers.get(session_id)
        if number is None:
            number = self._numbers[session_id] = len(self._numbers)
            self._save()
        return number

    def _rowid(self, session_id: str, seq: int | None) -> int | None:
        """The place of a row by its `seq`; None where that is no place."""
        number = self._number(session_id)
        if seq is None or not 0 <= seq < 1 << _SEQ_BITS or number >= 1 << 20:
            return None
        return number << _SEQ_BITS | seq

    def _find(self, session_id: str, message_id: str) -> tuple[int, tuple[str, str] | None]:
        """Find a message's row, or the rowid where it would stand. Cost: O(log n)."""
        free = None
        rowid = self._rowid(session_id, self._store.seq_of(session_id, message_id))
        if rowid is not None:
            row = self._row(rowid)
            if row is None:
                free = rowid
            elif row[:2] == (session_id, message_id):
                return rowid, row[2:]
        query = f"SELECT 1 FROM {schema.INDEX}_content WHERE id >= ? LIMIT 1"
        if free is not None and self._db.execute(query, (_CROWDED,)).fetchone() is None:
            return free, None
        key = f"{len(session_id)}:{session_id}{message_id}".encode()
        digest = hashlib.blake2b(key, digest_size=8).digest()
        place = _CROWDED | int.from_bytes(digest, "big") >> 3
        while (row := self._row(place)) is not None:
            if row[:2] == (session_id, message_id):
                return place, row[2:]
            place += 1
        return place if free is None else free, None

    def _row(self, rowid: int) -> Any:
        """Read (session, id, role, text) from the table below the index, which has no cursor."""
        return self._db.execute(
            f"SELECT c1, c0, c2, c3 FROM {schema.INDEX}_content WHERE id = ?", (rowid,)
        ).fetchone()

    # ------------------------------------------------------------------ build

    async def ensure(self) -> None:
        """Build the index if there is none, or go on where a build was cut short.

        Cost: every stored message is read once, and a row written for each that has text.
        """
        if self._complete:
            return
        async with self._building:
            if not self._complete:
                await self._storage.submit(self._begin)
                await self._build()

    async def rebuild(self) -> None:
        """Drop the index and build it anew."""
        async with self._building:
            await self._storage.submit(self._drop)
        await self.ensure()

    def _drop(self) -> None:
        self._db.execute(f"DROP TABLE IF EXISTS {schema.INDEX}")
        self._storage.kv.delete(_STATE_KEY)
        self.open()

    def _begin(self) -> None:
        if self.exists and self._form != _FORM:
            self._drop()  # another's index: its rows can be found by scans alone
        if not self.exists:
            self._db.execute(schema.INDEX_TABLE)
            self._gather(_GATHER_BYTES_BUILDING)
            self._built_to = ("", BEFORE_ALL)
            self._numbers, self._built_seqs = {}, {}
            self._save()
            self.open()

    async def _build(self) -> None:
        """Index every session in the order of `seq`; what is written meanwhile indexes itself."""
        assert self._built_to is not None
        first_session, first_seq = self._built_to
        for session_id in self._store.session_ids():
            if session_id < first_session:
                continue
            order = RowOrder(self._store, session_id)
            place: int | None = first_seq if session_id == first_session else BEFORE_ALL
            try:
                await order.build()
                while place is not None:
                    window = order.ids_after(place, _BUILD_ROWS)
                    place = await self._storage.submit(
                        partial(self._build_window, session_id, place, *window)
                    )
            finally:
                order.close()
        await self._storage.submit(self._end_build)

    def _build_window(
        self, session_id: str, place: int, ids: list[tuple[int, str]], more: bool
    ) -> int | None:
        """Index the next rows; returns where to go on, None at the end of the session."""
        size, done = 0, place
        taken, rows = self._rowids(session_id, ids), list[IndexRow]()
        for window in windows(ids, WINDOW_ROWS_MAX):
            found = self._store.small_texts(session_id, [id_ for _, id_ in window], _SMALL_BYTES)
            for seq, message_id in window:
                if size > _BUILD_BYTES and seq != done:
                    more = True
                    break
                done = seq
                _, role, text = found.get(message_id, ("", "", b""))
                text = self._store.text(session_id, message_id) or b"" if text is None else text
                message = _shaped(text, loads_for_texts)
                if message is None:
                    continue
                size += len(text)
                indexed = searchable(compact_text(message))
                rowid = self._rowid(session_id, seq)
                if rowid is None or rowid in taken:
                    self._db.executemany(_INSERT, rows)
                    rows.clear()
                    self._put(session_id, message_id, role, indexed)
                elif indexed:
                    taken.add(rowid)
                    rows.append((rowid, message_id, session_id, role, indexed))
            else:
                continue
            break
        self._db.executemany(_INSERT, rows)
        self._built_seqs[session_id] = done
        self._built_to = (session_id, done)
        self._save()
        return done if more else None

    def _rowids(self, session_id: str, ids: list[tuple[int, str]]) -> set[int]:
        """Rowids of the window that are taken: rows written since the build began."""
        if not ids:
            return set()
        first = self._number(session_id) << _SEQ_BITS
        found = self._db.execute(
            f"SELECT id FROM {schema.INDEX}_content WHERE id BETWEEN ? AND ?",
            (first + max(0, ids[0][0]), first + ids[-1][0]),
        )
        return {row[0] for row in found}

    def _gather(self, size: int) -> None:
        query = f"INSERT INTO {schema.INDEX} ({schema.INDEX}, rank) VALUES ('hashsize', ?)"
        self._db.execute(query, (size,))

    def _end_build(self) -> None:
        self._gather(_GATHER_BYTES)
        self._built_to = None
        self._save()
        self._complete = True

    # ------------------------------------------------------------------ reads

    async def search(self, session_id: str, query: str, limit: int) -> list[SearchResult]:
        """Find a phrase in the session's messages, best match first.

        Equal matches come in the order of indexing: what the build found by id, the rest by `seq`.
        """
        await self.ensure()
        results = []
        for message_id, role, indexed in self._matches(session_id, query, limit):
            if is_plain(indexed):
                results.append(SearchResult(message_id, role, indexed))
                continue
            text = self._store.text(session_id, message_id)
            message = None if text is None else parse(text)
            if message is not None:
                compact = compact_text(message)
                found = compact if searchable(compact) == indexed else written_text(message)
                results.append(SearchResult(message_id, role, found))
        return results

    def _matches(self, session_id: str, query: str, limit: int) -> list[tuple[str, str, str]]:
        """Find (id, role, indexed text), best first; a negative limit takes all.

        Only those that are taken are looked up, and those that rank like the last of them, for
        their order.
        """
        if limit == 0:
            return []
        built = self._built_seqs.get(session_id, -1)
        found: list[tuple[float, bool, int | str, str, str, str]] = []
        cursor = self._db.cursor()
        for rank, message_id, indexed, role, seq in cursor.execute(
            _MATCHES, (phrase(query), session_id)
        ):
            if 0 < limit <= len(found) and rank != found[-1][0]:
                break
            if not self._store.is_overlay(session_id, message_id):
                late = seq > built
                place = seq if late else message_id
                found.append((rank, late, place, message_id, role, indexed))
        cursor.close()
        found.sort(key=itemgetter(0, 1, 2))
        return [row[3:] for row in found[: limit if limit > 0 else None]]

    def problems(self) -> list[str]:
        """Check the index against itself and against the messages. Cost: reads everything."""
        if not self._complete:
            return []
        found = []
        try:
            self._db.execute(
                f"INSERT INTO {schema.INDEX} ({schema.INDEX}) VALUES ('integrity-check')"
            )
        except Exception as error:
            found.append(f"search index: {error}")
        expected = 0
        for session_id, message_id, role in self._db.execute(
            f"SELECT session_id, id, role FROM {schema.MESSAGES}"
        ).fetchall():
            text = self._store.text(session_id, message_id)
            message = None if text is None else parse(text)
            wanted = {""}
            if message is not None:
                wanted = {searchable(written_text(message)), searchable(compact_text(message))}
            _, row = self._find(session_id, message_id)
            expected += row is not None
            if row is None:
                if "" not in wanted:
                    found.append(f"search index: message {message_id!r} is missing")
            elif row[0] != role or row[1] not in wanted:
                found.append(f"search index: message {message_id!r} is out of step")
        (count,) = self._db.execute(f"SELECT COUNT(*) FROM {schema.INDEX}").fetchone()
        if count != expected:
            found.append(f"search index: {count} rows for {expected} messages")
        return found


def parse(text: bytes) -> SessionMessage | None:
    """Parse a stored message; None when a damaged or foreign row holds something else."""
    return _shaped(text, loads)


def _shaped(text: bytes, read: Callable[[bytes], Any]) -> SessionMessage | None:
    try:
        message = read(text)
    except ValueError:
        return None
    if (
        isinstance(message, dict)
        and isinstance(message.get("id"), str)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("parts"), list)
    ):
        return cast(SessionMessage, message)
    return None
