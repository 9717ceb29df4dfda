"""The OpenAI Agents SDK's session over ours gives the answers that its own SQLiteSession gives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessions_actor import create_compact_function, open_object
from sessions_actor.conversation import Conversation

pytest.importorskip("agents", reason="the extra openai-agents is not installed")

from agents import Agent, RunConfig, Runner, function_tool, set_tracing_disabled
from agents.items import ModelResponse
from agents.memory import Session, SessionABC, SessionSettings, SQLiteSession
from agents.models.interface import Model
from agents.usage import Usage
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from router.adapters.openai_agents import ConversationSession, items_of, messages_of

set_tracing_disabled(True)

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)
ITEMS: list[Any] = [
    {"role": "user", "content": "Hello"},
    {"content": "", "role": "user"},
    {"role": "user", "content": "half an emoji \ud83d and \0 and 🌍"},
    {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "What is this?"},
            {
                "type": "input_image",
                "detail": "auto",
                "image_url": f"data:image/png;base64,{PIXEL}",
            },
            {"type": "input_image", "detail": "low", "image_url": "https://example.org/a.png"},
            {"type": "input_file", "filename": "a.txt", "file_data": "data:;base64,aGk="},
        ],
    },
    {
        "id": "__fake_id__",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [
            {"type": "output_text", "text": "A pixel.", "annotations": [], "logprobs": []},
            {"type": "refusal", "refusal": "No."},
        ],
    },
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [
            {"type": "summary_text", "text": "It is small."},
            {"type": "summary_text", "text": " "},
        ],
        "encrypted_content": "gAAAA",
    },
    {
        "type": "function_call",
        "call_id": "call_1",
        "name": "weather",
        "arguments": '{"city": "Oslo"}',
        "id": "fc_1",
    },
    {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
    {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": [
            {"type": "input_text", "text": "a map"},
            {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
        ],
    },
    {"type": "computer_call", "call_id": "c2", "action": {"type": "click", "x": 1, "y": 2.5}},
    {
        "type": "computer_call_output",
        "call_id": "c2",
        "output": {"type": "computer_screenshot", "image_url": "x"},
    },
    {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PIXEL},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
    {"role": "wizard", "content": None, "openai": {"holes": [[0]]}, "big": 2**80, "deep": [[[{}]]]},
    {},
]


@pytest.fixture
async def conversation(tmp_path: Path) -> AsyncIterator[Any]:
    """Open a conversation in process."""
    async with open_object(Conversation, name="alice", path=tmp_path / "alice.sqlite") as opened:
        yield opened


@pytest.fixture
def session(conversation: Any) -> ConversationSession:
    """Wrap its first session."""
    return ConversationSession(conversation.session)


def text(message: str) -> dict[str, Any]:
    """Make a person's item."""
    return {"role": "user", "content": message}


def written(items: Any) -> str:
    """Write items so that the order of keys counts too."""
    return json.dumps(items)


async def test_it_is_a_session_of_theirs(session: ConversationSession) -> None:
    assert isinstance(session, SessionABC)
    assert isinstance(session, Session)
    assert session.session_settings == SessionSettings()


async def test_items_read_back_as_they_were(session: ConversationSession) -> None:
    await session.add_items(ITEMS)
    assert written(await session.get_items()) == written(ITEMS)


@pytest.mark.parametrize("limit", [None, 0, 1, 3, len(ITEMS), 10_000, -1, -5])
async def test_limits_are_theirs(session: ConversationSession, limit: int | None) -> None:
    theirs = SQLiteSession("alice")
    for one in (session, theirs):
        await one.add_items(ITEMS)
    assert written(await session.get_items(limit)) == written(await theirs.get_items(limit))
    theirs.close()


