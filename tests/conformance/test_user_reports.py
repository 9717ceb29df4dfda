"""What people who run such systems ran into, each as a test of its whole kind.

Ownership, crashes of processes and outages have their own tests; here is what one conversation,
or the directory, can show in this process.
"""

import asyncio
import base64
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from router.directory import Directory, Owner
from sessions_actor import create_compact_function
from tests.conformance.support import (
    Message,
    at_once,
    grow,
    history,
    holding,
    ids,
    opened,
    said,
    written,
)

ROOT = Path(__file__).resolve().parents[2]


# 1. History saved two to four times.
@pytest.mark.parametrize("how", ["one by one", "batch", "upsert", "at once", "client"])
async def test_a_history_sent_again_is_not_saved_again(tmp_path: Path, how: str) -> None:
    messages = [said("known1"), said("known2"), said("new")]
    async with opened(tmp_path) as talk:
        session = talk.session
        await session.append_messages(messages[:2])
        for turn in range(3):
            if how == "batch":
                results = await session.append_messages(messages)
            elif how == "at once":
                results = await at_once(*(session.append_message(m) for m in messages))
            elif how == "upsert":
                results = [await session.upsert_message(m) for m in messages]
            else:
                source = "client" if how == "client" else "server"
                results = [await session.append_message(m, source=source) for m in messages]
            assert [r.inserted for r in results] == [False, False, turn == 0]
        assert talk.counts()["cf_agents_session_messages"] == 3
        assert await history(talk) == ["known1", "known2", "new"]


# 2. A replay on resume mints new ids.
async def test_an_import_twice_keeps_ids_and_adds_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.sqlite") as source:
        await grow(source, 120)
        await source.session.append_message(said("fork"), parent_id="m7")
        rows = [row async for row in source.session.history_rows()]
    async with opened(tmp_path / "b.sqlite") as target:
        for turn in range(3):
            assert await target.session.import_messages(rows) == (0 if turn else len(rows))
            copied = [row async for row in target.session.history_rows()]
            assert [(r.message, r.parent_id, r.created_at) for r in copied] == [
                (r.message, r.parent_id, r.created_at) for r in rows
            ]
        assert len([e for e in target.events if e.type == "import"]) == len(rows)


# 3. No defined order.
async def test_names_of_one_millisecond_have_an_order_and_pages(tmp_path: Path) -> None:
    directory = Directory(tmp_path, now_ms=lambda: 1_700_000_000_000)
    names = [f"n{i % 7}-{chr(0x20000 + i % 5)}{i}" for i in range(230)] + ["\x00", "\u00e9", "z"]
    owner = Owner(node_id="node", disk_id="disk", actor="actor")
    for name in names:
        await directory.create(name, owner)
    ordered = sorted(names, key=str.encode)
    for limit in (1, 7, 100, 1_000):
        read: list[str] = []
        while True:
            page = directory.page("", read[-1] if read else None, limit)
            if not page:
                break
            read += page
        assert read == ordered
    half = directory.page("n3", None, 5)
    await directory.create("n3", owner)  # a name made while someone pages
    rest = directory.page("n3", half[-1], 1_000)
    assert half + rest == [name for name in ordered if name.startswith("n3")]
    directory.close()


# 4. Provider reasoning ids replayed for ever.
async def test_provider_ids_are_not_replayed_and_the_rest_is_verbatim(tmp_path: Path) -> None:
    openai = {"itemId": "rs_1", "reasoningEncryptedContent": "x", "model": "m"}
    parts = [
        {"type": "reasoning", "text": "", "providerMetadata": {"openai": {"itemId": "rs_1"}}},
        {"type": "reasoning", "text": "kept", "providerMetadata": {"openai": dict(openai)}},
        {"type": "tool-x", "toolCallId": "rs_2", "callProviderMetadata": {"openai": dict(openai)},
         "input": {"itemId": "mine"}, "output": {"openai": {"itemId": "mine"}}},
        {"type": "text", "text": "itemId", "providerMetadata": {"google": {"itemId": "theirs"}}},
    ]  # fmt: skip
    async with opened(tmp_path) as talk:
        await talk.session.append_message(holding("m", *parts))
    async with opened(tmp_path) as talk:
        stored = await talk.session.get_message("m")
        assert stored is not None
        text = written(stored)
        assert "rs_1" not in text
        assert "reasoningEncryptedContent" not in text
        assert [part.get("text") for part in stored["parts"]] == ["kept", None, "itemId"]
        assert stored["parts"][0]["providerMetadata"] == {"openai": {"model": "m"}}
        assert stored["parts"][1]["input"] == {"itemId": "mine"}
        assert stored["parts"][1]["output"] == {"openai": {"itemId": "mine"}}
        assert stored["parts"][2] == parts[3]


