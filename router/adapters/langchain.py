"""A chat message history of LangChain kept in a conversation: extra `langgraph`.

    history = ConversationHistory(conversations.get("alice").session())
    await history.aadd_messages([HumanMessage("Hello")])

LangChain advises graphs with a checkpointer over this interface (see `langgraph`); it is here for
chains that have it. Messages come back equal, in order; two equal ones are two. The blocking
methods work beside a running event loop too: they wait in the thread that calls them.
"""

import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Protocol

from sessions_actor.messages import SessionMessage

from ..sync import SyncSession, shared_loop
from .langchain_messages import message_fields, message_of, with_id
from .requirement import require

require("langgraph.checkpoint", package="langgraph-checkpoint", extra="langgraph")

from langchain_core.chat_history import BaseChatMessageHistory  # noqa: E402
from langchain_core.messages import BaseMessage  # noqa: E402
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer  # noqa: E402


class MessageSession(Protocol):
    """What this needs of a session: a remote handle's, or one in process."""

    async def append_messages(self, messages: Iterable[SessionMessage]) -> Any: ...
    async def clear_messages(self) -> None: ...
    def history(self) -> AsyncIterator[SessionMessage]: ...


class ConversationHistory(BaseChatMessageHistory):
    """LangChain's chat message history over one session of a conversation."""

    def __init__(self, session: MessageSession | SyncSession) -> None:
        """Wrap a session; no I/O. A session in process has the methods beginning `a` alone."""
        super().__init__()
        self._session: MessageSession = (
            session._handle if isinstance(session, SyncSession) else session
        )
        self._serde = JsonPlusSerializer()

    async def aget_messages(self) -> list[BaseMessage]:
        """Read the messages of the active path; a summary stands for what was compacted."""
        return [message_of(row, self._serde) async for row in self._session.history()]

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages, in one transaction."""
        rows = [
            with_id(message_fields(message, self._serde), uuid.uuid4().hex) for message in messages
        ]
        if rows:
            await self._session.append_messages(rows)

    async def aclear(self) -> None:
        """Delete every message of the session."""
        await self._session.clear_messages()

    @property
    def messages(self) -> list[BaseMessage]:
        """The messages of the active path, read anew each time."""
        return shared_loop().run(self.aget_messages())

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages, in one transaction."""
        shared_loop().run(self.aadd_messages(messages))

    def clear(self) -> None:
        """Delete every message of the session."""
        shared_loop().run(self.aclear())