async def test_the_settings_limit_holds_unless_a_call_names_one(conversation: Any) -> None:
    few = SessionSettings(limit=2)
    ours = ConversationSession(conversation.session, session_settings=few)
    theirs = SQLiteSession("alice", session_settings=few)
    for one in (ours, theirs):
        await one.add_items(ITEMS[:5])
    for limit in (None, 4, -1, 0):
        assert written(await ours.get_items(limit)) == written(await theirs.get_items(limit))
    theirs.close()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["message", "reasoning", "function_call", "x_call_output", "image_generation_call"]
        )
        | JSON,
        "role": st.sampled_from(["user", "assistant"]) | JSON,
        "content": JSON
        | st.lists(
            st.fixed_dictionaries({"type": st.text(), "text": JSON, "image_url": JSON}), max_size=2
        ),
        "summary": st.lists(st.fixed_dictionaries({"text": JSON}), max_size=2) | JSON,
        "call_id": st.text() | JSON,
        "arguments": JSON,
        "output": JSON | st.lists(st.fixed_dictionaries({"text": st.text()}), max_size=2),
        "result": st.just(PIXEL) | JSON,
    },
)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("add_items"), st.lists(st.sampled_from(ITEMS) | FIELDS, max_size=3)),
        st.tuples(st.just("get_items"), st.none() | st.integers(-2, 6)),
        st.tuples(st.just("pop_item"), st.none()),
        st.tuples(st.just("clear_session"), st.none()),
    ),
    max_size=12,
)


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(calls=CALLS)
async def test_any_calls_give_the_answers_of_their_session(
    conversation: Any, calls: list[tuple[str, Any]]
) -> None:
    theirs = SQLiteSession("alice")
    ours = ConversationSession(conversation.session)
    await ours.clear_session()
    for method, argument in [*calls, ("get_items", None)]:
        given = () if method in ("pop_item", "clear_session") else (argument,)
        answers = [await getattr(one, method)(*given) for one in (ours, theirs)]
        assert written(answers[0]) == written(answers[1]), method
    theirs.close()


async def test_what_json_cannot_hold_writes_nothing(session: ConversationSession) -> None:
    with pytest.raises(TypeError):
        await session.add_items([text("kept out"), {"role": "user", "content": {1, 2}}])
    assert await session.get_items() == []


async def test_a_cancelled_write_is_whole(session: ConversationSession) -> None:
    adding = asyncio.ensure_future(session.add_items([text("one"), text("two")]))
    await asyncio.sleep(0)
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert await session.get_items() in ([], [text("one"), text("two")])


async def test_pops_of_one_object_take_turns(session: ConversationSession) -> None:
    await session.add_items([text(str(number)) for number in range(8)])
    popped = await asyncio.gather(*(session.pop_item() for _ in range(10)))
    assert popped == [text(str(number)) for number in reversed(range(8))] + [None, None]


async def test_texts_are_searched_and_images_kept_once(
    conversation: Any, session: ConversationSession
) -> None:
    await session.add_items(ITEMS)
    stored = [message async for message in conversation.session.history()]
    found = await conversation.session.search("pixel")
    assert [one.id for one in found] == [stored[4]["id"]]
    assert [part["type"] for part in stored[3]["parts"]] == ["text", "file", "file"]
    assert stored[6]["parts"][0]["toolCallId"] == stored[7]["parts"][0]["toolCallId"] == "call_1"
    assert stored[7]["parts"][0]["type"] == "tool-weather"
    kept = "SELECT count(*) AS number FROM cf_agents_session_attachment_meta"
    assert conversation.storage.sql.exec(kept).one()["number"] == 2  # a pixel, and a text file


async def test_a_branch_goes_on_from_an_earlier_message(
    conversation: Any, session: ConversationSession
) -> None:
    await session.add_items([text("a"), text("b"), text("c")])
    first = next(iter([m async for m in conversation.session.history()]))
    branch = session.at(first["id"])
    assert await branch.get_items() == [text("a")]
    await branch.add_items([text("B")])
    await branch.add_items([text("C")])
    assert await branch.get_items() == [text("a"), text("B"), text("C")]
    assert [await branch.pop_item() for _ in range(4)] == [text("C"), text("B"), text("a"), None]
    assert await branch.get_items() == []
    assert await session.get_items() == [text("b"), text("c")]