# 12. A summary sent back by the client is stored as a message.
@pytest.mark.parametrize("how", ["append_message", "upsert_message", "update_message"])
async def test_a_summary_sent_back_is_dropped(tmp_path: Path, how: str) -> None:
    async with opened(tmp_path) as talk:
        await grow(talk, 9)
        await talk.session.add_compaction("S1", "m1", "m2")
        await talk.session.add_compaction("S2", "m4", "m6")
        before, view = talk.counts(), await talk.session.get_history()
        for message in view:
            if message["id"].startswith("compaction_"):
                await getattr(talk.session, how)({**message, "metadata": {"edited": True}})
        assert talk.counts() == before
        assert await talk.session.get_history() == view


# 13. A summariser returns "" or raises 50 times in a row.
@pytest.mark.parametrize("answer", ["", RuntimeError("no model")])
async def test_a_summariser_that_fails_fifty_times(tmp_path: Path, answer: Any) -> None:
    prompts: list[int] = []

    def failing(prompt: str) -> Any:
        prompts.append(len(prompt))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with opened(tmp_path) as talk:
        session = talk.session
        await grow(talk, 10)
        session.on_compaction(create_compact_function(summarize=failing, keep_recent_tokens=1))
        for _ in range(50):
            assert await session.compact() is None
        session.compact_after(1)
        for i in range(50):
            assert (await session.append_message(said(f"n{i}"))).inserted
        assert await session.get_compactions() == []
        assert len(await history(talk)) == 60
        assert max(prompts) < 60 * 200, "the prompt holds the messages once, not its own failures"
        if isinstance(answer, Exception):
            reports = talk.reported("session:error")
            assert len(reports) == len(prompts)
            assert all("no model" in report["error"] for report in reports)


# 14. Calls parted from results; 15. compacting twice leaves a part never summarised:
# test_better_compaction.


# 16. An append while the summariser runs.
async def test_an_append_while_the_summariser_runs(tmp_path: Path) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def slow(prompt: str) -> str:
        started.set()
        await release.wait()
        return "S"

    async with opened(tmp_path) as talk:
        session = talk.session
        await grow(talk, 10)
        session.on_compaction(create_compact_function(summarize=slow, keep_recent_tokens=1))
        compacting = asyncio.create_task(session.compact())
        await started.wait()
        assert (await session.append_message(said("during"))).inserted
        assert (await history(talk))[-1] == "during"
        release.set()
        result = await compacting
        assert result is not None
        assert (result.from_message_id, result.to_message_id) == ("m3", "m7")
        assert (await history(talk))[4:] == ["m8", "m9", "during"]


