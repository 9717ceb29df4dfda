"""Message lists of the AI SDK and of OpenAI: every wrapping in, and out again."""

import json
from typing import Any

import pytest

from router.formats.openai import chat_messages

from .formats_support import run_export, run_import

TOOL_TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "Weather here?"},
            {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            {
                "type": "file",
                "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
            },
        ],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{ "city": "Oslo" }'},
            },
            {
                "id": "call_2",
                "type": "function",
                "function": {"name": "clock", "arguments": "{}"},
            },
        ],
        "refusal": None,
    },
    {"role": "tool", "tool_call_id": "call_1", "content": '{"t": 3}'},
    {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "noon"}]},
    {"role": "assistant", "content": "3 degrees at noon.", "name": "bot"},
    {"role": "user", "content": "Thanks \ud83d"},
    {"role": "user", "content": "Thanks \ud83d"},
]


async def test_openai_messages_come_back_as_they_were() -> None:
    done = await run_import("openai", json.dumps(TOOL_TALK).encode(), label="talk")
    assert not done.problems
    assert done.summary.new == len(TOOL_TALK)
    assert json.loads(await run_export(done.client, "openai")) == TOOL_TALK


async def test_calls_and_results_become_tool_parts_of_one_id() -> None:
    done = await run_import("openai", json.dumps(TOOL_TALK).encode(), label="talk")
    rows = [row.message for row in done.client.rows("talk")]
    assert rows[2]["parts"][0] == {
        "type": "tool-weather",
        "toolCallId": "call_1",
        "state": "input-available",
        "input": {"city": "Oslo"},
        "callProviderMetadata": {"openai": {"arguments": '{ "city": "Oslo" }'}},
    }
    assert rows[3]["parts"] == [
        {
            "type": "tool-weather",
            "toolCallId": "call_1",
            "state": "output-available",
            "output": '{"t": 3}',
        }
    ]
    assert [part["type"] for part in rows[1]["parts"]] == ["text", "file", "file", "file"]
    assert rows[1]["parts"][2]["url"] == "data:audio/wav;base64,AAAA"
    assert rows[5]["metadata"] == {"openai": {"name": "bot"}}


async def test_messages_without_ids_are_named_by_what_they_are() -> None:
    data = json.dumps(TOOL_TALK[:3]).encode()
    done = await run_import("openai", data, label="talk")
    grown = await run_import(
        "openai", json.dumps(TOOL_TALK).encode(), label="talk", client=done.client
    )
    assert grown.summary.new == len(TOOL_TALK) - 3
    changed = [*TOOL_TALK[:3], {"role": "user", "content": "Otherwise"}]
    branched = await run_import(
        "openai", json.dumps(changed).encode(), label="talk", client=done.client
    )
    assert branched.summary.new == 1
    parents = list(branched.shape("talk").values())
    assert parents[3] == parents[-1]


async def test_old_function_calls() -> None:
    talk = [
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "no"}},
        {"role": "function", "name": "f", "content": "42"},
    ]
    done = await run_import("openai", json.dumps(talk).encode(), label="talk")
    rows = [row.message["parts"][0] for row in done.client.rows("talk")]
    assert rows[0]["toolCallId"] == rows[1]["toolCallId"]
    assert rows[1]["output"] == "42"
    assert json.loads(await run_export(done.client, "openai")) == talk


@pytest.mark.parametrize("arguments", ['"text"', "null", "[1]", '{"a":1}', '{"a":1.0}', "", "{"])
async def test_arguments_come_back_as_they_were_written(arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    talk = [{"role": "assistant", "content": "x", "tool_calls": [call]}]
    done = await run_import("openai", json.dumps(talk).encode(), label="talk")
    assert json.loads(await run_export(done.client, "openai")) == talk


async def test_custom_tool_calls() -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls -l"}}
    talk = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    done = await run_import("openai", json.dumps(talk).encode(), label="talk")
    assert json.loads(await run_export(done.client, "openai")) == talk


UI: list[dict[str, Any]] = [
    {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Hi"}], "metadata": {"x": 1}},
    {
        "id": "a1",
        "role": "assistant",
        "createdAt": "2026-01-01T00:00:00.000Z",
        "parts": [
            {"type": "step-start"},
            {
                "type": "tool-clock",
                "toolCallId": "t",
                "state": "output-available",
                "input": {},
                "output": {"now": 1},
            },
            {"type": "step-start"},
            {"type": "text", "text": "One o'clock"},
        ],
    },
]


async def test_ui_messages_are_kept_as_they_are() -> None:
    done = await run_import("ai-sdk", json.dumps(UI).encode(), label="chat")
    assert not done.problems
    assert [row.message for row in done.client.rows("chat")] == UI
    assert done.shape("chat") == {"u1": None, "a1": "u1"}
    assert [row.created_at for row in done.client.rows("chat")] == [1000, 1767225600000]
    assert json.loads(await run_export(done.client, "ai-sdk")) == UI


def test_a_ui_message_in_steps_as_chat_messages() -> None:
    assert chat_messages(UI[1]) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "t",
                    "type": "function",
                    "function": {"name": "clock", "arguments": "{}"},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "t", "content": '{"now":1}'},
        {"role": "assistant", "content": "One o'clock"},
    ]


