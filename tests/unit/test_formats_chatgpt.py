"""ChatGPT exports: trees, tools, odd content, damage."""

import json
from typing import Any

from .formats_support import run_import


def entry(
    node_id: str,
    parent: str | None,
    children: list[str],
    role: str | None = None,
    content: Any = None,
    **fields: Any,
) -> dict[str, Any]:
    """Return one node of a mapping; without a role it holds no message."""
    message = None
    if role is not None:
        if isinstance(content, str):
            content = {"content_type": "text", "parts": [content]}
        message = {
            "id": node_id,
            "author": {"role": role, "name": None, "metadata": {}},
            "create_time": fields.pop("create_time", None),
            "content": content,
            "recipient": "all",
            "metadata": {"model_slug": "gpt"},
            **fields,
        }
    return {"id": node_id, "message": message, "parent": parent, "children": children}


def conversation(nodes: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return a conversation, its id last as in real exports."""
    return {
        "title": "Tea",
        "create_time": 1700000000.5,
        "mapping": {node["id"]: node for node in nodes},
        "conversation_id": "c-1",
        **fields,
    }


def branching() -> dict[str, Any]:
    """Return a conversation with two answers of which the first is current."""
    return conversation(
        [
            entry("a1", "u1", [], "assistant", "First answer", create_time=1700000002.25),
            entry("root", None, ["sys"]),
            entry("sys", "root", ["u1"], "system", ""),
            entry("u1", "sys", ["a1", "a2"], "user", "How?", create_time=1700000001),
            entry("a2", "u1", ["u2"], "assistant", "Second answer"),
            entry("u2", "a2", [], "user", "Why?"),
        ],
        current_node="a1",
    )


async def test_a_tree_keeps_its_branches_and_its_current_leaf() -> None:
    done = await run_import("chatgpt", json.dumps([branching()], indent=2).encode())
    assert not done.problems
    assert done.shape("c-1") == {"sys": None, "u1": "sys", "a2": "u1", "u2": "a2", "a1": "u1"}
    assert [row.created_at for row in done.client.rows("c-1")] == [
        1700000000500,
        1700000001000,
        1700000001000,
        1700000001000,
        1700000002250,
    ]
    first = done.message("c-1", "a1")
    assert first["parts"] == [{"type": "text", "text": "First answer"}]
    assert first["metadata"]["chatgpt"]["metadata"] == {"model_slug": "gpt"}
    config = await done.client.get("c-1").session().get_config()
    about = json.loads(config["chatgpt"])
    assert (about["title"], about["current_node"], "mapping" in about) == ("Tea", "a1", False)


async def test_importing_twice_changes_nothing() -> None:
    data = json.dumps([branching()]).encode()
    done = await run_import("chatgpt", data)
    again = await run_import("chatgpt", data, client=done.client)
    assert (done.summary.new, again.summary.new) == (5, 0)


async def test_calls_and_results_share_their_id() -> None:
    code = {"content_type": "code", "language": "python", "text": "1+1"}
    output = {"content_type": "execution_output", "text": "2"}
    nodes = [
        entry("u", None, ["c"], "user", "Add"),
        entry("c", "u", ["t"], "assistant", code, recipient="python"),
        entry("t", "c", [], "tool", output, author={"role": "tool", "name": "python"}),
    ]
    done = await run_import("chatgpt", json.dumps([conversation(nodes)]).encode())
    call, result = done.message("c-1", "c")["parts"][0], done.message("c-1", "t")["parts"][0]
    assert call == {
        "type": "tool-python",
        "toolCallId": "c",
        "state": "input-available",
        "input": "1+1",
    }
    assert result == {
        "type": "tool-python",
        "toolCallId": "c",
        "state": "output-available",
        "output": "2",
    }


async def test_every_kind_of_content_keeps_its_words() -> None:
    contents = {
        "multi": {
            "content_type": "multimodal_text",
            "parts": [
                {"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"},
                "What is this?",
                {"content_type": "audio_transcription", "text": "spoken", "direction": "in"},
            ],
        },
        "code": {"content_type": "code", "language": "unknown", "text": "x = 1"},
        "thoughts": {
            "content_type": "thoughts",
            "thoughts": [{"summary": "S", "content": "Thinking"}],
        },
        "recap": {"content_type": "reasoning_recap", "content": "Thought for 4s"},
        "quote": {"content_type": "tether_quote", "url": "u", "text": "quoted"},
        "context": {"content_type": "user_editable_context", "user_profile": "me"},
        "broken": {"content_type": "code", "text": None},
        "none": None,
    }
    nodes = [entry(key, None, [], "assistant", value) for key, value in contents.items()]
    done = await run_import("chatgpt", json.dumps([conversation(nodes)]).encode())
    assert not done.problems
    parts = {key: done.message("c-1", key)["parts"] for key in contents}
    assert [part["type"] for part in parts["multi"]] == [
        "data-image_asset_pointer",
        "text",
        "text",
    ]
    assert parts["multi"][2] == {
        "type": "text",
        "text": "spoken",
        "chatgpt": {"content_type": "audio_transcription", "direction": "in"},
    }
    assert parts["code"] == [{"type": "text", "text": "x = 1"}]
    assert parts["thoughts"] == [
        {"type": "reasoning", "text": "Thinking", "chatgpt": {"summary": "S"}}
    ]
    assert parts["recap"] == [{"type": "reasoning", "text": "Thought for 4s"}]
    assert parts["quote"] == [{"type": "text", "text": "quoted"}]
    assert parts["context"] == [
        {"type": "data-user_editable_context", "data": {"user_profile": "me"}}
    ]
    assert parts["broken"] == [{"type": "data-code", "data": {"text": None}}]
    quoted = done.message("c-1", "quote")["metadata"]["chatgpt"]["content"]
    assert quoted == {"content_type": "tether_quote", "url": "u"}


async def test_broken_nodes_and_conversations_are_reported_and_the_rest_is_imported() -> None:
    nodes = [
        entry("u", None, ["x"], "user", "Hi"),
        entry("x", "u", ["y"]) | {"message": 7},
        entry("y", "x", [], "assistant", "kept"),
        entry("r1", "r2", ["r2"], "user", "ring"),
        entry("r2", "r1", ["r1"], "user", "ring"),
        entry("norole", "u", [], "user", "?", author={}),
    ]
    nameless = {"mapping": {}}
    text = json.dumps([conversation(nodes), 5, nameless, branching() | {"conversation_id": "c-2"}])
    done = await run_import("chatgpt", text.encode())
    # A node that is left out is not there, so what hung on it stands on its own.
    assert done.shape("c-1") == {"u": None, "y": None}
    assert len(done.shape("c-2")) == 5
    places = sorted(problem.place for problem in done.problems)
    assert places == [
        "file, conversation 1, norole",
        "file, conversation 1, r1",
        "file, conversation 1, r2",
        "file, conversation 1, x",
        "file, conversation 2",
        "file, conversation 3",
    ]


async def test_a_file_cut_off_keeps_what_was_whole() -> None:
    text = json.dumps([branching(), branching() | {"conversation_id": "c-2"}])
    done = await run_import("chatgpt", text[: len(text) - 40].encode())
    assert list(done.client.conversations) == ["c-1"]
    assert len(done.shape("c-1")) == 5
    assert "the text ends" in str(done.problems[0])


async def test_surrogates_and_large_numbers_arrive() -> None:
    nodes = [entry("u", None, [], "user", "half \ud83d", weight=10**30)]
    done = await run_import("chatgpt", json.dumps([conversation(nodes)]).encode())
    stored = done.message("c-1", "u")
    assert stored["parts"][0]["text"] == "half \ud83d"
    assert stored["metadata"]["chatgpt"]["weight"] == 10**30
