"""A conversation as plain lists and dicts: obvious, slow, and the judge of the real one.

Nothing here is shared with the engine. Every rule is written the shortest way the specification
says it; a path is found by looking through the list of rows, an overlay by trying every record.
What only the engine can know (ids of overlays, clock times) is told to the model afterwards.
"""

import copy
import hashlib
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tests.property.model_content import (
    Message,
    check,
    is_text,
    matches,
    sanitized,
    stored,
    stripped,
    text_of,
)


class Parent(Enum):
    """How a parent can be named other than by an id."""

    OMITTED = "omitted"


OMITTED = Parent.OMITTED
"""Stands for a parent that was not given."""


@dataclass
class Row:
    """One stored message. ``created_at`` is None until the engine told it."""

    id: str
    parent: str | None
    seq: int
    message: Message
    created_at: float | None = None


@dataclass
class Overlay:
    """One compaction record."""

    id: str
    summary: str
    start: str
    end: str
    created_at: str

    def message(self) -> Message:
        """Render it as reads do."""
        return {
            "id": f"compaction_{self.id}",
            "role": "assistant",
            "parts": [{"type": "text", "text": self.summary}],
            "createdAt": self.created_at,
        }


@dataclass
class Shown:
    """One message of a view: a row, or an overlay over the rows start to end of the path."""

    message: Message
    start: int
    end: int
    overlay: bool