async def test_results_of_their_own_are_joined_to_their_calls() -> None:
    done = await run_import("openai", json.dumps(TOOL_TALK).encode(), label="talk")
    shown = json.loads(await run_export(done.client, "ai-sdk"))
    assert [message["role"] for message in shown] == [
        "system",
        "user",
        "assistant",
        "assistant",
        "user",
        "user",
    ]
    first, second = shown[2]["parts"]
    assert (first["state"], first["input"], first["output"]) == (
        "output-available",
        {"city": "Oslo"},
        '{"t": 3}',
    )
    assert second["output"] == [{"type": "text", "text": "noon"}]


async def test_an_unanswered_call_waits_only_until_a_person_speaks() -> None:
    talk = [TOOL_TALK[2], {"role": "user", "content": "Still there?"}, TOOL_TALK[3]]
    done = await run_import("openai", json.dumps(talk).encode(), label="talk")
    shown = json.loads(await run_export(done.client, "ai-sdk"))
    assert [message["role"] for message in shown] == ["assistant", "user", "assistant"]
    assert shown[0]["parts"][0]["state"] == "input-available"
    assert shown[2]["parts"][0]["output"] == '{"t": 3}'


async def test_messages_of_version_4_are_given_parts() -> None:
    old = {
        "id": "o",
        "role": "assistant",
        "content": "Done",
        "reasoning": "Hm",
        "toolInvocations": [
            {"state": "result", "toolCallId": "t", "toolName": "f", "args": {}, "result": 1}
        ],
        "experimental_attachments": [{"url": "https://x", "name": "n", "contentType": "image/png"}],
    }
    done = await run_import("ai-sdk", json.dumps([old]).encode(), label="chat")
    stored = done.message("chat", "o")
    assert stored["content"] == "Done"
    assert [part["type"] for part in stored["parts"]] == ["reasoning", "tool-f", "text", "file"]
    assert stored["parts"][1]["output"] == 1


CHATS = [
    {"messages": [{"role": "user", "content": "one"}], "id": "c1", "model": "m"},
    {"messages": [{"role": "user", "content": "two"}]},
]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (json.dumps(CHATS), ["c1", "log-2"]),
        ("\n".join(json.dumps(chat) for chat in CHATS), ["c1", "log-2"]),
        (json.dumps(CHATS[1], indent=1), ["log"]),
        (json.dumps(CHATS[0], indent=1), ["c1"]),
        (json.dumps(CHATS[0]["messages"], indent=1), ["log"]),
        ("\n".join(json.dumps(m) for m in TOOL_TALK), ["log"]),
    ],
)
async def test_every_wrapping_is_read(text: str, names: list[str]) -> None:
    done = await run_import("openai", text.encode(), label="log")
    assert not done.problems
    assert list(done.client.conversations) == names
    if names[0] == "c1":
        config = await done.client.get("c1").session().get_config()
        assert json.loads(config["openai"])["id"] == "c1"


@pytest.mark.parametrize("form", ["ai-sdk", "openai"])
async def test_several_conversations_make_lines_that_are_read_again(form: str) -> None:
    data = "\n".join(json.dumps(chat) for chat in CHATS)
    done = await run_import("openai", data.encode(), label="log")
    lines = await run_export(done.client, form)
    assert lines.count(b"\n") == 2
    again = await run_import(form, lines, label="again")
    assert not again.problems
    assert list(again.client.conversations) == ["c1", "log-2"]


async def test_what_is_no_message_is_reported_and_the_rest_is_chained() -> None:
    talk = [
        {"role": "user", "content": "one", "id": "a"},
        {"content": "no role"},
        7,
        {"role": "user", "content": "again", "id": "a"},
        {"role": "user", "content": 5},
        {"messages": []},
        {"role": "user", "content": "two", "id": "b"},
    ]
    done = await run_import("openai", json.dumps(talk).encode(), label="log")
    assert done.shape("log") == {"a": None, "b": "a"}
    assert [problem.place for problem in done.problems] == [
        f"log, item {number}" for number in (2, 3, 4, 5, 6)
    ]


async def test_a_broken_line_and_a_cut_one() -> None:
    lines = [json.dumps(CHATS[0]), '{"messages": [', json.dumps(CHATS[1]), '{"messages": [{"ro']
    done = await run_import("openai", "\n".join(lines).encode(), label="log.jsonl")
    assert list(done.client.conversations) == ["c1", "log.jsonl-2"]
    assert [problem.place for problem in done.problems] == [
        "log.jsonl, line 2",
        "log.jsonl, line 4",
    ]
    assert "cut off" in done.problems[1].reason


async def test_an_array_cut_off_keeps_what_was_whole() -> None:
    text = json.dumps(TOOL_TALK)
    done = await run_import("openai", text[: text.index("noon")].encode(), label="log")
    assert done.summary.new == 4
    assert "the text ends" in str(done.problems[0])
