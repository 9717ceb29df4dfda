"""A conversation copied from file to file: everything it owns arrives, and nothing else."""

from __future__ import annotations

import base64
import contextlib
from pathlib import Path

import pytest

from sessions_actor import DurableObject, Lifecycle, Sessions, Storage, open_object
from sessions_actor.durable_object import ObjectState
from sessions_actor.sessions import schema
from sessions_actor.transfer import Incoming, Manifest, Outgoing, TableDigest, digests

PICTURE = "data:image/png;base64," + base64.b64encode(b"picture" * 99_999).decode()


class Conversation(DurableObject):
    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)
        self.sessions = Sessions()
        self.lifecycle = Lifecycle.install(self).use(self.sessions)

    async def on_start(self) -> None:
        self.storage.sql.exec("CREATE TABLE IF NOT EXISTS started (at INTEGER)")


def text(message_id: str, body: str = "hi") -> dict:
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": body}]}


async def fill(alice: Conversation) -> None:
    """Put something into every corner that a conversation can have."""
    session, drafts = alice.sessions.session(), alice.sessions.session("drafts \U0001f600")
    await session.append_messages([text(f"m{n}", f"apple {n}") for n in range(1100)])
    await session.append_message(text("branch"), parent_id="m7")
    await session.append_message(text("long", "long " * 700_000))
    picture = {"type": "file", "mediaType": "image/png", "url": PICTURE}
    await session.append_message({"id": "p", "role": "user", "parts": [picture]})
    await drafts.append_message({"id": "p", "role": "user", "parts": [picture]})
    await drafts.import_message(text("old", "\ud800 lone"), parent_id="later", created_at=1.5)
    await session.add_compaction("the start", "m0", "m9")
    await session.delete_messages(["m100", "m101"])
    assert len(await session.search("apple", limit=3)) == 3
    await alice.storage.put({"key": [1, 2, {"deep": None}], "blob": b"\0\1"})
    sql = alice.storage.sql
    sql.exec("CREATE TABLE notes (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT UNIQUE, n REAL)")
    sql.exec("CREATE TABLE bag (v)")
    sql.exec("CREATE TABLE pairs (a TEXT, b INTEGER, c BLOB, PRIMARY KEY (b, a)) WITHOUT ROWID")
    sql.exec("CREATE TABLE twice (n INTEGER, doubled INTEGER GENERATED ALWAYS AS (n * 2) STORED)")
    sql.exec('CREATE TABLE "odd ""name" (rowid TEXT, x)')
    sql.exec("CREATE INDEX notes_n ON notes (n)")
    sql.exec("CREATE VIEW loud AS SELECT upper(body) AS body FROM notes")
    sql.exec(
        "CREATE TRIGGER echo AFTER INSERT ON notes BEGIN INSERT INTO bag VALUES (new.body); END"
    )
    sql.exec("CREATE VIRTUAL TABLE own USING fts5(body)")
    for n in range(1100):
        sql.exec("INSERT INTO notes (body, n) VALUES (?, ?)", f"note {n}", n / 3)
        sql.exec("INSERT INTO pairs VALUES (?, ?, ?)", f"a{n}", n % 7, bytes([n % 256]))
    sql.exec("DELETE FROM notes WHERE id > 1050")
    sql.exec("INSERT INTO twice (n) VALUES (21)")
    sql.exec('INSERT INTO "odd ""name" VALUES (?, ?)', "r", None)
    sql.exec("INSERT INTO own VALUES ('a needle in the hay')")
    await alice.storage.durable()


async def copy(source: Storage, path: Path, window_bytes: int) -> tuple[Manifest, dict]:
    outgoing = Outgoing(source)
    manifest = outgoing.manifest()
    target = Storage(path)
    incoming = Incoming(target)
    await incoming.begin(manifest)
    place = None
    while True:
        window, place = await outgoing.window(manifest, place, window_bytes)
        await incoming.write(window)
        if place is None:
            break
    await incoming.index(manifest)
    await incoming.finish(manifest)
    outgoing.close()
    arrived = await digests(target)
    target.close()
    return manifest, arrived


@pytest.mark.parametrize("window_bytes", [3_000, 100_000, 4 << 20])
async def test_everything_a_conversation_owns_arrives(tmp_path, window_bytes):
    async with open_object(Conversation, name="alice", path=tmp_path / "a.sqlite") as alice:
        await fill(alice)
        sent = await digests(alice.storage)
        before = [row async for row in alice.sessions.session().history_rows()]
        born = alice.storage.meta.get("created_at")
        _, arrived = await copy(alice.storage, tmp_path / "b.sqlite", window_bytes)
    assert arrived == sent
    assert {schema.MESSAGES, schema.INDEX + "_data", "own_content", "sqlite_sequence"} <= set(sent)
    assert sent["bag"] == TableDigest(1100, sent["bag"].digest)
    async with open_object(Conversation, name="alice", path=tmp_path / "b.sqlite") as alice:
        session = alice.sessions.session()
        assert [row async for row in session.history_rows()] == before
        assert alice.storage.meta.get("created_at") == born
        assert [r.id for r in await session.search("apple 1050")] == ["m1050"]
        sql = alice.storage.sql
        assert sql.exec("SELECT body FROM own WHERE own MATCH 'needle'").one()
        assert sql.exec("SELECT doubled FROM twice").one() == {"doubled": 42}
        sql.exec("INSERT INTO notes (body) VALUES ('new')")
        assert sql.exec("SELECT id FROM notes WHERE body = 'new'").one() == {"id": 1101}
        assert sql.exec("SELECT count(*) AS n FROM bag").one() == {"n": 1101}
        assert sql.exec("SELECT count(*) AS n FROM loud").one() == {"n": 1051}
        assert list(alice.storage.check()) == []
        assert alice.sessions.engine.problems() == [
            "session 'drafts \U0001f600': message 'old': its parent 'later' is not in this session"
        ]


async def test_a_digest_tells_every_change(tmp_path):
    async with open_object(Conversation, name="alice", path=tmp_path / "a.sqlite") as alice:
        await fill(alice)
        sql = alice.storage.sql
        before = await digests(alice.storage)
        for change in (
            "UPDATE notes SET n = n + 1 WHERE id = 5",
            "UPDATE bag SET v = CAST(v AS BLOB) WHERE rowid = 1",
            "DELETE FROM pairs WHERE a = 'a3'",
            f"UPDATE {schema.MESSAGES} SET seq = 99999 WHERE id = 'm5'",
            f"UPDATE {schema.PAYLOAD_CHUNKS} SET data = x'00'",
        ):
            with contextlib.suppress(ZeroDivisionError):
                alice.storage.transaction(lambda change=change: (sql.exec(change), 1 / 0))
            assert await digests(alice.storage) == before
            sql.exec(change)
            after = await digests(alice.storage)
            assert after != before
            assert len([name for name in after if after[name] != before[name]]) == 1
            before = after
