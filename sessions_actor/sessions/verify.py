"""Checking a file: what holds after every write, looked at row by row.

Source: the guarantees of the specification; the storage's own check covers SQLite's.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ..attachments import count_pointers
from . import schema
from .index import parse
from .sql import Database

if TYPE_CHECKING:
    from .engine import Engine

_PROBLEMS_MAX = 100


def problems(engine: Engine) -> list[str]:
    """List what is wrong with a file's messages, payloads and index, at most 100 lines.

    Cost: reads everything once.
    """
    found: list[str] = []
    for session_id in engine.store.session_ids():
        found += _session_problems(engine, session_id)
    found += _payload_problems(engine)
    found += engine.index.problems()
    return found[:_PROBLEMS_MAX]


def _session_problems(engine: Engine, session_id: str) -> list[str]:
    store, found = engine.store, list[str]()
    db: Database = engine.storage.connection
    where = f"session {session_id!r}: " if session_id else ""
    at = ""
    while rows := store.scan_keys(session_id, at, 500):
        for _, message_id in rows:
            row = store.stored_message(session_id, message_id)
            assert row is not None
            name = f"{where}message {message_id!r}"
            text = b"".join(row.slices)
            message = parse(text)
            if message is None:
                found.append(f"{name}: its content is no message")
                continue
            if message["id"] != message_id or message["role"] != row.role:
                found.append(f"{name}: id or role differ from its content")
            if row.content_hash not in (None, hashlib.sha256(text).hexdigest()):
                found.append(f"{name}: its content does not match its digest")
            held = {
                r[0]
                for r in db.execute(
                    f"SELECT hash FROM {schema.REFERENCES} WHERE session_id = ? AND message_id = ?",
                    (session_id, message_id),
                )
            }
            if held != set(count_pointers(message, held)):
                found.append(f"{name}: its attachment references differ from its content")
            parent_id = row.parent_id
            if parent_id is not None and not store.exists(session_id, parent_id):
                found.append(f"{name}: its parent {parent_id!r} is not in this session")
        at = rows[-1][1]
    for table in (schema.CONTINUATIONS, schema.REFERENCES):
        column = "id" if table == schema.CONTINUATIONS else "message_id"
        ((count,),) = db.execute(
            f"SELECT COUNT(*) FROM {table} t WHERE session_id = ?1 AND NOT EXISTS"
            f" (SELECT 1 FROM {schema.MESSAGES} m"
            f"   WHERE m.session_id = ?1 AND m.id = t.{column})",
            (session_id,),
        ).fetchall()
        if count:
            found.append(f"{where}{count} rows of {table} belong to no message")
    return found


def _payload_problems(engine: Engine) -> list[str]:
    found = list[str]()
    db: Database = engine.storage.connection
    for digest, size in db.execute(f"SELECT hash, bytes FROM {schema.PAYLOADS}").fetchall():
        data = engine.store.payloads.read(digest) or b""
        if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
            found.append(f"attachment {digest}: its bytes do not match")
    orphans = (
        (
            f"SELECT COUNT(*) FROM {schema.PAYLOADS} p WHERE NOT EXISTS"
            f" (SELECT 1 FROM {schema.REFERENCES} r WHERE r.hash = p.hash)",
            "held by no message",
        ),
        (
            f"SELECT COUNT(*) FROM {schema.REFERENCES} r WHERE NOT EXISTS"
            f" (SELECT 1 FROM {schema.PAYLOADS} p WHERE p.hash = r.hash)",
            "missing",
        ),
    )
    for query, what in orphans:
        ((count,),) = db.execute(query).fetchall()
        if count:
            found.append(f"{count} attachments are {what}")
    return found
