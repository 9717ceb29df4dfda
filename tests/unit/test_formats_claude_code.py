"""Claude Code transcripts: chains, tools, sidechains, compactions."""

import json
from typing import Any

from .formats_support import Imported, run_import

SESSION = "5f0c1d9e-0000-4000-8000-000000000001"


def line(kind: str, uuid: str | None, parent: str | None, **fields: Any) -> dict[str, Any]:
    """Return one entry."""
    entry = {
        "parentUuid": parent,
        "isSidechain": False,
        "sessionId": SESSION,
        "type": kind,
        "timestamp": "2026-01-02T03:04:05.678Z",
        **fields,
    }
    return entry if uuid is None else {**entry, "uuid": uuid}


def said(role: str, uuid: str, parent: str | None, content: Any, **fields: Any) -> dict[str, Any]:
    """Return an entry of a person or the assistant."""
    return line(role, uuid, parent, message={"role": role, "content": content}, **fields)


async def read(*entries: dict[str, Any] | bytes, label: str = "file") -> Imported:
    """Import entries as a transcript."""
    rows = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in entries]
    return await run_import("claude-code", b"\n".join(rows) + b"\n", label=label)


async def test_entries_become_messages_under_their_own_ids() -> None:
    done = await read(
        {"type": "summary", "summary": "Fixing the build", "leafUuid": "zzz"},
        said("user", "u1", None, "Fix it", cwd="/src"),
        said(
            "assistant",
            "a1",
            "u1",
            [
                {"type": "thinking", "thinking": "Hm", "signature": "sig"},
                {"type": "text", "text": "Looking"},
                {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "x"}},
            ],
        ),
        said(
            "user",
            "r1",
            "a1",
            [{"type": "tool_result", "tool_use_id": "t1", "content": "text"}],
            toolUseResult={"file": "x"},
        ),
    )
    assert not done.problems
    assert done.shape(SESSION) == {"u1": None, "a1": "u1", "r1": "a1"}
    assert done.client.rows(SESSION)[0].created_at == 1767323045678
    assert done.message(SESSION, "u1")["parts"] == [{"type": "text", "text": "Fix it"}]
    assert done.message(SESSION, "u1")["metadata"]["claudeCode"]["cwd"] == "/src"
    assert done.message(SESSION, "a1")["parts"] == [
        {
            "type": "reasoning",
            "text": "Hm",
            "providerMetadata": {"anthropic": {"signature": "sig"}},
        },
        {"type": "text", "text": "Looking"},
        {
            "type": "tool-Read",
            "toolCallId": "t1",
            "state": "input-available",
            "input": {"path": "x"},
        },
    ]
    assert done.message(SESSION, "r1")["parts"] == [
        {
            "type": "tool-Read",
            "toolCallId": "t1",
            "state": "output-available",
            "output": "text",
        }
    ]
    assert done.message(SESSION, "r1")["metadata"]["claudeCode"]["toolUseResult"] == {"file": "x"}
    config = await done.client.get(SESSION).session().get_config()
    assert json.loads(config["claude-code"])[0]["summary"] == "Fixing the build"


async def test_errors_images_and_unknown_blocks() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    done = await read(
        said("user", "u1", None, [{"type": "image", "source": source}]),
        said(
            "user",
            "r1",
            "u1",
            [
                {
                    "type": "tool_result",
                    "tool_use_id": "lost",
                    "is_error": True,
                    "content": "no such file",
                },
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [{"type": "text", "text": "x"}, {"type": "image", "source": source}],
                },
                {"type": "new_kind", "x": 1},
            ],
        ),
    )
    assert done.message(SESSION, "u1")["parts"] == [
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA"}
    ]
    failed, shown, unknown = done.message(SESSION, "r1")["parts"]
    assert failed == {
        "type": "tool-unknown",
        "toolCallId": "lost",
        "state": "output-error",
        "errorText": "no such file",
    }
    assert shown["output"][1] == {"type": "media", "mediaType": "image/png", "data": "AAAA"}
    assert unknown == {"type": "new_kind", "x": 1}


async def test_sidechains_become_sessions_of_their_own() -> None:
    done = await read(
        said("user", "u1", None, "Go"),
        said("user", "s1", None, "Subtask", isSidechain=True),
        said("assistant", "s2", "s1", "Working", isSidechain=True),
        said("user", "g1", None, "Agent task", isSidechain=True, agentId="de30"),
        said("assistant", "a1", "u1", "Done"),
        said("user", "b1", "u1", "A branch off the main line", isSidechain=True),
    )
    assert not done.problems
    assert done.shape(SESSION) == {"u1": None, "a1": "u1", "b1": "u1"}
    assert done.shape(SESSION, "sidechain-s1") == {"s1": None, "s2": "s1"}
    assert done.shape(SESSION, "agent-de30") == {"g1": None}


