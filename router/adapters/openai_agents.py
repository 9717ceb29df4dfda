"""A session of the OpenAI Agents SDK kept in a conversation: extra `openai-agents`.

    session = ConversationSession(conversations.get("alice").session())
    await Runner.run(agent, "Hello", session=session)

Items are stored verbatim, one message each, and mean what they mean to the SDK's `SQLiteSession`:
`limit` counts from the end, a negative one is no limit, two equal items are two. Their texts,
arguments, results and images stand in the message's parts, so they are searched, compacted and
counted like any other (see `template`). Messages that other code appended to the session read as
items too, and an overlay reads as the assistant's summary.

A lost reply is retried by the handle under the same ids: no item twice. What is not promised:
`pop_item` reads and then deletes, so two processes that pop at the same instant may both be given
the same item; within one object calls wait for each other, as the SDK's runner does.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, cast

from sessions_actor.codec import dumps
from sessions_actor.messages import JS_SPACE, SessionMessage
from sessions_actor.records import LEAF, AppendResult, Message, Parent, RowStat

from ..formats.openai import is_answered, is_tool, tool_name
from .requirement import require
from .template import NOTHING, Template, fill, media_type_of

require("agents", package="openai-agents", extra="openai-agents")

from agents.memory import SessionABC, SessionSettings  # noqa: E402

T = TypeVar("T")

Item = Any
"""What the SDK calls `TResponseInputItem`: a JSON object."""

_KEY = "openai"


class MessageSession(Protocol):
    """What this needs of a session: a remote handle's, or one in process."""

    session_id: str

    async def append_messages(
        self, messages: Iterable[SessionMessage], *, parent_id: Parent = LEAF
    ) -> list[AppendResult]: ...

    async def delete_messages(self, message_ids: Iterable[str]) -> None: ...
    async def clear_messages(self) -> None: ...
    async def get_message(self, message_id: str) -> SessionMessage | None: ...
    async def get_latest_leaf(self) -> SessionMessage | None: ...
    async def get_history_row_stats(self, leaf_id: str | None = None) -> list[RowStat]: ...
    def history(
        self, *, leaf_id: str | None = None, newest_first: bool = False
    ) -> AsyncIterator[SessionMessage]: ...


class ConversationSession(SessionABC):
    """The SDK's session protocol over one session of a conversation."""

    def __init__(
        self,
        session: MessageSession,
        *,
        session_id: str | None = None,
        session_settings: SessionSettings | None = None,
    ) -> None:
        """Wrap a session; no I/O.

        Args:
            session: `conversations.get(name).session()`, or a session in process.
            session_id: what the SDK shows as the session's id; the session's own if omitted.
            session_settings: the SDK's; its `limit` holds where a call names none.
        """
        self.session_id = session.session_id if session_id is None else session_id
        self.session_settings = session_settings or SessionSettings()
        self._session = session
        # The message that the next item follows; LEAF while nothing is pinned, None for a root.
        self._tip: Parent = LEAF
        self._turn = asyncio.Lock()

    def at(self, message_id: str | None) -> ConversationSession:
        """Return a session that goes on from an earlier message, as a branch; no I/O.

        It reads the path to that message, and what it adds follows there. The rest stays: each
        branch can be gone on with in this way. None begins a new root.
        """
        branch = ConversationSession(
            self._session, session_id=self.session_id, session_settings=self.session_settings
        )
        branch._tip = message_id
        return branch

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Read the items in order; the latest `limit` of them when there is one."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit == 0 or self._tip is None:
            return []
        leaf_id = None if self._tip is LEAF else self._tip
        if limit is None or limit < 0:
            path = self._session.history(leaf_id=leaf_id)
            return [item async for message in path for item in items_of(message)]
        items: list[Item] = []
        async for message in self._session.history(leaf_id=leaf_id, newest_first=True):
            items += reversed(items_of(message))
            if len(items) >= limit:
                break
        return items[:limit][::-1]

    async def add_items(self, items: list[Item]) -> None:
        """Append items, in one transaction.

        Raises: TypeError for what JSON cannot hold; nothing is written then.
        """
        if items:
            await _whole(self._add(messages_of(items)))

    async def _add(self, messages: list[SessionMessage]) -> None:
        async with self._turn:
            await self._session.append_messages(messages, parent_id=self._tip)
            if self._tip is not LEAF:
                self._tip = messages[-1]["id"]

    async def pop_item(self) -> Item | None:
        """Remove the newest item and return it; None when there is none.

        A message of several items, which other code wrote, goes as a whole; its last is returned.
        """
        return await _whole(self._pop())

    async def _pop(self) -> Item | None:
        async with self._turn:
            if self._tip is LEAF:
                newest = await self._session.get_latest_leaf()
            elif self._tip is None:
                newest = None
            else:
                newest = await self._session.get_message(self._tip)
            if newest is None:
                return None
            before: Parent = LEAF
            if self._tip is not LEAF:
                path = await self._session.get_history_row_stats(newest["id"])
                before = path[-2].id if len(path) > 1 else None
            await self._session.delete_messages([newest["id"]])
            self._tip = before
            items = items_of(newest)
            return items[-1] if items else None

    async def clear_session(self) -> None:
        """Delete everything in the session, other branches included."""
        await _whole(self._clear())

    async def _clear(self) -> None:
        async with self._turn:
            await self._session.clear_messages()
            self._tip = LEAF if self._tip is LEAF else None


