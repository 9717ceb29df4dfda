"""LangChain's messages as rows of a session, and back, equal to what they were.

A message is kept as LangChain's own `{"type", "data"}` object inside a `template`, its texts, tool
calls and images in the parts. What does not come back equal from that (a class of one's own, a
value that JSON cannot hold) is kept as bytes of LangGraph's serializer, with its text beside it.
"""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Protocol, cast

from sessions_actor.codec import dumps
from sessions_actor.messages import JS_SPACE, SessionMessage

from .requirement import require
from .template import NOTHING, Template, fill, media_type_of

require("langchain_core", package="langchain-core", extra="langgraph")

from langchain_core.messages import (  # noqa: E402
    BaseMessage,
    message_to_dict,
    messages_from_dict,
)

KEY = "langchain"

_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
_BLOCK_TEXTS = ("text", "reasoning", "thinking")


class Serializer(Protocol):
    """LangGraph's `SerializerProtocol`."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]: ...

    def loads_typed(self, data: tuple[str, bytes]) -> Any: ...


def message_fields(message: BaseMessage, serde: Serializer) -> dict[str, Any]:
    """Return a message as role, parts and the rest: a row that lacks its id."""
    role = _ROLES.get(message.type, "assistant")
    template = _template(message)
    if template is not None:
        return {"role": role, "parts": template.parts, KEY: template.stored("message")}
    kind, data = serde.dumps_typed(message)
    text = message.content if isinstance(message.content, str) else ""
    return {
        "role": role,
        "parts": [{"type": "text", "text": text}] if text else [],
        KEY: {"type": kind, "bytes": b64encode(data).decode()},
    }


def message_of(row: Mapping[str, Any], serde: Serializer) -> BaseMessage:
    """Return the message that a row holds; one that other code wrote becomes one of its role."""
    stored = row.get(KEY)
    if isinstance(stored, Mapping) and isinstance(stored.get("bytes"), str):
        return serde.loads_typed((stored["type"], b64decode(stored["bytes"])))
    found = fill(stored, "message", row["parts"])
    return messages_from_dict([_plain(row) if found is NOTHING else found])[0]


def mark_of(message: BaseMessage, serde: Serializer) -> bytes:
    """Return what tells a message from any other, without making its row. Cost: some 20 us."""
    kind = type(message)
    try:
        return dumps([kind.__module__, kind.__qualname__, message.model_dump()])
    except TypeError:
        return b"%b %b" % (kind.__qualname__.encode(), serde.dumps_typed(message)[1])


def row_id(parent_id: str | None, mark: bytes) -> str:
    """Name a row by what it holds and what it follows: equal lists are the same rows."""
    return hashlib.sha256((parent_id or "").encode() + b" " + mark).hexdigest()[:40]


def with_id(fields: Mapping[str, Any], message_id: str) -> SessionMessage:
    """Return a whole row."""
    row: Any = {"id": message_id, **fields}
    return cast(SessionMessage, row)


def _template(message: BaseMessage) -> Template | None:
    """Return a message's template; None when the message would not come back equal."""
    written = message_to_dict(message)
    try:
        template = Template(written)
        back = messages_from_dict([template.value])[0]
    except (TypeError, ValueError):
        return None
    if type(back) is not type(message) or back != message:
        return None
    _take_content(template)
    _take_calls(template)
    return template


def _take_content(template: Template) -> None:
    content = template.get("data", "content")
    if template.get("type") == "tool":
        call = {"toolCallId": template.get("data", "tool_call_id"), "state": "output-available"}
        template.take("output", "data", "content", type=_tool_type(template), **call)
        return
    if isinstance(content, str):
        if content:
            template.take("text", "data", "content", type="text")
        return
    for index, block in enumerate(content):
        place = ("data", "content", index)
        if isinstance(block, str):
            template.take("text", *place, type="text")
        elif isinstance(block, dict):
            for key in _BLOCK_TEXTS:
                text = block.get(key)
                if isinstance(text, str) and text.strip(JS_SPACE):
                    kind = "text" if key == "text" else "reasoning"
                    template.take("text", *place, key, type=kind)
            _take_media(template, block, place)


def _tool_type(template: Template) -> str:
    name = template.get("data", "name")
    return f"tool-{name}" if isinstance(name, str) and name else "tool-unknown"


def _take_media(template: Template, block: Mapping[str, Any], place: tuple[Any, ...]) -> None:
    """Take an image or a file: OpenAI's nested URL, or LangChain's base64 block."""
    nested = block.get("image_url")
    url = nested.get("url") if isinstance(nested, dict) else None
    media_type = media_type_of(url) if isinstance(url, str) else None
    if media_type is not None:
        template.take("url", *place, "image_url", "url", type="file", mediaType=media_type)
    media_type = block.get("mime_type")
    if isinstance(media_type, str):
        for key in ("base64", "data"):
            if isinstance(block.get(key), str):
                template.take("data", *place, key, type="file", mediaType=media_type)


def _take_calls(template: Template) -> None:
    calls = template.get("data", "tool_calls")
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        if isinstance(call.get("id"), str):
            about = {"toolCallId": call["id"], "state": "input-available"}
            place = ("data", "tool_calls", index, "args")
            template.take("input", *place, type=f"tool-{call['name']}", **about)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    texts = [part["text"] for part in row["parts"] if isinstance(part.get("text"), str)]
    kinds = {role: kind for kind, role in _ROLES.items() if kind != "tool"}
    kind = kinds.get(row["role"], "chat")
    data: dict[str, Any] = {"type": kind, "content": "\n".join(texts), "id": row["id"]}
    if kind == "chat":
        data["role"] = row["role"]
    return {"type": kind, "data": data}
