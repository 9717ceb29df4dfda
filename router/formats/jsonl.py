"""Our own export: everything of a conversation that messages, branches and overlays are made of.

JSON Lines. A conversation is a header line, its configuration, its messages in the order they were
written, its overlays in record order, session by session, and an end line that says how many there
were (so that a file cut off between two lines is noticed):

    {"type":"conversation","format":"sessions-actor","version":1,"name":"alice"}
    {"type":"config","session":"","key":"title","value":"Tea"}
    {"type":"message","session":"","parent_id":null,"created_at":1700000000000,"message":{...}}
    {"type":"compaction","session":"","id":"...","summary":"...","from_message_id":"m1",
     "to_message_id":"m9","created_at":"2026-01-01T00:00:00.000Z"}
    {"type":"end","messages":1,"compactions":1}

A file may hold many conversations. Sequence numbers are not written, their order is; so export,
import and export again gives the same bytes. Key-value entries and tables of the host's own class
are not part of it: a migration moves those.
"""

from collections.abc import Iterator
from typing import Any

from sessions_actor.codec import dumps, loads
from sessions_actor.records import Compaction, HistoryRow

from .base import (
    ConfigItem,
    ImportedConversation,
    Item,
    MessageItem,
    OverlayItem,
    Reader,
    unparsed,
)
from .source import Line

FORMAT = "sessions-actor"
VERSION = 1


def read_jsonl(reader: Reader) -> Iterator[ImportedConversation]:
    """Yield the conversations of an export, each line checked on its own.

    A line that cannot be used is reported and left out; a file that ends early is reported, and
    what came before is yielded all the same.
    """
    records = _Records(reader)
    while (header := records.next_header()) is not None:
        conversation = _Conversation(records, header)
        yield ImportedConversation(conversation.name, conversation.items())
        conversation.finish()


class _Record:
    """A line that holds an object with a known type."""

    __slots__ = ("kind", "number", "value")

    def __init__(self, number: int, kind: str, value: dict[str, Any]) -> None:
        self.number, self.kind, self.value = number, kind, value

    @property
    def place(self) -> str:
        return f"line {self.number}"


class _Records:
    """The usable lines of a file, with one line of look-ahead."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._lines = reader.source.lines()
        self._held: _Record | None = None
        self._ended = False

    def peek(self) -> _Record | None:
        """Return the next usable line without taking it, None at the end of the file."""
        while self._held is None and not self._ended:
            line = next(self._lines, None)
            if line is None:
                self._ended = True
            else:
                self._held = self._parse(line)
        return self._held

    def take(self) -> _Record | None:
        """Take the next usable line, None at the end of the file."""
        record = self.peek()
        self._held = None
        return record

    def next_header(self) -> _Record | None:
        """Take lines up to and including the next header that can be read."""
        while (record := self.take()) is not None:
            if record.kind != "conversation":
                self.reader.problem(
                    record.place, "belongs to no conversation: its header is missing"
                )
                continue
            name, version = record.value.get("name"), record.value.get("version")
            if record.value.get("format") != FORMAT or version != VERSION:
                self.reader.problem(record.place, f"not a {FORMAT} export of version {VERSION}")
            elif not isinstance(name, str):
                self.reader.problem(record.place, "name: not text")
            else:
                return record
        return None

    def _parse(self, line: Line) -> _Record | None:
        place = f"line {line.number}"
        try:
            value = loads(line.data)
        except ValueError as error:
            self.reader.problem(place, unparsed(error, ended=line.ended))
            return None
        kind = value.get("type") if isinstance(value, dict) else None
        if kind not in _KINDS:
            self.reader.problem(place, "not a line of this format: no known type")
            return None
        return _Record(line.number, kind, value)


class _Conversation:
    """One conversation's lines, from its header to its end line."""

    def __init__(self, records: _Records, header: _Record) -> None:
        self._records = records
        self._reader = records.reader
        self._place = header.place
        self.name: str = header.value["name"]
        self._problems_before = self._reader.problems
        self._counts = {"messages": 0, "compactions": 0}
        self._done = False

    def items(self) -> Iterator[Item]:
        """Yield what the lines hold, up to the end line or the next header."""
        while not self._done:
            record = self._records.peek()
            if record is None or record.kind == "conversation":
                self._done = True
                self._reader.problem(
                    self._place,
                    f"the conversation's end line is missing, so the file may be cut off;"
                    f" {self._counts['messages']} messages of it were read",
                    self.name,
                )
                return
            self._records.take()
            if record.kind == "end":
                self._done = True
                self._check_counts(record)
                return
            try:
                item = _ITEMS[record.kind](record)
            except ValueError as error:
                self._reader.problem(record.place, error, self.name)
                continue
            if record.kind == "message":
                self._counts["messages"] += 1
            elif record.kind == "compaction":
                self._counts["compactions"] += 1
            yield item

    def finish(self) -> None:
        """Pass over what the caller did not take."""
        for _ in self.items():
            pass

    def _check_counts(self, record: _Record) -> None:
        if self._reader.problems != self._problems_before:
            return  # lines were left out, and reported
        for key, count in self._counts.items():
            if record.value.get(key) != count:
                self._reader.problem(
                    record.place,
                    f"{key}: the end line says {record.value.get(key)}, found {count}",
                    self.name,
                )


