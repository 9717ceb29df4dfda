"""Claude Code transcripts: one JSONL file per session, entries linked by `uuid` and `parentUuid`.

One file is one conversation, named by its session id. One entry is one message, with the entry's
uuid as id; a tool call and its result are tool parts under one `toolCallId`, in the two messages
where they stand. What an entry says beside its content stays under `metadata.claudeCode`.

- Sidechains (subagents) become sessions of their own, so that they are not mixed into the main
  line: `agent-<agentId>`, or `sidechain-<uuid of their first entry>` in older transcripts.
- A compaction (`compact_boundary` and the summary that follows) becomes an overlay over what it
  summed up, and the chain that it cut is joined again: reading gives the summary and what came
  after, the rows before it stay.
- Titles (`summary`, `custom-title` entries) go into the configuration under `claude-code`.
- Entries that are no part of the conversation (progress, snapshots, queues) are passed over.

The file is read line by line; in memory stays who is whose parent.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sessions_actor.codec import dumps, loads
from sessions_actor.records import Compaction, Message, iso_from_ms

from .base import (
    ConfigItem,
    ImportedConversation,
    Item,
    MessageItem,
    OverlayItem,
    Reader,
    ms_from_iso,
    unparsed,
    without,
)
from .blocks import parts_of
from .source import Line

CONFIG_KEY = "claude-code"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_TITLES = ("summary", "custom-title", "ai-title")
_MESSAGES = ("user", "assistant", "system", "attachment")
_HEAD_LINES_MAX = 10_000


def read_claude_code(reader: Reader) -> Iterator[ImportedConversation]:
    """Yield the one conversation of a transcript, if it has any message.

    A line that cannot be read is reported with its number and left out.
    """
    entries = _entries(reader)
    head: list[tuple[Line, dict[str, Any]]] = []
    session_id = None
    for line, entry in entries:
        head.append((line, entry))
        session_id = entry.get("sessionId")
        if isinstance(session_id, str) and session_id:
            break
        if len(head) >= _HEAD_LINES_MAX:
            break
    if not head:
        return
    stem = reader.source.stem
    found = session_id if isinstance(session_id, str) and session_id else stem
    name = stem if _UUID.fullmatch(stem) else found
    yield ImportedConversation(name, _Transcript(reader, name).items(_chain(head, entries)))


def _entries(reader: Reader) -> Iterator[tuple[Line, dict[str, Any]]]:
    for line in reader.source.lines():
        place = f"line {line.number}"
        try:
            entry = loads(line.data)
        except ValueError as error:
            reader.problem(place, unparsed(error, ended=line.ended))
            continue
        if isinstance(entry, dict):
            yield line, entry
        else:
            reader.problem(place, "not an object")


def _chain(
    head: list[tuple[Line, dict[str, Any]]], rest: Iterator[tuple[Line, dict[str, Any]]]
) -> Iterator[tuple[Line, dict[str, Any]]]:
    yield from head
    head.clear()
    yield from rest


class _Transcript:
    """The skeleton of one file: parents, sessions, times and tool names by uuid."""

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader, self._name = reader, name
        self._parents: dict[str, str | None] = {}
        self._passed_over: dict[str, str | None] = {}
        self._sessions: dict[str, str] = {}
        self._times: dict[str, int] = {}
        self._tools: dict[str, str] = {}
        self._boundaries: dict[str, dict[str, Any]] = {}
        self._titles: list[dict[str, Any]] = []

    def items(self, entries: Iterator[tuple[Line, dict[str, Any]]]) -> Iterator[Item]:
        """Yield each entry that is a message, and what compactions and titles say."""
        for line, entry in entries:
            kind, uuid = entry.get("type"), entry.get("uuid")
            place = f"line {line.number}"
            if kind in _TITLES:
                self._titles.append(entry)
            if not isinstance(uuid, str) or not uuid:
                if kind in ("user", "assistant"):
                    self._reader.problem(place, "a message without uuid", self._name)
                continue
            if uuid in self._parents or uuid in self._passed_over:
                continue  # a resumed session repeats its beginning
            parent_id = self._parent(entry)
            if kind not in _MESSAGES:
                self._passed_over[uuid] = parent_id
                continue
            yield from self._message(entry, uuid, parent_id, place)
        if self._titles:
            value = dumps(self._titles).decode()
            yield ConfigItem("", CONFIG_KEY, value, "titles")

    def _message(
        self, entry: dict[str, Any], uuid: str, parent_id: str | None, place: str
    ) -> Iterator[Item]:
        try:
            message = _message(entry, uuid, self._tools)
        except ValueError as error:
            self._passed_over[uuid] = parent_id
            self._reader.problem(place, error, self._name)
            return
        session = self._session(entry, uuid, parent_id)
        if parent_id is not None and self._sessions.get(parent_id) != session:
            parent_id = None
        created_at = ms_from_iso(entry.get("timestamp"))
        if created_at is None:
            created_at = self._times.get(parent_id or "", self._reader.created_at)
        self._parents[uuid], self._sessions[uuid] = parent_id, session
        self._times[uuid] = created_at
        yield MessageItem(session, message, parent_id, created_at, place)
        if entry.get("subtype") == "compact_boundary":
            self._boundaries[uuid] = entry
        elif entry.get("isCompactSummary") is True:
            yield from self._overlay(message, created_at, place)

    def _parent(self, entry: Mapping[str, Any]) -> str | None:
        parent = entry.get("parentUuid")
        if parent is None:
            parent = entry.get("logicalParentUuid")
        while isinstance(parent, str) and parent in self._passed_over:
            parent = self._passed_over[parent]
        return parent if isinstance(parent, str) and parent in self._parents else None

    def _session(self, entry: Mapping[str, Any], uuid: str, parent_id: str | None) -> str:
        if entry.get("isSidechain") is not True:
            return ""
        agent = entry.get("agentId")
        if isinstance(agent, str) and agent:
            return f"agent-{agent}"
        if parent_id is not None:
            return self._sessions[parent_id]  # a branch of what it departs from
        return f"sidechain-{uuid}"

    def _overlay(self, summary: Message, created_at: int, place: str) -> Iterator[Item]:
        """Turn a compaction's summary into an overlay over everything up to it.

        Where the transcript says that some last messages were kept, the overlay ends before them.
        """
        session = self._sessions[summary["id"]]
        path = [summary["id"]]
        boundary = None
        while (parent := self._parents[path[-1]]) is not None:
            path.append(parent)
            boundary = boundary or self._boundaries.get(parent)
        if boundary is None or self._parents[boundary["uuid"]] is None:
            return  # nothing of what it sums up is in this file
        end = path[0]
        about = boundary.get("compactMetadata")
        kept = about.get("preservedMessages") if isinstance(about, dict) else None
        kept_ids = kept.get("uuids") if isinstance(kept, dict) else None
        if isinstance(kept_ids, list):
            first_kept = max((path.index(i) for i in kept_ids if i in path), default=None)
            if first_kept is not None:
                if first_kept == len(path) - 1:
                    return  # everything was kept
                end = path[first_kept + 1]
        text = "\n".join(part["text"] for part in summary["parts"] if part["type"] == "text")
        if text.strip():
            overlay = Compaction(summary["id"], text, path[-1], end, iso_from_ms(created_at))
            yield OverlayItem(session, overlay, place)


def _message(entry: dict[str, Any], uuid: str, tools: dict[str, str]) -> Message:
    kind = entry["type"]
    if kind in ("user", "assistant"):
        body = entry.get("message")
        if not isinstance(body, dict):
            raise ValueError("message: not an object")
        role = body.get("role")
        parts = parts_of(body.get("content"), tools)
        about = {**without(entry, "uuid"), "message": without(body, "content")}
    else:
        role = "system"
        key = "attachment" if kind == "attachment" else "content"
        content = entry.get(key)
        if isinstance(content, str):
            parts = [{"type": "text", "text": content}]
        else:
            parts = [] if content is None else [{"type": f"data-{kind}", "data": content}]
        about = without(entry, "uuid", key)
    return {
        "id": uuid,
        "role": role if isinstance(role, str) and role else kind,
        "parts": parts,
        "metadata": {"claudeCode": about},
    }
