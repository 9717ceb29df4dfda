"""The full-text index of a file: built by the first search, kept by every write from then on.

A row stands under a rowid derived from its session and id, so that a write finds it without a
scan. The indexed text differs from the message in one thing: runs of CJK characters are set
apart, since the tokenizer takes such a run for one word; a query is treated alike.

The build goes through the messages in windows, each its own transaction, and remembers how far
it came: a crash, or a write in between, does no harm.

Source: specification, "Full-text search".
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import cast

from ..codec import loads
from ..messages import SessionMessage
from ..records import SearchResult
from ..storage import Storage
from . import schema
from .sql import Database
from .store import Store

_STATE_KEY = "cf_agents:sessions_index"
_FORM = 2
_BUILD_BYTES = 1024 * 1024
_BUILD_ROWS = 200

_CJK = re.compile(
    "(["
    "\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c"
    "\u3041-\u30ff\u3100-\u312f\u3130-\u318f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
    "])"
)
_SPACES = re.compile("  +")


def searchable(text: str) -> str:
    """Prepare text for the tokenizer: CJK set apart, lone surrogates replaced."""
    if not text.isascii():
        text = _CJK.sub(r" \1 ", text)
        text = text.encode("utf-8", "replace").decode()
    return text


def text_parts(message: SessionMessage) -> list[str]:
    """List the texts of a message: what search finds and, joined, returns."""
    texts = []
    for part in message.get("parts") or ():
        if isinstance(part, dict) and part.get("type") == "text":
            text = part.get("text")
            texts.append(text if isinstance(text, str) else "")
    return texts


def message_texts(message: SessionMessage) -> tuple[str, str]:
    """Join the texts of a message, as a write does and as the build does (no empty ones)."""
    texts = text_parts(message)
    return " ".join(texts), " ".join(filter(None, texts))


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
        self._built_to: list[str] | None = state.get("built_to")
        self._built_seqs: dict[str, int] = state.get("seqs", {})
        self._complete = self.exists and self._form == _FORM and self._built_to is None

    @property
    def foreign(self) -> bool:
        """Tell whether the file brought an index that another program made."""
        return self.exists and self._form != _FORM

    # ------------------------------------------------------------------ writes

    def put(self, session_id: str, message_id: str, role: str, message: SessionMessage) -> None:
        """Index a message, or bring its row up to date. An unchanged text writes nothing."""
        if self.exists:
            self._put(session_id, message_id, role, searchable(message_texts(message)[0]))

    def _put(self, session_id: str, message_id: str, role: str, text: str) -> None:
        rowid, old = self._find(session_id, message_id)
        if old is not None:
            if old == (role, text):
                return
            self._db.execute(f"DELETE FROM {schema.INDEX} WHERE rowid = ?", (rowid,))
        if text:
            self._db.execute(
                f"INSERT INTO {schema.INDEX} (rowid, id, session_id, role, content)"
                " VALUES (?, ?, ?, ?, ?)",
                (rowid, message_id, session_id, role, text),
            )

    def remove(self, session_id: str, message_id: str) -> None:
        """Drop a message from the index."""
        if not self.exists:
            return
        rowid, old = self._find(session_id, message_id)
        if old is not None:
            self._db.execute(f"DELETE FROM {schema.INDEX} WHERE rowid = ?", (rowid,))

    def clear(self, session_id: str) -> None:
        """Drop a session from the index. Cost: a scan of the index."""
        if self.exists:
            self._db.execute(f"DELETE FROM {schema.INDEX} WHERE session_id = ?", (session_id,))

    def _find(self, session_id: str, message_id: str) -> tuple[int, tuple[str, str] | None]:
        """Find a message's row, or the rowid where it would stand. Cost: O(log n)."""
        key = f"{len(session_id)}:{session_id}{message_id}".encode()
        rowid = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 2
        free = None
        for candidate in (rowid, rowid + 1, rowid + 2):  # two ids of one hash stand side by side
            row = self._db.execute(
                f"SELECT session_id, id, role, content FROM {schema.INDEX} WHERE rowid = ?",
                (candidate,),
            ).fetchone()
            if row is None:
                free = candidate if free is None else free
            elif row[0] == session_id and row[1] == message_id:
                return candidate, (row[2], row[3])
        assert free is not None, "three ids of one hash"
        return free, None

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
            while not self._complete:
                await self._storage.submit(self._build_window)

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
            self._built_seqs = {}
            self._save(["", ""])
        self.open()

    def _save(self, built_to: list[str] | None) -> None:
        state = {"form": _FORM, "built_to": built_to, "seqs": self._built_seqs}
        self._storage.kv.put(_STATE_KEY, state)
        self._built_to = built_to

    def _build_window(self) -> None:
        assert self._built_to is not None
        rows = self._db.execute(
            "SELECT session_id, id, seq, role, octet_length(content)"
            f" FROM {schema.MESSAGES}"
            " WHERE (session_id, id) > (?, ?) ORDER BY session_id, id LIMIT ?",
            (*self._built_to, _BUILD_ROWS),
        ).fetchall()
        size = done = 0
        for session_id, message_id, seq, role, octets in rows:
            text = self._store.text(session_id, message_id)
            assert text is not None
            message = parse(text)
            if message is not None:
                self._put(session_id, message_id, role, searchable(message_texts(message)[1]))
            self._built_seqs[session_id] = max(seq, self._built_seqs.get(session_id, seq))
            done += 1
            size += octets
            if size > _BUILD_BYTES:
                break
        if done < len(rows) or len(rows) == _BUILD_ROWS:
            self._save([rows[done - 1][0], rows[done - 1][1]])
        else:
            self._save(None)
            self._complete = True

    # ------------------------------------------------------------------ reads

    async def search(self, session_id: str, query: str, limit: int) -> list[SearchResult]:
        """Find a phrase in the session's messages, best match first.

        Equal matches come in the order of indexing: what the build found by id, the rest by `seq`.
        """
        await self.ensure()
        built = self._built_seqs.get(session_id, -1)
        rows = self._db.execute(
            f"SELECT f.id, m.role, f.content FROM {schema.INDEX} f"
            f" JOIN {schema.MESSAGES} m ON m.session_id = f.session_id AND m.id = f.id"
            f" WHERE {schema.INDEX} MATCH ?2 AND f.session_id = ?3"
            f" AND NOT (substr(f.id, 1, 11) = 'compaction_' AND EXISTS"
            f"   (SELECT 1 FROM {schema.COMPACTIONS} o"
            "     WHERE o.session_id = f.session_id AND o.id = substr(f.id, 12)))"
            " ORDER BY rank, m.seq > ?1, CASE WHEN m.seq > ?1 THEN m.seq ELSE f.id END LIMIT ?4",
            (built, phrase(query), session_id, limit),
        ).fetchall()
        results = []
        for message_id, role, indexed in rows:
            text = self._store.text(session_id, message_id)
            message = None if text is None else parse(text)
            if message is not None:
                written, compact = message_texts(message)
                found = compact if searchable(compact) == indexed else written
                results.append(SearchResult(message_id, role, found))
        return results

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
            wanted = {searchable(t) for t in message_texts(message)} if message else {""}
            _, row = self._find(session_id, message_id)
            if "" not in wanted:
                expected += 1
                if row is None or row[0] != role or row[1] not in wanted:
                    found.append(f"search index: message {message_id!r} is out of step")
            elif row is not None:
                found.append(f"search index: message {message_id!r} should not be there")
        (count,) = self._db.execute(f"SELECT COUNT(*) FROM {schema.INDEX}").fetchone()
        if count != expected:
            found.append(f"search index: {count} rows where {expected} messages have text")
        return found


def parse(text: bytes) -> SessionMessage | None:
    """Parse a stored message; None when a damaged or foreign row holds something else."""
    try:
        message = loads(text)
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
