"""A conversation as plain lists and dicts: obvious, slow, and the judge of the real one.

Nothing here is shared with the engine. Every rule is written the shortest way the specification
says it; a path is found by looking through the list of rows, an overlay by trying every record.
What only the engine can know (ids of overlays, clock times) is told to the model afterwards.
"""

import base64
import copy
import hashlib
import json
import math
import re
import unicodedata
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Message = dict[str, Any]


class Parent(Enum):
    """How a parent can be named other than by an id."""

    OMITTED = "omitted"


OMITTED = Parent.OMITTED
"""Stands for a parent that was not given."""

POINTER = "attachment:sha256:"
VERBATIM = "attachment:verbatim:"
POINTER_BYTES = len(POINTER) + 64
DEPTH_MAX = 8
JS_SPACE = "\t\n\x0b\x0c\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"


def text_of(value: Any) -> str:
    """Write compact JSON, key order kept, lone surrogates escaped; two that pair are one."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def is_text(value: object) -> bool:
    """Tell a string without lone surrogates."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


# ------------------------------------------------------------------------------------- messages
def check(message: Any) -> None:
    """Raise what an ill-formed message or one that JSON cannot hold deserves."""
    if not isinstance(message, dict):
        raise ValueError("message")
    for name in ("id", "role"):
        if not is_text(message.get(name)) or (name == "id" and not message["id"]):
            raise ValueError(name)
    parts = message.get("parts")
    if not isinstance(parts, list):
        raise ValueError("parts")
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError("parts")
    check_json(message)


def check_json(value: Any) -> None:
    """Raise TypeError for what JSON cannot hold."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("key")
        for item in value.values():
            check_json(item)
    elif isinstance(value, list):
        for item in value:
            check_json(item)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError("number")
    elif value is not None and not isinstance(value, str | int):
        raise TypeError(type(value).__name__)


def sanitized(message: Message) -> Message:
    """Drop what providers must not see again."""
    parts = []
    for part in message["parts"]:
        part = copy.deepcopy(part)
        for key in ("providerMetadata", "callProviderMetadata"):
            strip_openai(part, key)
        blank = not isinstance(part.get("text"), str) or is_blank(part["text"])
        told = isinstance(part.get("reasoning"), str) and not is_blank(part["reasoning"])
        if part["type"] == "reasoning" and blank and not told and not part.get("providerMetadata"):
            continue
        parts.append(part)
    return {**message, "parts": parts}


def strip_openai(part: Message, key: str) -> None:
    """Remove the two keys of OpenAI, and the objects that leaves empty."""
    metadata = part.get(key)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("openai"), dict):
        return
    openai = metadata["openai"]
    openai.pop("itemId", None)
    openai.pop("reasoningEncryptedContent", None)
    if not openai:
        del metadata["openai"]
        if not metadata:
            del part[key]


def is_blank(text: str) -> bool:
    """Tell text that JavaScript's trim() makes empty."""
    return re.fullmatch(f"[{JS_SPACE}]*", text) is not None


def stripped(message: Message, reserved: tuple[str, ...]) -> Message:
    """Remove reserved metadata keys, as for a client."""
    metadata = message.get("metadata")
    if not isinstance(metadata, dict) or not any(key in metadata for key in reserved):
        return message
    left = {key: value for key, value in metadata.items() if key not in reserved}
    if left:
        return {**message, "metadata": left}
    return {key: value for key, value in message.items() if key != "metadata"}


# ---------------------------------------------------------------------------------- attachments
def payload_of(record: dict[str, Any]) -> tuple[str, bytes, str] | None:
    """Find the payload an object carries: its field, its bytes and the length of its header."""
    declared = record.get("mediaType") if isinstance(record.get("mediaType"), str) else None
    url = record.get("url")
    if isinstance(url, str) and not url.startswith("attachment:"):
        header, comma, text = url.partition(",")
        if not comma or not header.startswith("data:") or not header.endswith(";base64"):
            return None
        own = header[len("data:") : -len(";base64")] or "application/octet-stream"
        data = canonical(text)
        if data is None or (declared if declared is not None else own).startswith("text/"):
            return None
        return "url", data, header + comma
    text = record.get("data")
    if declared and not declared.startswith("text/") and isinstance(text, str):
        data = canonical(text)
        return None if data is None else ("data", data, "")
    return None


