"""Reads: whole histories, their two ends, single messages, search, attachments."""

from __future__ import annotations

import base64
import hashlib
import os
from collections import Counter
from typing import Any

import orjson

from sessions_actor.limits import KIB, MIB
from sessions_actor.sessions import schema

from . import data
from .bench import Bench, line, skipping
from .data import Messages
from .measure import Call, Pair, Work, at_least, at_most, in_turns, medians, middle, now, p50
from .writes import calling

RECENT_BYTES = 64 * KIB


def reading(session: Any, count: int, *, newest_first: bool = False) -> Work:
    """Make a round that reads a whole history; its figure is messages a second."""

    async def work() -> float:
        began, found = now(), 0
        async for _ in session.history(newest_first=newest_first):
            found += 1
        assert found == count, (found, count)
        return found / (now() - began)

    return work


@line("history")
async def history(bench: Bench) -> None:
    """Compare a remote history with a raw scan and with the reference over HTTP."""
    for count in (bench.size(20_000, 500), bench.size(100_000, 2_000)):
        path = bench.built(count)
        session = await bench.holding(f"history-{count}", bench.copy_of(path))
        db = data.raw(bench.copy_of(path))

        async def raw(db: Any = db, count: int = count) -> float:
            began = now()
            query = f"SELECT CAST(content AS BLOB) FROM {schema.MESSAGES} WHERE session_id = ''"
            found = [orjson.loads(text) for (text,) in db.execute(query)]
            assert len(found) == count
            return count / (now() - began)

        rounds = await in_turns(bench.repeat, reading(session, count), raw)
        bench.add(f"history, {count:,}", middle(rounds), "/s", at_least(0.2))
        db.close()
    count = bench.size(20_000, 500)
    scattered = bench.built(count, name=data.random_id)
    random_ids = await bench.holding("history-random", bench.copy_of(scattered))
    session = await bench.holding(f"history-{count}", None)
    rounds = await in_turns(bench.repeat, reading(random_ids, count), reading(session, count))
    bench.add("history, random ids, to rising ones", middle(rounds), "/s")
    with skipping(bench, "history, reference"):
        peer_count = bench.size(10_000, 250)
        name = bench.filled_reference(peer_count)

        async def reference() -> float:
            began = now()
            assert len(bench.refer(name, "history", {})) == peer_count
            return peer_count / (now() - began)

        rounds = await in_turns(bench.repeat, reading(session, count), reference)
        bench.add("history, reference over HTTP", middle(rounds), "/s", at_least(2.5))


@line("history-deep")
async def history_deep(bench: Bench) -> None:
    """Compare the rate over a very deep path with that over 20,000 messages."""
    few, many = bench.size(20_000, 500), bench.size(1_000_000, 5_000)
    near = await bench.holding("deep-few", bench.copy_of(bench.built(few)))
    deep = await bench.holding("deep-many", bench.copy_of(bench.built(many)))
    for newest_first, name in ((False, "root first"), (True, "newest first")):
        rounds = await in_turns(
            bench.repeat,
            reading(deep, many, newest_first=newest_first),
            reading(near, few, newest_first=newest_first),
            warm_up=False,
        )
        bench.add(f"history-deep, {many:,}, {name}", middle(rounds), "/s", at_least(0.8))


@line("newest-first")
async def newest_first(bench: Bench) -> None:
    """Compare the newest message of a very deep path with a bare call."""
    (bare,) = await bench.bare()
    count = bench.size(200, 20)
    for stored in (bench.size(20_000, 500), bench.size(1_000_000, 5_000)):
        session = await bench.holding(f"newest-{stored}", bench.copy_of(bench.built(stored)))

        async def first(_: int, session: Any = session) -> None:
            async for _ in session.history(newest_first=True):
                break

        rounds = await in_turns(bench.repeat, medians(first, count), medians(calling(bare), count))
        bench.add(f"newest-first, of {stored:,}", middle(rounds), "s", at_most(1.2))


