"""How a call crosses between a handle and an actor: bytes on both ways.

A request is an epoch and the parts that travel together; each part names a session, a method and
its arguments. A reply holds one answer per part, in order: a result or an error. Messages cross as
compact JSON, never as pickled trees, so depth and size are the codec's concern alone; only the
frame around them is a pickle. One bytes object per direction is what Ray moves cheapest.

Pure: no Ray, no SQLite, no clock.
"""

import pickle
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, NamedTuple, cast

from .codec import dumps, loads
from .errors import RemoteCallError, SessionsActorError
from .records import (
    LEAF,
    AppendResult,
    ChangeEvent,
    Compaction,
    CompactResult,
    RowStat,
    SearchResult,
)

# An answer's tag. WAITING brings a ticket: the call goes on, its outcome is collected later. CUT:
# the call was cut short when the activation ended, and may be made again if it is repeatable.
# REFUSED: it was not carried out, for a reason of the owner's; ERROR: it was, and raised.
OK, ERROR, WAITING, CUT, REFUSED = 0, 1, 2, 3, 4

# Methods that only handles call.
READ_WINDOW, FOLLOW_CHANGES, CALL = "#window", "#follow", "#call"
LIST_SESSIONS, VERIFY = "#sessions", "#verify"

GAP: Final = "gap"
"""Type of the event that stands where a change feed may have lost some: read again."""


class Part(NamedTuple):
    """One call of a frame.

    `again` says that an earlier try of it may have been carried out; `trace` is the caller's span
    as W3C `traceparent`, when there is one.
    """

    session_id: str
    method: str
    args: bytes
    again: bool = False
    trace: str | None = None


class Answer(NamedTuple):
    """One part's outcome: OK and its result, an error that `load_error` reads; see the tags."""

    tag: int
    data: bytes


def pack_request(name: str, epoch: int, parts: Sequence[Part]) -> bytes:
    """Frame the parts that travel together to one activation of a conversation.

    The name goes along: an actor hosts one conversation after another, and two may have the same
    epoch.
    """
    return pickle.dumps((name, epoch, [tuple(part) for part in parts]), 5)


def unpack_request(frame: bytes) -> tuple[str, int, list[Part]]:
    """Read what `pack_request` wrote."""
    name, epoch, parts = pickle.loads(frame)
    return name, epoch, [Part(*part) for part in parts]


def pack_reply(answers: Sequence[Answer]) -> bytes:
    """Frame the answers, in the order of the parts."""
    return pickle.dumps([tuple(answer) for answer in answers], 5)


def unpack_reply(frame: bytes) -> list[Answer]:
    """Read what `pack_reply` wrote."""
    return [Answer(*answer) for answer in pickle.loads(frame)]


# ------------------------------------------------------------------------------------ errors


def dump_error(error: BaseException) -> bytes:
    """Write an error so that the other side can raise it, whatever its class needs.

    An error that does not survive the trip (one whose class asks for keyword arguments, or holds
    a lock) crosses as RemoteCallError with its name and text.
    """
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be made"
    if not isinstance(error, SessionsActorError) and error.__traceback__ is not None:
        trace = "".join(traceback.format_tb(error.__traceback__)).rstrip()
        error.add_note(f"raised in the conversation's actor:\n{trace}")
    try:
        data = pickle.dumps(error, 5)
        copy = pickle.loads(data)
        if type(copy) is not type(error) or str(copy) != text:
            data = b""
    except Exception:
        data = b""
    return pickle.dumps((name, text, data), 5)


def load_error(data: bytes) -> Exception:
    """Return the error that `dump_error` wrote; RemoteCallError when its class is not here."""
    name, text, pickled = pickle.loads(data)
    if pickled:
        try:
            error = pickle.loads(pickled)
        except Exception:
            return RemoteCallError(name, text)
        if isinstance(error, Exception):
            return error
    return RemoteCallError(name, text)


# --------------------------------------------------------------------------------- arguments


def dump_args(args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]) -> bytes:
    """Write a call's arguments as JSON; `names` are those of the positional ones.

    Raises: TypeError naming the place, as in "message.parts[0].output: float nan is not JSON".
    """
    try:
        return dumps([args, kwargs] if kwargs else [args], "arguments")
    except TypeError:
        for name, value in [*zip(names, args, strict=True), *kwargs.items()]:
            dumps(value, name)
        raise