def canonical(text: str) -> bytes | None:
    """Decode base64 that encodes back to exactly itself."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return data if base64.b64encode(data).decode() == text else None


def stored(message: Message) -> tuple[Message, list[bytes]]:
    """Make the stored form: pointers for payloads; and every payload, as often as it occurs."""
    payloads: list[bytes] = []

    def walk(value: Any, depth: int) -> Any:
        if depth > DEPTH_MAX:
            return value
        if isinstance(value, list):
            return [walk(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        found = payload_of(value)
        new = {}
        for key, item in value.items():
            if found and key == found[0]:
                payloads.append(found[1])
                pointer = POINTER + hashlib.sha256(found[1]).hexdigest()
                plain = key == "data" or found[2] == f"data:{value.get('mediaType')};base64,"
                new[key] = pointer if plain else f"{pointer};{found[2]}"
            elif key in ("url", "data") and isinstance(item, str) and item[:11] == "attachment:":
                new[key] = VERBATIM + item
            else:
                new[key] = walk(item, depth + 1)
        return new

    return {**message, "parts": walk(message["parts"], 0)}, payloads


def row_bytes(message: Message) -> int:
    """Charge a row: its stored JSON, and the base64 of every payload it shows."""
    form, payloads = stored(message)
    return len(text_of(form).encode()) + sum((len(data) + 2) // 3 * 4 for data in payloads)


# --------------------------------------------------------------------------------------- tokens
def text_tokens(text: str) -> int:
    """Estimate a text."""
    units = len(text) + sum(char > "\uffff" for char in text)
    words = len(re.findall(f"[^{JS_SPACE}]+", text))
    return math.ceil(max(units / 4, words * 1.3))


def value_tokens(value: Any) -> int:
    """Estimate a text, or the JSON of anything else."""
    if value is None:
        return 0
    return text_tokens(value if isinstance(value, str) else text_of(value))


def message_tokens(message: Message) -> int:
    """Estimate a message as it is stamped on its row."""
    tokens = 4
    for part in message["parts"]:
        kind = part["type"]
        first = [part.get("text"), part.get("reasoning"), part.get("output"), part.get("result")]
        if kind in ("text", "reasoning"):
            tokens += value_tokens(first[0] if first[0] is not None else first[1])
        elif kind.startswith("tool-") or kind == "dynamic-tool":
            tokens += value_tokens(part.get("input"))
            tokens += value_tokens(first[2] if first[2] is not None else first[3])
        elif "text" in part:
            tokens += value_tokens(part["text"])
        elif "result" in part:
            tokens += value_tokens(part["result"])
        url = part.get("url")
        if kind == "file" and isinstance(url, str) and url.startswith("data:"):
            tokens += file_tokens(part.get("mediaType"), url)
    return tokens


def file_tokens(media_type: Any, url: str) -> int:
    """Estimate an inline file."""
    if isinstance(media_type, str) and media_type.startswith("image/"):
        return 1600
    header, comma, payload = url.partition(",")
    if not comma:
        return 0
    size = len(payload) * 3 // 4 if header.endswith(";base64") else len(payload)
    return min(math.ceil(size / 4), 20_000)


# --------------------------------------------------------------------------------------- search
def words_of(text: str) -> list[str]:
    """Cut into lower-case words; every CJK character is a word of its own."""
    words: list[str] = []
    joined = False
    for char in unicodedata.normalize("NFD", text):
        kind = unicodedata.category(char)
        if kind == "Mn" and joined:
            continue
        if kind[0] not in "LN":
            joined = False
        elif "\u3040" <= char <= "\u30ff" or "\u4e00" <= char <= "\u9fff":
            words.append(char)
            joined = False
        elif joined:
            words[-1] += char.lower()
        else:
            words.append(char.lower())
            joined = True
    return words


def searchable(message: Message) -> str:
    """Join the text parts."""
    texts = [part.get("text") for part in message["parts"] if part["type"] == "text"]
    return " ".join(text for text in texts if isinstance(text, str))


def matches(message: Message, query: str) -> bool:
    """Tell whether the message's text holds the query as one phrase."""
    wanted, words = words_of(query), words_of(searchable(message))
    if not wanted:
        return False
    return any(words[i : i + len(wanted)] == wanted for i in range(len(words)))


# --------------------------------------------------------------------------------- conversation
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
