"""OpenAI chat messages, tool calls included: as requests, logs and fine-tuning files hold them.

A call becomes a tool part of the assistant's message, its result a tool part with the same
`toolCallId` in the message where it stands. Content and calls turn into parts; every other field
stays under `metadata.openai`, and the export puts all of it back.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sessions_actor.codec import dumps, loads
from sessions_actor.records import Message

from .base import ImportedConversation, Reader, without
from .chats import read_chats

CONFIG_KEY = "openai"
_AUDIO = {"audio/wav": "wav", "audio/mpeg": "mp3"}


def read_openai(reader: Reader) -> Iterator[ImportedConversation]:
    """Yield the conversations of a file of chat messages; see `chats` for the forms it may have."""
    yield from read_chats(reader, CONFIG_KEY, _OpenAi)


class _OpenAi:
    """Remembers which tool each call was for: a result names only its call."""

    def __init__(self) -> None:
        self._tools: dict[str, str] = {}

    def convert(self, source: dict[str, Any], message_id: str) -> Message:
        """Return the stored form of one chat message."""
        role = source.get("role")
        if not isinstance(role, str) or not role:
            raise ValueError("role: not text")
        used = ["id", "role", "content"]
        if role in ("tool", "function"):
            parts = [self._result(source, message_id)]
            used += ["tool_call_id", "name"] if role == "function" else ["tool_call_id"]
        else:
            parts = _content_parts(source.get("content"))
            parts += self._calls(source, message_id, used)
        message: Message = {"id": message_id, "role": role, "parts": parts}
        about = without(source, *used)
        if about:
            message["metadata"] = {"openai": about}
        return message

    def _result(self, source: dict[str, Any], message_id: str) -> dict[str, Any]:
        call_id, name = source.get("tool_call_id"), source.get("name")
        if not isinstance(call_id, str):
            call_id = f"call-{message_id}"
        known = self._tools.get(call_id)
        if known is None and isinstance(name, str):
            known, call_id = name, self._tools.get(f"function {name}", call_id)
        return {
            "type": f"tool-{known or 'unknown'}",
            "toolCallId": call_id,
            "state": "output-available",
            "output": source.get("content"),
        }

    def _calls(
        self, source: dict[str, Any], message_id: str, used: list[str]
    ) -> list[dict[str, Any]]:
        parts = []
        calls = source.get("tool_calls")
        if isinstance(calls, list) and calls:
            used.append("tool_calls")
            for number, call in enumerate(calls):
                if not isinstance(call, dict):
                    raise ValueError(f"tool_calls[{number}]: not an object")
                call_id = call.get("id")
                call_id = call_id if isinstance(call_id, str) else f"call-{message_id}-{number}"
                parts.append(self._call(call, call_id))
        legacy = source.get("function_call")
        if isinstance(legacy, dict):
            used.append("function_call")
            call_id = f"call-{message_id}"
            part = self._call({"type": "function", "function": legacy}, call_id)
            part["callProviderMetadata"] = {"openai": {"legacy": True}}
            self._tools[f"function {legacy.get('name')}"] = call_id
            parts.append(part)
        return parts

    def _call(self, call: dict[str, Any], call_id: str) -> dict[str, Any]:
        kind = call.get("type", "function")
        body = call.get(kind) if isinstance(kind, str) else None
        if not isinstance(body, dict):
            raise ValueError(f"tool call {call_id}: {kind!r} is not an object")
        key = "arguments" if kind == "function" else "input"
        name, written = str(body.get("name") or "unknown"), body.get(key)
        self._tools[call_id] = name
        value = written
        if key == "arguments" and isinstance(written, str):
            try:
                value = loads(written)
            except ValueError:
                value = written
        about: dict[str, Any] = {} if kind == "function" else {"type": kind}
        if value is not written and dumps(value) != str(written).encode("utf-8", "surrogatepass"):
            about["arguments"] = written
        if isinstance(value, str) and value is not written:
            value = written  # arguments that are JSON text of a string: kept as they were written
        part = {
            "type": f"tool-{name}",
            "toolCallId": call_id,
            "state": "input-available",
            "input": value,
        }
        return {**part, "callProviderMetadata": {"openai": about}} if about else part


def _content_parts(content: object) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise ValueError("content: neither text, a list nor null")
    return [_content_part(part, number) for number, part in enumerate(content)]


def _content_part(part: object, number: int) -> dict[str, Any]:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise ValueError(f"content[{number}]: not an object with a type")
    kind = part["type"]
    body = part.get(kind)
    if kind == "image_url" and isinstance(body, dict) and isinstance(body.get("url"), str):
        url, rest = body["url"], without(body, "url")
        file = {"type": "file", "mediaType": _type_of(url, "image/*"), "url": url}
        return {**file, **({"providerMetadata": {"openai": rest}} if rest else {})}
    if kind == "input_audio" and isinstance(body, dict) and isinstance(body.get("data"), str):
        media_type = {v: k for k, v in _AUDIO.items()}.get(body.get("format", ""))
        if media_type:
            url = f"data:{media_type};base64,{body['data']}"
            return {"type": "file", "mediaType": media_type, "url": url}
    if kind == "file" and isinstance(body, dict) and isinstance(body.get("file_data"), str):
        url = body["file_data"]
        file = {"type": "file", "mediaType": _type_of(url, "application/pdf"), "url": url}
        if isinstance(body.get("filename"), str):
            file["filename"] = body["filename"]
        return file
    return part


def _type_of(url: str, default: str) -> str:
    if not url.startswith("data:"):
        return default
    return url[5 : url.index(",")].split(";")[0] if "," in url else default


def chat_messages(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a stored message as chat messages: calls, then their results, step by step.

    Reasoning and parts of other makers have no place in a chat message and are left out.
    """
    metadata = message.get("metadata")
    about = metadata.get("openai") if isinstance(metadata, Mapping) else None
    about = dict(about) if isinstance(about, Mapping) else {}
    steps: list[list[dict[str, Any]]] = [[]]
    for part in message["parts"]:
        if part["type"] == "step-start":
            steps.append([])
        else:
            steps[-1].append(part)
    written = [one for step in steps for one in _step_messages(step, message["role"], about)]
    return written or [{"role": message["role"], "content": None, **about}]


