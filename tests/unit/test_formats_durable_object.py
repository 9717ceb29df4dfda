"""Files of real Durable Objects: everything of their sessions is carried over, the file is left."""

import hashlib
import json
import sqlite3
from pathlib import Path

from router.formats import IMPORTERS, Problem, Reader, import_conversations, open_sources

from .formats_support import MemoryClient

FIXTURES = Path(__file__).resolve().parents[1] / "conformance" / "fixtures"


async def adopt(file: Path) -> tuple[MemoryClient, list[Problem]]:
    """Import a file into a deployment in memory, as conversation "x"."""
    client, problems = MemoryClient(), list[Problem]()
    (source,) = open_sources(str(file))
    with source:
        found = IMPORTERS["durable-object"](Reader(source, problems.append))
        await import_conversations(client, found, report=problems.append, name="x")
    return client, problems


async def test_every_session_branch_and_overlay_arrives() -> None:
    file = FIXTURES / "durable-object.sqlite"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    client, problems = await adopt(file)
    assert not problems
    conversation = client.conversations["x"]
    assert sorted(conversation.sessions) == ["", "drafts"]
    expected = json.loads((FIXTURES / "durable-object.json").read_text())
    branches = [r.message["id"] for r in client.rows("x") if r.parent_id == "u2"]
    assert branches == expected["branches_u2"]
    (overlay,) = await conversation.session().get_compactions()
    assert (overlay.from_message_id, overlay.to_message_id) == ("u1", "a1")
    drafts = [row.message for row in client.rows("x", "drafts")]
    assert drafts == expected["drafts"]
    rows = client.rows("x")
    assert [row.created_at for row in rows] == sorted(row.created_at for row in rows)
    assert min(row.created_at for row in rows) > 1_700_000_000_000
    assert hashlib.sha256(file.read_bytes()).hexdigest() == digest


async def test_older_tables_are_lifted_on_the_way() -> None:
    client, problems = await adopt(FIXTURES / "legacy-sessions.sqlite")
    assert [problem.harmless for problem in problems] == [True]
    assert "assistant_config" in problems[0].place
    assert len(client.rows("x")) == 6
    assert len(await client.conversations["x"].session().get_compactions()) == 1


async def test_a_row_that_cannot_be_read_is_a_problem_and_the_rest_arrives() -> None:
    client, problems = await adopt(FIXTURES / "legacy-chat-agent.sqlite")
    assert len(client.rows("x")) == 4
    assert [problem.harmless for problem in problems] == [False]
    assert "4 of 5 rows could be read" in problems[0].reason


async def test_what_lies_in_the_write_ahead_log_comes_along(tmp_path: Path) -> None:
    file = tmp_path / "object.sqlite"
    db = sqlite3.connect(file)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA wal_autocheckpoint=0")
    with sqlite3.connect(FIXTURES / "durable-object.sqlite") as source:
        source.backup(db)
    db.execute("UPDATE cf_agents_session_messages SET created_at = 5")
    db.commit()
    client, _ = await adopt(file)
    db.close()
    assert [row.created_at for row in client.rows("x")] == [5] * 9


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "noise.sqlite"
    file.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 32)
    client, problems = await adopt(file)
    assert not client.conversations["x"].sessions
    (problem,) = problems
    assert str(file) in problem.reason
    assert "not a sound" in problem.reason


async def test_a_database_without_sessions_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.sqlite"
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE invoices (id)")
    _, problems = await adopt(file)
    assert [str(problem) for problem in problems] == [f"{file}: it holds no sessions"]
