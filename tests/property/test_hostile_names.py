"""Names from outside never reach a path or a statement unescaped: whatever they say."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sessions_actor import open_object
from sessions_actor.conversation import Conversation
from sessions_actor.limits import NAME_BYTES_MAX
from sessions_actor.names import file_stem

from ..unit.deployments import World, message

HOSTILE = [
    "../../etc/passwd",
    "..",
    ".",
    "/",
    "//",
    "~",
    "a/../../b",
    "\0",
    "a\0b",
    ".sqlite",
    "x.sqlite-wal",
    "'; DROP TABLE directory; --",
    '"',
    "''",
    "`",
    "[x]",
    "a;b",
    "%",
    "_",
    "a%b_c*?",
    "\\",
    "\n",
    "\r\n",
    "\u202eevil",
    "🙂" * 256,
    "é" * 512,
    "a" * NAME_BYTES_MAX,
    "disk-id",
    "deployment.json",
    "directory.sqlite",
    "$(reboot)",
    "`id`",
    "${HOME}",
    "-rf",
    "--yes",
    "CON",
    "nul",
    " ",
    "\ufeff",
    "e\u0301",
    "\u00e9",
]

names = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(min_size=1, max_size=40).filter(lambda name: _fits(name)),
    st.lists(st.sampled_from(HOSTILE), min_size=2, max_size=4).map("/".join),
).filter(lambda name: _fits(name))


def _fits(name: str) -> bool:
    try:
        return 1 <= len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


@given(names)
def test_a_names_file_is_a_digest_below_its_folder(name: str) -> None:
    assert re.fullmatch(r"([0-9a-f]{2})/\1[0-9a-f]{62}", file_stem(name))


@given(st.lists(names, min_size=2, max_size=20, unique=True))
def test_two_names_have_two_files(several: list[str]) -> None:
    assert len({file_stem(name) for name in several}) == len(several)


async def test_conversations_of_every_hostile_name_live_apart(tmp_path: Path) -> None:
    world = World(tmp_path / "a" / "data")
    world.root.mkdir(parents=True)
    outside = sorted(tmp_path.rglob("*"))
    life = await world.start(max_active=3)
    try:
        for name in HOSTILE:
            await life.get(name).append_message(message(name))
        listed: list[str] = []
        while page := await life.administration.page("", listed[-1] if listed else None, 7):
            listed += page
        assert listed == sorted(HOSTILE, key=str.encode)
        for name in HOSTILE:
            assert await life.get(name).get_history() == [message(name)]
            found = await life.administration.page(name, None, 100)
            assert found == [one for one in listed if one.encode().startswith(name.encode())]
        files = [path for path in tmp_path.rglob("*") if path not in outside]
        assert all(path.is_relative_to(world.root) for path in files)
        form = re.compile(r"conversations/[0-9a-f]{2}/[0-9a-f]{64}[.a-z0-9-]*")
        kept = [path.relative_to(world.root).as_posix() for path in files if path.is_file()]
        assert all(form.fullmatch(one) for one in kept if one.startswith("conversations"))
        for name in HOSTILE:
            assert await life.administration.delete(name)
        assert await life.administration.page("", None, 10) == []
    finally:
        await life.upkeep.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(names, min_size=2, max_size=4, unique=True))
@example(["'; DELETE FROM cf_agents_session_messages; --", '"', "\0"])
def test_ids_of_sessions_messages_entries_and_words_searched_for(ids: list[str]) -> None:
    async def run(path: Path) -> None:
        async with open_object(Conversation, name=ids[0], path=path) as host:
            for session_id in ids:
                session = host.sessions.session(session_id)
                for id in ids:
                    assert (await session.append_message(message(id))).inserted
                    await host.storage.put(id, {"of": id})
            for session_id in ids:
                session = host.sessions.session(session_id)
                assert [m["id"] for m in await session.get_history()] == ids
                for id in ids:
                    assert await session.get_message(id) == message(id)
                    assert await host.storage.get(id) == {"of": id}
                    for hit in await session.search(id):
                        assert hit.id in ids
            await host.sessions.session(ids[0]).delete_messages([ids[0]])
            assert len(await host.sessions.session(ids[1]).get_history()) == len(ids)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder) / "c.sqlite"))


@pytest.mark.parametrize(
    "table", ['we"ird', "a; DROP TABLE x; --", "tab\tle", "select", "ünïcode", "a'b"]
)
async def test_a_hosts_own_tables_move_under_any_name(table: str, tmp_path: Path) -> None:
    world = World(tmp_path / "data")
    world.root.mkdir()
    life = await world.start()
    try:
        session = life.get("alice")
        await session.append_message(message("m"))
        quoted, column = (
            f'"{name.replace(chr(34), chr(34) * 2)}"' for name in (table, f"c {table}")
        )
        sql: Any = life.owner("alice").target._hosted.storage.sql
        sql.exec(f"CREATE TABLE {quoted} (id INTEGER PRIMARY KEY, {column} TEXT)")
        sql.exec(f"INSERT INTO {quoted} VALUES (1, ?), (2, 'x')", table)
        await session.append_message(message("n"))
        report = await life.relocation.migrate("alice")
        assert report.tables[table].rows == 2
        sql = life.owner("alice").target._hosted.storage.sql
        rows = sql.exec(f"SELECT {column} AS c FROM {quoted} ORDER BY id").to_list()
        assert [row["c"] for row in rows] == [table, "x"]
    finally:
        await life.upkeep.close()
