"""Our own format: export and import are inverses, and damage costs only what is damaged."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.formats import jsonl
from sessions_actor.codec import dumps
from sessions_actor.records import Compaction, HistoryRow

from .formats_support import MemoryClient, run_export, run_import


def message(message_id: str, text: str = "hi", **fields: Any) -> dict[str, Any]:
    """Return a small message."""
    parts = [{"type": "text", "text": text}]
    return {"id": message_id, "role": "user", "parts": parts, **fields}


async def sample() -> MemoryClient:
    """Return two conversations: sessions, a branch, an overlay, configuration, odd values."""
    client = MemoryClient()
    for name in ("alice", "b/ob\0 🎈"):
        conversation = client.get(name)
        await conversation.session().import_messages(
            [
                HistoryRow(message("m1", "caf\u00e9 \ud83d", n=10**30), None, 1, 1),
                HistoryRow(message("m2"), "m1", 2, 2),
                HistoryRow(message("m3", x={"b": 1, "a": [1.0, None]}), "m1", 3, 3),
                HistoryRow(message("lost"), "nowhere", 4, 4),
            ]
        )
        await conversation.session("drafts").import_messages(
            [HistoryRow(message("d1"), None, 5, 1)]
        )
        overlay = Compaction("c1", "Before.", "m1", "m2", "2026-01-01T00:00:00.000Z")
        await conversation.session().import_compactions([overlay])
        await conversation.session().import_config({"z": "1", "a": "{}"})
    client.get("empty")
    return client


async def test_export_import_export_gives_the_same_bytes() -> None:
    first = await run_export(await sample(), "jsonl")
    done = await run_import("jsonl", first)
    assert not done.problems
    assert sorted(done.client.conversations) == ["alice", "b/ob\0 🎈", "empty"]
    assert await run_export(done.client, "jsonl") == first
    assert done.shape("alice") == {"m1": None, "m2": "m1", "m3": "m1", "lost": "nowhere"}


async def test_importing_twice_changes_nothing() -> None:
    first = await run_export(await sample(), "jsonl")
    done = await run_import("jsonl", first)
    assert (done.summary.messages, done.summary.new, done.summary.overlays) == (10, 10, 2)
    again = await run_import("jsonl", first, client=done.client)
    assert (again.summary.messages, again.summary.new, again.summary.overlays) == (10, 0, 0)
    assert await run_export(again.client, "jsonl") == first


@given(st.text(min_size=1, max_size=40), st.text(), st.integers(-(10**15), 10**15))
def test_a_line_is_one_line_whatever_it_holds(name: str, text: str, created_at: int) -> None:
    row = HistoryRow(message("m", text), None, created_at, 1)
    for line in (jsonl.header_line(name), jsonl.message_line("s", row)):
        assert line.count(b"\n") == 1
        assert line.endswith(b"\n")
        assert dumps(json.loads(line)) + b"\n" == line


async def test_broken_lines_are_named_and_the_rest_is_imported() -> None:
    lines = (await run_export(await sample(), "jsonl", ["alice"])).splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if b'"m2"' in line)
    lines[at] = b'{"type":"message","session":"","parent_id":"m1",\n'
    lines.insert(at + 1, b'{"type":"nonsense"}\n')
    lines.insert(at + 2, b"\n")
    lines.insert(
        at + 3, b'{"type":"message","session":1,"parent_id":null,"created_at":1,"message":{}}\n'
    )
    done = await run_import("jsonl", b"".join(lines))
    assert list(done.shape("alice")) == ["m1", "m3", "lost"]
    assert [str(problem).split(":")[0] for problem in done.problems] == [
        f"file, line {at + 1}",
        f"file, line {at + 2}",
        f"file, line {at + 4}",
    ]
    # Mended and imported again, the file gives what it should have given.
    mended = await run_export(await sample(), "jsonl", ["alice"])
    again = await run_import("jsonl", mended, client=done.client)
    assert not again.problems
    assert again.summary.new == 1
    assert again.shape("alice")["m2"] == "m1"


@pytest.mark.parametrize("between_lines", [True, False])
async def test_a_file_cut_off_is_noticed_and_what_was_whole_is_kept(between_lines: bool) -> None:
    data = await run_export(await sample(), "jsonl", ["alice"])
    cut = data.index(b'"m3"')
    cut = data.rindex(b"\n", 0, cut) + 1 if between_lines else cut
    done = await run_import("jsonl", data[:cut])
    assert list(done.shape("alice")) == ["m1", "m2"]
    assert "end line is missing" in str(done.problems[-1])
    assert len(done.problems) == (1 if between_lines else 2)
    if not between_lines:
        assert "is it cut off?" in str(done.problems[0])


async def test_lines_without_their_header_belong_to_nobody() -> None:
    data = await run_export(await sample(), "jsonl", ["alice", "b/ob\0 🎈"])
    headless = data.split(b"\n", 1)[1]
    done = await run_import("jsonl", headless)
    assert list(done.client.conversations) == ["b/ob\0 🎈"]
    assert all("header is missing" in str(problem) for problem in done.problems)


async def test_an_end_line_that_counts_otherwise_is_reported() -> None:
    data = await run_export(await sample(), "jsonl", ["alice"])
    lines = data.splitlines(keepends=True)
    gone = [line for line in lines if b'"m2"' not in line or b"compaction" in line]
    done = await run_import("jsonl", b"".join(gone))
    assert [problem.reason for problem in done.problems] == [
        "messages: the end line says 5, found 4"
    ]


async def test_a_later_version_is_refused() -> None:
    done = await run_import(
        "jsonl", b'{"type":"conversation","format":"sessions-actor","version":9,"name":"a"}\n'
    )
    assert not done.client.conversations
    assert "version 1" in str(done.problems[0])


@pytest.mark.parametrize("name", ["", "x" * 1025, "\ud800"])
async def test_a_name_that_no_conversation_can_have(name: str) -> None:
    data = jsonl.header_line(name) + jsonl.end_line(0, 0)
    done = await run_import("jsonl", data)
    assert not done.client.conversations
    assert len(done.problems) == 1


async def test_a_name_stands_in_for_one_conversation_only() -> None:
    data = await run_export(await sample(), "jsonl", ["alice"])
    done = await run_import("jsonl", data, name="carol")
    assert list(done.client.conversations) == ["carol"]
    both = await run_import("jsonl", data + data.replace(b'"alice"', b'"bob"'), name="carol")
    assert list(both.client.conversations) == ["carol"]
    assert "more than one conversation" in str(both.problems[0])


async def test_what_the_deployment_refuses_is_named_and_the_batch_goes_on() -> None:
    rows = [
        message("ok1"),
        message("refused"),
        message("ok2"),
        {"id": "", "role": "u", "parts": []},
    ]
    lines = [jsonl.message_line("", HistoryRow(one, None, 1, n)) for n, one in enumerate(rows, 1)]
    done = await run_import(
        "jsonl", jsonl.header_line("a") + b"".join(lines) + jsonl.end_line(4, 0)
    )
    assert list(done.shape("a")) == ["ok1", "ok2"]
    assert (done.summary.messages, done.summary.new) == (2, 2)
    assert sorted(problem.place for problem in done.problems) == ["line 3", "line 5"]
