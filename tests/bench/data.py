"""What the lines are measured with: messages of a given size, and files that hold many of them.

Texts are words of a made-up vocabulary, drawn by a fixed seed, rare words rare: what an index sees
is neither noise nor the same line again and again.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import apsw

from sessions_actor.chunks import split_utf8
from sessions_actor.database_file import connect, prepare
from sessions_actor.limits import ROW_BYTES_MAX
from sessions_actor.sessions import schema
from sessions_actor.tokens import estimate_message

MESSAGE_BYTES = 700
_TEXTS = 2_000
_ID_LENGTH = 10

Message = Any
"""A SessionMessage, or what JSON makes of one."""

INSERT = (
    f"INSERT INTO {schema.MESSAGES} (session_id, id, seq, parent_id, role, content,"
    " content_chunks, token_estimate, created_at, content_hash)"
    " VALUES ('', ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
"""One row of the messages table, as a raw floor writes it; `rows` gives its bindings."""

_CONTINUE = f"INSERT INTO {schema.CONTINUATIONS} VALUES ('', ?, ?, ?)"


@cache
def texts(message_bytes: int) -> list[str]:
    """Return texts that make a message of so many bytes of compact JSON."""
    chance = random.Random(message_bytes)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = ["".join(chance.choices(syllables, k=chance.randint(1, 4))) for _ in range(5_000)]
    weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(len(words))))
    empty = len(_content("0" * _ID_LENGTH, "user", ""))
    length = message_bytes - empty
    found = []
    for _ in range(max(2, min(_TEXTS, 64_000_000 // message_bytes))):
        drawn = chance.choices(words, cum_weights=weights, k=length // 4 + 8)
        found.append(" ".join(drawn)[:length].ljust(length, "x"))
    return found


def _content(message_id: str, role: str, text: str) -> str:
    return f'{{"id":"{message_id}","role":"{role}","parts":[{{"type":"text","text":"{text}"}}]}}'


class Messages:
    """An endless supply of messages of one size, their ids rising and never used before."""

    _batches = itertools.count()

    def __init__(self, message_bytes: int = MESSAGE_BYTES, prefix: str | None = None) -> None:
        self._texts = texts(message_bytes)
        self._prefix = f"n{next(self._batches):02d}" if prefix is None else prefix
        self._numbers = itertools.count()

    def one(self) -> Message:
        """Make the next message."""
        return make(next(self._numbers), self._texts, self._prefix)

    def many(self, count: int) -> list[Message]:
        """Make the next messages."""
        return [self.one() for _ in range(count)]


def make(number: int, choice: list[str], prefix: str) -> Message:
    """Make the message of a number."""
    text = choice[number % len(choice)]
    message_id = id_of(number, prefix)
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}


def id_of(number: int, prefix: str = "") -> str:
    """Return the id of a number: all of one length."""
    return f"{prefix}{number:0{_ID_LENGTH - len(prefix)}d}"


Row = tuple[str, int, str | None, str, str, int, int, int, str]


def rows(
    count: int, *, message_bytes: int = MESSAGE_BYTES, prefix: str = "", first: int = 0
) -> Iterator[Row]:
    """Yield the bindings of `INSERT` for a chain of messages; a long one gives its first slice."""
    choice = texts(message_bytes)
    estimate = estimate_message(make(0, choice, prefix))  # of one size: near enough for all
    parent = None if first == 0 else id_of(first - 1, prefix)
    for number in range(first, first + count):
        message_id = id_of(number, prefix)
        content = _content(message_id, "user", choice[number % len(choice)])
        chunks = 0
        digest = hashlib.sha256(content.encode()).hexdigest()
        if len(content) > ROW_BYTES_MAX:
            slices = split_utf8(content.encode(), ROW_BYTES_MAX)
            content, chunks = slices[0].decode(), len(slices) - 1
        stamp = 1_700_000_000_000 + number
        yield message_id, number + 1, parent, "user", content, chunks, estimate, stamp, digest
        parent = message_id


def build(path: Path, count: int, *, message_bytes: int = MESSAGE_BYTES) -> None:
    """Write a conversation's file that holds a chain of `count` messages.

    Cost: about 10 s for 1,000,000 messages of 700 B.
    """
    assert message_bytes <= ROW_BYTES_MAX
    path.unlink(missing_ok=True)
    db: Any = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
    schema.ensure_tables(db)
    with db:
        db.executemany(INSERT, rows(count, message_bytes=message_bytes))
    db.close()


def scatter(path: Path, count: int) -> None:
    """Write a conversation's file whose ids are random, as clients make them."""
    path.unlink(missing_ok=True)
    names = [hashlib.sha256(b"%d" % number).hexdigest()[:_ID_LENGTH] for number in range(count)]
    new = dict(zip((id_of(number) for number in range(count)), names, strict=True))
    found = []
    for row in rows(count):
        parent = None if row[2] is None else new[row[2]]
        content = row[4].replace(row[0], new[row[0]], 1)
        digest = hashlib.sha256(content.encode()).hexdigest()
        found.append((new[row[0]], row[1], parent, row[3], content, *row[5:8], digest))
    db: Any = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
    schema.ensure_tables(db)
    with db:
        db.executemany(INSERT, sorted(found))
    db.close()


def raw(path: Path) -> Any:
    """Open a file as a conversation does (WAL, every commit synchronised), with its tables."""
    prepare(str(path))
    db: Any = connect(str(path))
    schema.ensure_tables(db)
    return db


def insert(db: Any, some: Iterable[Row]) -> None:
    """Write rows in one transaction, a statement each: the floor of every append."""
    execute = db.cursor().execute
    execute("BEGIN IMMEDIATE")
    for row in some:
        execute(INSERT, row)
    execute("COMMIT")
