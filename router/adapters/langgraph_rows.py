"""How a thread's checkpoints lie in a conversation: which sessions, which rows, what is in them.

| session | a row is |
|---|---|
| `""` | a message of the graph's `messages`, under the one before it; its id is the hash of both |
| `langgraph:messages` | a message of any other list of messages, likewise |
| `langgraph:values` | one version of one channel: a value, or the last row of its messages |
| `langgraph:writes` | a pending write of a task, under a row for its checkpoint |
| `langgraph:checkpoints:<ns>` | a checkpoint, under the one that was written before it |

A list of messages is thus the path to its last row: lists that share a beginning share its rows,
and a list that was changed is a branch. A value is kept as JSON where that is exact and the
serializer is LangGraph's plain one; else as the serializer's bytes, so an encrypting serializer
leaves nothing readable behind.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sessions_actor.codec import dumps, loads
from sessions_actor.limits import WINDOW_BYTES_MAX
from sessions_actor.records import HistoryRow, Message

from .langchain_messages import Serializer

CHAT: Final = ""
MESSAGES: Final = "langgraph:messages"
VALUES: Final = "langgraph:values"
WRITES: Final = "langgraph:writes"
CHECKPOINTS: Final = "langgraph:checkpoints:"
OURS: Final = (CHAT, MESSAGES, VALUES, WRITES)

KEY: Final = "langgraph"
CHAT_CHANNEL: Final = "messages"
# Larger values lie outside their row, once for equal ones.
INLINE_BYTES_MAX: Final = 8192
# A row of more than about 1,000 bytes takes a page of its own: text in a value is worth packing.
COMPRESSED_BYTES_MIN: Final = 256
BATCH_ROWS: Final = 200
_MEDIA_TYPE = "application/octet-stream"


ImportRow = HistoryRow | tuple[Any, Any, float]


def is_ours(session_id: str) -> bool:
    """Tell whether a session is one of those above."""
    return session_id in OURS or session_id.startswith(CHECKPOINTS)


def key(*names: object) -> str:
    """Return the id of a row that is found by several names."""
    return dumps(list(names)).decode("utf-8", "surrogatepass")


class Packer:
    """Values on their way into one row."""

    def __init__(self, serde: Serializer, *, plain: bool) -> None:
        self._serde, self._plain = serde, plain
        self.parts: list[dict[str, Any]] = []

    def pack(self, value: Any) -> Message:
        """Return what the row keeps for a value; large bytes become a part."""
        if self._plain and _is_json(value):
            return {"json": value}
        kind, data = self._serde.dumps_typed(value)
        if len(data) <= INLINE_BYTES_MAX:
            small = zlib.compress(data) if len(data) >= COMPRESSED_BYTES_MIN else data
            if len(small) < len(data):
                return {"type": kind, "zlib": b64encode(small).decode()}
            return {"type": kind, "bytes": b64encode(data).decode()}
        text = b64encode(data).decode()
        self.parts.append({"type": "file", "mediaType": _MEDIA_TYPE, "data": text})
        return {"type": kind, "part": len(self.parts) - 1}

    def row(self, row_id: str, role: str, **fields: Any) -> Message:
        """Return the row with everything packed."""
        return {"id": row_id, "role": role, "parts": self.parts, KEY: fields}


def _is_json(value: Any) -> bool:
    """Tell whether a value reads back from JSON as it is."""
    try:
        return bool(loads(dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def unpack(row: Mapping[str, Any], packed: Mapping[str, Any], serde: Serializer) -> Any:
    """Return the value that `Packer.pack` was given."""
    if "json" in packed:
        return packed["json"]
    if "part" in packed:
        data = b64decode(row["parts"][packed["part"]]["data"])
    elif "zlib" in packed:
        data = zlib.decompress(b64decode(packed["zlib"]))
    else:
        data = b64decode(packed["bytes"])
    return serde.loads_typed((packed["type"], data))


def milliseconds(moment: object) -> float:
    """Return a checkpoint's time in milliseconds since the epoch; 0 for what is no time."""
    try:
        return round(datetime.fromisoformat(str(moment)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0


def write_order(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """Sort pending writes as the graph applies them: LangGraph's `writes_sort_key`."""
    held = row[KEY]
    return held["path"], held["task"], held["index"]


def metadata_of(row: Mapping[str, Any], serde: Serializer) -> dict[str, Any]:
    """Return a checkpoint's metadata."""
    found: dict[str, Any] = unpack(row, row[KEY]["metadata"], serde)
    return found


def needed_by_latest(rows: Sequence[Message], serde: Serializer) -> set[str]:
    """Return the checkpoints that the latest is rebuilt from, itself included.

    A delta channel holds nothing at most checkpoints: its value is the nearest ancestor's that
    holds one, and the writes since.

    Args: `rows` are a namespace's checkpoints, the latest first.
    """
    if not rows:
        return set()
    by_id = {row["id"]: row for row in rows}
    row: Message | None = rows[0]
    missing = set(metadata_of(rows[0], serde).get("counters_since_delta_snapshot") or ())
    kept: set[str] = set()
    while row is not None and row["id"] not in kept:
        kept.add(row["id"])
        missing -= set(row[KEY]["channels"])
        row = by_id.get(row[KEY]["parent"]) if missing else None
    return kept


def unspoken_values(
    ns: str, rows: Sequence[Message], kept: set[str], serde: Serializer
) -> list[str]:
    """Return the values that only checkpoints which are not kept speak of."""
    spoken: dict[bool, set[str]] = {True: set(), False: set()}
    for row in rows:
        versions = unpack(row, row[KEY]["checkpoint"], serde)["channel_versions"]
        names = {key(ns, channel, versions[channel]) for channel in row[KEY]["channels"]}
        spoken[row["id"] in kept] |= names
    return sorted(spoken[False] - spoken[True])


def batches(rows: Iterable[ImportRow], bytes_max: int = WINDOW_BYTES_MAX) -> Iterator[list[Any]]:
    """Cut rows to import into lists that one call may carry; a larger row stands alone."""
    batch: list[Any] = []
    size = 0
    for row in rows:
        message = row.message if isinstance(row, HistoryRow) else row[0]
        row_bytes = len(dumps(message))
        if batch and (size + row_bytes > bytes_max or len(batch) >= BATCH_ROWS):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += row_bytes
    if batch:
        yield batch


def listed(rows: Sequence[tuple[Message, str | None]], at: float) -> list[tuple[Any, Any, float]]:
    """Return rows and their parents as `import_messages` takes them."""
    return [(row, parent_id, at) for row, parent_id in rows]
