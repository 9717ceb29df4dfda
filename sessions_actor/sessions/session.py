"""The handle of one session: the public operations, in process.

Every method waits for the lifecycle to have started, checks its arguments before anything is
written, and returns only once what it saw or wrote is durable. The same methods, remote, are
those of the actor's handle.

Source: specification, "Write messages" to "Compaction".
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..messages import SessionMessage
from ..records import (
    LEAF,
    AppendResult,
    ChangeEvent,
    Compaction,
    CompactResult,
    HistoryRow,
    Parent,
    ms_from_iso,
)
from .engine import Engine
from .feed import mirror_listener
from .preparation import Prepared, as_sequence, prepare, prepare_import
from .reads import SessionReads
from .sql import is_text

if TYPE_CHECKING:
    from .capability import Sessions

CompactionFunction = Callable[
    [list[SessionMessage]], Awaitable[CompactResult | None] | CompactResult | None
]
ImportItem = HistoryRow | Mapping[str, Any] | tuple[SessionMessage, str | None, float]


class Session(SessionReads):
    """One session of a conversation: a tree of messages with branches and overlays."""

    def __init__(self, session_id: str, owner: Sessions) -> None:
        """Made by `Sessions.session()` alone."""
        super().__init__(session_id, owner)
        self._compaction: CompactionFunction | None = None
        self._threshold: float | None = None
        self._compacting = asyncio.Lock()

    # ------------------------------------------------------------------ writes

    async def append_message(
        self,
        message: SessionMessage,
        *,
        parent_id: Parent = LEAF,
        source: str = "server",
    ) -> AppendResult:
        """Append one message; a known id writes nothing and gives the stored message.

        Args:
            message: JSON object with a string `id` and `role` and a list `parts`.
            parent_id: omitted, the active leaf; None, a new root; an id of this session, a
                branch; anything else, a new root.
            source: "client" strips reserved metadata keys and holds to the limits that the
                deployment or the host sets for clients; else there is no limit.

        Raises: ValueError naming an ill-formed field or a client's limit; TypeError for what JSON
            cannot hold; QuotaExceededError. Nothing is written then.
        Cost: one row written for a text of up to 1.5 MiB, one more per further slice.
        """
        engine = await self._ready()
        new = self._prepare(message, source)
        inserted = await engine.storage.submit(lambda: self._append(engine, new, parent_id))
        result = self._appended(engine, message, new, inserted)
        if self._feed.heard and inserted is not None:
            await self._feed.publish(self._append_event(result, parent_id))
        if inserted:
            await self._compact_if_due()
        return result

    async def append_messages(
        self,
        messages: Iterable[SessionMessage],
        *,
        parent_id: Parent = LEAF,
        source: str = "server",
    ) -> list[AppendResult]:
        """Append messages in one transaction, each under the one before: all or nothing.

        `parent_id` places the first; see `append_message`.
        """
        engine = await self._ready()
        items = as_sequence(messages, "messages")
        prepared = [self._prepare(message, source) for message in items]
        parents: list[Parent] = [parent_id] + [LEAF] * (len(items) - 1)

        def op() -> list[bool | None]:
            return list(map(partial(self._append, engine), prepared, parents))

        outcomes = await engine.storage.submit(op)
        results, events = [], []
        for given, new, parent, inserted in zip(items, prepared, parents, outcomes, strict=False):
            result = self._appended(engine, given, new, inserted)
            results.append(result)
            if self._feed.heard and inserted is not None:
                events.append(self._append_event(result, parent))
        await self._feed.publish(*events)
        if any(outcomes):
            await self._compact_if_due()
        return results

    def _append(self, engine: Engine, new: Prepared, parent_id: Parent) -> bool | None:
        """Write a message, within an operation; None for an overlay that a client posts back."""
        if engine.is_own_overlay(self.session_id, new.row.id):
            return None
        return engine.do_append(self.session_id, new, parent_id)

    def _appended(
        self, engine: Engine, given: SessionMessage, new: Prepared, inserted: bool | None
    ) -> AppendResult:
        """Say what became of a message, and report the one that is new."""
        if inserted:
            self._emit(
                "session:message:appended",
                message_id=new.row.id,
                token_estimate=new.row.token_estimate,
            )
            return AppendResult(True, new.message)
        if inserted is None:  # dropped without a word
            return AppendResult(False, given)
        return AppendResult(False, engine.message(self.session_id, new.row.id) or new.message)

    def _append_event(self, result: AppendResult, parent_id: Parent) -> ChangeEvent:
        return ChangeEvent(
            "append",
            self.session_id,
            message=result.message,
            parent_id=parent_id,
            inserted=result.inserted,
        )

    def _prepare(self, message: SessionMessage, source: str) -> Prepared:
        owner = self._owner
        return prepare(message, source, owner.engine.reserved_metadata_keys, owner.client_limits)

    async def update_message(
        self, message: SessionMessage, *, source: str = "server"
    ) -> SessionMessage | None:
        """Replace a stored message; seq, parent and created_at stay.

        Returns: the stored form; None when the id is not in this session. An unchanged message
            writes nothing and dispatches no event.
        """
        engine, session_id = await self._ready(), self.session_id
        new = self._prepare(message, source)

        def op() -> bool | None:
            if engine.is_own_overlay(session_id, new.row.id):
                return None
            return engine.do_update(session_id, new)

        changed = await engine.storage.submit(op)
        if changed is None:
            return None
        if changed:
            await self._updated(new)
        return new.message

    async def _updated(self, new: Prepared) -> None:
        self._emit("session:message:updated", message_id=new.row.id)
        await self._feed.publish(ChangeEvent("update", self.session_id, message=new.message))

    async def upsert_message(
        self,
        message: SessionMessage,
        *,
        parent_id: Parent = LEAF,
        source: str = "server",
    ) -> AppendResult:
        """Append a message, or replace the one stored under its id."""
        engine, session_id = await self._ready(), self.session_id
        new = self._prepare(message, source)

        def op() -> tuple[str, bool | None]:
            if engine.is_own_overlay(session_id, new.row.id):
                return "dropped", None
            changed = engine.do_update(session_id, new)
            if changed is None:
                return "append", engine.do_append(session_id, new, parent_id)
            return "update", changed

        kind, changed = await engine.storage.submit(op)
        if kind == "dropped":
            return AppendResult(False, message)
        if kind == "update":
            if changed:
                await self._updated(new)
            return AppendResult(False, new.message)
        result = self._appended(engine, message, new, True)
        await self._feed.publish(self._append_event(result, parent_id))
        await self._compact_if_due()
        return result

    async def delete_messages(self, message_ids: Iterable[str]) -> None:
        """Delete messages; their children move to the nearest surviving ancestor.

        Duplicates and unknown ids are ignored; one event carries the ids as given.
        Cost: a row written per deleted row and moved child.
        """
        engine, session_id = await self._ready(), self.session_id
        ids = as_sequence(message_ids, "message_ids")
        await engine.storage.submit(lambda: engine.do_delete(session_id, ids))
        if ids:
            self._emit("session:messages:deleted", count=len(dict.fromkeys(ids)))
        await self._feed.publish(ChangeEvent("delete", session_id, message_ids=tuple(ids)))

    async def clear_messages(self) -> None:
        """Delete this session's messages, overlays, attachments and index rows."""
        engine, session_id = await self._ready(), self.session_id
        await engine.storage.submit(lambda: engine.do_clear(session_id))
        self._emit("session:cleared")
        await self._feed.publish(ChangeEvent("clear", session_id))

    async def import_message(
        self, message: SessionMessage, *, parent_id: str | None, created_at: float
    ) -> None:
        """Write one historical message verbatim; a known id writes nothing.

        Args:
            parent_id: the parent's id, kept as given; None for a root.
            created_at: milliseconds since the epoch.

        Raises: ValueError naming the field, also when the message would be its own ancestor.
        """
        await self.import_messages([(message, parent_id, created_at)])

    async def import_messages(self, items: Iterable[ImportItem]) -> int:
        """Import messages in one transaction, all or nothing; returns how many were new.

        Args:
            items: `HistoryRow`s, objects with `message`, `parent_id` and `created_at`, or
                tuples of the three.
        """
        engine, session_id = await self._ready(), self.session_id
        wanted = []
        for item in as_sequence(items, "items"):
            message, given_parent, created_at = _import_fields(item)
            parent_id = given_parent if given_parent != "" else None
            new = prepare_import(message, parent_id, created_at)
            wanted.append((new, parent_id, created_at))

        def op() -> list[bool]:
            return [engine.do_import(session_id, *one) for one in wanted]

        written = await engine.storage.submit(op)
        await self._feed.publish(
            *(
                ChangeEvent("import", session_id, message=new.message, parent_id=parent_id)
                for (new, parent_id, _), was_new in zip(wanted, written, strict=True)
                if was_new
            )
        )
        return sum(written)

    async def import_compactions(self, overlays: Iterable[Compaction | Sequence[str]]) -> int:
        """Store overlays with their ids and times; known ids are left alone.

        Args: `overlays` are Compactions, or their five values in order.
        Returns: how many were new. No event: an import is read anew, as with messages.
        """
        engine, session_id = await self._ready(), self.session_id
        wanted = []
        for overlay in as_sequence(overlays, "overlays"):
            record = overlay if isinstance(overlay, Compaction) else Compaction(*overlay)
            _check_compaction(record)
            if not is_text(record.id) or not record.id:
                raise ValueError("id: an overlay's id is a string that UTF-8 can hold")
            wanted.append((record, ms_from_iso(record.created_at)))
        return await engine.storage.submit(lambda: engine.do_import_compactions(session_id, wanted))

    async def import_config(self, entries: Mapping[str, str]) -> int:
        """Store entries of the session's configuration; returns how many were new."""
        engine, session_id = await self._ready(), self.session_id
        for key, value in entries.items():
            if not is_text(key) or not is_text(value):
                raise ValueError(f"{key!r}: configuration is text under text")
        return await engine.storage.submit(lambda: engine.store.insert_config(session_id, entries))

    # ------------------------------------------------------------------ compaction

    def on_compaction(self, function: CompactionFunction) -> Session:
        """Register the function that `compact()` calls with the path to summarise."""
        self._compaction = function
        return self

    def compact_after(self, tokens: float | None) -> Session:
        """Compact after an append once the path's token estimate exceeds a threshold."""
        self._threshold = tokens
        return self

    async def compact(self, leaf_id: str | None = None) -> CompactResult | None:
        """Summarise a path with the registered function and store its overlay.

        Returns: what was stored; None when there was nothing to compact, the result was refused
            or the function raised, which is reported as `session:error`.
        Raises: RuntimeError without a registered function.
        """
        engine, session_id = await self._ready(), self.session_id
        if self._compaction is None:
            raise RuntimeError("no compaction function: call on_compaction() first")
        async with self._compacting:
            leaf = engine.resolve_leaf(session_id, leaf_id)
            messages = [] if leaf is None else await self.get_history(leaf_id=leaf)
            try:
                result = self._compaction(messages)
                if inspect.isawaitable(result):
                    result = await result
                if leaf is None or result is None:
                    return None
                _check_compaction(result)
            except Exception as error:
                self._emit("session:error", error=f"compaction: {error}")
                return None
            stored = await engine.storage.submit(
                lambda: engine.do_compact(session_id, leaf, result)
            )
            if stored is not None:
                self._emit("session:compacted")
                await self._feed.publish(ChangeEvent("compact", session_id))
            return stored

    async def _compact_if_due(self) -> None:
        if self._threshold is None or self._compaction is None or self._compacting.locked():
            return
        try:
            totals = self._owner.engine.totals(self.session_id)
            if totals is not None and totals.overlaid_tokens > self._threshold:
                await self.compact()
        except Exception as error:
            self._emit("session:error", error=f"automatic compaction: {error}")

    async def add_compaction(
        self, summary: str, from_message_id: str, to_message_id: str
    ) -> Compaction:
        """Store an overlay directly: reads of a path that holds the range show the summary."""
        engine, session_id = await self._ready(), self.session_id
        given = CompactResult(summary, from_message_id, to_message_id)
        _check_compaction(given)
        overlay = await engine.storage.submit(
            lambda: engine.do_add_compaction(session_id, summary, from_message_id, to_message_id)
        )
        self._emit("session:compacted", compaction_id=overlay.id)
        await self._feed.publish(ChangeEvent("compaction", session_id, compaction=overlay))
        return overlay

    async def get_compactions(self) -> list[Compaction]:
        """List the session's overlays in the order of their records."""
        engine = await self._ready()
        overlays = engine.store.compactions(self.session_id)
        await engine.storage.durable()
        return overlays

    def mirror(self, **options: Any) -> Callable[[], None]:
        """Keep a transcript in memory in step with this session; returns how to stop.

        Options: those of `mirror_listener`: get, set, transform, intercept, on_applied.
        """
        return self._feed.subscribe(mirror_listener(self.session_id, **options))


def _import_fields(item: ImportItem) -> Sequence[Any]:
    if isinstance(item, HistoryRow):
        return item.message, item.parent_id, item.created_at
    if isinstance(item, Mapping):
        missing = {"message", "parent_id", "created_at"}.difference(item)
        if missing:
            raise ValueError(f"{min(missing)}: missing in an item to import")
        return item["message"], item["parent_id"], item["created_at"]
    if not isinstance(item, tuple | list) or len(item) != 3:
        raise ValueError("items: each is a HistoryRow or (message, parent_id, created_at)")
    return item


def _check_compaction(result: CompactResult | Compaction) -> None:
    for field in ("summary", "from_message_id", "to_message_id"):
        if not is_text(getattr(result, field, None)):
            raise ValueError(f"{field}: not a string that UTF-8 can hold")
