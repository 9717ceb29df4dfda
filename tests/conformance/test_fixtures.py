"""Files that real Durable Objects wrote: opened as they are, read, appended to, lifted.

``fixtures/durable-object.sqlite`` was written by the reference on workerd and must read back as
``durable-object.json`` says. The legacy files have the tables of older versions.
"""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from sessions_actor import open_object
from tests.conformance.host import ConformanceObject, compaction_json
from tests.conformance.scenario import ANY, differences
from tests.conformance.support import holding, image, said

FIXTURES = Path(__file__).parent / "fixtures"
CHAT = "cf_ai_chat_agent_messages"


class Watched(ConformanceObject):
    """A host that notes what is reported while it starts."""

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.reports: list[Any] = []
        self.lifecycle.events.subscribe(self.reports.append)

    def incomplete(self) -> list[dict[str, Any]]:
        """Return what migrations reported they left behind."""
        return [
            dict(event.payload)
            for event in self.reports
            if event.type == "session:migration:incomplete"
        ]


@pytest.fixture
def copied(tmp_path: Path) -> Any:
    """Return how to copy a fixture to where it may be written."""

    def copy(name: str) -> Path:
        return Path(shutil.copyfile(FIXTURES / f"{name}.sqlite", tmp_path / f"{name}.sqlite"))

    return copy


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Watched]:
    """Open a file as a conversation."""
    async with open_object(Watched, name="fixture", path=path) as target:
        yield target


