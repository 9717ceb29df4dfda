"""Adapters without their packages, templates, and LangChain's history."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from router.adapters.requirement import require
from router.adapters.template import NOTHING, Template, fill
from sessions_actor import open_object
from sessions_actor.codec import dumps
from sessions_actor.conversation import Conversation


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("openai_agents", "agents", "openai-agents"),
        ("langgraph", "langchain_core", "langgraph"),
        ("langchain", "langchain_core", "langgraph"),
    ],
)
def test_a_missing_package_is_an_error_that_names_the_extra(
    module: str, missing: str, extra: str
) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import router.adapters.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"pip install 'sessions-actor[{extra}]'" in done.stderr.splitlines()[-1]


def test_what_is_there_is_no_error() -> None:
    require("json", package="json", extra="none")
    with pytest.raises(ImportError, match="needs nothing-like-it"):
        require("no_such.module", package="nothing-like-it", extra="none")


def made() -> Template:
    """Make a template with a text, a call and a mark."""
    template = Template({"a": "x", "b": [{"c": {"d": 1}}], "e": None})
    template.take("text", "a", type="text")
    template.mark(type="tool-x", toolCallId="1")
    template.take("input", "b", 0, "c", type="tool-y")
    return template


def test_a_template_gives_back_what_it_was_made_of() -> None:
    template = made()
    assert [part["type"] for part in template.parts] == ["text", "tool-x", "tool-y"]
    stored = template.stored("item")
    assert b'"x"' not in dumps(stored)
    filled = fill(stored, "item", template.parts)
    assert dumps(filled) == b'{"a":"x","b":[{"c":{"d":1}}],"e":null}'


@pytest.mark.parametrize(
    "edit",
    [
        lambda parts: parts[:-1],
        lambda parts: [*parts, {"type": "text", "text": "more"}],
        lambda parts: [{"type": "text"}, *parts[1:]],
    ],
)
def test_parts_that_no_longer_fit_are_nothing(edit: Any) -> None:
    template = made()
    assert fill(template.stored("item"), "item", edit(template.parts)) is NOTHING


@pytest.mark.parametrize(
    "stored",
    [
        None,
        {},
        {"holes": []},
        {"item": {}, "holes": None},
        {"item": {}, "holes": [7]},
        {"item": {}, "holes": [[1, "text", "a"]]},
        {"item": {}, "holes": [[0, "text", "a"]]},
        {"item": [], "holes": [[0, "text", 0]]},
        {"item": {"a": 1}, "holes": [[0, "text", "a", "b"]]},
        {"item": {"a": 1}, "holes": [[0, "text"]]},
    ],
)
def test_what_is_no_template_is_nothing(stored: Any) -> None:
    assert fill(stored, "item", [{"type": "text", "text": "x"}]) is NOTHING


async def test_a_history_of_langchain(tmp_path: Path) -> None:
    pytest.importorskip("langgraph.checkpoint", reason="the extra langgraph is not installed")
    from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, SystemMessage

    from router.adapters.langchain import ConversationHistory

    given = [
        SystemMessage("Be brief."),
        HumanMessage("Hello"),
        HumanMessage("Hello"),
        AIMessage([{"type": "reasoning", "reasoning": "\ufeff"}, "Hi"]),
        ChatMessage("Aye", role="captain"),
    ]
    async with open_object(Conversation, name="alice", path=tmp_path / "a.sqlite") as opened:
        history = ConversationHistory(opened.session)
        await history.aadd_messages(given)
        await history.aadd_messages([])
        assert await history.aget_messages() == given
        await opened.session.append_message(
            {"id": "plain", "role": "user", "parts": [{"type": "text", "text": "From elsewhere"}]}
        )
        assert (await history.aget_messages())[-1] == HumanMessage("From elsewhere", id="plain")
        await history.aclear()
        assert await history.aget_messages() == []


def test_rows_are_cut_into_calls_of_bounded_size() -> None:
    pytest.importorskip("langgraph.checkpoint", reason="the extra langgraph is not installed")
    from router.adapters.langgraph_rows import BATCH_ROWS, batches

    def rows(*sizes: int) -> list[Any]:
        return [({"id": str(n), "text": "x" * size}, None, 0) for n, size in enumerate(sizes)]

    def cut(given: list[Any]) -> list[int]:
        found = list(batches(given, 1000))
        assert [row for batch in found for row in batch] == given
        return [len(batch) for batch in found]

    assert cut([]) == []
    assert cut(rows(400, 400, 400)) == [2, 1]
    assert cut(rows(10, 5000, 10)) == [1, 1, 1]
    assert cut(rows(*[0] * (BATCH_ROWS + 1)))[0] <= BATCH_ROWS
