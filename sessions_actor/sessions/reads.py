"""The reads of one session, in process; `Session` adds the writes.

Source: specification, "Read history", "Branches", "Full-text search".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from ..limits import WINDOW_BYTES_MAX, WINDOW_ROWS_MAX
from ..messages import SessionMessage
from ..records import HistoryRow, RecentHistory, RowStat, SearchResult
from .engine import Engine
from .feed import ChangeFeed
from .index import parse
from .paths import Cursor, ForwardWalker, Walker, open_walker, resume_walker
from .rows import RowText

if TYPE_CHECKING:
    from .capability import Sessions


class SessionReads:
    """What can be read of a session, and the windows that its actor sends."""

    def __init__(self, session_id: str, owner: Sessions) -> None:
        self.session_id = session_id
        self._owner = owner

    async def _ready(self) -> Engine:
        await self._owner.ready()
        return self._owner.engine

    @property
    def _feed(self) -> ChangeFeed:
        return self._owner.feed

    def _emit(self, type: str, **payload: Any) -> None:
        self._owner.emit(type, {"session_id": self.session_id, **payload})

    async def get_config(self) -> dict[str, str]:
        """Read the configuration that came with the session, in the order of its keys."""
        engine = await self._ready()
        found = engine.store.config(self.session_id)
        await engine.storage.durable()
        return found

    async def history(
        self, *, leaf_id: str | None = None, newest_first: bool = False
    ) -> AsyncIterator[SessionMessage]:
        """Stream one path, overlays applied: root to leaf, or leaf to root.

        An unknown leaf is an empty path. A consumer that stops leaves the rest unread.
        Cost: memory for one window of at most 50 rows and 4 MiB.
        """
        walker = await self.open_history(leaf_id=leaf_id, newest_first=newest_first)
        while texts := await self.next_window(walker):
            for text in texts:
                message = parse(text)
                if message is not None:
                    yield message

    async def history_batches(
        self,
        *,
        batch_size: float | None = WINDOW_ROWS_MAX,
        max_batch_bytes: float | None = WINDOW_BYTES_MAX,
        leaf_id: str | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[list[SessionMessage]]:
        """Stream one path in batches, never empty, bounded by count and compact JSON bytes.

        A message larger than `max_batch_bytes` stands alone.
        """
        walker = await self.open_history(leaf_id=leaf_id, newest_first=newest_first)
        batch: list[SessionMessage] = []
        batch_bytes = 0
        size = max(1, int(WINDOW_ROWS_MAX if batch_size is None else batch_size))
        limit = max(1, int(WINDOW_BYTES_MAX if max_batch_bytes is None else max_batch_bytes))
        while texts := await self.next_window(walker):
            for text in texts:
                message = parse(text)
                if message is None:
                    continue
                if batch and batch_bytes + len(text) > limit:
                    yield batch
                    batch, batch_bytes = [], 0
                batch.append(message)
                batch_bytes += len(text)
                if len(batch) >= size or batch_bytes >= limit:
                    yield batch
                    batch, batch_bytes = [], 0
        if batch:
            yield batch

    async def get_history(
        self, *, leaf_id: str | None = None, newest_first: bool = False
    ) -> list[SessionMessage]:
        """Read a whole path. Prefer `history()`: this holds every message at once."""
        stream = self.history(leaf_id=leaf_id, newest_first=newest_first)
        return [message async for message in stream]

    async def get_recent_history(
        self, max_content_bytes: float, *, leaf_id: str | None = None
    ) -> RecentHistory:
        """Read the longest recent part of a path that fits a byte budget.

        Always at least the newest message. Rows count with all their slices and the payloads
        they point at, so the budget bounds the memory of what is returned.
        """
        walker, truncated, total = await self.open_recent(max_content_bytes, leaf_id=leaf_id)
        messages: list[SessionMessage] = []
        while texts := await self.next_window(walker):
            messages += (m for text in texts if (m := parse(text)) is not None)
        return RecentHistory(messages, truncated, total)

    async def get_message(self, message_id: str) -> SessionMessage | None:
        """Read one message; None when it is absent."""
        engine = await self._ready()
        message = engine.message(self.session_id, message_id)
        await engine.storage.durable()
        return message

    async def get_latest_leaf(self) -> SessionMessage | None:
        """Read the active leaf: the newest row, whatever its place in the tree."""
        engine = await self._ready()
        leaf_id = engine.latest_leaf_id(self.session_id)
        message = None if leaf_id is None else engine.message(self.session_id, leaf_id)
        await engine.storage.durable()
        return message

    async def get_branches(self, message_id: str) -> list[SessionMessage]:
        """Read a message's children in the order they were written."""
        engine = await self._ready()
        ids = engine.branch_ids(self.session_id, message_id)
        found = [engine.message(self.session_id, child) for child in ids]
        await engine.storage.durable()
        return [message for message in found if message is not None]

    async def get_history_row_stats(self, leaf_id: str | None = None) -> list[RowStat]:
        """List a path's rows with stored bytes and token estimates, without content."""
        engine = await self._ready()
        leaf = engine.resolve_leaf(self.session_id, leaf_id)
        rows = [] if leaf is None else engine.path_rows(self.session_id, leaf)
        await engine.storage.durable()
        return [RowStat(row.id, row.role, row.bytes, row.token_estimate) for row in rows]

    async def history_rows(self, *, after_seq: int = 0) -> AsyncIterator[HistoryRow]:
        """Stream every stored row of the session, all branches, in the order of writing."""
        place: int | None = after_seq
        while place is not None:
            rows, place = await self.rows_window(place, WINDOW_BYTES_MAX)
            for row in rows:
                message = parse(row.text)
                if message is not None:
                    yield HistoryRow(message, row.parent_id, row.created_at, row.seq)

    async def search(self, query: str, *, limit: int | None = 20) -> list[SearchResult]:
        """Find a phrase in the text parts of this session's messages, all branches.

        The first search of an object builds the index; every write keeps it from then on.
        """
        if not isinstance(query, str):
            raise TypeError(f"query: {type(query).__name__} is no string")
        limit = 20 if limit is None else limit
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise ValueError(f"limit: {limit!r} is no whole number")
        engine = await self._ready()
        results = await engine.index.search(self.session_id, query, limit)
        await engine.storage.durable()
        return results

    # ------------------------------------------------------------------ windows, for the actor

    async def open_history(
        self,
        *,
        leaf_id: str | None = None,
        newest_first: bool = False,
        resume: Cursor | None = None,
    ) -> Walker:
        """Open a walker over a path; `resume` goes on where another one's cursor stood."""
        engine = await self._ready()
        if resume is not None:
            walker = resume_walker(engine.store, self.session_id, newest_first, resume)
        else:
            leaf = engine.resolve_leaf(self.session_id, leaf_id)
            walker = open_walker(engine.store, self.session_id, leaf, newest_first)
        return engine.watch(self.session_id, walker)

    async def open_recent(
        self, max_content_bytes: float, *, leaf_id: str | None = None
    ) -> tuple[Walker, bool, int]:
        """Open a walker over the recent window; see `get_recent_history`."""
        engine = await self._ready()
        leaf = engine.resolve_leaf(self.session_id, leaf_id)
        if leaf is None:
            return ForwardWalker(engine.store, self.session_id, []), False, 0
        return engine.recent(self.session_id, leaf, max_content_bytes)

    async def next_window(
        self,
        walker: Walker,
        *,
        max_bytes: int = WINDOW_BYTES_MAX,
        max_rows: int = WINDOW_ROWS_MAX,
    ) -> list[bytes]:
        """Read a walker's next messages as compact JSON; empty at the end."""
        engine = await self._ready()
        for _ in iter(walker.prepare, False):
            await asyncio.sleep(0)  # a long path is surveyed in steps: others run between
        texts = walker.next_window(max_bytes, max_rows)
        await engine.storage.durable()
        return texts

    async def rows_window(self, after_seq: int, max_bytes: int) -> tuple[list[RowText], int | None]:
        """Read the rows written after a place, and where to go on; None at the end."""
        engine = await self._ready()
        order = await engine.order(self.session_id)
        rows, place = order.text_window(after_seq, max_bytes)
        await engine.storage.durable()
        return rows, place