def _step_messages(
    parts: list[dict[str, Any]], role: str, about: dict[str, Any]
) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    legacy: dict[str, Any] = {}
    for part in parts:
        if is_tool(part):
            if "input" in part:
                call = _tool_call(part)
                if _openai(part).get("legacy"):
                    legacy = {"function_call": call["function"]}
                else:
                    calls.append(call)
            if is_answered(part):
                results.append(_tool_result(part, role))
        elif (written := _written_part(part)) is not None:
            content.append(written)
    if not content and not calls and not legacy:
        return [{**result, **about} for result in results]
    head: dict[str, Any] = {"role": role, "content": _written_content(content)}
    if calls:
        head["tool_calls"] = calls
    head = {**head, **legacy, **about}
    # A person's message answers calls made before it; an assistant's are answered after it.
    return [*results, head] if role == "user" else [head, *results]


def is_answered(part: Mapping[str, Any]) -> bool:
    """Tell whether a tool part holds a result."""
    return part.get("state") in ("output-available", "output-error")


def is_tool(part: Mapping[str, Any]) -> bool:
    """Tell whether a part is a tool call or its result."""
    kind = part.get("type")
    return (
        isinstance(kind, str)
        and (kind.startswith("tool-") or kind == "dynamic-tool")
        and isinstance(part.get("toolCallId"), str)
    )


def tool_name(part: Mapping[str, Any]) -> str:
    """Return the name of a tool part's tool."""
    if part["type"] == "dynamic-tool":
        return str(part.get("toolName", "unknown"))
    return str(part["type"]).removeprefix("tool-")


def _openai(part: Mapping[str, Any]) -> Mapping[str, Any]:
    held = part.get("callProviderMetadata")
    about = held.get("openai") if isinstance(held, Mapping) else None
    return about if isinstance(about, Mapping) else {}


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    # Chat messages are text to the reader: surrogates stay escaped inside it.
    return dumps(value).decode()


def _tool_call(part: Mapping[str, Any]) -> dict[str, Any]:
    about = _openai(part)
    kind = about.get("type", "function")
    if kind != "function":
        body = {"name": tool_name(part), "input": part["input"]}
        return {"id": part["toolCallId"], "type": kind, kind: body}
    written = about.get("arguments", part["input"])
    body = {"name": tool_name(part), "arguments": _as_text(written)}
    return {"id": part["toolCallId"], "type": "function", "function": body}


def _tool_result(part: Mapping[str, Any], role: str) -> dict[str, Any]:
    output = part.get("errorText") if part["state"] == "output-error" else part.get("output")
    if not _is_content(output):
        output = _as_text(output)
    if role == "function":
        return {"role": "function", "name": tool_name(part), "content": output}
    return {"role": "tool", "tool_call_id": part["toolCallId"], "content": output}


def _is_content(value: object) -> bool:
    """Tell whether a value can be a tool message's content: text or text parts."""
    return isinstance(value, str) or (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(item, Mapping)
            and item.get("type") == "text"
            and isinstance(item.get("text"), str)
            for item in value
        )
    )


def _written_content(content: list[dict[str, Any]]) -> Any:
    if not content:
        return None
    if len(content) == 1 and content[0].keys() == {"type", "text"} and content[0]["type"] == "text":
        return content[0]["text"]
    return content


def _written_part(part: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = part["type"]
    if kind == "text":
        return {"type": "text", "text": part.get("text", "")}
    if kind in ("refusal", "image_url", "input_audio"):
        return dict(part)
    if kind == "file" and isinstance(part.get("url"), str):
        return _written_file(part, part["url"])
    return None


def _written_file(part: Mapping[str, Any], url: str) -> dict[str, Any]:
    media_type = part.get("mediaType")
    media_type = media_type if isinstance(media_type, str) else ""
    audio = _AUDIO.get(media_type)
    if audio and url.startswith(f"data:{media_type};base64,"):
        data = url.partition(",")[2]
        return {"type": "input_audio", "input_audio": {"data": data, "format": audio}}
    if media_type.startswith("image/"):
        held = part.get("providerMetadata")
        rest = held.get("openai") if isinstance(held, Mapping) else None
        rest = dict(rest) if isinstance(rest, Mapping) else {}
        return {"type": "image_url", "image_url": {"url": url, **rest}}
    body = {"file_data": url}
    if isinstance(part.get("filename"), str):
        body = {"filename": part["filename"], **body}
    return {"type": "file", "file": body}
