"""OpenAssistant trees in, the same trees out."""

import json
from pathlib import Path
from typing import Any

from .formats_support import run_export, run_import


def node(message_id: str, role: str, replies: list[Any], **fields: Any) -> dict[str, Any]:
    """Return one node in the form of the data set."""
    return {"message_id": message_id, "text": f"text of {message_id}", "role": role, **fields} | {
        "replies": replies
    }


def tree() -> dict[str, Any]:
    """Return a tree with a fork, a time and fields of every kind."""
    deep = node("r2", "prompter", [], parent_id="r1b", lang="en", emojis={"+1": 3})
    prompt = node(
        "p",
        "prompter",
        [
            node("r1a", "assistant", [], parent_id="p", rank=1, review_result=True),
            node("r1b", "assistant", [deep], parent_id="p", rank=0),
        ],
        created_date="2023-02-05T14:23:50.983374+00:00",
        deleted=False,
    )
    return {"message_tree_id": "p", "tree_state": "ready_for_export", "prompt": prompt}


async def test_nodes_become_messages_with_their_parents_and_times() -> None:
    done = await run_import("oasst", json.dumps(tree()).encode())
    assert not done.problems
    assert done.shape("p") == {"p": None, "r1a": "p", "r1b": "p", "r2": "r1b"}
    assert done.message("p", "r2") == {
        "id": "r2",
        "role": "user",
        "parts": [{"type": "text", "text": "text of r2"}],
        "metadata": {"parent_id": "r1b", "lang": "en", "emojis": {"+1": 3}},
    }
    assert done.message("p", "r1a")["role"] == "assistant"
    assert {row.created_at for row in done.client.rows("p")} == {1675607030983}


async def test_the_export_reproduces_the_tree() -> None:
    done = await run_import("oasst", json.dumps(tree()).encode())
    assert json.loads(await run_export(done.client, "oasst")) == tree()


async def test_a_tree_without_times_takes_the_default() -> None:
    plain = {"message_tree_id": "t", "prompt": node("t", "prompter", [])}
    done = await run_import("oasst", json.dumps(plain).encode())
    assert [row.created_at for row in done.client.rows("t")] == [1000]


async def test_broken_lines_and_nodes_are_reported_and_the_rest_is_imported() -> None:
    broken = tree()
    broken["prompt"]["replies"].insert(1, {"message_id": "x", "role": "assistant"})
    lines = [b"{", json.dumps(broken).encode(), b'{"message_tree_id":1}', b'{"message_tree_id"']
    done = await run_import("oasst", b"\n".join(lines))
    assert list(done.shape("p")) == ["p", "r1a", "r1b", "r2"]
    assert [problem.place for problem in done.problems] == [
        "file, line 1",
        "file, line 2",
        "file, line 3",
        "file, line 4",
    ]
    assert "cut off" in done.problems[-1].reason


async def test_a_tree_deeper_than_python_recurses() -> None:
    depth = 5_000
    text = "".join(
        f'{{"message_id":"m{n}","text":"","role":"prompter","replies":[' for n in range(depth)
    )
    line = f'{{"message_tree_id":"m0","prompt":{text}{"]}" * depth}}}'.encode()
    done = await run_import("oasst", line)
    assert not done.problems
    assert done.summary.new == depth
    exported = await run_export(done.client, "oasst")
    again = await run_import("oasst", exported)
    assert again.shape("m0") == done.shape("m0")


async def test_a_second_root_becomes_a_tree_of_its_own() -> None:
    done = await run_import("oasst", json.dumps(tree()).encode())
    session = done.client.get("p").session()
    extra = {"id": "q", "role": "user", "parts": [{"type": "text", "text": "again"}]}
    await session.import_messages([type(done.client.rows("p")[0])(extra, None, 5, 9)])
    lines = (await run_export(done.client, "oasst")).splitlines()
    assert [json.loads(line)["message_tree_id"] for line in lines] == ["p", "q"]


async def test_real_trees_come_back_field_for_field(shared: Path) -> None:
    data = (shared / "data" / "oasst-100-trees.jsonl").read_bytes()
    done = await run_import("oasst", data)
    assert not done.problems
    assert (done.summary.conversations, done.summary.messages) == (100, 1167)
    forks = 0
    for name in done.client.conversations:
        parents = list(done.shape(name).values())
        forks += sum(parents.count(parent) > 1 for parent in set(parents) - {None})
    assert forks == 260
    trees = {json.loads(line)["message_tree_id"]: json.loads(line) for line in data.splitlines()}
    exported = (await run_export(done.client, "oasst")).splitlines()
    assert {json.loads(line)["message_tree_id"]: json.loads(line) for line in exported} == trees
    again = await run_import("oasst", data, client=done.client)
    assert again.summary.new == 0
