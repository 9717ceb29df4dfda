"""The operations of scenarios, carried out with our API.

Scenarios speak the reference's JavaScript: camelCase operations, options objects, ``null`` for
"not given". This module turns each into the call a Python user would write, and the result back
into the scenario's JSON. It works on anything that has the Session methods: a Session in process
or a SessionHandle of a remote conversation.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from tests.conformance.host import ConformanceObject, compaction_json
from tests.conformance.scenario import Answer

Message = dict[str, Any]


class Host(Protocol):
    """A conversation: its sessions, and the public methods of its own class."""

    def session(self, session_id: str) -> Any:
        """Return the Session or SessionHandle of that id."""

    async def call(self, method: str, *args: Any) -> Any:
        """Call a public async method of :class:`ConformanceObject`."""


class LocalHost:
    """A :class:`ConformanceObject` in this process."""

    def __init__(self, target: ConformanceObject) -> None:
        self.target = target

    def session(self, session_id: str) -> Any:
        """Return the Session of that id."""
        return self.target.sessions.session(session_id)

    async def call(self, method: str, *args: Any) -> Any:
        """Call the object's own method."""
        return await getattr(self.target, method)(*args)


class Conversation:
    """Run scenario operations on one conversation."""

    def __init__(self, host: Host) -> None:
        self.host = host

    async def call(self, op: str, args: list[Any], session: str) -> Answer:
        """Run one operation: ``{"ok": value}`` or ``{"error": "Class: text"}``."""
        operation = OPERATIONS.get(op)
        if operation is None:
            raise LookupError(f"no operation {op!r}: see OPERATIONS")
        try:
            return {"ok": await operation(self.host, session, args)}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}


def _at(args: list[Any], index: int) -> Any:
    return args[index] if len(args) > index else None


def _options(args: list[Any], index: int) -> dict[str, Any]:
    value = _at(args, index)
    return value if isinstance(value, dict) else {}


