"""What an activation leaves for the next one, and when that is not used."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sessions_actor import open_object
from sessions_actor.conversation import Conversation
from sessions_actor.sessions import schema
from tests.bench import data

ROWS = 1_500
BUDGET = 4_000


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A long conversation that was open once, and whose tail and sums were asked for."""
    found = tmp_path / "long.sqlite"
    data.build(found, ROWS)
    async with open_object(Conversation, name="long", path=found) as host:
        await host.session.get_recent_history(BUDGET)
    return found


async def reading(
    path: Path, work: Callable[[Conversation], Any] | None = None
) -> tuple[bool, str]:
    """Open, work, and tell whether the tail was known beforehand, and which leaf it gives."""
    async with open_object(Conversation, name="long", path=path) as host:
        if work is not None:
            await work(host)
        engine = host.sessions.engine
        known = "" in engine.store.tails._known and "" in engine._totals
        leaf = await host.session.get_latest_leaf()
        assert leaf is not None
        return known, leaf["id"]


def statement(path: Path, text: str, *values: Any) -> None:
    """Write to the file as another program does."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(text, values)


LAST = data.rising_id(ROWS - 1)
INSERT = (
    f"INSERT INTO {schema.MESSAGES} (session_id, id, seq, parent_id, role, content, created_at)"
    """ VALUES ('', 'foreign', 9999, ?, 'user', '{"id":"foreign","role":"user","parts":[]}', 0)"""
)


async def test_the_next_activation_need_not_scan(path: Path) -> None:
    for _ in range(3):
        assert await reading(path) == (True, LAST)


async def test_sums_and_tail_follow_what_is_written(path: Path) -> None:
    supply = data.Messages()
    for _ in range(3):
        message = supply.one()
        async with open_object(Conversation, name="long", path=path) as host:
            await host.session.append_message(message)
        async with open_object(Conversation, name="long", path=path) as host:
            engine = host.sessions.engine
            left = engine._totals[""]
            recent = await host.session.get_recent_history(BUDGET)
            assert recent.messages[-1] == message
            engine.forget()
            again = await host.session.get_recent_history(BUDGET)
            assert (again, engine._totals[""]) == (recent, left)


@pytest.mark.parametrize("journal", ["wal", "delete"])
async def test_another_program_wrote(path: Path, journal: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA journal_mode = {journal}")
    statement(path, INSERT, LAST)
    assert await reading(path) == (False, "foreign")
    assert await reading(path) == (False, "foreign")  # its sums were not asked for
    async with open_object(Conversation, name="long", path=path) as host:
        await host.session.get_recent_history(BUDGET)
    assert await reading(path) == (True, "foreign")


async def test_another_program_left_a_log(path: Path, tmp_path: Path) -> None:
    dated = path.stat().st_mtime_ns
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_autocheckpoint = 0")
        with db:
            db.execute(INSERT, (LAST,))
        for suffix in ("", "-wal"):  # as a crash leaves them
            shutil.copy2(f"{path}{suffix}", tmp_path / f"crashed.sqlite{suffix}")
    crashed = tmp_path / "crashed.sqlite"
    assert crashed.stat().st_mtime_ns == dated
    assert await reading(crashed) == (False, "foreign")


async def test_a_copy_with_its_date_is_as_good_and_one_without_is_read_anew(
    path: Path, tmp_path: Path
) -> None:
    shutil.copy2(path, tmp_path / "dated.sqlite")
    shutil.copyfile(path, tmp_path / "plain.sqlite")
    assert await reading(tmp_path / "dated.sqlite") == (True, LAST)
    assert await reading(tmp_path / "plain.sqlite") == (False, LAST)


async def test_an_activation_that_crashed(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    message = data.Messages().one()
    async with open_object(Conversation, name="long", path=path, epoch=5) as host:
        await host.session.append_message(message)
        for suffix in ("", "-wal"):
            shutil.copy2(f"{path}{suffix}", f"{copy}{suffix}")
    assert await reading(copy) == (False, message["id"])


async def test_a_host_that_writes_to_the_tables_itself(path: Path) -> None:
    async def insert(host: Conversation) -> None:
        await host.session.get_latest_leaf()
        host.storage.sql.exec(INSERT.replace("cf_agents", "CF_agents"), LAST)

    assert await reading(path, insert) == (True, LAST)  # behind the engine's back
    assert await reading(path) == (False, "foreign")


async def test_deleting_the_leaf_at_once(path: Path) -> None:
    async def delete(host: Conversation) -> None:
        await host.session.delete_messages([LAST])

    assert await reading(path, delete) == (False, data.rising_id(ROWS - 2))


async def test_a_row_that_is_not_there_is_not_believed(path: Path) -> None:
    stat = path.stat()
    statement(path, f"DELETE FROM {schema.MESSAGES} WHERE id = ?", LAST)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert await reading(path) == (False, data.rising_id(ROWS - 2))


async def test_short_conversations_leave_nothing(tmp_path: Path) -> None:
    path = tmp_path / "short.sqlite"
    async with open_object(Conversation, name="short", path=path) as host:
        await host.session.append_message(data.Messages().one())
        await host.session.get_recent_history(BUDGET)
    async with open_object(Conversation, name="short", path=path) as host:
        assert set(host.storage.meta.get_all()) == {"name", "epoch", "created_at"}
        assert not host.storage.untouched
