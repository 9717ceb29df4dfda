"""Where the next append of each session goes: the active leaf and the next `seq`.

No table is ordered by `seq`, so finding the highest takes a scan of the session's keys, which for
a long session reads most of its file. It is made once per activation; and when an activation ends
it leaves what it knew of its long sessions in the file, with the sums of their active paths, so
that the next one need not scan.

Rules: what an earlier activation left is used only while the storage can tell that nobody wrote
in between, whoever it was (`Storage.untouched`), and only for a row that is there with that
`seq`. What is kept in memory is forgotten whenever the storage rolls something back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ..codec import dumps, loads
from ..storage import Storage
from . import schema
from .sql import Database

_KEY = "sessions_tails"
# What is worth a row at the end of an activation: sessions whose scan takes longer than that.
_LONG_ROWS = 1_000
_SESSIONS_MAX = 64


class Tail(NamedTuple):
    """Where the next append goes: the active leaf and the next `seq`."""

    leaf_id: str | None
    next_seq: int


class Tails:
    """The tails of every session in one file."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._db: Database = storage.connection
        self._known: dict[str, Tail] = {}
        self._left: dict[str, tuple[Tail, list[Any] | None]] = {}
        if storage.untouched:
            self._read_left()

    def _read_left(self) -> None:
        text = self._storage.meta.get(_KEY)
        for session_id, leaf_id, next_seq, sums in loads(text) if text else ():
            query = f"SELECT seq FROM {schema.MESSAGES} WHERE session_id = ? AND id = ?"
            row = self._db.execute(query, (session_id, leaf_id)).fetchone()
            if row == (next_seq - 1,):
                self._left[session_id] = Tail(leaf_id, next_seq), sums
        self._known = {session_id: tail for session_id, (tail, _) in self._left.items()}

    def sums_left(self) -> Iterator[tuple[str, str, list[Any]]]:
        """Give (session, leaf, sums) as the last activation left them; see `to_leave`."""
        for session_id, (tail, sums) in self._left.items():
            if sums is not None and tail.leaf_id is not None:
                yield session_id, tail.leaf_id, sums

    def get(self, session_id: str) -> Tail:
        """Find a session's tail. Cost: once per activation at most, a scan by key."""
        tail = self._known.get(session_id)
        if tail is None:
            row = self._db.execute(
                f"SELECT id, seq FROM {schema.MESSAGES} WHERE session_id = ?"
                " ORDER BY seq DESC LIMIT 1",
                (session_id,),
            ).fetchone()
            tail = Tail(None, 1) if row is None else Tail(row[0], row[1] + 1)
            self._known[session_id] = tail
        return tail

    def set(self, session_id: str, tail: Tail) -> None:
        """Note a tail that a write made."""
        self._known[session_id] = tail

    def deleted(self, session_id: str, ids: Any) -> None:
        """Note that rows were deleted. Args: `ids` is anything that contains them."""
        tail = self._known.get(session_id)
        if tail is not None and tail.leaf_id in ids:
            del self._known[session_id]

    def forget(self) -> None:
        """Drop what is remembered."""
        self._known.clear()
        self._left.clear()

    def to_leave(self, sums: dict[str, list[Any]]) -> dict[str, str]:
        """Return what the next activation may begin with; nothing when all sessions are short.

        Args: `sums` are those of active paths, as JSON values.
        """
        long = [(id_, tail) for id_, tail in self._known.items() if tail.next_seq > _LONG_ROWS]
        long.sort(key=lambda item: -item[1].next_seq)
        rows = [[id_, *tail, sums.get(id_)] for id_, tail in long[:_SESSIONS_MAX]]
        return {_KEY: dumps(rows).decode()} if rows else {}