def load_args(data: bytes) -> tuple[list[Any], dict[str, Any]]:
    """Read what `dump_args` wrote."""
    args, *kwargs = loads(data)
    return args, kwargs[0] if kwargs else {}


def dump_call(method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Write a call of the hosted class's own method; its arguments may be anything picklable."""
    return _pickled((method, tuple(args), dict(kwargs)))


def load_call(data: bytes) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Read what `dump_call` wrote."""
    return cast("tuple[str, tuple[Any, ...], dict[str, Any]]", pickle.loads(data))


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value, 5)
    except Exception:
        from ray import cloudpickle  # functions and classes of a script

        return cast(bytes, cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


# ----------------------------------------------------------------------------------- results
# A result that is the very message given crosses as a mark, and the caller gets his own object
# back, as he does in process.


class ResultKind(Enum):
    """How a method's result is written."""

    JSON = "json"
    APPEND = "append"
    APPENDS = "appends"
    UPDATE = "update"
    ROW_STATS = "row stats"
    SEARCH = "search"
    COMPACT = "compact"
    COMPACTION = "compaction"
    COMPACTIONS = "compactions"
    BYTES = "bytes"
    PICKLE = "pickle"


class Method(NamedTuple):
    """What is known of a method.

    Its calls travel `alone` when they may keep the actor busy for long or bring a large answer:
    others need not wait for them. `repeatable` says that a second run does no harm.
    """

    result: ResultKind
    alone: bool = False
    repeatable: bool = True


METHODS: Final[dict[str, Method]] = {
    "append_message": Method(ResultKind.APPEND),
    "append_messages": Method(ResultKind.APPENDS),
    "update_message": Method(ResultKind.UPDATE),
    "upsert_message": Method(ResultKind.APPEND),
    "delete_messages": Method(ResultKind.JSON),
    "clear_messages": Method(ResultKind.JSON),
    "import_message": Method(ResultKind.JSON),
    "import_messages": Method(ResultKind.JSON),
    "get_message": Method(ResultKind.JSON),
    "get_latest_leaf": Method(ResultKind.JSON),
    "get_branches": Method(ResultKind.JSON),
    "get_history_row_stats": Method(ResultKind.ROW_STATS, alone=True),
    "search": Method(ResultKind.SEARCH, alone=True),
    "compact": Method(ResultKind.COMPACT, alone=True),
    "add_compaction": Method(ResultKind.COMPACTION),
    "get_compactions": Method(ResultKind.COMPACTIONS),
    "import_compactions": Method(ResultKind.JSON),
    "import_config": Method(ResultKind.JSON),
    "get_config": Method(ResultKind.JSON),
    LIST_SESSIONS: Method(ResultKind.JSON, alone=True),
    VERIFY: Method(ResultKind.JSON, alone=True),
    READ_WINDOW: Method(ResultKind.BYTES, alone=True),
    FOLLOW_CHANGES: Method(ResultKind.JSON),
    CALL: Method(ResultKind.PICKLE, alone=True, repeatable=False),
}

WRITES: Final = frozenset(
    {
        *("append_message", "append_messages", "update_message", "upsert_message"),
        *("delete_messages", "clear_messages", "import_message", "import_messages"),
        *("add_compaction", "import_compactions", "import_config"),
    }
)
"""Methods that write; every other one reads, or is the hosted class's own."""

assert METHODS.keys() > WRITES

_SAME = 0


def _values(record: Any) -> list[Any]:
    return [getattr(record, name) for name in _FIELDS[type(record)]]


_FIELDS = {
    kind: tuple(field.name for field in fields(kind))
    for kind in (RowStat, SearchResult, CompactResult, Compaction)
}


def dump_result(kind: ResultKind, result: Any, given: Any = None) -> bytes:
    """Write a method's result; `given` is its first argument, as it came."""
    match kind:
        case ResultKind.JSON:
            return dumps(result, "result")
        case ResultKind.APPEND:
            return dumps(_append_fields(result, given), "result")
        case ResultKind.APPENDS:
            pairs = zip(result, given, strict=True)
            return dumps([_append_fields(one, message) for one, message in pairs], "result")
        case ResultKind.UPDATE:
            return dumps(_SAME if result is given else result, "result")
        case ResultKind.BYTES:
            return bytes(result)
        case ResultKind.PICKLE:
            return _pickled(result)
        case ResultKind.COMPACT | ResultKind.COMPACTION:
            return dumps(None if result is None else _values(result), "result")
        case ResultKind.ROW_STATS | ResultKind.SEARCH | ResultKind.COMPACTIONS:
            return dumps([_values(record) for record in result], "result")


def load_result(kind: ResultKind, data: bytes, given: Any = None) -> Any:
    """Read what `dump_result` wrote; `given` is the first argument, as it was passed."""
    if kind is ResultKind.BYTES:
        return data
    if kind is ResultKind.PICKLE:
        return pickle.loads(data)
    value = loads(data)
    match kind:
        case ResultKind.JSON:
            return value
        case ResultKind.APPEND:
            return _append_result(value, given)
        case ResultKind.APPENDS:
            return [_append_result(one, m) for one, m in zip(value, given, strict=True)]
        case ResultKind.UPDATE:
            return given if value == _SAME and value is not None else value
        case ResultKind.COMPACT:
            return None if value is None else CompactResult(*value)
        case ResultKind.COMPACTION:
            return Compaction(*value)
        case ResultKind.ROW_STATS:
            return [RowStat(*fields) for fields in value]
        case ResultKind.SEARCH:
            return [SearchResult(*fields) for fields in value]
        case ResultKind.COMPACTIONS:
            return [Compaction(*fields) for fields in value]


def _append_fields(result: AppendResult, given: Any) -> list[Any]:
    return [result.inserted, _SAME if result.message is given else result.message]


def _append_result(fields: list[Any], given: Any) -> AppendResult:
    inserted, message = fields
    return AppendResult(inserted, given if message == _SAME else message)


# ----------------------------------------------------------------------------------- windows


class WindowRequest(NamedTuple):
    """One pull of a stream.

    `stream` names the walker that the actor may still hold, standing after `serial` windows;
    where it does not, `cursor` says where to go on. `kind` is "history", "recent" or "rows".
    """

    stream: str
    serial: int
    kind: str
    params: dict[str, Any]
    cursor: Any
    max_bytes: int
    max_rows: int


@dataclass(frozen=True, slots=True)
class Window:
    """What one pull brings: texts of compact JSON, and where to go on (None: the end).

    `facts` belongs to the kind: parent, time and seq of each row; the totals of a recent window.
    """

    texts: list[bytes]
    cursor: Any
    facts: Any = None


def dump_window(window: Window) -> bytes:
    """Write a window: its texts stay as they are, joined as one JSON array."""
    sizes = [len(text) for text in window.texts]
    joined = b"[" + b",".join(window.texts) + b"]"
    return pickle.dumps((sizes, joined, dumps([window.cursor, window.facts], "cursor")), 5)


class LoadedWindow(NamedTuple):
    """A window at the reader: `texts` is one JSON array, `sizes` the bytes of its elements."""

    sizes: list[int]
    texts: bytes
    cursor: Any
    facts: Any

    def split(self) -> list[bytes]:
        """Part the array into its elements."""
        start, parts = 1, []
        for size in self.sizes:
            parts.append(self.texts[start : start + size])
            start += size + 1
        return parts


def load_window(data: bytes) -> LoadedWindow:
    """Read what `dump_window` wrote, without parsing its texts."""
    sizes, joined, rest = pickle.loads(data)
    cursor, facts = loads(rest)
    return LoadedWindow(sizes, joined, cursor, facts)


# ------------------------------------------------------------------------------------ events


def dump_event(event: ChangeEvent) -> bytes:
    """Write a change event as JSON."""
    overlay = event.compaction
    return dumps(
        [
            event.type,
            event.session_id,
            event.message,
            [] if event.parent_id is LEAF else [event.parent_id],
            event.inserted,
            event.message_ids,
            None if overlay is None else _values(overlay),
        ],
        "event",
    )


def load_event(data: bytes) -> ChangeEvent:
    """Read what `dump_event` wrote."""
    kind, session_id, message, parent, inserted, ids, overlay = loads(data)
    return ChangeEvent(
        kind,
        session_id,
        message=message,
        parent_id=parent[0] if parent else LEAF,
        inserted=inserted,
        message_ids=ids,
        compaction=None if overlay is None else Compaction(*overlay),
    )


@dataclass(frozen=True, slots=True)
class FeedPage:
    """One answer of a change feed.

    `place` is where the next poll goes on; `ended` says that this activation's feed is over and
    was delivered to its end; `lost` that events before these are gone.
    """

    events: list[bytes]
    place: int
    ended: bool
    lost: bool
