"""Exporters: a conversation read from a deployment, written as the bytes of a file.

Each is an async generator of pieces, so that no conversation is held whole. `jsonl` and `oasst`
write every branch; `ai-sdk` and `openai` write one path, with overlays applied, as a model would
see it.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from sessions_actor.codec import dumps
from sessions_actor.records import Compaction, HistoryRow

from . import jsonl, oasst
from .openai import chat_messages, is_answered, is_tool
from .spool import Slot, Spool

_HELD_MESSAGES_MAX = 1000


class ReadableSession(Protocol):
    """What an export asks of a session."""

    def history(self, *, leaf_id: str | None = None) -> AsyncIterator[Mapping[str, Any]]: ...

    def history_rows(self) -> AsyncIterator[HistoryRow]: ...

    async def get_compactions(self) -> list[Compaction]: ...

    async def get_config(self) -> dict[str, str]: ...


class ReadableConversation(Protocol):
    """What an export asks of a conversation."""

    @property
    def name(self) -> str: ...

    def session(self, session_id: str = "") -> ReadableSession: ...

    async def session_ids(self) -> list[str]: ...


Message = Mapping[str, Any]
Pieces = AsyncIterator[bytes]
Exporter = Callable[[ReadableConversation, str, str | None], Pieces]


async def export_jsonl(
    conversation: ReadableConversation, session_id: str = "", leaf_id: str | None = None
) -> Pieces:
    """Write everything in our own format, every session and branch."""
    yield jsonl.header_line(conversation.name)
    messages = compactions = 0
    for one in sorted(await conversation.session_ids()):
        session = conversation.session(one)
        for key, value in sorted((await session.get_config()).items()):
            yield jsonl.config_line(one, key, value)
        async for row in session.history_rows():
            messages += 1
            yield jsonl.message_line(one, row)
        for overlay in await session.get_compactions():
            compactions += 1
            yield jsonl.compaction_line(one, overlay)
    yield jsonl.end_line(messages, compactions)


async def export_oasst(
    conversation: ReadableConversation, session_id: str = "", leaf_id: str | None = None
) -> Pieces:
    """Write a session as OpenAssistant trees, one line per root.

    Only the skeleton is held: content is set aside on disk until its place in the tree comes.
    """
    session = conversation.session(session_id)
    config = await session.get_config()
    slots: dict[str, Slot] = {}
    parents: dict[str, str | None] = {}
    with Spool() as spool:
        async for row in session.history_rows():
            slots[row.message["id"]] = spool.put(dumps(oasst.node_fields(row)))
            parents[row.message["id"]] = row.parent_id
        children: dict[str | None, list[str]] = {}
        for message_id, parent_id in parents.items():
            above = parent_id if parent_id in slots else None
            children.setdefault(above, []).append(message_id)
        for number, root in enumerate(children.get(None, [])):
            name = conversation.name if number == 0 else root
            head = dumps(oasst.tree_fields(name, config))
            yield head[:-1] + b',"prompt":'
            for piece in _nested(root, children, lambda one: spool.get(slots[one])):
                yield piece
            yield b"}\n"


def _nested(
    root: str, children: Mapping[str | None, list[str]], text_of: Callable[[str], bytes]
) -> Any:
    """The text of a tree, without recursion: a tree may be deeper than Python recurses."""
    stack: list[str | bytes] = [root]
    while stack:
        top = stack.pop()
        if isinstance(top, bytes):
            yield top
            continue
        yield text_of(top)[:-1] + b',"replies":['
        stack.append(b"]}")
        for at, child in reversed(list(enumerate(children.get(top, [])))):
            stack.append(child)
            if at:
                stack.append(b",")


async def export_ai_sdk(
    conversation: ReadableConversation, session_id: str = "", leaf_id: str | None = None
) -> Pieces:
    """Write one path as an array of UI messages; results are joined to the calls they answer."""
    history = conversation.session(session_id).history(leaf_id=leaf_id)
    async for piece in _array(_joined(history)):
        yield piece


async def export_openai(
    conversation: ReadableConversation, session_id: str = "", leaf_id: str | None = None
) -> Pieces:
    """Write one path as an array of chat messages."""

    async def messages() -> AsyncIterator[Message]:
        async for message in conversation.session(session_id).history(leaf_id=leaf_id):
            for one in chat_messages(message):
                yield one

    async for piece in _array(messages()):
        yield piece


async def _array(items: AsyncIterator[Message]) -> Pieces:
    first = True
    async for item in items:
        yield (b"[\n" if first else b",\n") + dumps(item)
        first = False
    yield b"[]" if first else b"\n]"


async def _joined(history: AsyncIterator[Message]) -> AsyncIterator[Message]:
    """Put results that stand in messages of their own into the parts of their calls.

    Messages wait while a call of theirs is unanswered, until a person speaks; at most
    _HELD_MESSAGES_MAX of them.
    """
    held: list[Message] = []
    open_calls: dict[str, tuple[int, int]] = {}  # call id -> message and part in `held`
    async for message in history:
        rest = []
        for part in message["parts"]:
            place = open_calls.get(part["toolCallId"]) if _is_result(part) else None
            if place is None:
                rest.append(part)
                continue
            at, index = place
            del open_calls[part["toolCallId"]]
            parts = list(held[at]["parts"])
            parts[index] = {**parts[index], **_without_type(part)}
            held[at] = {**held[at], "parts": parts}
        if rest or not message["parts"]:
            speaks = message["role"] == "user"
            if speaks or len(held) >= _HELD_MESSAGES_MAX:
                for one in held:
                    yield one
                held, open_calls = [], {}
            held.append(_ui_message(message, rest))
            for index, part in enumerate(rest):
                if is_tool(part) and "input" in part and not is_answered(part):
                    open_calls[part["toolCallId"]] = (len(held) - 1, index)
        if not open_calls:
            for one in held:
                yield one
            held = []
    for one in held:
        yield one


_ROLES = {"developer": "system", "tool": "assistant", "function": "assistant"}


def _ui_message(message: Message, parts: list[dict[str, Any]]) -> Message:
    role = _ROLES.get(message["role"], message["role"])
    if role == message["role"] and len(parts) == len(message["parts"]):
        return message
    return {**message, "role": role, "parts": parts}


def _is_result(part: Mapping[str, Any]) -> bool:
    return is_tool(part) and "input" not in part and is_answered(part)


def _without_type(part: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key not in ("type", "toolCallId")}


EXPORTERS: dict[str, Exporter] = {
    "jsonl": export_jsonl,
    "oasst": export_oasst,
    "ai-sdk": export_ai_sdk,
    "openai": export_openai,
}
LISTS = ("ai-sdk", "openai")


async def export_one(
    conversation: ReadableConversation,
    form: str,
    *,
    session_id: str = "",
    leaf_id: str | None = None,
    alone: bool = True,
) -> Pieces:
    """Write one conversation; in the list formats it is wrapped in a line when it is not alone.

    Several conversations in a list format are JSON Lines of `{"id": name, "messages": [...]}`, a
    form that the importers read.
    """
    pieces = EXPORTERS[form](conversation, session_id, leaf_id)
    if form not in LISTS:
        async for piece in pieces:
            yield piece
        return
    if alone:
        async for piece in pieces:
            yield piece
        yield b"\n"
        return
    yield b'{"id":' + dumps(conversation.name) + b',"messages":'
    async for piece in pieces:
        yield piece.replace(b"\n", b"")
    yield b"}\n"
