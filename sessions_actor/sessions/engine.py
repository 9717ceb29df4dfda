"""The writes and totals of the sessions in one file: what a Session handle asks for.

Every write here is an operation for `Storage.submit`: a plain function that holds no await, may
be executed again after its group was rolled back, and leaves rows, index and memory in step.

It does not wait, dispatch change events or call summarisers.
"""

from __future__ import annotations

import hashlib
import time
import uuid
import weakref
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..attachments import may_hold_pointer
from ..limits import WINDOW_BYTES_MAX
from ..messages import SessionMessage
from ..overlays import COMPACTION_PREFIX, Span
from ..records import LEAF, Compaction, CompactResult, Parent, iso_from_ms
from ..storage import Storage
from ..tokens import estimate_text
from ..windows import recent_suffix
from .compacting import plan_compaction
from .index import Index, parse
from .paths import SURVEY_ROWS, ForwardWalker, Walker, endpoints, survey
from .preparation import Prepared
from .recent import overlaid_start, sizes_of
from .rows import RowOrder
from .sql import is_text
from .store import Clock, Store
from .sums import sum_path
from .walks import PathRow

_TABLES = "cf_agents_session_"
_NEAR_ROWS = 256
_RECENT_TEXT_BYTES = WINDOW_BYTES_MAX // SURVEY_ROWS
_ORDERS_KEPT = 2


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Totals:
    """Sums over the active path. `overlaid`: tokens with overlays applied."""

    leaf_id: str
    length: int
    content_bytes: int
    overlaid_tokens: float
    endpoints: set[str] = field(default_factory=set)
    leaf_hidden: bool = False

    def sums(self) -> list[Any]:
        """All but the leaf, as JSON values."""
        ends = sorted(self.endpoints)
        return [self.length, self.content_bytes, self.overlaid_tokens, ends, self.leaf_hidden]

    @classmethod
    def of(cls, leaf_id: str, sums: list[Any]) -> Totals:
        """Make them of what `sums` gave."""
        length, size, tokens, ends, hidden = sums
        return cls(leaf_id, length, size, tokens, set(ends), hidden)


