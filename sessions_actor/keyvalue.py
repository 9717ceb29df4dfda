"""Key-value entries of one conversation, in a table of the same file.

Keys are texts, ordered by their UTF-8 bytes. A value is JSON, or bytes, which come back as bytes.
Everything here is synchronous and part of the group: nothing waits for durability.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import apsw

from . import codec
from .gate import Gate

KV_TABLE = "sessions_actor_kv"
_CREATE = f"""CREATE TABLE IF NOT EXISTS {KV_TABLE} (
    key TEXT PRIMARY KEY NOT NULL,
    value
) WITHOUT ROWID"""
_GET = f"SELECT value FROM {KV_TABLE} WHERE key = ?"
_PUT = (
    f"INSERT INTO {KV_TABLE} VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)
_DELETE = f"DELETE FROM {KV_TABLE} WHERE key = ?"

_LAST_BEFORE_SURROGATES, _FIRST_AFTER_SURROGATES = 0xD7FF, 0xE000
_LAST_CHARACTER = 0x10FFFF

Row = tuple[Any, ...]
Read = Callable[[str, Row], list[Row]]


class KeyValue:
    """Get, put, delete and list entries, at once."""

    def __init__(self, db: apsw.Connection, gate: Gate, fetch: Read) -> None:
        self._db, self._gate, self._fetch = db, gate, fetch
        self._exists: bool | None = None
        gate.on_rollback(self._forget)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        check_key(key)
        rows = self._fetch(_GET, (key,)) if self._table_exists() else []
        return _decode(rows[0][0]) if rows else default

    def get_many(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return the entries that exist among several keys, in key order."""
        for key in keys:
            check_key(key)
        if not self._table_exists():
            return {}
        found = ((key, self._fetch(_GET, (key,))) for key in sorted(set(keys)))
        return {key: _decode(rows[0][0]) for key, rows in found if rows}

    def put(self, key: str, value: Any) -> None:
        """Store a value under a key, in place of what was there.

        Raises: TypeError when the value is neither JSON nor bytes; QuotaExceededError.
        """
        self.put_many({key: value})

    def put_many(self, entries: Mapping[str, Any]) -> None:
        """Store several entries, all or none."""
        rows = []
        for key, value in entries.items():
            check_key(key)
            rows.append((key, _encode(value, key)))

        def write() -> None:
            if not self._exists:
                self._db.execute(_CREATE)
                self._exists = True
            self._db.executemany(_PUT, rows)

        if rows:
            self._gate.perform(write)

    def delete(self, key: str) -> bool:
        """Remove a key; tell whether it was there."""
        return self.delete_many([key]) == 1

    def delete_many(self, keys: Sequence[str]) -> int:
        """Remove several keys, all or none; return how many were there."""
        for key in keys:
            check_key(key)
        if not keys or not self._table_exists():
            return 0

        def write() -> int:
            before = self._db.total_changes()
            self._db.executemany(_DELETE, [(key,) for key in keys])
            return self._db.total_changes() - before

        with self._gate.reserve():
            return self._gate.perform(write)

    def list(
        self,
        *,
        prefix: str = "",
        start: str | None = None,
        start_after: str | None = None,
        end: str | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> dict[str, Any]:
        """Return entries in key order, or in reverse.

        Args: `start` and everything after it, or `start_after` without it, up to and without `end`.
        Cost: reads the rows it returns.
        """
        if start is not None and start_after is not None:
            raise ValueError("give start or start_after, not both")
        if limit is not None and limit < 0:
            raise ValueError("limit is a count of entries")
        bounds: list[tuple[str, str | None]] = [
            ("key >= ?", prefix or None),
            ("key < ?", _after_prefix(prefix)),
            ("key >= ?", start),
            ("key > ?", start_after),
            ("key < ?", end),
        ]
        given = [(condition, bound) for condition, bound in bounds if bound is not None]
        for _, bound in given:
            check_key(bound, empty=True)
        if not self._table_exists():
            return {}
        where = " AND ".join(condition for condition, _ in given) or "1"
        order = "DESC" if reverse else "ASC"
        rows = self._fetch(
            f"SELECT key, value FROM {KV_TABLE} WHERE {where} ORDER BY key {order} LIMIT ?",
            (*(bound for _, bound in given), -1 if limit is None else limit),
        )
        return {key: _decode(value) for key, value in rows}

    def _table_exists(self) -> bool:
        if self._exists is None:
            self._exists = bool(
                self._fetch("SELECT 1 FROM sqlite_schema WHERE name = ?", (KV_TABLE,))
            )
        return self._exists

    def _forget(self) -> None:
        self._exists = None


def check_key(key: object, *, empty: bool = False) -> None:
    """Refuse what cannot be a key.

    Raises: TypeError unless it is a string, ValueError when it is empty or holds a lone surrogate.
    """
    if not isinstance(key, str):
        raise TypeError(f"a key is a string, not {type(key).__name__}")
    if not key and not empty:
        raise ValueError("a key is not empty")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise ValueError(f"key {key!r} holds a lone surrogate") from None


def _encode(value: Any, key: str) -> str | bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    return codec.dumps(value, where=f"the value of {key!r}").decode()


def _decode(stored: str | bytes) -> Any:
    return stored if isinstance(stored, bytes) else codec.loads(stored)


def _after_prefix(prefix: str) -> str | None:
    """Return the least text greater than every text with this prefix; None when there is none."""
    while prefix:
        head, last = prefix[:-1], ord(prefix[-1])
        if last < _LAST_CHARACTER:
            following = last + 1
            if last == _LAST_BEFORE_SURROGATES:
                following = _FIRST_AFTER_SURROGATES
            return head + chr(following)
        prefix = head
    return None
