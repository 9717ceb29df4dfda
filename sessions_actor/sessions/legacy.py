"""Lifting the tables of older versions into those of today.

`assistant_messages` and `assistant_compactions` are copied as they are; the linear table
`cf_ai_chat_agent_messages` becomes a chain in created order. A source is dropped only when every
one of its rows stands in the new tables with the same payload and can be read; otherwise it
stays, `session:migration:incomplete` says so, and the next start tries again. Everything is
idempotent and happens in one transaction.

Source: specification, "Chat hosts" and "Legacy lift".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from ..codec import loads
from ..tokens import estimate_message
from . import schema
from .engine import Engine
from .index import parse
from .preparation import slices_of, stored_row
from .sql import Database
from .store import StoredMessage

_LIFTED = ("assistant_messages", "assistant_compactions", "cf_ai_chat_agent_messages")
_DROPPED = ("assistant_sessions", "assistant_fts")

Emit = Callable[[str, dict[str, Any]], object]
_CREATED = "COALESCE(CAST(strftime('%s', created_at) AS INTEGER), 0) * 1000"


def lift(engine: Engine, emit: Emit) -> bool:
    """Lift what there is; tell whether nothing was left behind."""
    incomplete: list[dict[str, Any]] = []

    def op() -> None:
        incomplete.clear()
        for lift_table in (_lift_messages, _lift_compactions, _lift_chat):
            report = lift_table(engine)
            if report is not None:
                incomplete.append(report)
        for table in _DROPPED:
            if schema.table_exists(engine.storage.connection, table):
                engine.storage.connection.execute(f"DROP TABLE {table}")
        engine.forget()

    tables = [*_LIFTED, *_DROPPED]
    if any(schema.table_exists(engine.storage.connection, table) for table in tables):
        engine.storage.perform(op)
    for report in incomplete:
        emit("session:migration:incomplete", report)
    return not incomplete


def _rows(engine: Engine, columns: str, table: str, order: str) -> Iterator[tuple[Any, ...]]:
    """Read a table in an order, in windows. The order is read first, as rowids alone."""
    db: Database = engine.storage.connection
    rowids = [row[0] for row in db.execute(f"SELECT rowid FROM {table} ORDER BY {order}")]
    for rowid in rowids:
        query = f"SELECT {columns} FROM {table} WHERE rowid = ?"
        yield from db.execute(query, (rowid,)).fetchall()


def _finish(engine: Engine, table: str, source: int, copied: int) -> dict[str, Any] | None:
    """Drop a source whose every row arrived; otherwise report it."""
    if copied == source:
        engine.storage.connection.execute(f"DROP TABLE {table}")
        return None
    return {"table": table, "source": source, "copied": copied}


def _lift_messages(engine: Engine) -> dict[str, Any] | None:
    table = "assistant_messages"
    db: Database = engine.storage.connection
    if not schema.table_exists(db, table):
        return None
    source = copied = 0
    columns = f"session_id, id, parent_id, role, content, {_CREATED}"
    places: dict[str, int] = {}
    for row in _rows(engine, columns, table, "session_id, created_at, rowid"):
        session_id, message_id, parent_id, role, content, created_at = row
        source += 1
        if session_id not in places:
            places[session_id] = engine.store.tail(session_id).next_seq
        seq = places[session_id]
        places[session_id] += 1
        text = content.encode() if isinstance(content, str) else bytes(content or b"")
        message = parse(text)
        if message is None:
            continue
        if not engine.store.exists(session_id, message_id):
            _insert(engine, session_id, message_id, seq, parent_id, role, text, message, created_at)
        copied += engine.store.text(session_id, message_id) == text
    return _finish(engine, table, source, copied)


def _insert(
    engine: Engine,
    session_id: str,
    message_id: str,
    seq: int,
    parent_id: str | None,
    role: str,
    text: bytes,
    message: Any,
    created_at: float,
) -> None:
    row = StoredMessage(
        seq,
        message_id,
        parent_id,
        "message",
        role,
        estimate_message(message),
        created_at,
        hashlib.sha256(text).hexdigest(),
        slices_of(text),
    )
    engine.store.insert_stored(session_id, row)
    engine.index.put(session_id, message_id, role, message)


def _lift_compactions(engine: Engine) -> dict[str, Any] | None:
    table = "assistant_compactions"
    db: Database = engine.storage.connection
    if not schema.table_exists(db, table):
        return None
    db.execute(
        f"INSERT OR IGNORE INTO {schema.COMPACTIONS}"
        " (session_id, id, seq, summary, from_message_id, to_message_id, created_at)"
        " SELECT session_id, id, (SELECT COALESCE(MAX(seq), 0)"
        f"    FROM {schema.COMPACTIONS} c WHERE c.session_id = {table}.session_id)"
        "  + ROW_NUMBER() OVER (PARTITION BY session_id ORDER BY created_at, rowid),"
        f" summary, from_message_id, to_message_id, {_CREATED} FROM {table}"
    )
    ((source, copied),) = db.execute(
        f"SELECT (SELECT COUNT(*) FROM {table}),"
        f" (SELECT COUNT(*) FROM {table} l JOIN {schema.COMPACTIONS} c"
        "    ON c.session_id = l.session_id AND c.id = l.id AND c.summary = l.summary"
        "    AND c.from_message_id = l.from_message_id AND c.to_message_id = l.to_message_id)"
    ).fetchall()
    return _finish(engine, table, source, copied)


def _lift_chat(engine: Engine) -> dict[str, Any] | None:
    """Lift a linear chat into the default session, each message under the one before.

    A row that cannot be read keeps its place in `seq`, so that a later start that can read it
    puts it where it belongs.
    """
    table = "cf_ai_chat_agent_messages"
    db: Database = engine.storage.connection
    if not schema.table_exists(db, table):
        return None
    source = copied = 0
    first = _chat_start(engine, table)
    previous: str | None = None
    for row in _rows(engine, f"id, message, {_CREATED}", table, "created_at, rowid"):
        message_id, content, created_at = row
        source += 1
        text = content.encode() if isinstance(content, str) else bytes(content or b"")
        message = parse(text)
        if message is None or not isinstance(message_id, str) or message["id"] != message_id:
            continue
        if not engine.store.exists("", message_id):
            new, stored, _ = stored_row(message)
            engine.store.lift(new, first + source - 1, previous, created_at)
            engine.index.put("", message_id, new.role, stored)
        kept = engine.message("", message_id)
        copied += kept is not None and kept == loads(text)
        previous = message_id
    return _finish(engine, table, source, copied)


def _chat_start(engine: Engine, table: str) -> int:
    """The `seq` of the table's first row: the one it was given by an earlier, partial lift."""
    place = engine.store.tail("").next_seq
    for offset, (message_id,) in enumerate(_rows(engine, "id", table, "created_at, rowid")):
        seq = engine.store.seq_of("", message_id) if isinstance(message_id, str) else None
        if seq is not None:
            return seq - offset
    return place
