"""The operations a state machine draws, carried out on a real session and on its model.

An operation is a name and its arguments. ``perform`` runs it on a Session and ``predict`` on the
model; both give an outcome, ``("ok", JSON)`` or ``("error", class name)``, and both give the
change events it dispatched. The two must be equal, to the byte and the order of keys.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sessions_actor.records import LEAF, ChangeEvent, Compaction, CompactResult
from tests.conformance.host import event_json
from tests.property import model
from tests.property.model import OMITTED
from tests.property.model_content import check, is_text, message_tokens, row_bytes, text_of

CREATED_MS_MIN = 1_700_000_000_000

Outcome = tuple[str, Any]
Events = list[dict[str, Any]]


@dataclass(frozen=True)
class Operation:
    """One call: a method of Session and its arguments."""

    name: str
    args: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"{self.name}{self.args!r}"


def resolve(value: Any, session: model.Session) -> Any:
    """Replace the stand-in for an overlay's id by the id of an overlay the session has."""
    if isinstance(value, str) and value.startswith("compaction_#"):
        index = int(value[len("compaction_#") :])
        if index < len(session.overlays):
            return f"compaction_{session.overlays[index].id}"
        return value
    if isinstance(value, dict) and "id" in value:
        return {**value, "id": resolve(value["id"], session)}
    if isinstance(value, list | tuple):
        return type(value)(resolve(item, session) for item in value)
    return value


# ----------------------------------------------------------------------------------------- real
async def perform(session: Any, operation: Operation) -> Outcome:
    """Run an operation on a real session."""
    try:
        return "ok", await getattr(Real, operation.name)(session, *operation.args)
    except (ValueError, TypeError) as error:
        return "error", type(error).__name__


def _written(result: Any) -> Any:
    return [result.inserted, result.message]


def _parent(parent: Any) -> Any:
    return LEAF if parent is OMITTED else parent


class Real:
    """Each operation as a user would write it, its result as JSON."""

    @staticmethod
    async def append(session: Any, message: Any, parent: Any, source: str) -> Any:
        """Append one message."""
        if parent is OMITTED:
            return _written(await session.append_message(message, source=source))
        return _written(await session.append_message(message, parent_id=parent, source=source))

    @staticmethod
    async def append_all(session: Any, messages: list[Any]) -> Any:
        """Append several, all or nothing."""
        return [_written(item) for item in await session.append_messages(messages)]

    @staticmethod
    async def update(session: Any, message: Any, source: str) -> Any:
        """Replace a message."""
        return await session.update_message(message, source=source)

    @staticmethod
    async def upsert(session: Any, message: Any, parent: Any, source: str) -> Any:
        """Append or replace."""
        return _written(
            await session.upsert_message(message, parent_id=_parent(parent), source=source)
        )

    @staticmethod
    async def delete(session: Any, ids: list[Any]) -> Any:
        """Delete messages."""
        return await session.delete_messages(ids)

    @staticmethod
    async def clear(session: Any) -> Any:
        """Delete everything."""
        return await session.clear_messages()

    @staticmethod
    async def import_one(session: Any, message: Any, parent: Any, created_at: Any) -> Any:
        """Import one message."""
        return await session.import_message(message, parent_id=parent, created_at=created_at)

    @staticmethod
    async def import_all(session: Any, items: list[Any]) -> Any:
        """Import several, all or nothing."""
        rows = [
            {"message": message, "parent_id": parent, "created_at": created_at}
            for message, parent, created_at in items
        ]
        await session.import_messages(rows)

    @staticmethod
    async def add_compaction(session: Any, summary: str, start: str, end: str) -> Any:
        """Store an overlay."""
        return await session.add_compaction(summary, start, end)

    @staticmethod
    async def compact(session: Any, leaf_id: Any, summary: str, start: str, end: str) -> Any:
        """Compact with a function that answers with this range."""
        session.on_compaction(lambda messages: CompactResult(summary, start, end))
        result = await session.compact(leaf_id)
        return None if result is None else [result.from_message_id, result.to_message_id]

    @staticmethod
    async def history(session: Any, leaf_id: Any, newest_first: bool, limit: int | None) -> Any:
        """Stream a path, up to a number of messages."""
        messages: list[Any] = []
        async for message in session.history(leaf_id=leaf_id, newest_first=newest_first):
            messages.append(message)
            if len(messages) == limit:
                break
        return messages

    @staticmethod
    async def batches(session: Any, leaf_id: Any, size: int, max_bytes: int) -> Any:
        """Stream a path in batches."""
        batches = session.history_batches(
            leaf_id=leaf_id, batch_size=size, max_batch_bytes=max_bytes
        )
        return [batch async for batch in batches]

    @staticmethod
    async def recent(session: Any, budget: float, leaf_id: Any) -> Any:
        """Read the recent window."""
        recent = await session.get_recent_history(budget, leaf_id=leaf_id)
        return [recent.messages, recent.truncated, recent.total_content_bytes]

    @staticmethod
    async def stats(session: Any, leaf_id: Any) -> Any:
        """Read sizes and estimates."""
        stats = await session.get_history_row_stats(leaf_id)
        return [[row.id, row.role, row.bytes, row.token_estimate] for row in stats]

    @staticmethod
    async def get_message(session: Any, message_id: Any) -> Any:
        """Read one message."""
        return await session.get_message(message_id)

    @staticmethod
    async def latest_leaf(session: Any) -> Any:
        """Read the active leaf."""
        return await session.get_latest_leaf()

    @staticmethod
    async def branches(session: Any, message_id: Any) -> Any:
        """Read a message's children."""
        return await session.get_branches(message_id)

    @staticmethod
    async def rows(session: Any, after_seq: int) -> Any:
        """Stream every row."""
        return [
            [row.message, row.parent_id, row.seq, row.created_at]
            async for row in session.history_rows(after_seq=after_seq)
        ]

    @staticmethod
    async def search(session: Any, query: str) -> Any:
        """Search without a limit; which ids, in no order."""
        return sorted(hit.id for hit in await session.search(query, limit=-1))

    @staticmethod
    async def compactions(session: Any) -> Any:
        """List the overlays."""
        return [
            [item.id, item.summary, item.from_message_id, item.to_message_id, item.created_at]
            for item in await session.get_compactions()
        ]


