"""ChatGPT data exports: `conversations.json`, one tree (`mapping`) per conversation.

A node's id becomes the message's id, its nearest ancestor that holds a message the parent, children
keep their order, and `current_node` is written last, so that it is the active leaf. What the export
says of the conversation (title, times, model) goes into the session's configuration under
`chatgpt`; what it says of a message, beside author and content, stays under `metadata.chatgpt`.

The file is read as a stream. Of a conversation only the skeleton stays in memory, its messages are
set aside on disk, because the tree's order is known only at its end.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from sessions_actor.codec import dumps, loads
from sessions_actor.records import Message

from .base import (
    ConfigItem,
    ImportedConversation,
    Item,
    MessageItem,
    Reader,
    ms_from_seconds,
    without,
)
from .json_stream import JsonCursor, JsonTextError
from .spool import Slot, Spool

CONFIG_KEY = "chatgpt"


def read_chatgpt(reader: Reader) -> Iterator[ImportedConversation]:
    """Yield one conversation per item of the array, named by its `conversation_id`, else its `id`.

    A node or conversation that cannot be used is reported and left out; a file that ends early is
    reported, and what was whole before is yielded.
    """
    cursor = JsonCursor(reader.source.read)
    try:
        if cursor.peek() == "[":
            for number in cursor.items():
                yield from _conversation(reader, cursor, f"conversation {number}")
        elif cursor.peek() == "{":
            yield from _conversation(reader, cursor, "conversation 1")
        else:
            reader.problem("byte 0", "expected an array of conversations")
            return
        if cursor.peek():
            reader.problem(f"byte {cursor.offset:,}", "there is more after the conversations")
    except JsonTextError as error:
        reader.problem(f"byte {error.offset:,}", f"{error.reason}; nothing after it can be read")


class _Node(NamedTuple):
    """What of a node stays in memory. `slot` is None for a node that holds no message."""

    parent: str | None
    children: list[str]
    slot: Slot | None
    created_at: int | None
    calls: str | None  # the tool that this message calls


def _conversation(reader: Reader, cursor: JsonCursor, place: str) -> Iterator[ImportedConversation]:
    if cursor.peek() != "{":
        cursor.take()
        reader.problem(place, "not an object")
        return
    about: dict[str, Any] = {}
    nodes: dict[str, _Node] = {}
    with Spool() as spool:
        for key in cursor.members():
            if key == "mapping" and cursor.peek() == "{":
                for node_id in cursor.members():
                    try:
                        nodes[node_id] = _node(cursor.value(), spool)
                    except JsonTextError:
                        raise
                    except ValueError as error:
                        reader.problem(f"{place}, {node_id}", error)
            else:
                try:
                    about[key] = cursor.value()
                except JsonTextError:
                    raise
                except ValueError as error:
                    reader.problem(f"{place}, {key}", error)
        names = (about.get("conversation_id"), about.get("id"), about.get("title"))
        name = next((name for name in names if isinstance(name, str) and name), None)
        if name is None:
            reader.problem(place, "it has neither conversation_id nor id nor title")
            return
        yield ImportedConversation(name, _items(reader, name, about, nodes, spool, place))


def _node(value: object, spool: Spool) -> _Node:
    if not isinstance(value, dict):
        raise ValueError("the node is not an object")
    parent, children = value.get("parent"), value.get("children")
    message = value.get("message")
    if message is not None and not isinstance(message, dict):
        raise ValueError("message: not an object")
    recipient = message.get("recipient") if message else None
    is_call = isinstance(recipient, str) and recipient not in (
        "",
        "all",
        "assistant",
        "user",
    )
    if message and not isinstance(_author(message).get("role"), str):
        raise ValueError("message.author.role: not text")
    return _Node(
        parent=parent if isinstance(parent, str) else None,
        children=[child for child in children or [] if isinstance(child, str)]
        if isinstance(children, list | None)
        else [],
        slot=spool.put(dumps(message)) if message else None,
        created_at=ms_from_seconds(message.get("create_time")) if message else None,
        calls=recipient if is_call and message and _author(message)["role"] != "tool" else None,
    )


def _items(
    reader: Reader,
    name: str,
    about: dict[str, Any],
    nodes: Mapping[str, _Node],
    spool: Spool,
    place: str,
) -> Iterator[Item]:
    yield ConfigItem("", CONFIG_KEY, dumps(about).decode(), place)
    order = _write_order(nodes, about.get("current_node"))
    for node_id in nodes.keys() - set(order):
        reader.problem(f"{place}, {node_id}", "its parents form a ring", name)
    default_ms = ms_from_seconds(about.get("create_time"))
    default_ms = reader.created_at if default_ms is None else default_ms
    parents: dict[str, str | None] = {}
    times: dict[str, int] = {}
    for node_id in order:
        node = nodes[node_id]
        above = node.parent if node.parent in nodes else None
        # A node without a message hands its own parent on.
        parent_id = above if above is None or nodes[above].slot else parents[above]
        parents[node_id] = parent_id
        times[node_id] = times.get(above or "", default_ms)
        if node.created_at is not None:
            times[node_id] = node.created_at
        if node.slot is not None:
            stored = loads(spool.get(node.slot))
            message = _message(node_id, stored, node, parent_id, nodes)
            where = f"{place}, {node_id}"
            yield MessageItem("", message, parent_id, times[node_id], where)


def _write_order(nodes: Mapping[str, _Node], current: object) -> list[str]:
    """Parents before children, children in their order, `current` last when it is a leaf."""
    children: dict[str | None, list[str]] = {}
    for node_id, node in nodes.items():
        above = node.parent if node.parent in nodes else None
        children.setdefault(above, []).append(node_id)
    for parent_id, held in children.items():
        if parent_id is not None:
            rank = {child: at for at, child in enumerate(nodes[parent_id].children)}
            held.sort(key=lambda child: rank.get(child, len(rank)))
    order: list[str] = []
    stack = list(reversed(children.get(None, [])))
    while stack:
        node_id = stack.pop()
        order.append(node_id)
        stack.extend(reversed(children.get(node_id, [])))
    if isinstance(current, str) and current in nodes and current not in children:
        order.remove(current)
        order.append(current)
    return order


def _author(message: Mapping[str, Any]) -> dict[str, Any]:
    author = message.get("author")
    return author if isinstance(author, dict) else {}


def _message(
    node_id: str,
    stored: dict[str, Any],
    node: _Node,
    parent_id: str | None,
    nodes: Mapping[str, _Node],
) -> Message:
    author = _author(stored)
    content = stored.get("content")
    content = content if isinstance(content, dict) else {"content_type": "none", "content": content}
    if author["role"] == "tool":
        caller = nodes[parent_id].calls if parent_id is not None else None
        call_id = parent_id if caller else node_id
        name = author.get("name") or caller or "unknown"
        parts = [_tool_part(name, call_id, state="output-available", output=_output(content))]
    elif node.calls is not None:
        parts = [_tool_part(node.calls, node_id, state="input-available", input=_output(content))]
    else:
        parts = _parts(content)
    about = without(stored, "content")
    return {
        "id": node_id,
        "role": author["role"],
        "parts": parts,
        "metadata": {"chatgpt": {**about, "content": _rest(content)}},
    }


def _tool_part(name: object, call_id: str | None, **fields: Any) -> dict[str, Any]:
    return {"type": f"tool-{name}", "toolCallId": call_id, **fields}


def _output(content: dict[str, Any]) -> Any:
    """What went to a tool or came from it: its text when it is nothing but text."""
    parts = content.get("parts")
    if isinstance(parts, list) and all(isinstance(part, str) for part in parts):
        return "\n".join(parts)
    for key in ("text", "result"):
        if isinstance(content.get(key), str):
            return content[key]
    return without(content, "content_type")


def _text_parts(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [_part(part) for part in content.get("parts") or []]


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("content_type") if isinstance(part, dict) else None
    if kind == "audio_transcription" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"], "chatgpt": without(part, "text")}
    return {"type": f"data-{kind or 'part'}", "data": part}


def _thought_parts(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "type": "reasoning",
            "text": thought["content"],
            "chatgpt": without(thought, "content"),
        }
        if isinstance(thought, dict) and isinstance(thought.get("content"), str)
        else {"type": "data-thought", "data": thought}
        for thought in content.get("thoughts") or []
    ]


def _code_parts(content: dict[str, Any]) -> list[dict[str, Any]]:
    language = content.get("language")
    part: dict[str, Any] = {"type": "text", "text": content.get("text")}
    return [part if language in (None, "unknown") else {**part, "language": language}]


def _named(key: str, kind: str) -> Callable[[dict[str, Any]], list[dict[str, Any]]]:
    def parts(content: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"type": kind, "text": content.get(key)}]

    return parts


# What each content type's words are, and the fields that the parts take from it.
_BY_TYPE: dict[str, tuple[Callable[[dict[str, Any]], list[dict[str, Any]]], tuple[str, ...]]] = {
    "text": (_text_parts, ("parts",)),
    "multimodal_text": (_text_parts, ("parts",)),
    "code": (_code_parts, ("text", "language")),
    "execution_output": (_named("text", "text"), ("text",)),
    "tether_quote": (_named("text", "text"), ("text",)),
    "system_error": (_named("text", "text"), ("text",)),
    "reasoning_recap": (_named("content", "reasoning"), ("content",)),
    "thoughts": (_thought_parts, ("thoughts",)),
}


def _parts(content: dict[str, Any]) -> list[dict[str, Any]]:
    kind = content.get("content_type")
    known = _BY_TYPE.get(kind) if isinstance(kind, str) else None
    if known is not None:
        parts = known[0](content)
        if all(part["type"].startswith("data-") or _is_text(part) for part in parts):
            return parts
    return [{"type": f"data-{kind}", "data": without(content, "content_type")}]


def _is_text(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("text"), str)


def _rest(content: dict[str, Any]) -> dict[str, Any]:
    """What of the content is not in the parts."""
    known = _BY_TYPE.get(str(content.get("content_type")))
    return without(content, *known[1]) if known else {"content_type": content.get("content_type")}