@line("recent")
async def recent(bench: Bench) -> None:
    """Compare a recent window of a deep path with the reference, and with that of a shorter one."""
    (bare,) = await bench.bare()
    count = bench.size(100, 10)
    works = []
    sizes = (bench.size(200_000, 2_000), bench.size(20_000, 500))
    for stored in sizes:
        session = await bench.holding(f"recent-{stored}", bench.copy_of(bench.built(stored)))

        async def window(_: int, session: Any = session) -> None:
            found = await session.get_recent_history(RECENT_BYTES)
            assert found.truncated
            assert found.messages

        works.append(medians(window, count))
    works.append(medians(lambda _: bare.give.remote(RECENT_BYTES), count))
    with skipping(bench, "recent, reference"):
        name = bench.filled_reference(bench.size(10_000, 250))

        async def reference() -> float:
            async def one(_: int) -> None:
                assert bench.refer(name, "getRecentHistory", RECENT_BYTES)["truncated"]

            return await p50(one, bench.size(10, 2))

        works.append(reference)
    rounds = await in_turns(bench.repeat, *works)
    if len(works) > 3:
        bench.add(
            f"recent, of {sizes[0]:,}, to the reference", middle(rounds, 0, 3), "s", _TWENTIETH
        )
    bench.add(f"recent, of {sizes[0]:,}, to {sizes[1]:,}", middle(rounds, 0, 1), "s", at_most(1.2))
    bench.add("recent, to a bare call of its bytes", middle(rounds, 0, 2), "s")


_TWENTIETH = at_most(1 / 20)


_POINT = f"SELECT content FROM {schema.MESSAGES} WHERE session_id = '' AND id = ?"


