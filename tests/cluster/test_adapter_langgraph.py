"""LangGraph over conversations: its own conformance suite, and graphs that run the same on both."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="langgraph is not installed")

from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from router.adapters.langchain import ConversationHistory
from router.adapters.langgraph import ConversationSaver
from router.adapters.langgraph_rows import is_ours
from router.sync import SyncSession

from .conftest import Deploy


def config(thread: str = "alice", **more: Any) -> Any:
    """Name a thread."""
    return {"configurable": {"thread_id": thread, **more}}


async def test_it_conforms(deploy: Deploy) -> None:
    async with deploy() as client:

        @checkpointer_test(name="ConversationSaver")
        async def saver() -> AsyncIterator[ConversationSaver]:
            yield ConversationSaver(client, prefix=f"{uuid.uuid4().hex}-")

        report = await validate(saver)
        failures = [one for result in report.results.values() for one in result.failures]
        assert failures == []
        assert report.passed_all_base()
        assert {name for name, result in report.results.items() if result.passed} >= {
            "copy_thread",
            "delete_for_runs",
            "prune",
        }


class State(MessagesState):
    """What the graph of these tests keeps."""

    turns: int
    notes: Annotated[list[str], lambda old, new: old + new]
    picture: bytes


@dataclass
class Numbered:
    """Gives what is said the same ids on both sides."""

    said: int = 0

    def answer(self, state: State) -> Any:
        """Answer, count, and keep some bytes."""
        self.said += 1
        call = {"id": f"c{self.said}", "name": "weather", "args": {"city": "Oslo"}}
        return {
            "messages": [
                AIMessage("", id=f"ai{self.said}", tool_calls=[call]),
                ToolMessage(
                    "rain", tool_call_id=f"c{self.said}", name="weather", id=f"t{self.said}"
                ),
                AIMessage(f"Answer {self.said}", id=f"b{self.said}"),
            ],
            "turns": state.get("turns", 0) + 1,
            "notes": [f"n{self.said}"],
            "picture": bytes(range(256)) * 64,
        }


def graph(saver: Any) -> Any:
    """Build a graph of two nodes on a saver."""
    numbered = Numbered()
    builder = StateGraph(State)
    builder.add_node("answer", numbered.answer)
    builder.add_node("settle", lambda state: {"notes": ["settled"]})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", "settle")
    builder.add_edge("settle", END)
    return builder.compile(checkpointer=saver)


async def states(one: Any, thread: str = "alice") -> list[Any]:
    """Return every state of a thread, without what differs between two runs."""
    found = [state async for state in one.aget_state_history(config(thread))]
    return [(state.values, state.next, state.metadata["step"]) for state in found]


async def test_a_graph_runs_the_same_as_on_their_saver(deploy: Deploy) -> None:
    async with deploy() as client:
        ours, theirs = graph(ConversationSaver(client)), graph(InMemorySaver())
        for one in (ours, theirs):
            for number in range(4):
                question = HumanMessage(f"Question {number}", id=f"q{number}")
                await one.ainvoke({"messages": [question]}, config())
        assert await states(ours) == await states(theirs)
        # The chat is the conversation's own, in order, each message once.
        chat = [m async for m in client.get("alice").session().history()]
        texts = [part.get("text") for m in chat for part in m["parts"] if part["type"] == "text"]
        expected = [[f"Question {n}", f"Answer {n + 1}"] for n in range(4)]
        assert texts == [text for turn in expected for text in turn]
        assert [m["role"] for m in chat[:4]] == ["user", "assistant", "tool", "assistant"]
        assert len(await client.get("alice").session().search("Answer 3")) == 1


async def test_time_travel_and_edits_are_branches(deploy: Deploy) -> None:
    async with deploy() as client:
        ours, theirs = graph(ConversationSaver(client)), graph(InMemorySaver())
        for one in (ours, theirs):
            for number in range(3):
                question = HumanMessage(f"Question {number}", id=f"q{number}")
                await one.ainvoke({"messages": [question]}, config())
            history = [state async for state in one.aget_state_history(config())]
            (early,) = [s for s in history if s.next == () and s.values["turns"] == 1]
            edited = HumanMessage("Edited", id="q0")
            fork = await one.aupdate_state(early.config, {"messages": [edited]})
            await one.ainvoke({"messages": [HumanMessage("On", id="on")]}, fork)
            await one.aupdate_state(config(), {"messages": [RemoveMessage(id="ai1")]})
        assert await states(ours) == await states(theirs)
        rows = [row async for row in client.get("alice").session().history_rows()]
        assert len({row.message["id"] for row in rows}) == len(rows)
        assert sum(row.parent_id is None for row in rows) == 2  # the question, and it edited


async def test_it_goes_on_after_an_interrupt_in_another_process(deploy: Deploy) -> None:
    def ask(state: State) -> Any:
        return {"notes": [interrupt({"really": ("sure", 1)})]}

    async with deploy() as client:

        def compiled() -> Any:
            builder = StateGraph(State)
            builder.add_node("ask", ask)
            builder.add_edge(START, "ask")
            return builder.compile(checkpointer=ConversationSaver(client))

        paused = await compiled().ainvoke({"notes": ["begun"]}, config())
        assert paused["__interrupt__"][0].value == {"really": ("sure", 1)}
        await client.hibernate("alice")
        done = await compiled().ainvoke(Command(resume="yes"), config())
        assert done["notes"] == ["begun", "yes"]


async def test_the_blocking_forms(deploy: Deploy) -> None:
    async with deploy() as client:
        one = graph(ConversationSaver(client))

        def work() -> Any:
            one.invoke({"messages": [("user", "Hello")]}, config())
            found = [state.values for state in one.get_state_history(config())]
            one.checkpointer.copy_thread("alice", "bob")
            one.checkpointer.delete_thread("alice")
            return found

        found = await asyncio.to_thread(work)
        assert found == [state.values async for state in one.aget_state_history(config("bob"))]
        assert [name async for name in client.list()] == ["bob"]
        assert await one.checkpointer.aget_tuple(config("nobody", checkpoint_id="x")) is None


async def test_a_turn_writes_what_is_new(deploy: Deploy) -> None:
    async with deploy() as client:
        one = graph(ConversationSaver(client))
        sizes = []
        for number in range(40):
            await one.ainvoke({"messages": [("user", f"Question {number} " * 50)]}, config())
            sizes.append(await stored_bytes(client))
        early, late = sizes[9] - sizes[4], sizes[39] - sizes[34]
        assert late < 1.3 * early


async def stored_bytes(client: Any) -> int:
    """Add up what a thread's rows hold."""
    conversation = client.get("alice")
    total = 0
    for session_id in filter(is_ours, await conversation.session_ids()):
        total += sum(
            row.bytes for row in await conversation.session(session_id).get_history_row_stats()
        )
    return total


