"""AI SDK messages: lists of `UIMessage`, which is what a session stores, so they are kept as they
are.

Messages of version 4, with `content` and `toolInvocations` instead of `parts`, are given parts; the
old fields stay beside them.
"""

from collections.abc import Iterator
from typing import Any

from sessions_actor.records import Message

from .base import ImportedConversation, Reader
from .chats import read_chats

CONFIG_KEY = "ai-sdk"


def read_ai_sdk(reader: Reader) -> Iterator[ImportedConversation]:
    """Yield the conversations of a file of UI messages; see `chats` for the forms it may have."""
    yield from read_chats(reader, CONFIG_KEY, _AiSdk)


class _AiSdk:
    def convert(self, source: dict[str, Any], message_id: str) -> Message:
        """Return the message itself, with an id and parts if it had none."""
        message: Message = (
            source if source.get("id") == message_id else {"id": message_id, **source}
        )
        message["id"] = message_id
        if "parts" not in message:
            message["parts"] = _old_parts(message)
        return message


def _old_parts(message: Message) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, list):
        return content
    parts: list[dict[str, Any]] = []
    if isinstance(message.get("reasoning"), str):
        parts.append({"type": "reasoning", "text": message["reasoning"]})
    for call in message.get("toolInvocations") or []:
        if isinstance(call, dict) and isinstance(call.get("toolCallId"), str):
            parts.append(_old_call(call))
    if isinstance(content, str) and (content or not parts):
        parts.append({"type": "text", "text": content})
    for file in message.get("experimental_attachments") or []:
        if isinstance(file, dict) and isinstance(file.get("url"), str):
            parts.append(_old_file(file))
    if not parts:
        raise ValueError("neither parts nor content")
    return parts


def _old_call(call: dict[str, Any]) -> dict[str, Any]:
    part = {
        "type": f"tool-{call.get('toolName', 'unknown')}",
        "toolCallId": call["toolCallId"],
        "state": "output-available" if "result" in call else "input-available",
        "input": call.get("args"),
    }
    if "result" in call:
        part["output"] = call["result"]
    return part


def _old_file(file: dict[str, Any]) -> dict[str, Any]:
    media_type = file.get("contentType")
    part = {
        "type": "file",
        "mediaType": media_type if isinstance(media_type, str) else "application/octet-stream",
        "url": file["url"],
    }
    if isinstance(file.get("name"), str):
        part["filename"] = file["name"]
    return part