# ---------------------------------------------------------------------------------------- model
def predict(
    session: model.Session, session_id: str, operation: Operation, told: list[Compaction]
) -> tuple[Outcome, Events]:
    """Run an operation on the model: its outcome and its events.

    Args:
        session: The model of the session.
        session_id: Its id, for the events.
        operation: What to do.
        told: The overlay records of the session after the real operation; the model takes ids
            and times of new ones from there.
    """
    before = list(session.rows), list(session.overlays)
    events: Events = []

    def emit(type: str, **keys: Any) -> None:
        events.append({"type": type, "sessionId": session_id, **keys})

    try:
        result = getattr(Predicted, operation.name)(session, emit, told, *operation.args)
    except (ValueError, TypeError) as error:
        session.rows, session.overlays = before
        return ("error", type(error).__name__), []
    return ("ok", result), events


def _with_parent(parent: Any) -> dict[str, Any]:
    return {} if parent is OMITTED else {"parentId": parent}


def _learn(session: model.Session, told: list[Compaction]) -> model.Overlay:
    record = told[-1]
    overlay = model.Overlay(
        record.id, record.summary, record.from_message_id, record.to_message_id, record.created_at
    )
    session.overlays.append(overlay)
    return overlay


Emit = Callable[..., None]


class Predicted:
    """Each operation on the model, its result as JSON."""

    @staticmethod
    def append(session: Any, emit: Emit, told: Any, message: Any, parent: Any, source: str) -> Any:
        """Append one message."""
        inserted, now = session.append(message, parent, source)
        if inserted is not None:
            emit("append", message=now, **_with_parent(parent), inserted=inserted)
        return [bool(inserted), now]

    @staticmethod
    def append_all(session: Any, emit: Emit, told: Any, messages: list[Any]) -> Any:
        """Append several: all are checked before the first is written."""
        for message in messages:
            check(message)
        results = [
            Predicted.append(session, lambda *_, **__: None, told, message, OMITTED, "server")
            for message in messages
        ]
        for message, (inserted, now) in zip(messages, results, strict=True):
            if not session.is_own_overlay(message["id"]):
                emit("append", message=now, inserted=inserted)
        return results

    @staticmethod
    def update(session: Any, emit: Emit, told: Any, message: Any, source: str) -> Any:
        """Replace a message."""
        changed, now = session.update(message, source)
        if changed:
            emit("update", message=now)
        return now

    @staticmethod
    def upsert(session: Any, emit: Emit, told: Any, message: Any, parent: Any, source: str) -> Any:
        """Append or replace."""
        check(message)
        if session.row(message["id"]) is None:
            return Predicted.append(session, emit, told, message, parent, source)
        now = Predicted.update(session, emit, told, message, source)
        return [False, message if now is None else now]

    @staticmethod
    def delete(session: Any, emit: Emit, told: Any, ids: list[Any]) -> Any:
        """Delete messages."""
        session.delete(ids)
        emit("delete", messageIds=list(ids))

    @staticmethod
    def clear(session: Any, emit: Emit, told: Any) -> Any:
        """Delete everything."""
        session.clear()
        emit("clear")

    @staticmethod
    def import_one(
        session: Any, emit: Emit, told: Any, message: Any, parent: Any, created_at: Any
    ) -> Any:
        """Import one message."""
        Predicted.import_all(session, emit, told, [(message, parent, created_at)])

    @staticmethod
    def import_all(session: Any, emit: Emit, told: Any, items: list[Any]) -> Any:
        """Import several, all or nothing."""
        written = [item for item in items if session.import_one(*item)]
        for message, parent, _ in written:
            emit("import", message=message, parentId=parent or None)

    @staticmethod
    def add_compaction(
        session: Any, emit: Emit, told: Any, summary: str, start: str, end: str
    ) -> Any:
        """Store an overlay."""
        if not all(map(is_text, (summary, start, end))):
            raise ValueError("compaction")
        overlay = _learn(session, told)
        assert (overlay.summary, overlay.start, overlay.end) == (summary, start, end)
        keys = ("id", "summary", "fromMessageId", "toMessageId", "createdAt")
        values = (overlay.id, summary, start, end, overlay.created_at)
        emit("compaction", compaction=dict(zip(keys, values, strict=True)))
        return told[-1]

    @staticmethod
    def compact(
        session: Any, emit: Emit, told: Any, leaf: Any, summary: str, start: str, end: str
    ) -> Any:
        """Compact with a function that answers with this range."""
        kept = session.compact(leaf, start, end)
        if kept is None:
            return None
        overlay = _learn(session, told)
        assert overlay.summary == summary
        assert (overlay.start, overlay.end) == kept
        emit("compact")
        return list(kept)

    @staticmethod
    def history(
        session: Any, emit: Emit, told: Any, leaf_id: Any, newest_first: bool, limit: int | None
    ) -> Any:
        """Stream a path."""
        messages = [item.message for item in session.view(session.path(leaf_id))]
        return (messages[::-1] if newest_first else messages)[:limit]

    @staticmethod
    def batches(
        session: Any, emit: Emit, told: Any, leaf_id: Any, size: int, max_bytes: int
    ) -> Any:
        """Cut a path into batches."""
        batches: list[list[Any]] = [[]]
        for message in Predicted.history(session, emit, told, leaf_id, False, None):
            total = sum(len(text_of(item).encode()) for item in [*batches[-1], message])
            if batches[-1] and (len(batches[-1]) >= size or total > max_bytes):
                batches.append([])
            batches[-1].append(message)
        return [batch for batch in batches if batch]

    @staticmethod
    def recent(session: Any, emit: Emit, told: Any, budget: float, leaf_id: Any) -> Any:
        """Read the recent window."""
        sizes = [row_bytes(row.message) for row in session.path(leaf_id)]
        messages, truncated = session.recent(budget, leaf_id, sizes)
        return [messages, truncated, sum(sizes)]

    @staticmethod
    def stats(session: Any, emit: Emit, told: Any, leaf_id: Any) -> Any:
        """Read sizes and estimates."""
        return [
            [
                row.id,
                row.message["role"],
                row_bytes(row.message),
                message_tokens(row.message),
            ]
            for row in session.path(leaf_id)
        ]

    @staticmethod
    def get_message(session: Any, emit: Emit, told: Any, message_id: Any) -> Any:
        """Read one message."""
        row = session.row(message_id)
        return None if row is None else row.message

    @staticmethod
    def latest_leaf(session: Any, emit: Emit, told: Any) -> Any:
        """Read the active leaf."""
        path = session.path()
        return path[-1].message if path else None

    @staticmethod
    def branches(session: Any, emit: Emit, told: Any, message_id: Any) -> Any:
        """Read a message's children."""
        return [row.message for row in session.children(message_id)]

    @staticmethod
    def rows(session: Any, emit: Emit, told: Any, after_seq: int) -> Any:
        """Stream every row."""
        rows = sorted((row for row in session.rows if row.seq > after_seq), key=lambda r: r.seq)
        return [[row.message, row.parent, row.seq, row.created_at] for row in rows]

    @staticmethod
    def search(session: Any, emit: Emit, told: Any, query: str) -> Any:
        """Search."""
        return sorted(session.search(query))

    @staticmethod
    def compactions(session: Any, emit: Emit, told: Any) -> Any:
        """List the overlays."""
        return [[o.id, o.summary, o.start, o.end, o.created_at] for o in session.overlays]


# ------------------------------------------------------------------------------------ comparing
def same(got: Any, want: Any) -> bool:
    """Compare JSON by its text (so 1, 1.0 and true differ, and key order counts)."""
    if isinstance(got, Compaction):
        return bool(got == want)
    return text_of(got) == text_of(want)


def learn_times(session: model.Session, rows: list[Any]) -> None:
    """Take over the clock times of appended rows, once; afterwards they must stay."""
    times = {message["id"]: created_at for message, _, _, created_at in rows}
    for row in session.rows:
        if row.created_at is None and row.id in times:
            assert times[row.id] >= CREATED_MS_MIN
            row.created_at = times[row.id]


def events_json(events: list[ChangeEvent]) -> Events:
    """Write change events as JSON, and forget them."""
    rows = [event_json(event) for event in events]
    events.clear()
    return rows