def _renamed(options: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Rename the options that are given; ``null`` counts as not given, save for a parent."""
    given = {names[key]: value for key, value in options.items() if key in names}
    return {k: v for k, v in given.items() if v is not None or k == "parent_id"}


def _write_options(args: list[Any]) -> dict[str, Any]:
    return _renamed(_options(args, 1), {"parentId": "parent_id", "source": "source"})


def _read_options(options: dict[str, Any]) -> dict[str, Any]:
    names = {"leafId": "leaf_id", "newestFirst": "newest_first"}
    return _renamed(options, names)


def _result(result: Any) -> dict[str, Any]:
    return {"inserted": result.inserted, "message": result.message}


async def append(host: Host, session: str, args: list[Any]) -> Any:
    """appendMessage(message, {parentId, source})."""
    return _result(await host.session(session).append_message(args[0], **_write_options(args)))


async def append_many(host: Host, session: str, args: list[Any]) -> int:
    """appendMany([[message, options], ...]): one append after the other; how many were new."""
    handle = host.session(session)
    results = [await handle.append_message(pair[0], **_write_options(pair)) for pair in args[0]]
    return sum(result.inserted for result in results)


async def append_batch(host: Host, session: str, args: list[Any]) -> Any:
    """appendMessages([message, ...]): one transaction. The reference has no such operation."""
    return [_result(item) for item in await host.session(session).append_messages(args[0])]


async def update(host: Host, session: str, args: list[Any]) -> Any:
    """updateMessage(message, {source})."""
    options = _renamed(_options(args, 1), {"source": "source"})
    return await host.session(session).update_message(args[0], **options)


async def upsert(host: Host, session: str, args: list[Any]) -> Any:
    """upsertMessage(message, {parentId, source})."""
    return _result(await host.session(session).upsert_message(args[0], **_write_options(args)))


async def import_one(host: Host, session: str, args: list[Any]) -> Any:
    """importMessage(message, {parentId, createdAt})."""
    options = _options(args, 1)
    parent, created = options.get("parentId"), options.get("createdAt")
    return await host.session(session).import_message(args[0], parent_id=parent, created_at=created)


async def delete(host: Host, session: str, args: list[Any]) -> Any:
    """deleteMessages(ids)."""
    return await host.session(session).delete_messages(args[0])


async def clear(host: Host, session: str, args: list[Any]) -> Any:
    """clearMessages()."""
    return await host.session(session).clear_messages()


async def history(host: Host, session: str, args: list[Any]) -> list[Message]:
    """history(options) as a list; a second argument stops the loop after that many messages."""
    stream: AsyncIterator[Message] = host.session(session).history(
        **_read_options(_options(args, 0))
    )
    limit = _at(args, 1) or math.inf
    messages = []
    async for message in stream:
        messages.append(message)
        if len(messages) >= limit:
            break
    return messages


async def history_count(host: Host, session: str, args: list[Any]) -> int:
    """history(options), counted."""
    return len(await history(host, session, args[:1]))


async def history_batches(host: Host, session: str, args: list[Any]) -> list[list[str]]:
    """historyBatches(options): the ids of each batch."""
    given = _options(args, 0)
    sizes = _renamed(given, {"batchSize": "batch_size", "maxBatchBytes": "max_batch_bytes"})
    batches = host.session(session).history_batches(**sizes, **_read_options(given))
    return [[message["id"] for message in batch] async for batch in batches]


async def history_rows(host: Host, session: str, args: list[Any]) -> list[dict[str, Any]]:
    """historyRows(afterSeq): every stored row. The reference has no such operation."""
    rows = host.session(session).history_rows(after_seq=_at(args, 0) or 0)
    return [
        {"id": row.message["id"], "parentId": row.parent_id, "createdAt": row.created_at,
         "seq": row.seq}
        async for row in rows
    ]  # fmt: skip


async def get_history(host: Host, session: str, args: list[Any]) -> Any:
    """getHistory(options)."""
    return await host.session(session).get_history(**_read_options(_options(args, 0)))


async def get_recent_history(host: Host, session: str, args: list[Any]) -> Any:
    """getRecentHistory(maxContentBytes, {leafId})."""
    options = _renamed(_options(args, 1), {"leafId": "leaf_id"})
    recent = await host.session(session).get_recent_history(args[0], **options)
    return {
        "messages": recent.messages,
        "truncated": recent.truncated,
        "totalContentBytes": recent.total_content_bytes,
    }


async def get_message(host: Host, session: str, args: list[Any]) -> Any:
    """getMessage(id)."""
    return await host.session(session).get_message(args[0])


async def get_latest_leaf(host: Host, session: str, args: list[Any]) -> Any:
    """getLatestLeaf()."""
    return await host.session(session).get_latest_leaf()


async def get_branches(host: Host, session: str, args: list[Any]) -> Any:
    """getBranches(id)."""
    return await host.session(session).get_branches(args[0])


async def get_row_stats(host: Host, session: str, args: list[Any]) -> Any:
    """getHistoryRowStats(leafId)."""
    stats = await host.session(session).get_history_row_stats(_at(args, 0))
    return [
        {"id": row.id, "role": row.role, "bytes": row.bytes, "tokenEstimate": row.token_estimate}
        for row in stats
    ]


async def search(host: Host, session: str, args: list[Any]) -> Any:
    """search(query, {limit})."""
    limit = _renamed(_options(args, 1), {"limit": "limit"})
    hits = await host.session(session).search(args[0], **limit)
    return [{"id": hit.id, "role": hit.role, "content": hit.content} for hit in hits]


async def compact(host: Host, session: str, args: list[Any]) -> Any:
    """compact(leafId)."""
    result = await host.session(session).compact(_at(args, 0))
    if result is None:
        return None
    return {
        "fromMessageId": result.from_message_id,
        "toMessageId": result.to_message_id,
        "summary": result.summary,
    }


async def add_compaction(host: Host, session: str, args: list[Any]) -> Any:
    """addCompaction(summary, from, to)."""
    return compaction_json(await host.session(session).add_compaction(*args))


async def get_compactions(host: Host, session: str, args: list[Any]) -> Any:
    """getCompactions()."""
    return [compaction_json(item) for item in await host.session(session).get_compactions()]


async def sql(host: Host, session: str, args: list[Any]) -> Any:
    """sql(query, params): rows as objects."""
    return await host.call("sql", args[0], _at(args, 1) or [])


async def rows_written(host: Host, session: str, args: list[Any]) -> Any:
    """rowsWritten(query, params)."""
    return await host.call("rows_written", args[0], _at(args, 1) or [])


async def database_size(host: Host, session: str, args: list[Any]) -> Any:
    """databaseSize()."""
    return await host.call("database_size")


async def events(host: Host, session: str, args: list[Any]) -> Any:
    """events(): the change events since the last call."""
    return await host.call("take_events")


async def on_compaction(host: Host, session: str, args: list[Any]) -> Any:
    """onCompaction(summary, keepRecentTokens)."""
    summary = args[0] if args and args[0] is not None else "SUMMARY"
    return await host.call("install_summary", session, summary, _at(args, 1))


async def prompt(host: Host, session: str, args: list[Any]) -> Any:
    """prompt(): what the summariser was last asked."""
    return await host.call("last_prompt")


async def compact_after(host: Host, session: str, args: list[Any]) -> Any:
    """compactAfter(tokens)."""
    return await host.call("compact_after", session, args[0])


OPERATIONS: dict[str, Callable[[Host, str, list[Any]], Awaitable[Any]]] = {
    "appendMessage": append,
    "appendMany": append_many,
    "appendMessages": append_batch,
    "updateMessage": update,
    "upsertMessage": upsert,
    "importMessage": import_one,
    "deleteMessages": delete,
    "clearMessages": clear,
    "history": history,
    "historyCount": history_count,
    "historyBatches": history_batches,
    "historyRows": history_rows,
    "getHistory": get_history,
    "getRecentHistory": get_recent_history,
    "getMessage": get_message,
    "getLatestLeaf": get_latest_leaf,
    "getBranches": get_branches,
    "getHistoryRowStats": get_row_stats,
    "search": search,
    "compact": compact,
    "addCompaction": add_compaction,
    "getCompactions": get_compactions,
    "sql": sql,
    "rowsWritten": rows_written,
    "databaseSize": database_size,
    "events": events,
    "onCompaction": on_compaction,
    "prompt": prompt,
    "compactAfter": compact_after,
}
