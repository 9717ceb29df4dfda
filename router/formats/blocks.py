"""Content blocks of the Messages API (text, thinking, tool use, images) as message parts."""

from collections.abc import Mapping
from typing import Any

from sessions_actor.codec import dumps

from .base import without

_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")


def parts_of(content: object, tools: dict[str, str]) -> list[dict[str, Any]]:
    """Return the parts for a message's content, text or a list of blocks.

    Args: `tools` maps the id of each call to its tool's name; calls found here are added, so that
    results found later know theirs.
    Raises: ValueError for content that is neither.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise ValueError("message.content: neither text nor a list")
    return [_part(block, tools) for block in content]


def _part(block: object, tools: dict[str, str]) -> dict[str, Any]:
    if isinstance(block, str):
        return {"type": "text", "text": block}
    if not isinstance(block, dict):
        raise ValueError("message.content: a block is neither text nor an object")
    kind = block.get("type")
    if not isinstance(kind, str):
        raise ValueError("message.content: a block without type")
    if kind == "thinking" and isinstance(block.get("thinking"), str):
        about = without(block, "type", "thinking")
        return {"type": "reasoning", "text": block["thinking"], **_anthropic(about)}
    if kind == "redacted_thinking":
        return {"type": "reasoning", "text": "", **_anthropic(without(block, "type"))}
    if kind in _CALLS and isinstance(block.get("id"), str):
        return _call(block, tools)
    if kind.endswith("tool_result") and isinstance(block.get("tool_use_id"), str):
        return _result(block, tools)
    if kind in ("image", "document"):
        return _file(block)
    return block


def _anthropic(about: dict[str, Any]) -> dict[str, Any]:
    return {"providerMetadata": {"anthropic": about}} if about else {}


def _call(block: dict[str, Any], tools: dict[str, str]) -> dict[str, Any]:
    name = str(block.get("name") or "unknown")
    tools[block["id"]] = name
    about = without(block, "type", "id", "name", "input")
    if block["type"] != "tool_use":
        about["type"] = block["type"]
    return {
        "type": f"tool-{name}",
        "toolCallId": block["id"],
        "state": "input-available",
        "input": block.get("input"),
        **({"callProviderMetadata": {"anthropic": about}} if about else {}),
    }


def _result(block: dict[str, Any], tools: Mapping[str, str]) -> dict[str, Any]:
    output = block.get("content")
    if isinstance(output, list):
        output = [_result_block(item) for item in output]
    part: dict[str, Any] = {
        "type": f"tool-{tools.get(block['tool_use_id'], 'unknown')}",
        "toolCallId": block["tool_use_id"],
    }
    if block.get("is_error") is True:
        text = output if isinstance(output, str) else dumps(output).decode()
        part.update(state="output-error", errorText=text)
    else:
        part.update(state="output-available", output=output)
    about = without(block, "type", "tool_use_id", "content", "is_error")
    if about:
        part["callProviderMetadata"] = {"anthropic": about}
    return part


def _result_block(item: object) -> object:
    """An image in a result, in the form that keeps its payload out of the row."""
    source = item.get("source") if isinstance(item, dict) else None
    if (
        isinstance(item, dict)
        and item.get("type") == "image"
        and isinstance(source, dict)
        and source.get("type") == "base64"
        and isinstance(source.get("media_type"), str)
    ):
        return {"type": "media", "mediaType": source["media_type"], "data": source.get("data")}
    return item


def _file(block: dict[str, Any]) -> dict[str, Any]:
    source = block.get("source")
    if not isinstance(source, dict):
        return block
    kind, media_type = source.get("type"), source.get("media_type")
    if kind == "url" and isinstance(source.get("url"), str):
        # The kind of image is not said: only its server knows.
        part = {"type": "file", "mediaType": media_type or "image/*", "url": source["url"]}
    elif kind == "base64" and isinstance(source.get("data"), str) and isinstance(media_type, str):
        url = f"data:{media_type};base64,{source['data']}"
        part = {"type": "file", "mediaType": media_type, "url": url}
    else:
        return block
    if isinstance(block.get("title"), str):
        part["filename"] = block["title"]
    return {**part, **_anthropic(without(block, "type", "source", "title"))}