async def test_a_thread_deleted_elsewhere_is_written_whole_again(deploy: Deploy) -> None:
    async with deploy() as client:
        one, elsewhere = graph(ConversationSaver(client)), ConversationSaver(client)
        await one.ainvoke({"messages": [("user", "Hello")]}, config())
        state = await one.aget_state(config())
        await elsewhere.adelete_thread("alice")
        again = await one.aupdate_state(config(), {"messages": state.values["messages"]})
        found = (await one.aget_state(again)).values["messages"]
        assert found == state.values["messages"]


async def test_a_compacted_chat_leaves_the_state_whole(deploy: Deploy) -> None:
    async with deploy() as client:
        one = graph(ConversationSaver(client))
        await one.ainvoke({"messages": [("user", "Hello")]}, config())
        before = (await one.aget_state(config())).values
        session = client.get("alice").session()
        chat = await session.get_history()
        await session.add_compaction("They met.", chat[0]["id"], chat[-1]["id"])
        assert len(await session.get_history()) == 1
        assert (await one.aget_state(config())).values == before


class Reverse:
    """A cipher for tests."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        """Turn bytes around."""
        return "reverse", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        """Turn them back."""
        return ciphertext[::-1]


async def test_an_encrypting_serializer_leaves_nothing_readable(deploy: Deploy) -> None:
    async with deploy() as client:
        one = graph(ConversationSaver(client, serde=EncryptedSerializer(Reverse())))
        await one.ainvoke({"messages": [("user", "Secret")]}, config())
        assert (await one.aget_state(config())).values["messages"][0].content == "Secret"
        conversation = client.get("alice")
        assert "" not in await conversation.session_ids()
        for session_id in await conversation.session_ids():
            async for row in conversation.session(session_id).history_rows():
                assert "Secret" not in str(row.message)


async def test_messages_of_every_kind_come_back_equal(deploy: Deploy) -> None:
    pixel = "data:image/png;base64,iVBORw0KGgo="
    messages = [
        SystemMessage("Be brief.", id="1", additional_kwargs={"a": {"b": [1, 2.5, None]}}),
        HumanMessage(
            [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": pixel, "detail": "low"}},
                {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"},
            ],
            id="2",
            name="Ann",
        ),
        AIMessage(
            [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "half \ud83d of it"},
                {"type": "tool_use", "id": "c", "name": "t", "input": {}},
            ],
            id="3",
            tool_calls=[{"id": "c", "name": "t", "args": {"x": [1]}}],
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        ),
        ToolMessage([{"type": "text", "text": "ok"}], tool_call_id="c", id="4", artifact={"n": 1}),
        ToolMessage("", tool_call_id="c", id="5", status="error"),
        HumanMessage("", id="6", additional_kwargs={"raw": b"bytes", "when": {1, 2}}),
    ]
    async with deploy() as client:
        one = graph(ConversationSaver(client))
        where = await one.aupdate_state(config(), {"messages": messages})
        found = (await one.aget_state(where)).values["messages"]
        assert found == messages
        assert [type(message) for message in found] == [type(message) for message in messages]


async def test_a_history_with_blocking_methods(deploy: Deploy) -> None:
    async with deploy() as client:
        given = [HumanMessage("Hello"), AIMessage("Hi")]
        for session in (client.get("a").session(), SyncSession(client.get("b").session())):
            history = ConversationHistory(session)

            def work(history: ConversationHistory = history) -> Any:
                history.add_messages(given)
                history.add_user_message("More")
                found = history.messages
                history.clear()
                return found, history.messages

            assert await asyncio.to_thread(work) == ([*given, HumanMessage("More")], [])
