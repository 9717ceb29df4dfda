"""OpenAssistant trees: one JSON object per line, replies nested in replies.

`message_id` becomes the id, `prompter` becomes `user`, the text becomes a text part, `replies`
become branches, and every other field stays under `metadata`. What a tree says of itself goes
into the session's configuration under `oasst`. The export puts all of it back, key for key.

One tree is held at a time: a line is checked as a whole before anything of it is imported.
"""

from collections.abc import Iterator
from typing import Any

from sessions_actor.codec import dumps, loads
from sessions_actor.records import HistoryRow, Message

from .base import (
    ConfigItem,
    ImportedConversation,
    Item,
    MessageItem,
    Reader,
    ms_from_iso,
    unparsed,
    without,
)

CONFIG_KEY = "oasst"
_STRUCTURE = ("message_id", "text", "role", "replies")


def read_oasst(reader: Reader) -> Iterator[ImportedConversation]:
    """Yield one conversation per tree, named by its `message_tree_id`.

    A line that is no tree is reported with its number and left out whole; a node that is none is
    reported, and its replies with it.
    """
    for line in reader.source.lines():
        place = f"line {line.number}"
        try:
            tree = loads(line.data)
        except ValueError as error:
            reader.problem(place, unparsed(error, ended=line.ended))
            continue
        name = tree.get("message_tree_id") if isinstance(tree, dict) else None
        if not isinstance(name, str) or not isinstance(tree.get("prompt"), dict):
            reader.problem(place, "not a tree: it needs message_tree_id and prompt")
            continue
        yield ImportedConversation(name, _items(reader, name, tree, place))


def _items(reader: Reader, name: str, tree: dict[str, Any], place: str) -> Iterator[Item]:
    about = without(tree, "message_tree_id", "prompt")
    if about:
        yield ConfigItem("", CONFIG_KEY, dumps(about).decode(), place)
    # Depth first, replies in their order: a stack, since a tree may be deeper than Python recurses.
    stack: list[tuple[Any, str | None, int]] = [(tree["prompt"], None, reader.created_at)]
    while stack:
        node, parent_id, default_ms = stack.pop()
        try:
            message = _message(node)
        except ValueError as error:
            reader.problem(place, error, name)
            continue
        created_at = ms_from_iso(node.get("created_date"))
        created_at = default_ms if created_at is None else created_at
        yield MessageItem("", message, parent_id, created_at, f"{place}, {message['id']}")
        replies = node.get("replies") or []
        stack.extend((reply, message["id"], created_at) for reply in reversed(replies))


def _message(node: object) -> Message:
    if not isinstance(node, dict):
        raise ValueError("a reply is not an object")
    for field in ("message_id", "text", "role"):
        if not isinstance(node.get(field), str):
            raise ValueError(f"a message without {field}")
    if not isinstance(node.get("replies", []), list | None):
        raise ValueError(f"{node['message_id']}: replies is not a list")
    role = "user" if node["role"] == "prompter" else node["role"]
    return {
        "id": node["message_id"],
        "role": role,
        "parts": [{"type": "text", "text": node["text"]}],
        "metadata": without(node, *_STRUCTURE),
    }


def tree_fields(name: str, config: dict[str, str]) -> dict[str, Any]:
    """Return what stands before `prompt` in a tree's line."""
    about: Any = {}
    if CONFIG_KEY in config:
        about = loads(config[CONFIG_KEY])
    return {"message_tree_id": name, **(about if isinstance(about, dict) else {})}


def node_fields(row: HistoryRow) -> dict[str, Any]:
    """Return a message as a node without its `replies`, fields in the data set's order."""
    message = row.message
    metadata = message.get("metadata")
    known = isinstance(metadata, dict)
    metadata = metadata if isinstance(metadata, dict) else {}
    node: dict[str, Any] = {"message_id": message["id"]}
    if row.parent_id is not None and ("parent_id" in metadata or not known):
        node["parent_id"] = row.parent_id
    node["text"] = "\n\n".join(
        part["text"]
        for part in message["parts"]
        if part["type"] == "text" and isinstance(part.get("text"), str)
    )
    node["role"] = "prompter" if message["role"] == "user" else message["role"]
    node.update(without(metadata, "parent_id", *_STRUCTURE))
    return node
