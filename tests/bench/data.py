"""What the lines are measured with: messages of a given size, and files that hold many of them.

Ids are random where messages are written, as clients make them; in files made beforehand they rise,
unless random ones are asked for. Texts are words of a made-up vocabulary, drawn by a fixed seed,
rare words rare: what an index sees is neither noise nor the same line again and again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import apsw

from sessions_actor.database_file import connect, prepare
from sessions_actor.limits import ROW_BYTES_MAX
from sessions_actor.sessions import schema
from sessions_actor.tokens import estimate_text

MESSAGE_BYTES = 700
_TEXTS = 2_000
_ID_LENGTH = 20

Message = Any
"""A SessionMessage, or what JSON makes of one."""

INSERT = (
    f"INSERT INTO {schema.MESSAGES} (session_id, id, seq, parent_id, role, content,"
    " content_chunks, token_estimate, created_at, content_hash)"
    " VALUES ('', ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
"""One row of the messages table, as a raw floor writes it; `rows` gives its bindings."""


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
    """An endless supply of messages of one size, their ids never used before."""

    _batches = itertools.count()

    def __init__(self, message_bytes: int = MESSAGE_BYTES) -> None:
        self._texts = texts(message_bytes)
        self._batch = next(self._batches)
        self._numbers = itertools.count()

    def one(self) -> Message:
        """Make the next message."""
        number = next(self._numbers)
        text = self._texts[number % len(self._texts)]
        message_id = random_id(number, self._batch)
        return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}

    def many(self, count: int) -> list[Message]:
        """Make the next messages."""
        return [self.one() for _ in range(count)]


def random_id(number: int, batch: int = -1) -> str:
    """Return an id in no order, as clients make them."""
    return blake2b(b"%d.%d" % (batch, number), digest_size=_ID_LENGTH // 2).hexdigest()


def rising_id(number: int) -> str:
    """Return an id that rises with its number, as some stores and libraries make them."""
    return f"{number:0{_ID_LENGTH}d}"


Row = tuple[str, int, str | None, str, str, int, int, int, str]
NameOf = Callable[[int], str]


def rows(
    count: int, *, message_bytes: int = MESSAGE_BYTES, first: int = 0, name: NameOf = random_id
) -> Iterator[Row]:
    """Yield the bindings of `INSERT` for a chain of messages."""
    assert message_bytes <= ROW_BYTES_MAX
    choice = texts(message_bytes)
    estimate = 4 + estimate_text(choice[0])  # of one size: near enough for all
    parent = None if first == 0 else name(first - 1)
    for number in range(first, first + count):
        message_id = name(number)
        content = _content(message_id, "user", choice[number % len(choice)])
        digest = sha256(content.encode()).hexdigest()
        stamp = 1_700_000_000_000 + number
        yield message_id, number + 1, parent, "user", content, 0, estimate, stamp, digest
        parent = message_id


def build(
    path: Path, count: int, *, message_bytes: int = MESSAGE_BYTES, name: NameOf = rising_id
) -> None:
    """Write a conversation's file that holds a chain of `count` messages.

    Cost: about 10 s for 1,000,000 messages of 700 B; random ids are sorted first, in memory.
    """
    path.unlink(missing_ok=True)
    found: Iterable[Row] = rows(count, message_bytes=message_bytes, name=name)
    if name is not rising_id:
        found = sorted(found)
    db: Any = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
    schema.ensure_tables(db)
    with db:
        db.executemany(INSERT, found)
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