async def _whole(work: Awaitable[T]) -> T:
    """Let a write end before a cancellation goes on: the SDK rewinds by what it then reads."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen: what the caller gets is the cancellation
        raise cancelled
    return task.result()


# ------------------------------------------------------------------------------ items to messages


def messages_of(items: Iterable[Item]) -> list[SessionMessage]:
    """Return the messages that hold items, under new ids."""
    tools: dict[str, str] = {}
    return [_message(item, tools) for item in items]


def _message(item: Item, tools: dict[str, str]) -> SessionMessage:
    template = Template(item)
    kind = template.get("type")
    if kind == "reasoning":
        _take_reasoning(template)
    elif isinstance(template.get("call_id"), str):
        _take_call(template, tools)
    elif kind == "image_generation_call" and isinstance(template.get("result"), str):
        template.take("data", "result", type="file", mediaType="image/png")
    else:
        _take_content(template, "content")
    message: Any = {
        "id": uuid.uuid4().hex,
        "role": _role(template.get("role"), kind),
        "parts": template.parts,
        _KEY: template.stored("item"),
    }
    return cast(SessionMessage, message)


def _role(role: object, kind: object) -> str:
    if isinstance(role, str) and role and role.isprintable():
        return role
    if not isinstance(kind, str):
        return "user"
    return "tool" if kind.endswith("_output") else "assistant"


def _take_content(template: Template, *path: Any) -> None:
    """Take a message's texts and files, or those of a tool's output."""
    content = template.get(*path)
    if isinstance(content, str):
        template.take("text", *path, type="text")
        return
    if not isinstance(content, list):
        return
    for index, entry in enumerate(content):
        if not isinstance(entry, dict):
            continue
        for key in ("text", "refusal"):
            if isinstance(entry.get(key), str):
                template.take("text", *path, index, key, type="text")
        for key in ("image_url", "file_data"):
            url = entry.get(key)
            media_type = media_type_of(url) if isinstance(url, str) else None
            if media_type is not None:
                template.take("url", *path, index, key, type="file", mediaType=media_type)


def _take_reasoning(template: Template) -> None:
    for field in ("summary", "content"):
        entries = template.get(field)
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            text = entry.get("text") if isinstance(entry, dict) else None
            # A part that says nothing would not be stored: such a text stays in the template.
            if isinstance(text, str) and text.strip(JS_SPACE):
                template.take("text", field, index, "text", type="reasoning")


def _take_call(template: Template, tools: dict[str, str]) -> None:
    """Take a call's input or its result, into parts that compaction keeps together."""
    call_id, kind = template.get("call_id"), str(template.get("type"))
    if kind.endswith("_output"):
        name = tools.get(call_id, "unknown")
        part = {"type": f"tool-{name}", "toolCallId": call_id, "state": "output-available"}
        if isinstance(template.get("output"), list):
            # Texts and files of its own; the part in front says which call they answer.
            template.mark(**part, output=None)
            _take_content(template, "output")
        elif template.get("output") is not NOTHING:
            template.take("output", "output", **part)
        return
    name = template.get("name")
    name = name if isinstance(name, str) and name else kind.removesuffix("_call")
    tools[call_id] = name
    for field in ("arguments", "input", "action"):
        if template.get(field) not in (NOTHING, None):
            template.take(
                "input",
                field,
                type=f"tool-{name}",
                toolCallId=call_id,
                state="input-available",
            )
            return


# ------------------------------------------------------------------------------ messages to items


def items_of(message: Mapping[str, Any]) -> list[Item]:
    """Return the items that a message holds: the one it was made of, else what its parts say."""
    item = fill(message.get(_KEY), "item", message["parts"])
    return _written_items(message) if item is NOTHING else [item]


_ROLES = {"user": "user", "assistant": "assistant", "developer": "developer", "system": "system"}


def _written_items(message: Mapping[str, Any]) -> list[Item]:
    """Say in the SDK's terms what other code wrote: content first, then calls and results."""
    role = _ROLES.get(message["role"], "user")
    content: list[Message] = []
    calls: list[Item] = []
    for part in message["parts"]:
        if is_tool(part):
            calls += _written_call(part)
        elif part["type"] == "text" and isinstance(part.get("text"), str):
            kind = "output_text" if role == "assistant" else "input_text"
            content.append({"type": kind, "text": part["text"]})
        elif part["type"] == "file" and isinstance(part.get("url"), str) and role == "user":
            content.append(_written_file(part))
    if len(content) == 1 and "text" in content[0]:
        return [{"role": role, "content": content[0]["text"]}, *calls]
    if role == "assistant" and content:
        text = "".join(entry["text"] for entry in content)
        return [{"role": role, "content": text}, *calls]
    return [{"role": role, "content": content}, *calls] if content else calls


def _written_file(part: Mapping[str, Any]) -> Message:
    if str(part.get("mediaType", "")).startswith("image/"):
        return {"type": "input_image", "image_url": part["url"], "detail": "auto"}
    filename = part.get("filename")
    named = {"filename": filename} if isinstance(filename, str) else {}
    return {"type": "input_file", "file_data": part["url"], **named}


def _written_call(part: Mapping[str, Any]) -> list[Item]:
    written: list[Item] = []
    call_id = part["toolCallId"]
    if "input" in part:
        call = {"call_id": call_id, "name": tool_name(part), "arguments": _text(part["input"])}
        written.append({"type": "function_call", **call})
    if is_answered(part):
        output = part.get("errorText") if part["state"] == "output-error" else part.get("output")
        written.append(
            {"type": "function_call_output", "call_id": call_id, "output": _text(output)}
        )
    return written


def _text(value: object) -> str:
    return value if isinstance(value, str) else dumps(value).decode()
