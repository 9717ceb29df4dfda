"""Files of plain message lists, as the AI SDK and the OpenAI API have them, in any wrapping.

- an array of messages, or one message per line: one conversation, named by the file
- `{"messages": [...]}`, alone, in an array or one per line: a conversation each, named by its `id`
  (or `chatId`, `conversation_id`, `name`), else by the file and its number

What stands beside `messages` goes into the configuration. A list has no branches and need not have
ids: a message without one is named by a digest of itself and of all before it, so that the same
list imported twice, or grown since, adds only what is new, and one changed in the middle becomes
a branch.
"""

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

from sessions_actor.codec import dumps, loads
from sessions_actor.records import Message

from .base import (
    ConfigItem,
    ImportedConversation,
    Item,
    MessageItem,
    Reader,
    ms_from_iso,
    ms_from_seconds,
    unparsed,
)
from .json_stream import JsonCursor, JsonTextError
from .source import Source
from .spool import Slot, Spool

_PEEK_BYTES = 1024 * 1024
_NAMES = ("id", "chatId", "conversation_id", "name")
_TIMES = ("createdAt", "created_at", "timestamp")


class Converter(Protocol):
    """Turns one list's messages, in order, into stored ones."""

    def convert(self, source: dict[str, Any], message_id: str) -> Message:
        """Return the stored form. Raises: ValueError for what is no message."""


@dataclass(slots=True)
class _Element:
    """A message, or a conversation with its messages set aside."""

    place: str
    fields: dict[str, Any]
    messages: list[Slot] | None = None
    errors: list[str] = field(default_factory=list)


def read_chats(
    reader: Reader, config_key: str, new_converter: Callable[[], Converter]
) -> Iterator[ImportedConversation]:
    """Yield the conversations of a file of message lists.

    A message that cannot be used is reported with its place and left out.
    """
    with closing(Spool()) as spool:
        elements = _elements(reader, spool)
        first = next(elements, None)
        while first is not None and first.errors and first.messages is None:
            reader.problem(first.place, first.errors[0])
            first = next(elements, None)
        if first is None:
            return
        if first.messages is None:
            chain = _Chain(reader, reader.source.stem, new_converter())
            yield ImportedConversation(reader.source.stem, _lone(chain, first, elements))
            return
        element: _Element | None = first
        number = 0
        while element is not None:
            number += 1
            if element.messages is None:
                reader.problem(element.place, "a message stands among conversations")
            else:
                name = _name(reader.source, element, number)
                chain = _Chain(reader, name, new_converter())
                yield ImportedConversation(name, _chat(chain, element, spool, config_key))
                spool.clear()
            element = next(elements, None)


class _Chain:
    """Converts messages one by one, each the child of the one before."""

    def __init__(self, reader: Reader, name: str, converter: Converter) -> None:
        self._reader, self._name, self._converter = reader, name, converter
        self._seen: set[str] = set()
        self._parent_id: str | None = None
        self._created_at = reader.created_at

    def item(self, source: object, place: str) -> Iterator[Item]:
        """Yield the message's item, or report why there is none."""
        try:
            if not isinstance(source, dict):
                raise ValueError("not an object")
            message_id = source.get("id")
            if not isinstance(message_id, str) or not message_id:
                message_id = self._digest(source)
            if message_id in self._seen:
                raise ValueError(f"the id {message_id!r} stands here for the second time")
            message = self._converter.convert(source, message_id)
        except ValueError as error:
            self.problem(place, error)
            return
        self._seen.add(message_id)
        time = next((source[key] for key in _TIMES if key in source), None)
        created_at = ms_from_iso(time)
        if created_at is None:
            # Milliseconds since 1970 passed a thousand millions early in 1970, seconds in 2001.
            seconds = ms_from_seconds(time)
            created_at = time if isinstance(time, int) and time > 10**11 else seconds
        self._created_at = self._created_at if created_at is None else created_at
        yield MessageItem("", message, self._parent_id, self._created_at, place)
        self._parent_id = message_id

    def problem(self, place: str, reason: object) -> None:
        """Report one thing that is not imported."""
        self._reader.problem(place, reason, self._name)

    def _digest(self, source: dict[str, Any]) -> str:
        return "m-" + hashlib.sha256(dumps([self._parent_id, source])).hexdigest()[:32]


def _lone(chain: _Chain, first: _Element, rest: Iterator[_Element]) -> Iterator[Item]:
    """The items of a file that is one list of messages."""
    element: _Element | None = first
    while element is not None:
        if element.messages is not None:
            chain.problem(element.place, "a conversation stands among messages")
        elif element.errors:
            chain.problem(element.place, element.errors[0])
        else:
            yield from chain.item(element.fields, element.place)
        element = next(rest, None)


def _chat(chain: _Chain, element: _Element, spool: Spool, config_key: str) -> Iterator[Item]:
    for reason in element.errors:
        chain.problem(element.place, reason)
    if element.fields:
        value = dumps(element.fields).decode()
        yield ConfigItem("", config_key, value, element.place)
    for number, slot in enumerate(element.messages or (), 1):
        place = f"{element.place}, message {number}"
        try:
            source = loads(spool.get(slot))
        except ValueError as error:
            chain.problem(place, f"not JSON: {error}")
            continue
        yield from chain.item(source, place)


def _name(source: Source, element: _Element, number: int) -> str:
    for key in _NAMES:
        name = element.fields.get(key)
        if isinstance(name, str) and name:
            return name
    return source.stem if element.place == "the conversation" else f"{source.stem}-{number}"


def _elements(reader: Reader, spool: Spool) -> Iterator[_Element]:
    """Yield what a file holds, one message or conversation after the other."""
    if _is_lines(reader.source):
        for line in reader.source.lines():
            place = f"line {line.number}"
            cursor = JsonCursor(io.BytesIO(line.data).read)
            try:
                element = _element(cursor, place, spool)
                if cursor.peek():
                    raise JsonTextError("there is more on the line", cursor.offset)
            except JsonTextError as error:
                reader.problem(place, unparsed(error, ended=line.ended))
            else:
                yield element
        return
    cursor = JsonCursor(reader.source.read)
    try:
        if cursor.peek() == "[":
            for number in cursor.items():
                yield _element(cursor, f"item {number}", spool)
        else:
            yield _element(cursor, "the conversation", spool)
        if cursor.peek():
            reader.problem(f"byte {cursor.offset:,}", "there is more after the messages")
    except JsonTextError as error:
        reader.problem(f"byte {error.offset:,}", f"{error.reason}; nothing after it can be read")


def _element(cursor: JsonCursor, place: str, spool: Spool) -> _Element:
    element = _Element(place, {})
    if cursor.peek() != "{":
        cursor.take()
        element.errors.append("not an object")
        return element
    for key in cursor.members():
        if key == "messages" and cursor.peek() == "[":
            element.messages = [spool.put(cursor.take()) for _ in cursor.items()]
            continue
        try:
            element.fields[key] = cursor.value()
        except JsonTextError:
            raise
        except ValueError as error:
            element.errors.append(f"{key}: not JSON: {error}")
    return element


def _is_lines(source: Source) -> bool:
    """Tell JSON Lines from one JSON text, by the file's name, else by its first line."""
    if source.is_lines:
        return True
    head, feed, _ = source.peek(_PEEK_BYTES).lstrip().partition(b"\n")
    if not feed or not head.startswith(b"{"):
        return False
    try:
        loads(head)
    except ValueError:
        return False
    return True