@line("branches")
async def branches(bench: Bench) -> None:
    """Report the reads of single things in a deep session, in process, beside a point read."""
    for stored in (bench.size(20_000, 500), bench.size(200_000, 2_000)):
        path = bench.built(stored)
        db = data.raw(bench.copy_of(path))
        key = data.rising_id(stored // 2)

        async def point(_: int, db: Any = db, key: str = key) -> None:
            assert db.execute(_POINT, (key,)).fetchone()

        async with bench.opened(bench.copy_of(path)) as session:
            began = now()
            assert await session.get_latest_leaf()
            first = now() - began
            for name, count, work in _single_reads(session, key):
                rounds = await in_turns(bench.repeat, medians(work, count), medians(point, 100))
                bench.add(f"{name}, of {stored:,}", middle(rounds), "s")
            bench.report(f"leaf, first of an activation, of {stored:,}", first, "s")
        db.close()


def _single_reads(session: Any, key: str) -> list[tuple[str, int, Call]]:
    async def children(_: int) -> None:
        assert len(await session.get_branches(key)) == 1

    async def leaf(_: int) -> None:
        assert await session.get_latest_leaf()

    async def message(_: int) -> None:
        assert await session.get_message(key)

    async def stats(_: int) -> None:
        assert await session.get_history_row_stats()

    return [
        *(("branches", 5, children), ("leaf", 100, leaf)),
        *(("message", 100, message), ("stats", 2, stats)),
    ]


# ------------------------------------------------------------------------------------ search


class RawIndex:
    """The floor of a search: FTS5 and the same rows, and nothing else."""

    _PUT = (
        f"INSERT INTO {schema.INDEX} (rowid, id, session_id, role, content)"
        " VALUES (?, ?, '', 'user', ?)"
    )
    _FIND = (
        f"SELECT id, role, content FROM {schema.INDEX} WHERE {schema.INDEX} MATCH ?"
        " AND session_id = '' ORDER BY rank LIMIT 20"
    )

    def __init__(self, bench: Bench, stored: int) -> None:
        self.db = data.raw(bench.copy_of(bench.built(stored)))
        self._rows = [
            (row[1], row[0], orjson.loads(row[4])["parts"][0]["text"])
            for row in data.rows(stored, name=data.rising_id)
        ]
        self._next = stored

    def build(self) -> None:
        """Index every text in one transaction."""
        self.db.execute(f"DROP TABLE IF EXISTS {schema.INDEX}")
        self.db.execute("BEGIN IMMEDIATE")
        self.db.execute(schema.INDEX_TABLE)
        self.db.executemany(self._PUT, self._rows)
        self.db.execute("COMMIT")

    def find(self, words: str) -> list[Any]:
        """Find a phrase."""
        return self.db.execute(self._FIND, (f'"{words}"',)).fetchall()  # type: ignore[no-any-return]

    def append(self) -> None:
        """Write one row and its index row, durably."""
        (row,) = data.rows(1, first=self._next)
        self._next += 1
        self.db.execute("BEGIN IMMEDIATE")
        self.db.execute(data.INSERT, row)
        self.db.execute(self._PUT, (row[1], row[0], orjson.loads(row[4])["parts"][0]["text"]))
        self.db.execute("COMMIT")

    def update(self, number: int, text: str) -> None:
        """Replace one row and its index row, durably."""
        message_id = data.rising_id(number)
        self.db.execute("BEGIN IMMEDIATE")
        self.db.execute(
            f"UPDATE {schema.MESSAGES} SET content = ? WHERE session_id = '' AND id = ?",
            (text, message_id),
        )
        self.db.execute(f"DELETE FROM {schema.INDEX} WHERE rowid = ?", (number + 1,))
        self.db.execute(self._PUT, (number + 1, message_id, text))
        self.db.execute("COMMIT")


@line("search")
async def search(bench: Bench) -> None:
    """Compare the index with raw FTS5 of the same text: build, query, append, update."""
    for stored in (bench.size(20_000, 500), bench.size(100_000, 2_000)):
        await _search(bench, stored)


async def _search(bench: Bench, stored: int) -> None:
    raw, goal, name = RawIndex(bench, stored), at_most(1.5), f"search, {stored:,}"
    choice = data.texts(data.MESSAGE_BYTES)
    phrases = [" ".join(text.split()[3:5]) for text in choice[:100]]
    frequent, _ = Counter(" ".join(choice[:100]).split()).most_common(1)[0]
    path = bench.new_file()

    async def ours_first() -> float:
        nonlocal path
        path = bench.copy_of(bench.built(stored))
        async with bench.opened(path) as session:
            began = now()
            assert await session.search(phrases[0])
            return now() - began

    async def raw_first() -> float:
        began = now()
        raw.build()
        assert raw.find(phrases[0])
        return now() - began

    rounds = await in_turns(bench.repeat, ours_first, raw_first, warm_up=False)
    bench.add(f"{name}, first", middle(rounds), "s", goal)

    async with bench.opened(path) as session:
        supply, count = Messages(), bench.size(100, 10)
        edits = iter(range(stored))

        async def raw_find(number: int) -> None:
            raw.find(phrases[number % 100])

        async def raw_append(_: int) -> None:
            raw.append()

        def edited() -> tuple[int, str]:
            number = next(edits)
            return number, choice[(number + 7) % len(choice)]

        async def ours_update(_: int) -> None:
            number, text = edited()
            parts = [{"type": "text", "text": text}]
            message = {"id": data.rising_id(number), "role": "user", "parts": parts}
            assert await session.update_message(message)

        async def raw_update(_: int) -> None:
            raw.update(*edited())

        async def ours_find(number: int) -> None:
            await session.search(phrases[number % 100])

        async def ours_append(_: int) -> None:
            await session.append_message(supply.one())

        async def ours_frequent(_: int) -> None:
            assert len(await session.search(frequent)) == 20

        async def raw_frequent(_: int) -> None:
            assert len(raw.find(frequent)) == 20

        for kind, ours, floor in (
            ("next", ours_find, raw_find),
            ("a frequent word", ours_frequent, raw_frequent),
            ("append", ours_append, raw_append),
            ("update", ours_update, raw_update),
        ):
            rounds = await in_turns(bench.repeat, medians(ours, count), medians(floor, count))
            bench.add(f"{name}, {kind}", middle(rounds), "s", goal)
    raw.db.close()


# ------------------------------------------------------------------------------- attachments


@line("attachments")
async def attachments(bench: Bench) -> None:
    """Compare an image, appended and read in process, with its digest and a raw blob."""
    for size in (MIB, 8 * MIB):
        await _attachment(bench, size)


async def _attachment(bench: Bench, size: int) -> None:
    db = data.raw(bench.new_file())
    db.execute("CREATE TABLE blobs (hash TEXT PRIMARY KEY, data BLOB)")
    supply = Messages()
    ours_parts: list[tuple[float, float]] = []
    raw_parts: list[tuple[float, float]] = []

    async with bench.opened(bench.new_file()) as session:

        async def ours() -> float:
            url = "data:image/png;base64," + base64.b64encode(os.urandom(size)).decode()
            part = {"type": "file", "mediaType": "image/png", "url": url}
            message = supply.one() | {"parts": [part]}
            began = now()
            await session.append_message(message)
            between = now()
            found = await session.get_message(message["id"])
            ended = now()
            assert found == message
            ours_parts.append((between - began, ended - between))
            return ended - began

        async def raw() -> float:
            payload = os.urandom(size)
            began = now()
            digest = hashlib.sha256(payload).hexdigest()
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO blobs VALUES (?, ?)", (digest, payload))
            db.execute("COMMIT")
            between = now()
            query = "SELECT data FROM blobs WHERE hash = ?"
            (found,) = db.execute(query, (digest,)).fetchone()
            ended = now()
            assert found == payload
            raw_parts.append((between - began, ended - between))
            return ended - began

        rounds = await in_turns(max(bench.repeat, 2 * bench.repeat), ours, raw)
    name = f"attachments, {size // MIB} MiB"
    bench.add(name, middle(rounds), "s", at_most(2))
    for column, kind in ((0, "append"), (1, "read")):
        parts = list(zip(ours_parts, raw_parts, strict=True))[1:]
        pairs = [(mine[column], floor[column]) for mine, floor in parts]
        bench.add(f"{name}, {kind}", Pair(*middle(pairs)), "s")
    db.close()