def expected() -> dict[str, Any]:
    """Read what the real file must read back as, long texts written out."""

    def write_out(value: dict[str, Any]) -> Any:
        if value.keys() == {"repeat", "times"}:
            return value["repeat"] * value["times"]
        return value

    text = (FIXTURES / "durable-object.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text, object_hook=write_out)
    return found


def agree(want: Any, got: Any) -> None:
    """Compare JSON: values, types and the order of keys; "<any>" is any value."""
    assert differences(want, got, {}) == []


def tables(path: Path) -> set[str]:
    """Name the tables of a file that nobody has open."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    db.close()
    return names


def texts(messages: list[Any]) -> list[str]:
    """Take the first text of each message."""
    return [message["parts"][0]["text"] for message in messages]


# ------------------------------------------------------------------------- a real Durable Object
async def test_a_real_file_reads_back_as_it_was(copied: Any) -> None:
    want = expected()
    async with opened(copied("durable-object")) as target:
        session = target.session
        agree(want["history"], await session.get_history())
        agree(want["history"], [m async for m in session.history()])
        agree(want["history"][::-1], [m async for m in session.history(newest_first=True)])
        [record] = await session.get_compactions()
        agree(want["compactions"], [compaction_json(record)])
        branch = want["branch_a2"]
        branch[0]["createdAt"] = record.created_at
        agree(branch, await session.get_history(leaf_id="a2"))
        assert [m["id"] for m in await session.get_branches("u2")] == want["branches_u2"]
        stats = await session.get_history_row_stats()
        agree(
            want["stats"],
            [
                {"id": s.id, "role": s.role, "bytes": s.bytes, "tokenEstimate": s.token_estimate}
                for s in stats
            ],
        )
        agree(want["drafts"], await target.sessions.session("drafts").get_history())
        recent = await session.get_recent_history(20_000)
        assert recent.truncated is want["recent_20000"]["truncated"]
        assert recent.total_content_bytes == want["recent_20000"]["totalContentBytes"]
        leaf = await session.get_latest_leaf()
        assert leaf is not None
        assert leaf["id"] == want["leaf"]
        assert target.incomplete() == []


async def test_a_real_file_is_not_written_by_reading_it(copied: Any) -> None:
    path = copied("durable-object")
    async with opened(path) as target:
        sql = target.storage.sql
        before = sql.exec("SELECT total_changes() AS n").one()
        await target.session.get_history()
        await target.session.get_recent_history(1000)
        assert sql.exec("SELECT total_changes() AS n").one() == before
    rows = "SELECT session_id, id, seq, parent_id, content, content_hash, created_at"
    query = f"{rows} FROM cf_agents_session_messages"
    was, now = (apsw.Connection(f"file:{p}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY
                                | apsw.SQLITE_OPEN_URI)
                for p in (FIXTURES / "durable-object.sqlite", path))  # fmt: skip
    assert list(was.execute(query)) == list(now.execute(query))
    assert list(was.execute("SELECT * FROM _cf_KV")) == list(now.execute("SELECT * FROM _cf_KV"))


async def test_the_index_of_a_real_file_goes_on_working(copied: Any) -> None:
    want = expected()
    async with opened(copied("durable-object")) as target:
        session = target.session

        async def found(query: str) -> list[str]:
            return [hit.id for hit in await session.search(query)]

        assert await found("deployment") == want["search_deploy"]
        await session.append_message(said("new", "Deployment zorbium"))
        assert await found("zorbium") == ["new"]
        assert "new" in await found("deployment")
        await session.update_message(said("u2", "All is well"))
        assert await found("code 137") == []
        assert await found("all is well") == ["u2"]
        await session.delete_messages(["a1", "new"])
        assert await found("deployment") == []
        assert await found("zorbium") == []
        assert target.sessions.engine.problems() == []


async def test_a_real_file_takes_writes_and_keeps_them(copied: Any) -> None:
    path = copied("durable-object")
    message = holding("new", image("bmV3"), {"type": "text", "text": "z" * 10**7})
    async with opened(path) as target:
        before = await target.session.get_history()
        result = await target.session.append_message(message)
        assert result.inserted
        await target.storage.put("mine", {"kept": [1, 2]})
    async with opened(path) as target:
        assert await target.session.get_history() == [*before, message]
        rows = [row async for row in target.session.history_rows()]
        assert rows[-1].message == message
        assert rows[-1].parent_id == expected()["leaf"]
        assert [row.seq for row in rows] == sorted({row.seq for row in rows})
        assert await target.storage.get("mine") == {"kept": [1, 2]}
        assert target.sessions.engine.problems() == []
        assert target.storage.check() == []


async def test_deleting_the_last_message_with_a_payload_frees_a_real_one(copied: Any) -> None:
    async with opened(copied("durable-object")) as target:
        sql = target.storage.sql
        payloads = "SELECT COUNT(*) AS n FROM cf_agents_session_attachment_meta"
        owners = sql.exec("SELECT message_id FROM cf_agents_session_attachment_refs").to_list()
        assert sql.exec(payloads).one() == {"n": 1}
        await target.session.delete_messages([row["message_id"] for row in owners])
        assert sql.exec(payloads).one() == {"n": 0}


# ---------------------------------------------------------------------------------- older tables
async def test_legacy_sessions_are_lifted_row_by_row(copied: Any) -> None:
    path = copied("legacy-sessions")
    source = apsw.Connection(str(path))
    columns = (
        "id, session_id, parent_id, role, content, CAST(strftime('%s', created_at) AS INTEGER)"
    )
    query = f"SELECT {columns} FROM assistant_messages ORDER BY created_at, rowid"
    old = list(source.execute(query))
    source.close()
    async with opened(path) as target:
        assert target.incomplete() == []
        lifted = target.storage.sql.exec(
            "SELECT id, session_id, parent_id, role, content, created_at / 1000 AS created_s"
            " FROM cf_agents_session_messages ORDER BY seq"
        )
        assert [tuple(row.values()) for row in lifted] == old
        rows = [row async for row in target.session.history_rows()]
        assert [row.seq for row in rows] == list(range(1, len(old) + 1))
        assert [json.dumps(row.message) for row in rows] == [row[4] for row in old]
        history = await target.session.get_history(leaf_id="m4")
        assert texts(history) == ["Legacy summary", *(f"legacy message {i}" for i in (2, 3, 4))]
        assert texts(await target.session.get_branches("m2")) == [
            "legacy message 3",
            "another reply",
        ]
        [overlay] = await target.session.get_compactions()
        assert compaction_json(overlay) == {
            "id": "k1",
            "summary": "Legacy summary",
            "fromMessageId": "m0",
            "toMessageId": "m1",
            "createdAt": "2026-01-06T10:00:00.000Z",
        }
        assert [hit.id for hit in await target.session.search("legacy message")] == [
            f"m{i}" for i in range(5)
        ]
        assert target.sessions.engine.problems() == []
    gone = {"assistant_messages", "assistant_compactions", "assistant_sessions", "assistant_fts"}
    assert not gone & tables(path)
    assert "assistant_config" in tables(path), "that one is another's to lift"


async def test_a_lifted_file_goes_on_and_is_lifted_once(copied: Any) -> None:
    path = copied("legacy-sessions")
    new = said("new", "and on")
    async with opened(path) as target:
        await target.session.append_message(new)
        before = [row async for row in target.session.history_rows()]
    async with opened(path) as target:
        assert [row async for row in target.session.history_rows()] == before
        assert before[-1].message == new
        assert before[-1].parent_id == "m3b"
        assert target.incomplete() == []


async def test_a_row_that_cannot_be_parsed_keeps_its_table(copied: Any) -> None:
    path = copied("legacy-chat-agent")
    for _ in range(2):  # the next start tries again, and doubles nothing
        async with opened(path) as target:
            assert target.incomplete() == [{"table": CHAT, "source": 5, "copied": 4}]
            history = await target.session.get_history()
            assert texts(history) == [f"chat message {i}" for i in range(4)]
            rows = [row async for row in target.session.history_rows()]
            assert [row.parent_id for row in rows] == [None, "c0", "c1", "c2"]
            assert [row.created_at for row in rows] == [
                1_769_940_000_000 + i * 1000 for i in range(4)
            ]
        assert CHAT in tables(path)
    source = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    assert source.execute(f"SELECT COUNT(*) FROM {CHAT}").fetchall() == [(5,)]


@pytest.mark.parametrize("repaired", [True, False])
async def test_a_source_whose_broken_row_is_dealt_with_is_lifted(
    copied: Any, repaired: bool
) -> None:
    path = copied("legacy-chat-agent")
    async with opened(path) as target:
        assert target.incomplete()
    text = '{"id": "broken", "role": "user", "parts": [{"type": "text", "text": "mended"}]}'
    source = apsw.Connection(str(path))
    if repaired:
        source.execute(f"UPDATE {CHAT} SET message = ? WHERE id = 'broken'", (text,))
    else:
        source.execute(f"DELETE FROM {CHAT} WHERE id = 'broken'")
    source.close()
    async with opened(path) as target:
        assert target.incomplete() == []
        wanted = [f"chat message {i}" for i in range(4)] + ["mended"] * repaired
        assert texts(await target.session.get_history()) == wanted
        assert target.sessions.engine.problems() == []
    assert CHAT not in tables(path)


async def test_a_row_that_arrived_differently_keeps_its_table(copied: Any) -> None:
    path = copied("legacy-sessions")
    async with opened(path):
        pass
    # A source comes back whose rows the new table already holds under the same ids, changed.
    source = apsw.Connection(str(path))
    source.execute("CREATE TABLE assistant_messages (id TEXT PRIMARY KEY, session_id TEXT,"
                   " parent_id TEXT, role TEXT, content TEXT, created_at DATETIME)")  # fmt: skip
    values = ("m0", "", None, "user", '{"id": "m0", "role": "user", "parts": []}', "2026-01-01")
    source.execute("INSERT INTO assistant_messages VALUES (?, ?, ?, ?, ?, ?)", values)
    source.execute("DELETE FROM sessions_actor_kv WHERE key = 'cf_agents:sessions_schema_version'")
    source.close()
    async with opened(path) as target:
        assert target.incomplete() == [{"table": "assistant_messages", "source": 1, "copied": 0}]
        kept = await target.session.get_message("m0")
        assert kept is not None
        assert texts([kept]) == ["legacy message 0"]
    assert "assistant_messages" in tables(path)


def test_the_expected_answers_are_complete() -> None:
    want = expected()
    assert want["history"][0]["createdAt"] == ANY
    assert sum(len(json.dumps(message)) for message in want["history"]) > 1_500_000