async def test_an_edited_part_is_what_the_agent_reads(
    conversation: Any, session: ConversationSession
) -> None:
    await session.add_items([ITEMS[3]])
    message = await conversation.session.get_latest_leaf()
    message["parts"][0]["text"] = "What is that?"
    await conversation.session.update_message(message)
    (item,) = await session.get_items()
    assert item["content"][0]["text"] == "What is that?"
    assert item["content"][1:] == ITEMS[3]["content"][1:]


async def test_what_other_code_wrote_reads_as_items(
    conversation: Any, session: ConversationSession
) -> None:
    url = f"data:image/png;base64,{PIXEL}"
    call = {"toolCallId": "c", "input": {"city": "Oslo"}, "output": "rain"}
    await conversation.session.append_messages(
        [
            {
                "id": "1",
                "role": "user",
                "parts": [
                    {"type": "text", "text": "Look"},
                    {"type": "file", "mediaType": "image/png", "url": url},
                ],
            },
            {
                "id": "2",
                "role": "assistant",
                "parts": [
                    {"type": "text", "text": "Rain."},
                    {"type": "tool-weather", "state": "output-available", **call},
                ],
            },
        ]
    )
    items = await session.get_items()
    assert items == [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Look"},
                {"type": "input_image", "image_url": url, "detail": "auto"},
            ],
        },
        {"role": "assistant", "content": "Rain."},
        {
            "type": "function_call",
            "call_id": "c",
            "name": "weather",
            "arguments": '{"city":"Oslo"}',
        },
        {"type": "function_call_output", "call_id": "c", "output": "rain"},
    ]
    assert await session.get_items(1) == items[-1:]


async def test_a_summary_stands_for_what_was_compacted(
    conversation: Any, session: ConversationSession
) -> None:
    conversation.session.on_compaction(
        create_compact_function(summarize=lambda prompt: "They counted.", keep_recent_tokens=1)
    )
    await session.add_items([text(str(number)) for number in range(10)])
    assert await conversation.session.compact() is not None
    items = await session.get_items()
    assert {"role": "assistant", "content": "They counted."} in items
    assert items[:3] == [text("0"), text("1"), text("2")]
    assert items[-1] == text("9") == await session.pop_item()


class Script(Model):
    """A model that calls a tool, then speaks."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def get_response(
        self, system_instructions: Any, input: Any, *rest: Any, **more: Any
    ) -> ModelResponse:
        """Answer by a script."""
        self.seen.append(list(input))
        if input[-1].get("type") == "function_call_output":
            said = ResponseOutputText(text="Rain.", type="output_text", annotations=[], logprobs=[])
            answer: Any = ResponseOutputMessage(
                id="m", type="message", role="assistant", status="completed", content=[said]
            )
        else:
            answer = ResponseFunctionToolCall(
                type="function_call", call_id=f"c{len(input)}", name="weather", arguments="{}"
            )
        return ModelResponse(output=[answer], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        """Not used."""
        raise NotImplementedError


async def test_an_agent_runs_the_same_on_both(session: ConversationSession) -> None:
    @function_tool
    def weather() -> str:
        """Tell the weather."""
        return "rain"

    theirs = SQLiteSession("alice")
    seen = []
    for one in (session, theirs):
        model = Script()
        agent = Agent(name="a", model=model, tools=[weather])
        for question in ("And now?", "And then?"):
            result = await Runner.run(
                agent, question, session=one, run_config=RunConfig(tracing_disabled=True)
            )
            assert result.final_output == "Rain."
        seen.append(model.seen)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 4
    assert written(await session.get_items()) == written(await theirs.get_items())
    theirs.close()


def test_every_item_gets_an_id_of_its_own() -> None:
    made = messages_of([ITEMS[0], ITEMS[0]])
    assert made[0]["id"] != made[1]["id"]
    assert [items_of(one) for one in made] == [[ITEMS[0]], [ITEMS[0]]]