async def test_entries_that_are_no_messages_hand_their_parent_on() -> None:
    done = await read(
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
        {"type": "queue-operation", "operation": "enqueue", "sessionId": SESSION},
        said("user", "u1", None, "Go"),
        line("progress", "p1", "u1", data={}),
        line("progress", "p2", "p1", data={}),
        said("assistant", "a1", "p2", "Done"),
        line("attachment", "t1", "a1", attachment={"type": "todo"}),
        line("system", "y1", "t1", subtype="local_command", content="ran"),
    )
    assert not done.problems
    assert done.shape(SESSION) == {"u1": None, "a1": "u1", "t1": "a1", "y1": "t1"}
    assert done.message(SESSION, "t1")["parts"] == [
        {"type": "data-attachment", "data": {"type": "todo"}}
    ]
    assert done.message(SESSION, "y1")["role"] == "system"


def compacted(**metadata: Any) -> list[dict[str, Any]]:
    """Return a transcript that was compacted once."""
    return [
        said("user", "u1", None, "One"),
        said("assistant", "a1", "u1", "Two"),
        said("user", "u2", "a1", "Three"),
        line(
            "system",
            "cb",
            None,
            subtype="compact_boundary",
            logicalParentUuid="u2",
            content="Conversation compacted",
            compactMetadata=metadata,
        ),
        said("user", "cs", "cb", "Summary of it all", isCompactSummary=True),
        said("assistant", "a2", "cs", "Going on"),
    ]


async def test_a_compaction_becomes_an_overlay_over_one_unbroken_path() -> None:
    done = await read(*compacted(trigger="auto"))
    assert done.shape(SESSION) == {
        "u1": None,
        "a1": "u1",
        "u2": "a1",
        "cb": "u2",
        "cs": "cb",
        "a2": "cs",
    }
    (overlay,) = await done.client.get(SESSION).session().get_compactions()
    assert (overlay.id, overlay.summary) == ("cs", "Summary of it all")
    assert (overlay.from_message_id, overlay.to_message_id) == ("u1", "cs")
    assert overlay.created_at == "2026-01-02T03:04:05.678Z"


async def test_messages_that_a_compaction_kept_stay_in_view() -> None:
    done = await read(*compacted(preservedMessages={"uuids": ["a1", "u2"]}))
    (overlay,) = await done.client.get(SESSION).session().get_compactions()
    assert (overlay.from_message_id, overlay.to_message_id) == ("u1", "u1")


async def test_a_summary_of_what_is_not_in_the_file_hides_nothing() -> None:
    done = await read(*compacted()[3:])
    assert done.shape(SESSION) == {"cb": None, "cs": "cb", "a2": "cs"}
    assert await done.client.get(SESSION).session().get_compactions() == []


async def test_broken_lines_are_named_and_repeats_are_not() -> None:
    done = await read(
        said("user", "u1", None, "Go"),
        b"{broken",
        b"[1]",
        said("user", "u1", None, "Go"),
        line("user", None, "u1", message={"role": "user", "content": "x"}),
        line("user", "bad", "u1", message={"role": "user", "content": 5}),
        said("assistant", "a1", "bad", "Done"),
        b'{"type":"assistant","uuid":"cut"',
    )
    assert done.shape(SESSION) == {"u1": None, "a1": "u1"}
    assert [problem.place.split(", ")[1] for problem in done.problems] == [
        "line 2",
        "line 3",
        "line 5",
        "line 6",
        "line 8",
    ]


async def test_the_name_is_the_session_of_the_file() -> None:
    own = "0a0b0c0d-1111-4222-8333-444455556666"
    done = await read(said("user", "u1", None, "x"), label=own)
    assert list(done.client.conversations) == [own]
    done = await read(said("user", "u1", None, "x", isSidechain=True, agentId="q"), label="agent-q")
    assert list(done.client.conversations) == [SESSION]
    done = await read({"type": "user", "uuid": "u", "message": {"content": "x"}}, label="notes")
    assert list(done.client.conversations) == ["notes"]
    done = await read({"type": "summary", "summary": "only a title"}, label="notes")
    assert done.summary.messages == 0


async def test_importing_twice_changes_nothing_and_growing_adds() -> None:
    entries = compacted()
    done = await read(*entries[:3])
    rows = b"\n".join(json.dumps(one).encode() for one in entries)
    again = await run_import("claude-code", rows, client=done.client)
    assert again.summary.new == 3
    assert again.shape(SESSION)["a2"] == "cs"