class Engine:
    """One file's sessions. Methods named `do_*` write and run inside an operation."""

    def __init__(
        self,
        storage: Storage,
        *,
        reserved_metadata_keys: Collection[str] = (),
        clock: Clock = _now_ms,
    ) -> None:
        self.storage = storage
        self.store = Store(storage)
        self.index = Index(storage, self.store)
        self.reserved_metadata_keys = frozenset(reserved_metadata_keys)
        self._clock = clock
        self._totals: dict[str, Totals] = {}
        self._walkers: dict[str, weakref.WeakSet[Walker]] = {}
        self._orders: dict[str, RowOrder] = {}
        storage.on_rollback(self._totals.clear)
        self._take_over()
        storage.sql.watch(_TABLES)
        storage.on_close(self._to_leave)

    def _take_over(self) -> None:
        for session_id, leaf_id, sums in self.store.tails.sums_left():
            self._totals[session_id] = Totals.of(leaf_id, sums)

    def forget(self) -> None:
        """Drop what is remembered of rows: some were written past this engine."""
        self.store.forget()
        self._totals.clear()

    def _to_leave(self) -> dict[str, str]:
        """What the next activation may begin with, if nobody writes in between."""
        if self.storage.sql.named(_TABLES):
            return {}  # the host wrote past this engine
        sums = {session_id: totals.sums() for session_id, totals in self._totals.items()}
        return self.store.tails.to_leave(sums)

    # ------------------------------------------------------------------ writes

    def is_own_overlay(self, session_id: str, message_id: str) -> bool:
        """Tell an overlay that a client posts back from a message.

        Raises: ValueError for an id that looks like an overlay's and is none of this session.
        """
        if not message_id.startswith(COMPACTION_PREFIX):
            return False
        if self.store.is_overlay(session_id, message_id):
            return True
        raise ValueError(
            f"message.id: {message_id!r} begins like a compaction overlay but is none of this"
            " session; rename it, or keep it as history with import_message"
        )

    def do_append(self, session_id: str, new: Prepared, parent_id: Parent) -> bool:
        """Append unless the id is known; tell whether it was inserted.

        Raises: ValueError for a parent below the message; for more than a client may write.
        """
        store = self.store
        if store.exists(session_id, new.row.id):
            return False
        new.require_size()
        leaf_id = store.tail(session_id).leaf_id
        if parent_id is LEAF:
            parent = leaf_id
        elif isinstance(parent_id, str) and parent_id and is_text(parent_id):
            parent = parent_id if store.exists(session_id, parent_id) else None
        else:
            parent = None
        self._refuse_cycle(session_id, new.row.id, parent)
        self._insert(session_id, new, parent, self._clock())
        totals = self._totals.get(session_id)
        if totals is not None:
            if totals.leaf_id != parent or new.row.id in totals.endpoints:
                del self._totals[session_id]
            else:
                totals.leaf_id = new.row.id
                totals.length += 1
                totals.content_bytes += new.row_bytes
                totals.overlaid_tokens += new.row.token_estimate
                totals.leaf_hidden = False
        return True

    def _refuse_cycle(self, session_id: str, message_id: str, parent_id: str | None) -> None:
        """Refuse a parent that descends from the message itself.

        Only a row that names a parent which is not there yet makes that possible.
        """
        if self.store.closes_cycle(session_id, message_id, parent_id):
            raise ValueError(
                f"parent_id: {parent_id!r} descends from message {message_id!r} itself;"
                " a message cannot be its own ancestor"
            )

    def _insert(
        self, session_id: str, new: Prepared, parent_id: str | None, created_at: float
    ) -> None:
        seq = self.store.insert(session_id, new.row, parent_id, created_at)
        self.index.put(session_id, new.row.id, new.row.role, new.stored)
        order = self._orders.get(session_id)
        if order is not None:
            order.add(seq, new.row.id)

    def do_update(self, session_id: str, new: Prepared) -> bool | None:
        """Replace a message; None: no such id, False: unchanged, nothing written.

        Raises: ValueError for more than a client may write.
        """
        store = self.store
        old = store.stored_row(session_id, new.row.id)
        if old is None:
            return None
        if old.content_hash is not None:
            if old.content_hash == new.row.content_hash:
                return False
        else:
            text = store.text(session_id, new.row.id)
            assert text is not None
            assert new.row.content_hash is not None
            if hashlib.sha256(text).hexdigest() == new.row.content_hash:
                store.stamp(session_id, new.row.id, new.row.content_hash)
                return False
        new.require_size()
        warm = session_id in self._totals
        before = store.sized_walk(session_id, new.row.id, 1) if warm else []
        store.replace(session_id, new.row, old.content_chunks)
        self.index.put(session_id, new.row.id, new.row.role, new.stored)
        for row in before:
            self._adjust_totals(session_id, row, new)
        return True

    def _adjust_totals(self, session_id: str, before: PathRow, new: Prepared) -> None:
        totals = self._totals[session_id]
        known = before.id == totals.leaf_id and not totals.leaf_hidden
        if not known and not totals.endpoints:
            near = self.store.walk(session_id, totals.leaf_id, _NEAR_ROWS)
            known = any(row[0] == before.id for row in near)
        if not known:
            del self._totals[session_id]
            return
        totals.content_bytes += new.row_bytes - before.bytes
        totals.overlaid_tokens += new.row.token_estimate - before.token_estimate

    def do_import(
        self, session_id: str, new: Prepared, parent_id: str | None, created_at: float
    ) -> bool:
        """Import unless the id is known; tell whether it was written.

        Raises: ValueError when the message would become its own ancestor.
        """
        store = self.store
        if store.exists(session_id, new.row.id):
            return False
        self._refuse_cycle(session_id, new.row.id, parent_id)
        self._insert(session_id, new, parent_id, created_at)
        store.note_parent(session_id, parent_id)
        self._totals.pop(session_id, None)
        return True

    def do_delete(self, session_id: str, message_ids: Iterable[str]) -> int:
        """Delete messages; children move up. Returns how many there were."""
        with self.storage.reserve():
            ids = list(dict.fromkeys(i for i in message_ids if is_text(i)))
            self.index.remove(session_id, ids)
            survivors = self.store.delete(session_id, ids)
        if survivors:
            self._totals.pop(session_id, None)
            for walker in list(self._walkers.get(session_id, ())):
                walker.moved(lambda id_: survivors.get(id_, id_))
        return len(survivors)

    def do_clear(self, session_id: str) -> None:
        """Delete a session's messages, overlays, payloads and index rows."""
        with self.storage.reserve():
            self.store.clear(session_id)
            self.index.clear(session_id)
        self._totals.pop(session_id, None)
        for walker in list(self._walkers.get(session_id, ())):
            walker.end()

    def do_add_compaction(
        self, session_id: str, summary: str, from_id: str, to_id: str
    ) -> Compaction:
        """Store one overlay record."""
        now = self._clock()
        overlay = Compaction(str(uuid.uuid4()), summary, from_id, to_id, iso_from_ms(now))
        self.store.insert_compaction(session_id, overlay, now)
        self._totals.pop(session_id, None)
        return overlay

    def do_import_compactions(
        self, session_id: str, overlays: Iterable[tuple[Compaction, int]]
    ) -> int:
        """Store overlay records as they were elsewhere; known ids are left alone."""
        count = 0
        for overlay, created_at in overlays:
            if not self.store.is_overlay(session_id, COMPACTION_PREFIX + overlay.id):
                self.store.insert_compaction(session_id, overlay, created_at)
                count += 1
        self._totals.pop(session_id, None)
        return count

    def do_compact(
        self, session_id: str, leaf_id: str, result: CompactResult
    ) -> CompactResult | None:
        """Store what a summariser made of a path, or refuse it; see `plan_compaction`."""
        plan = plan_compaction(self.store, session_id, leaf_id, result)
        if plan is not None:
            self.do_add_compaction(
                session_id, plan.summary, plan.from_message_id, plan.to_message_id
            )
        return plan

    # ------------------------------------------------------------------ reads

    def message(self, session_id: str, message_id: str) -> SessionMessage | None:
        """Read one message, payloads inline; None when it is absent or unreadable."""
        if not is_text(message_id):
            return None
        text = self.store.text(session_id, message_id)
        message = None if text is None else parse(text)
        if text is None or message is None or not may_hold_pointer(text):
            return message
        return self.store.payloads.restored(session_id, message_id, message)

    def latest_leaf_id(self, session_id: str) -> str | None:
        """Find the active leaf; a stored copy of an own overlay stands for the row above it."""
        leaf_id = self.store.tail(session_id).leaf_id
        while leaf_id is not None and self.store.is_overlay(session_id, leaf_id):
            leaf_id = self.store.parent_of(session_id, leaf_id)
        return leaf_id

    def branch_ids(self, session_id: str, message_id: str) -> list[str]:
        """List a message's children in `seq` order, an own overlay's row replaced by its own."""
        found: list[str] = []
        pending = self.store.children(session_id, message_id)[::-1] if is_text(message_id) else []
        seen: set[str] = set()
        while pending:
            child = pending.pop()
            if child in seen:
                continue
            seen.add(child)
            if self.store.is_overlay(session_id, child):
                pending.extend(self.store.children(session_id, child)[::-1])
            else:
                found.append(child)
        return found

    def resolve_leaf(self, session_id: str, leaf_id: str | None) -> str | None:
        """Name the leaf of a read: the active one unless told; None when there is none."""
        if leaf_id:
            return leaf_id if is_text(leaf_id) and self.store.exists(session_id, leaf_id) else None
        return self.store.tail(session_id).leaf_id

    def path_rows(self, session_id: str, leaf_id: str) -> list[PathRow]:
        """List a path's rows, root to leaf, without content. Cost: memory for the whole path."""
        hidden = {COMPACTION_PREFIX + c.id for c in self.store.compactions(session_id)}
        rows: list[PathRow] = []
        left = survey(self.store, session_id, leaf_id).length
        at: str | None = leaf_id
        while at is not None and left > 0:
            stretch = self.store.sized_walk(session_id, at, min(SURVEY_ROWS, left))
            if not stretch:
                break
            rows += stretch
            left -= len(stretch)
            at = stretch[-1].parent_id
        return [row for row in reversed(rows) if row.id not in hidden]

    def totals(self, session_id: str) -> Totals | None:
        """Sum up the active path. Cost: one content-free walk; nothing once warm."""
        leaf_id = self.store.tail(session_id).leaf_id
        if leaf_id is None:
            return None
        totals = self._totals.get(session_id)
        if totals is None or totals.leaf_id != leaf_id:
            totals = self._sum_path(session_id, leaf_id)
            self._totals[session_id] = totals
        return totals

    def path_bytes(self, session_id: str, leaf_id: str) -> int:
        """Sum the bytes of one path."""
        if leaf_id == self.store.tail(session_id).leaf_id:
            totals = self.totals(session_id)
            assert totals is not None
            return totals.content_bytes
        return self._sum_path(session_id, leaf_id).content_bytes

    def _sum_path(self, session_id: str, leaf_id: str) -> Totals:
        overlays = self.store.compactions(session_id)
        if not overlays:
            sums = sum_path(self.store, session_id, leaf_id, SURVEY_ROWS)
            if sums is not None:
                return Totals(leaf_id, *sums)
        hidden = {COMPACTION_PREFIX + c.id for c in overlays}
        ends = endpoints(overlays)
        path = survey(self.store, session_id, leaf_id, wanted=ends)
        spans = path.spans(overlays)
        size, tokens = 0, 0.0
        at: str | None = leaf_id
        index = path.length
        pending: list[Span] = list(spans)
        while at is not None and index > 0:
            rows = self.store.sized_walk(session_id, at, min(SURVEY_ROWS, index))
            if not rows:
                break
            for row in rows:
                index -= 1
                while pending and index < pending[-1].start:
                    pending.pop()
                if row.id in hidden:
                    continue
                size += row.bytes
                if not (pending and index <= pending[-1].end):
                    tokens += row.token_estimate
            at = rows[-1].parent_id
        tokens += sum(estimate_text(span.compaction.summary) for span in spans)
        covered = bool(spans) and spans[-1].end == path.length - 1
        return Totals(leaf_id, path.length, size, tokens, ends, covered)

    def watch(self, session_id: str, walker: Walker) -> Walker:
        """Keep a walker in step with deletions for as long as it lives."""
        self._walkers.setdefault(session_id, weakref.WeakSet()).add(walker)
        return walker

    def recent(self, session_id: str, leaf_id: str, budget: float) -> tuple[Walker, bool, int]:
        """Plan the longest suffix of a path that fits the budget, at least the newest message.

        Rows count with all their slices and payloads inline; an overlay that lies inside the
        window counts as the summary it renders. Cost: the rows of the window, once warm.

        Returns: the walker over the window, whether something older was left out, and the bytes
            of the whole path.
        """
        active = leaf_id == self.store.tail(session_id).leaf_id
        totals = self.totals(session_id) if active else self._sum_path(session_id, leaf_id)
        assert totals is not None
        overlays = self.store.compactions(session_id)
        hidden = {COMPACTION_PREFIX + c.id for c in overlays}
        rows: list[tuple[int, PathRow]] = []
        # The texts of a small window come along, so that its rows are read once.
        text_bytes = _RECENT_TEXT_BYTES if budget <= WINDOW_BYTES_MAX else -1
        visible = self._newest_rows(session_id, leaf_id, totals.length, hidden, text_bytes)
        kept = recent_suffix(sizes_of(visible, rows), budget)
        whole = kept == len(rows) and next(visible, None) is None
        window = [row for _, row in reversed(rows[:kept])]
        start = overlaid_start(window, overlays, budget)
        after = None
        if rows and (start or not whole):
            after = window[start].parent_id
        truncated = after is not None and self.store.exists(session_id, after)
        depth = rows[kept - 1 - start][0] if rows else 0
        walker = ForwardWalker(
            self.store, session_id, [leaf_id], [after] if after else [], depth + 1
        )
        if text_bytes >= 0:
            walker.start_with(window[start:], overlays)
        return self.watch(session_id, walker), truncated, totals.content_bytes

    def _newest_rows(
        self, session_id: str, leaf_id: str, length: int, hidden: set[str], text_bytes: int
    ) -> Iterator[tuple[int, PathRow]]:
        """Give a path's visible rows from the leaf on, with their depth."""
        at: str | None = leaf_id
        step, depth = 32, 0
        while at is not None and depth < length:
            rows = self.store.sized_walk(session_id, at, min(step, length - depth), text_bytes)
            for row in rows:
                if row.id not in hidden:
                    yield depth, row
                depth += 1
            at = rows[-1].parent_id if rows else None
            step = min(step * 2, SURVEY_ROWS)

    async def order(self, session_id: str) -> RowOrder:
        """Get the write order of a session's rows. Cost: one scan of its keys per activation."""
        order = self._orders.pop(session_id, None) or RowOrder(self.store, session_id)
        self._orders[session_id] = order
        while len(self._orders) > _ORDERS_KEPT:
            self._orders.pop(next(iter(self._orders))).close()
        await order.build()
        return order

    def close(self) -> None:
        """Let go of temporary files."""
        for order in self._orders.values():
            order.close()
        self._orders.clear()

    def problems(self) -> list[str]:
        """Check parents, continuations, references, payloads, digests and the index."""
        from .verify import problems

        return problems(self)