def _text(record: _Record, field: str) -> str:
    value = record.value.get(field)
    if not isinstance(value, str):
        raise ValueError(f"{field}: not text")
    return value


def _message(record: _Record) -> Item:
    value = record.value
    parent_id, created_at = value.get("parent_id"), value.get("created_at")
    if parent_id is not None and not isinstance(parent_id, str):
        raise ValueError("parent_id: neither text nor null")
    if isinstance(created_at, bool) or not isinstance(created_at, int | float):
        raise ValueError("created_at: not a number of milliseconds")
    message = value.get("message")
    if not isinstance(message, dict):
        raise ValueError("message: not an object")
    return MessageItem(_text(record, "session"), message, parent_id, created_at, record.place)


def _compaction(record: _Record) -> Item:
    overlay = Compaction(
        id=_text(record, "id"),
        summary=_text(record, "summary"),
        from_message_id=_text(record, "from_message_id"),
        to_message_id=_text(record, "to_message_id"),
        created_at=_text(record, "created_at"),
    )
    return OverlayItem(_text(record, "session"), overlay, record.place)


def _config(record: _Record) -> Item:
    session, key, value = (_text(record, field) for field in ("session", "key", "value"))
    return ConfigItem(session, key, value, record.place)


_ITEMS = {"message": _message, "compaction": _compaction, "config": _config}
_KINDS = {"conversation", "end", *_ITEMS}


def header_line(name: str) -> bytes:
    """Return the line that begins a conversation."""
    return _line({"type": "conversation", "format": FORMAT, "version": VERSION, "name": name})


def config_line(session: str, key: str, value: str) -> bytes:
    """Return the line of one configuration entry."""
    return _line({"type": "config", "session": session, "key": key, "value": value})


def message_line(session: str, row: HistoryRow) -> bytes:
    """Return the line of one stored message."""
    return _line(
        {
            "type": "message",
            "session": session,
            "parent_id": row.parent_id,
            "created_at": row.created_at,
            "message": row.message,
        }
    )


def compaction_line(session: str, overlay: Compaction) -> bytes:
    """Return the line of one overlay."""
    return _line(
        {
            "type": "compaction",
            "session": session,
            "id": overlay.id,
            "summary": overlay.summary,
            "from_message_id": overlay.from_message_id,
            "to_message_id": overlay.to_message_id,
            "created_at": overlay.created_at,
        }
    )


def end_line(messages: int, compactions: int) -> bytes:
    """Return the line that ends a conversation."""
    return _line({"type": "end", "messages": messages, "compactions": compactions})


def _line(value: dict[str, Any]) -> bytes:
    return dumps(value) + b"\n"