@dataclass
class Session:
    """One session: rows in the order of writing, overlays in the order of recording."""

    reserved: tuple[str, ...] = ()
    rows: list[Row] = field(default_factory=list)
    overlays: list[Overlay] = field(default_factory=list)

    # ------------------------------------------------------------------------------- looking up
    def row(self, message_id: Any) -> Row | None:
        """Find a row by its id."""
        return next((row for row in self.rows if row.id == message_id), None)

    def is_own_overlay(self, message_id: str) -> bool:
        """Tell the id of an overlay of this session."""
        return any(message_id == f"compaction_{overlay.id}" for overlay in self.overlays)

    def newest(self) -> Row | None:
        """Find the row with the highest seq."""
        return max(self.rows, key=lambda row: row.seq, default=None)

    def ancestry(self, row: Row | None) -> list[Row]:
        """List a row and its ancestors, root first."""
        path: list[Row] = []
        while row is not None:
            assert row not in path, "the model let a cycle in"
            path.insert(0, row)
            row = self.row(row.parent)
        return path

    def path(self, leaf_id: Any = None) -> list[Row]:
        """List the visible rows of a path, root first."""
        leaf = self.row(leaf_id) if leaf_id else self.newest()
        return [row for row in self.ancestry(leaf) if not self.is_own_overlay(row.id)]

    def children(self, message_id: Any) -> list[Row]:
        """List a message's children, in place of a copy of an own overlay those of the copy."""
        found = []
        for row in self.rows:
            if row.parent == message_id and message_id is not None:
                copied = self.is_own_overlay(row.id)
                found += self.children(row.id) if copied else [row]
        return sorted(found, key=lambda row: row.seq)

    def view(self, rows: list[Row]) -> list[Shown]:
        """Apply the overlays to some consecutive rows of a path."""
        places = {row.id: index for index, row in enumerate(rows)}
        shown: list[Shown] = []
        index = 0
        while index < len(rows):
            starting = [
                overlay for overlay in self.overlays
                if overlay.start == rows[index].id and places.get(overlay.end, -1) >= index
            ]  # fmt: skip
            end = places[starting[-1].end] if starting else index
            message = starting[-1].message() if starting else rows[index].message
            shown.append(Shown(message, index, end, bool(starting)))
            index = end + 1
        return shown

    # ----------------------------------------------------------------------------------- writes
    def append(self, message: Any, parent: Any, source: str) -> tuple[bool | None, Message]:
        """Append: (inserted, message as stored); None when an own overlay was dropped."""
        check(message)
        if self.refuses(message["id"]):
            return None, message
        message = self.prepared(message, source)
        known = self.row(message["id"])
        if known is not None:
            return False, known.message
        if parent is OMITTED:
            newest = self.newest()
            parent = newest.id if newest else None
        elif self.row(parent) is None:
            parent = None
        self.insert(message, parent)
        return True, message

    def update(self, message: Any, source: str) -> tuple[bool, Message | None]:
        """Update: (changed, message as stored or None)."""
        check(message)
        if self.refuses(message["id"]):
            return False, None
        message = self.prepared(message, source)
        row = self.row(message["id"])
        if row is None:
            return False, None
        changed = text_of(row.message) != text_of(message)
        row.message = message
        return changed, message

    def refuses(self, message_id: str) -> bool:
        """Tell an own overlay, which is dropped; any other such id is an error."""
        if self.is_own_overlay(message_id):
            return True
        if message_id.startswith("compaction_"):
            raise ValueError("id")
        return False

    def prepared(self, message: Message, source: str) -> Message:
        """Run the pipeline of a write."""
        message = sanitized(message)
        return stripped(message, self.reserved) if source == "client" else message

    def insert(self, message: Message, parent: str | None, created_at: float | None = None) -> None:
        """Add a row after the highest seq, unless it would be its own ancestor."""
        if message["id"] in [row.id for row in self.ancestry_or_dangling(parent)]:
            raise ValueError("parent")
        newest = self.newest()
        seq = newest.seq + 1 if newest else 1
        row = Row(message["id"], parent, seq, copy.deepcopy(message), created_at)
        self.rows.append(row)

    def ancestry_or_dangling(self, parent: str | None) -> list[Row]:
        """List the ancestors a row under this parent would have, one that is no row included."""
        if parent is None:
            return []
        path = self.ancestry(self.row(parent))
        missing = path[0].parent if path else parent
        return path if missing is None else [Row(missing, None, 0, {}), *path]

    def import_one(self, message: Any, parent: Any, created_at: Any) -> bool:
        """Import: whether a row was written."""
        check(message)
        if parent is not None and not is_text(parent):
            raise ValueError("parent_id")
        if isinstance(created_at, bool) or not isinstance(created_at, int | float):
            raise ValueError("created_at")
        if not math.isfinite(created_at):
            raise ValueError("created_at")
        if self.row(message["id"]) is not None:
            return False
        self.insert(message, parent or None, created_at)
        return True

    def delete(self, ids: list[Any]) -> None:
        """Delete rows; each child moves to the nearest ancestor that stays."""
        gone = {row.id: row for row in self.rows if row.id in ids}
        self.rows = [row for row in self.rows if row.id not in gone]
        for row in self.rows:
            while row.parent in gone:
                row.parent = gone[row.parent].parent

    def clear(self) -> None:
        """Delete everything."""
        self.rows.clear()
        self.overlays.clear()

    def compact(self, leaf_id: Any, start: str, end: str) -> tuple[str, str] | None:
        """Say which range a compaction function's result is stored under, or None: refused."""
        path = self.path(leaf_id)
        view = self.view(path)
        if not view:
            return None
        first = next((item for item in view if item.message["id"] == start), None)
        last = next((item for item in view if item.message["id"] == end), None)
        overlaid = [item for item in view if item.overlay]
        if last is None or (first is None and not overlaid):
            return None
        begin = min(item.start for item in [first, *overlaid[:1]] if item is not None)
        hidden = [item for item in view if begin <= item.start and item.end <= last.end]
        if all(item.overlay for item in hidden):
            return None
        return path[begin].id, path[last.end].id

    # ------------------------------------------------------------------------------------ reads
    def recent(self, budget: float, leaf_id: Any, sizes: list[int]) -> tuple[list[Message], bool]:
        """Read the longest suffix that fits, by rows and by what is returned."""
        path = self.path(leaf_id)
        if not path:
            return [], False

        def returned(start: int) -> int:
            shown = self.view(path[start:])
            return sum(
                len(text_of(item.message).encode()) if item.overlay else sizes[start + item.start]
                for item in shown
            )

        fitting = [
            start for start in range(len(path))
            if sum(sizes[start:]) <= budget and returned(start) <= budget
        ]  # fmt: skip
        start = fitting[0] if fitting else len(path) - 1
        return [item.message for item in self.view(path[start:])], start > 0

    def search(self, query: str) -> set[str]:
        """Find the ids of the rows whose text holds the phrase."""
        hits = [row for row in self.rows if matches(row.message, query)]
        return {row.id for row in hits if not self.is_own_overlay(row.id)}


class Conversation:
    """Every session of one conversation."""

    def __init__(self, reserved: tuple[str, ...] = ()) -> None:
        self.reserved = reserved
        self.sessions: dict[str, Session] = {}

    def session(self, session_id: str) -> Session:
        """Get a session; every id has one."""
        return self.sessions.setdefault(session_id, Session(self.reserved))

    def wanting_parents(self) -> int:
        """Count the rows whose parent is not there: imports may come before their parents."""
        return sum(
            row.parent is not None and session.row(row.parent) is None
            for session in self.sessions.values()
            for row in session.rows
        )

    def payloads(self) -> dict[str, bytes]:
        """Find every payload some message holds, by its digest."""
        found = {}
        for session in self.sessions.values():
            for row in session.rows:
                for data in stored(row.message)[1]:
                    found[hashlib.sha256(data).hexdigest()] = data
        return found