# 17. Two branches in one second get one id; deleting a branch that does not exist moves the cursor.
async def test_branches_of_one_moment_are_distinct_and_unknown_ids_move_nothing(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as talk:
        session = talk.session
        await session.append_message(said("root"))
        await at_once(*(session.append_message(said(f"b{i}"), parent_id="root") for i in range(40)))
        rows = [row async for row in session.history_rows()]
        assert len({row.seq for row in rows}) == 41
        assert ids(await session.get_branches("root")) == [f"b{i}" for i in range(40)]
        made = await at_once(*(session.add_compaction("S", "root", "b1") for _ in range(40)))
        assert len({overlay.id for overlay in made}) == 40
        leaf = await session.get_latest_leaf()
        for unknown in (["nope"], [], ["nope", "\x00", ""], ["compaction_" + made[0].id]):
            await session.delete_messages(unknown)
            assert await session.get_latest_leaf() == leaf
        assert [row async for row in session.history_rows()] == rows


# 18. Regenerate fails and links dangle.
async def test_every_row_is_reachable_from_some_root(tmp_path: Path) -> None:
    async with opened(tmp_path) as talk:
        session = talk.session
        await grow(talk, 12)
        for i in range(0, 12, 2):
            await session.append_message(said(f"again{i}"), parent_id=f"m{i}")
        bad: Message = {"id": "bad", "role": "assistant"}
        with pytest.raises(ValueError, match="parts"):
            await session.append_messages([said("half"), bad])
        await session.delete_messages(["m3", "m4", "again6", "m0", "m11"])
        rows = {row.message["id"]: row.parent_id async for row in session.history_rows()}
        assert "half" not in rows
        reached = {name for name, parent in rows.items() if parent is None}
        grown = True
        while grown:
            below = {name for name, parent in rows.items() if parent in reached}
            grown = not below <= reached
            reached |= below
        assert reached == set(rows)
        for name in rows:
            assert (await history(talk, leaf_id=name))[-1] == name


# 19. Editing a message removes its descendants.
@pytest.mark.parametrize("how", ["update_message", "upsert_message"])
async def test_an_edit_keeps_what_follows(tmp_path: Path, how: str) -> None:
    async with opened(tmp_path) as talk:
        names = await grow(talk, 6)
        await talk.session.append_message(said("fork"), parent_id="m2")
        for name in ("m0", "m2", "m5"):
            await getattr(talk.session, how)(said(name, f"edited {name}", role="assistant"))
        assert await history(talk, leaf_id="m5") == names
        assert await history(talk) == ["m0", "m1", "m2", "fork"]
        rows = [row async for row in talk.session.history_rows()]
        assert [row.seq for row in rows] == list(range(1, 8))


# 20. Large messages of every kind.
ROWS = [{"row": i, "v": "x"} for i in range(90_000)]
PIXELS = "data:image/png;base64," + base64.b64encode(bytes(4_000_000)).decode()
LARGE: dict[str, Message] = {
    "text": said("m", "0123456789" * 250_000),
    "metadata": said("m", metadata={"blob": "\u65e5" * 1_000_000}),
    "parts": holding("m", *[{"type": "text", "text": f"part {i}"} for i in range(10_000)]),
    "output": holding("m", {"type": "tool-x", "output": ROWS}),
    "image": holding("m", {"type": "file", "mediaType": "image/png", "url": PIXELS}),
    "key": {**said("m"), "k" * 2_000_000: 1},
    "id": said("i" * 2_000_000),
    "role": said("m", role="r" * 2_000_000),
}


@pytest.mark.parametrize("kind", LARGE)
async def test_large_messages_come_back_byte_for_byte(tmp_path: Path, kind: str) -> None:
    message = LARGE[kind]
    async with opened(tmp_path) as talk:
        await talk.session.append_messages([said("before"), message, said("after")])
        await talk.session.search("before")
    async with opened(tmp_path) as talk:
        assert written(await talk.session.get_message(message["id"])) == written(message)
        assert written((await talk.session.get_history())[1]) == written(message)
        assert talk.problems() == []


# 21. 300 MB of history and an 8 MB budget (a gigabyte with --long).
MEASURE = """
import asyncio, resource, sys
from pathlib import Path
from tests.conformance.support import opened

async def main(path):
    def peak_mib():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    async with opened(Path(path)) as talk:
        started = peak_mib()
        recent = await talk.session.get_recent_history(8 << 20)
        read = peak_mib()
        count = 0
        async for message in talk.session.history():
            count += 1
        print(len(recent.messages), recent.truncated, count, read - started, peak_mib() - read)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.skipif(not hasattr(resource, "getrusage"), reason="needs getrusage")
async def test_a_large_history_starts_and_reads_within_bounds(
    tmp_path: Path, long_run: bool
) -> None:
    count = 1_000 if long_run else 150
    path = tmp_path / "large.sqlite"
    async with opened(path) as talk:
        for i in range(count):
            await talk.session.append_message(said(f"m{i}", chr(97 + i % 26) * 1_000_000))
    measuring = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MEASURE, str(path), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await measuring.communicate()
    returned, truncated, streamed, recent_mib, stream_mib = told.decode().split()
    assert (int(returned), truncated) == (8, "True")
    assert int(streamed) == count
    assert float(recent_mib) <= 8 + 32
    assert float(stream_mib) <= 64


# 22. A lone surrogate or an integer beyond 64 bits, with the index built.
ODD: list[Message] = [
    said("a", "\ud83d"),
    said("b", "x \udca5 kiwi"),
    holding(
        "c", {"type": "tool-x", "toolCallId": "\ud83d", "output": {"\ud83d": ["\udca5", 10**40]}}
    ),
    said("d", "kiwi", metadata={"n": -(2**64), "s": "\ud83d"}),
    said("e", "\ud83d\ude80 \ud83d"),
    {**said("f"), "\udfff": 2**70},
]


@pytest.mark.parametrize("indexed", [True, False])
async def test_half_an_emoji_and_huge_integers_are_stored_whole(
    tmp_path: Path, indexed: bool
) -> None:
    async with opened(tmp_path) as talk:
        if indexed:
            await talk.session.search("anything")
        for message in ODD:
            assert (await talk.session.append_message(message)).inserted
            edited: Message = {**message, "edited": True}
            await talk.session.update_message(edited)
            await talk.session.update_message(message)
        for wrong in ("\ud83d", "a\udca5"):
            with pytest.raises(ValueError, match="id"):
                await talk.session.append_message(said(wrong, "kiwi"))
        assert {hit.id for hit in await talk.session.search("kiwi")} == {"b", "d"}
    async with opened(tmp_path) as talk:
        assert written(await talk.session.get_history()) == written(ODD)
        assert talk.problems() == []


# 23. Empty text and empty reasoning parts.
async def test_empty_parts_never_break_a_replay(tmp_path: Path) -> None:
    given = holding("m", {"type": "text", "text": ""}, {"type": "reasoning", "text": ""},
                    {"type": "reasoning"}, {"type": "text"}, {"type": "step-start"})  # fmt: skip
    empty = holding("n", {"type": "reasoning", "text": " "})
    async with opened(tmp_path) as talk:
        first = (await talk.session.append_message(given)).message
        second = (await talk.session.append_message(empty)).message
        assert [part["type"] for part in first["parts"]] == ["text", "text", "step-start"]
        assert second["parts"] == []
        replayed = await talk.session.get_history()
        assert replayed == [first, second]
        for message in replayed:  # posted back as it was read: nothing changes
            assert await talk.session.update_message(message) == message
        assert len([event for event in talk.events if event.type == "update"]) == 0


# 24. Search for anything: test_better_search.


# 25. Index out of step after delete, update, or a crash during the first search's backfill.
@pytest.mark.parametrize("windows", [0, 1, 3])
async def test_a_crash_during_the_backfill_leaves_nothing_out(tmp_path: Path, windows: int) -> None:
    async with opened(tmp_path / "a.sqlite") as talk:
        await grow(talk, 1_500)
        searching = asyncio.create_task(talk.session.search("m7"))
        for _ in range(3 * windows):
            await asyncio.sleep(0)
        await talk.session.delete_messages(["m3"])
        await talk.session.update_message(said("m4", "changed in the middle"))
        for end in ("", "-wal"):  # what a crash would leave on disk
            if Path(f"{tmp_path}/a.sqlite{end}").exists():
                shutil.copyfile(f"{tmp_path}/a.sqlite{end}", f"{tmp_path}/b.sqlite{end}")
        await searching
        assert talk.problems() == []
    async with opened(tmp_path / "b.sqlite") as talk:
        assert [hit.id for hit in await talk.session.search("m1499")] == ["m1499"]
        assert await talk.session.search("m3") == []
        assert [hit.id for hit in await talk.session.search("in the middle")] == ["m4"]
        talk.storage.sql.exec(
            "INSERT INTO cf_agents_session_fts (cf_agents_session_fts) VALUES ('integrity-check')"
        )
        assert talk.problems() == []


async def test_rebuilding_repairs_an_index_that_sqlite_calls_sound(tmp_path: Path) -> None:
    async with opened(tmp_path) as talk:
        await grow(talk, 50)
        await talk.session.search("anything")
        sql = talk.storage.sql
        sql.exec("DELETE FROM cf_agents_session_fts WHERE id IN ('m1', 'm2')")
        sql.exec("UPDATE cf_agents_session_fts SET content = 'stale words' WHERE id = 'm5'")
        assert talk.storage.check() == [], "SQLite sees no fault"
        assert len(talk.problems()) >= 3, "we do"
        await talk.sessions.engine.index.rebuild()
        assert talk.problems() == []
        assert [hit.id for hit in await talk.session.search("m5")] == ["m5"]


# 26. One malformed row in a legacy table: test_fixtures.


# 27. 26,000 ids in one IN list.
async def test_thousands_of_ids_in_one_call(tmp_path: Path) -> None:
    count = 27_000
    async with opened(tmp_path) as talk:
        await grow(talk, count)
        await talk.session.search("m1")
        wanted = [f"m{i}" for i in range(count - 26_000, count)]
        await talk.session.delete_messages(wanted)
        assert await history(talk) == [f"m{i}" for i in range(count - 26_000)]
        assert len(await talk.session.get_history_row_stats()) == count - 26_000
        assert talk.problems() == []
        rows = [(said(name), None, 1) for name in wanted[:13_000]]
        assert await talk.session.import_messages(rows) == 13_000


# 28. A WAL grows to gigabytes while a reader holds an iterator through 10,000 appends.
@pytest.mark.parametrize("newest_first", [True, False])
async def test_a_reader_does_not_hold_the_log(tmp_path: Path, newest_first: bool) -> None:
    path = tmp_path / "talk.sqlite"
    wal = Path(f"{path}-wal")
    async with opened(path) as talk:
        await grow(talk, 500)
        readers = [talk.session.history(newest_first=newest_first) for _ in range(3)]
        first = [(await anext(reader))["id"] for reader in readers]
        largest = 0
        for i in range(100):
            await talk.session.append_messages([said(f"n{i}-{k}", "x" * 500) for k in range(100)])
            largest = max(largest, wal.stat().st_size if wal.exists() else 0)
        assert largest < 24 * 1024 * 1024
        rest = [[message["id"] async for message in reader] for reader in readers]
        names = [f"m{i}" for i in range(500)]
        order = names[::-1] if newest_first else names
        for start, more in zip(first, rest, strict=True):
            assert [start, *more][:500] == order
    assert apsw.Connection(str(path)).execute("PRAGMA integrity_check").fetchall() == [("ok",)]
