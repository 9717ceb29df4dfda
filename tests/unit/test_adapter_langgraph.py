"""LangGraph's conformance suite against conversations in this process: no cluster, so seconds.

The same suite, and whole graphs, run against a deployment in `tests/cluster`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from sessions_actor import ConversationNotFoundError, open_object
from sessions_actor.conversation import Conversation

pytest.importorskip("langgraph.checkpoint.conformance", reason="langgraph is not installed")

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.test_utils import generate_checkpoint, generate_config

from router.adapters.langgraph import ConversationSaver
from router.adapters.langgraph_rows import CHAT, COMPRESSED_BYTES_MIN, INLINE_BYTES_MAX


class LocalSession:
    """A session's methods, its conversation opened at the first of them."""

    def __init__(self, conversation: LocalConversation, session_id: str) -> None:
        self._conversation, self._session_id = conversation, session_id

    async def _session(self) -> Any:
        opened = await self._conversation.opened()
        return opened.sessions.session(self._session_id)

    def __getattr__(self, method: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await getattr(await self._session(), method)(*args, **kwargs)

        return call

    async def history(self, **options: Any) -> AsyncIterator[Any]:
        """Stream a path."""
        async for message in (await self._session()).history(**options):
            yield message

    async def history_rows(self) -> AsyncIterator[Any]:
        """Stream all rows."""
        async for row in (await self._session()).history_rows():
            yield row


class LocalConversation:
    """A conversation by name, made by its first call."""

    def __init__(self, client: LocalClient, name: str) -> None:
        self.client, self.name = client, name

    def session(self, session_id: str = "") -> LocalSession:
        """Return a session."""
        return LocalSession(self, session_id)

    async def opened(self) -> Any:
        """Return the open object."""
        return await self.client.opened(self.name)

    async def session_ids(self) -> list[str]:
        """List the sessions that hold anything."""
        rows = (await self.opened()).storage.sql.exec(
            "SELECT DISTINCT session_id FROM cf_agents_session_messages"
        )
        return [row["session_id"] for row in rows]


class LocalClient:
    """What the saver asks of a client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open: dict[str, tuple[AsyncExitStack, Any]] = {}

    async def opened(self, name: str) -> Any:
        """Open a conversation, once."""
        if name not in self.open:
            stack = AsyncExitStack()
            path = self.folder / f"{len(list(self.folder.iterdir()))}-{name}.sqlite"
            found = open_object(Conversation, name=name, path=path)
            self.open[name] = stack, await stack.enter_async_context(found)
        return self.open[name][1]

    def get(self, name: str) -> LocalConversation:
        """Return a handle."""
        return LocalConversation(self, name)

    async def list(self, prefix: str = "") -> AsyncIterator[str]:
        """Yield names."""
        for name in sorted(self.open):
            if name.startswith(prefix):
                yield name

    async def info(self, name: str) -> None:
        """Say whether there is one."""
        if name not in self.open:
            raise ConversationNotFoundError(name)

    async def delete(self, name: str) -> bool:
        """Forget one."""
        found = self.open.pop(name, None)
        if found is not None:
            await found[0].aclose()
        return found is not None

    async def close(self) -> None:
        """Close them all."""
        for name in [*self.open]:
            await self.delete(name)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Any]:
    """Return a client of conversations in this process."""
    found = LocalClient(tmp_path)
    yield found
    await found.close()


async def test_it_conforms(client: Any) -> None:
    @checkpointer_test(name="ConversationSaver in process")
    async def saver() -> AsyncIterator[ConversationSaver]:
        yield ConversationSaver(client, prefix=f"{len(client.open)}-")

    report = await validate(saver)
    failures = [one for result in report.results.values() for one in result.failures]
    assert failures == []
    assert report.passed_all()
    assert all(result.detected for result in report.results.values())


@pytest.mark.parametrize(
    "value",
    [
        "x" * (COMPRESSED_BYTES_MIN - 1),
        {"a set"},
        {"long " * 200},
        b"\x00" * COMPRESSED_BYTES_MIN,
        bytes(range(256)) * (INLINE_BYTES_MAX // 256 + 1),
        None,
        [],
        {1: "a key that is no text"},
        [HumanMessage("in a list"), "with something else"],
        {"nested": [AIMessage("deep")]},
        2**70,
        float("inf"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_value_reads_back_as_it_was(client: Any, value: Any) -> None:
    saver = ConversationSaver(client)
    checkpoint = generate_checkpoint(channel_values={"c": value}, channel_versions={"c": "1"})
    stored = await saver.aput(generate_config("t"), checkpoint, {"step": 1}, {"c": "1"})
    await saver.aput_writes(stored, [("c", value)], "task")
    found = await ConversationSaver(client).aget_tuple(stored)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"c": value}
    assert type(found.checkpoint["channel_values"]["c"]) is type(value)
    assert found.pending_writes == [("task", "c", value)]


async def put(saver: ConversationSaver, number: int, messages: list[Any]) -> Any:
    """Store a checkpoint of messages."""
    checkpoint = generate_checkpoint(
        channel_values={"messages": messages}, channel_versions={"messages": str(number)}
    )
    new = {"messages": str(number)}
    return await saver.aput(generate_config("t"), checkpoint, {"step": number}, new)


async def chat(client: Any) -> list[tuple[str, str | None]]:
    """Return the rows of the chat, each with its parent."""
    rows = client.get("t").session(CHAT).history_rows()
    return [(row.message["id"], row.parent_id) async for row in rows]


async def test_lists_that_share_a_beginning_share_its_rows(client: Any) -> None:
    saver = ConversationSaver(client)
    said = [HumanMessage(str(number), id=str(number)) for number in range(4)]
    first = await put(saver, 1, said[:2])
    await put(saver, 2, said)
    rows = await chat(client)
    assert len(rows) == 4
    assert [parent for _, parent in rows] == [None, *(row for row, _ in rows[:-1])]
    edited = [said[0], HumanMessage("edited", id="1"), said[2]]
    last = await put(saver, 3, edited)
    assert len(await chat(client)) == 6
    for where, expected in ((first, said[:2]), (last, edited)):
        found = await ConversationSaver(client).aget_tuple(where)
        assert found is not None
        assert found.checkpoint["channel_values"]["messages"] == expected


async def test_a_message_changed_in_place_is_written_anew(client: Any) -> None:
    saver = ConversationSaver(client)
    said = [HumanMessage("Hello", id="1"), AIMessage([{"type": "text", "text": "Hi"}], id="2")]
    await put(saver, 1, said)
    content: Any = said[1].content
    content[0]["text"] = "Good day"
    last = await put(saver, 2, said)
    found = await ConversationSaver(client).aget_tuple(last)
    assert found is not None
    assert found.checkpoint["channel_values"]["messages"] == said
    assert len(await chat(client)) == 3


async def test_storing_again_writes_nothing(client: Any) -> None:
    said = [HumanMessage("Hello", id="1"), AIMessage("Hi", id="2")]
    for saver in (ConversationSaver(client), ConversationSaver(client)):
        await put(saver, 1, said)
    assert len(await chat(client)) == 2
