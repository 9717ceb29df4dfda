"""Paths and the walkers that stream them.

A path is followed from its leaf by parent pointers, in steps of a bounded number of rows, so that
no query stays open and no depth is too deep. Reading it from the root needs one pass without
content that remembers every fiftieth id; each stretch between two of those is walked again, with
its content, when its turn comes. Memory: one id per fifty messages, and one window.

Walkers survive changes of the tree: a deletion tells them where their position has moved. They
survive the process by `cursor()`, from which another one goes on.

A cycle, which only a damaged or foreign file can hold, ends the walk: each row is read once.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..attachments import may_hold_pointer
from ..codec import dumps
from ..limits import WINDOW_BYTES_MAX, WINDOW_ROWS_MAX
from ..overlays import COMPACTION_PREFIX, Span, overlay_message, plan_overlays
from ..records import Compaction
from .store import Store
from .walks import PathRow

STRETCH_ROWS = WINDOW_ROWS_MAX
SURVEY_ROWS = 20 * STRETCH_ROWS
# Texts up to here come along with the walk: a stretch of them is a window.
_TEXT_BYTES = WINDOW_BYTES_MAX // WINDOW_ROWS_MAX
_TRAIL_LENGTH = 8
_FIRST_WINDOW_ROWS = 8
_SURVEYED = object()

_GONE = "the messages this stream stood at are gone: read it again"

Cursor = dict[str, Any]
Resolve = Callable[[str], str | None]


@dataclass(slots=True)
class Survey:
    """What one pass from the leaf found. Depth 0 is the leaf; index 0 is the first row read."""

    length: int = 0
    checkpoints: list[str] = field(default_factory=list)
    leaf_trail: list[str] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)
    cyclic: bool = False

    def spans(self, compactions: Sequence[Compaction]) -> list[Span]:
        """Plan the overlays of the surveyed path."""
        if not compactions:
            return []
        last = self.length - 1
        return plan_overlays({id_: last - d for id_, d in self.marks.items()}, compactions)

    def id_at(self, store: Store, session_id: str, depth: int) -> str:
        """Name the row at a depth. Cost: at most one stretch of the walk."""
        stretch, rest = divmod(depth, STRETCH_ROWS)
        return store.walk(session_id, self.checkpoints[stretch], rest + 1)[-1][0]


def endpoints(compactions: Sequence[Compaction]) -> set[str]:
    """Ids whose place on a path decides which overlays apply; own overlay rows are none."""
    ids = {id_ for c in compactions for id_ in (c.from_message_id, c.to_message_id)}
    return ids.difference(COMPACTION_PREFIX + c.id for c in compactions)


def survey(
    store: Store,
    session_id: str,
    leaf_id: str,
    *,
    stops: Sequence[str] = (),
    wanted: set[str] | None = None,
    limit: int = sys.maxsize,
) -> Survey:
    """Pass over a path at one go; see `survey_steps`."""
    steps = survey_steps(store, session_id, leaf_id, stops=stops, wanted=wanted, limit=limit)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Survey = end.value
            return found


def survey_steps(
    store: Store,
    session_id: str,
    leaf_id: str,
    *,
    stops: Sequence[str] = (),
    wanted: set[str] | None = None,
    limit: int = sys.maxsize,
) -> Generator[None, None, Survey]:
    """Pass over a path, leaf to root, or to the first of `stops` (which it leaves out).

    It pauses after every `SURVEY_ROWS` rows and holds nothing open meanwhile.

    Args: `limit` bounds the rows, for a path whose length is known.

    Cost: a row read per message, no content.
    """
    found = Survey()
    stop_ids, wanted = set(stops), wanted or set()
    at: str | None = leaf_id
    tortoise, turtle_at = "", SURVEY_ROWS
    while at is not None:
        if found.length:
            yield
        step = min(SURVEY_ROWS, limit - found.length)
        rows = store.walk(session_id, at, step)
        if not rows:
            break
        at = rows[-1][1] if len(rows) == step and found.length + step < limit else None
        if stop_ids:
            cut = next((i for i, row in enumerate(rows) if row[0] in stop_ids), None)
            if cut is not None:
                rows, at = rows[:cut], None
            if not rows:
                break
        if tortoise and any(row[0] == tortoise for row in rows):
            return _survey_cycle(store, session_id, leaf_id, wanted)
        if wanted:
            for depth, row in enumerate(rows, found.length):
                if row[0] in wanted:
                    found.marks.setdefault(row[0], depth)
        if not found.checkpoints:
            found.leaf_trail = [row[0] for row in rows[:_TRAIL_LENGTH]]
        found.checkpoints += (row[0] for row in rows[::STRETCH_ROWS])
        found.length += len(rows)
        if found.length >= turtle_at:  # Brent: a marker that leaps ahead
            tortoise, turtle_at = rows[-1][0], turtle_at * 2
    return found


def _survey_cycle(store: Store, session_id: str, leaf_id: str, wanted: set[str]) -> Survey:
    """Survey a path that bites its tail: every row once, from the leaf on."""
    found, seen = Survey(cyclic=True), set[str]()
    at: str | None = leaf_id
    while at is not None and at not in seen:
        if len(seen) % STRETCH_ROWS == 0:
            found.checkpoints.append(at)
        if at in wanted:
            found.marks[at] = len(seen)
        if len(found.leaf_trail) < _TRAIL_LENGTH:
            found.leaf_trail.append(at)
        seen.add(at)
        at = store.parent_of(session_id, at)
    found.length = len(seen)
    return found


class Walker(Protocol):
    """Reads one path window by window."""

    def prepare(self) -> bool:
        """Do one bounded step of what the next window needs first; False when nothing is left."""

    def next_window(self, max_bytes: int, max_rows: int) -> list[bytes]:
        """Read on: compact JSON of each message, payloads inline. Empty: the end."""

    def cursor(self) -> Cursor:
        """Say where it stands, as JSON values: what `open_walker(resume=)` takes."""

    def moved(self, resolve: Resolve) -> None:
        """Follow a deletion: `resolve` gives the nearest surviving ancestor of an id."""

    def end(self) -> None:
        """Stop: the session was cleared."""


class ForwardWalker:
    """Root to leaf, overlays applied."""

    def __init__(
        self,
        store: Store,
        session_id: str,
        leaf_trail: Sequence[str],
        after: Sequence[str] = (),
        limit: int = sys.maxsize,
    ) -> None:
        """Read the path of the first id of `leaf_trail` that exists, below the nearest `after`.

        Args: `limit` is how many rows that is, where it is known.
        """
        self._store, self._session_id = store, session_id
        self._leaf_trail = list(leaf_trail)
        self._trail: deque[str] = deque(after, maxlen=_TRAIL_LENGTH)
        self._limit = limit
        self._surveyed: Survey | None = None
        self._steps: Generator[None, None, None] | None = None
        self._spans: deque[Span] = deque()
        self._index = 0
        self._stretch = 0
        self._items: deque[PathRow | Compaction] = deque()

    def start_with(self, rows: Sequence[PathRow], compactions: Sequence[Compaction]) -> None:
        """Begin with a path whose rows are known, root first: it need not be surveyed."""
        self._hidden = {COMPACTION_PREFIX + c.id for c in compactions}
        self._spans.extend(plan_overlays({row.id: i for i, row in enumerate(rows)}, compactions))
        self._surveyed, self._limit = Survey(length=len(rows)), sys.maxsize
        for row in rows:
            self._take(row)

    def next_window(self, max_bytes: int, max_rows: int) -> list[bytes]:
        texts: list[bytes] = []
        size = 0
        while len(texts) < max_rows and size < max_bytes:
            if not self._items and not self._refill():
                break
            item = self._items[0]
            if isinstance(item, Compaction):
                self._items.popleft()
                self._trail.append(item.to_message_id)
                texts.append(dumps(overlay_message(item)))
                size += len(texts[-1])
                continue
            run = self._run(max_bytes - size, max_rows - len(texts))
            self._trail.extend(row.id for row in run[-_TRAIL_LENGTH:])
            for text in read_texts(self._store, self._session_id, run):
                if text is not None:
                    texts.append(text)
                    size += len(text)
        return texts

    def _run(self, max_bytes: int, max_rows: int) -> list[PathRow]:
        """Take the next run of rows, at least one."""
        limit, budget = min(max_rows, WINDOW_ROWS_MAX), min(max_bytes, WINDOW_BYTES_MAX)
        run: list[PathRow] = []
        size = 0
        for row in self._items:
            if isinstance(row, Compaction) or len(run) == limit:
                break
            size += row.bytes
            if run and size > budget:
                break
            run.append(row)
        if len(run) == len(self._items):
            self._items.clear()
        else:
            for _ in run:
                self._items.popleft()
        return run

    def prepare(self) -> bool:
        if self._surveyed is not None:
            return False
        if self._steps is None:
            self._steps = self._survey()
        return next(self._steps, _SURVEYED) is None

    def _survey(self) -> Generator[None, None, None]:
        store, session_id = self._store, self._session_id
        self._items.clear()
        self._spans.clear()
        self._index = 0
        leaf_id = next((i for i in self._leaf_trail if store.exists(session_id, i)), None)
        if leaf_id is None:
            self._surveyed = Survey()
            return
        compactions = store.compactions(session_id)
        found = yield from survey_steps(
            store,
            session_id,
            leaf_id,
            stops=list(self._trail),
            wanted=endpoints(compactions),
            limit=self._limit,
        )
        self._surveyed = found
        self._limit = sys.maxsize
        self._leaf_trail = found.leaf_trail or [leaf_id]
        self._spans.extend(found.spans(compactions))
        self._hidden = {COMPACTION_PREFIX + c.id for c in compactions}
        self._stretch = len(found.checkpoints)

    def _refill(self) -> bool:
        """Walk the next stretch towards the leaf; False at the end of the path."""
        while self.prepare():
            pass
        assert self._surveyed is not None
        while not self._items:
            if self._stretch == 0:
                return False
            self._stretch -= 1
            start = self._surveyed.checkpoints[self._stretch]
            depth = self._stretch * STRETCH_ROWS
            count = min(STRETCH_ROWS, self._surveyed.length - depth)
            rows = self._store.sized_walk(self._session_id, start, count, _TEXT_BYTES)
            rows.reverse()
            if self._hidden:
                for row in rows:
                    self._take(row)
            else:
                self._items.extend(rows)
        return True

    def _take(self, row: PathRow) -> None:
        index, self._index = self._index, self._index + 1
        if self._spans and index >= self._spans[0].start:
            span = self._spans[0]
            if index == span.start:
                self._items.append(span.compaction)
            if index == span.end:
                self._spans.popleft()
        elif row.id not in self._hidden:
            self._items.append(row)

    def cursor(self) -> Cursor:
        return {"leaf": self._leaf_trail[:_TRAIL_LENGTH], "trail": list(self._trail)}

    def moved(self, resolve: Resolve) -> None:
        self._leaf_trail = _resolved(self._leaf_trail, resolve)
        self._trail = deque(_resolved(self._trail, resolve), maxlen=_TRAIL_LENGTH)
        self._surveyed = self._steps = None
        self._items.clear()

    def end(self) -> None:
        self._leaf_trail = []
        self._surveyed = self._steps = None
        self._items.clear()


class BackwardWalker:
    """Leaf to root, overlays applied; a consumer that stops has paid for the rows it took."""

    def __init__(
        self,
        store: Store,
        session_id: str,
        leaf_trail: Sequence[str],
        at: str | None,
        trail: Sequence[str] = (),
    ) -> None:
        self._store, self._session_id = store, session_id
        self._leaf_trail = list(leaf_trail)
        self._next = at
        self._trail: deque[str] = deque(trail, maxlen=_TRAIL_LENGTH)
        self._chosen: dict[str, Span] | None = None
        self._taken = 0
        self._last_seq: int | None = None
        self._left: int | None = None  # rows to go, once the path is known to bite its tail
        self._checked = False
        compactions = store.compactions(session_id)
        self._compactions = compactions
        self._ends = {c.to_message_id for c in compactions}
        self._hidden = {COMPACTION_PREFIX + c.id for c in compactions}

    def prepare(self) -> bool:
        return False

    def next_window(self, max_bytes: int, max_rows: int) -> list[bytes]:
        texts: list[bytes] = []
        size = 0
        while self._next is not None and len(texts) < max_rows and size < max_bytes:
            if self._left == 0:
                self._next = None  # a path that bites its tail: every row was read
            elif self._next in self._ends:
                span = self._span_ending_at(self._next)
                if span is not None:
                    texts.append(dumps(overlay_message(span.compaction)))
                    size += len(texts[-1])
                    start_id = span.compaction.from_message_id
                    self._trail.append(start_id)
                    self._next = self._store.parent_of(self._session_id, start_id)
                    if self._left is not None:
                        self._left = span.start
                    continue
            if self._next is None:
                break
            run = self._run(max_bytes - size, max_rows - len(texts))
            if not run:
                self._next = None
                break
            self._trail.extend(row.id for row in run[-_TRAIL_LENGTH:])
            found = read_texts(self._store, self._session_id, run)
            for row, text in zip(run, found, strict=True):
                if text is not None and row.id not in self._hidden:
                    texts.append(text)
                    size += len(text)
            self._next = run[-1].parent_id
            if texts and self._taken < WINDOW_ROWS_MAX:
                break  # most consumers stop early: the first windows are small
        return texts

    def _run(self, max_bytes: int, max_rows: int) -> list[PathRow]:
        """Take rows from the next one on, up to the end of an overlay or a bound."""
        assert self._next is not None
        limit = min(max_rows, WINDOW_ROWS_MAX, max(_FIRST_WINDOW_ROWS, self._taken))
        run: list[PathRow] = []
        size = 0
        for row in self._store.sized_walk(self._session_id, self._next, limit, _TEXT_BYTES):
            size += row.bytes
            if run and (row.id in self._ends or size > min(max_bytes, WINDOW_BYTES_MAX)):
                break
            if self._last_seq is not None and row.seq >= self._last_seq and not self._checked:
                self._check_cycle(run[-1].id if run else self._trail[-1], row.id)
            if self._left is not None:
                if self._left == 0:
                    break
                self._left -= 1
            self._last_seq = row.seq
            run.append(row)
        self._taken += len(run)
        return run

    def _check_cycle(self, child_id: str, parent_id: str) -> None:
        """Survey the path once when a parent is younger than its child: every cycle has one."""
        self._checked = True
        leaf_id = self._leaf_trail[0] if self._leaf_trail else child_id
        found = survey(self._store, self._session_id, leaf_id, wanted={child_id, parent_id})
        if found.cyclic:
            closing = found.marks.get(child_id) == found.length - 1
            self._left = 0 if closing else found.length - found.marks.get(parent_id, found.length)

    def _span_ending_at(self, message_id: str) -> Span | None:
        """Plan the whole path, once: which overlay wins is decided from the root."""
        if self._chosen is None:
            self._chosen = {}
            leaf_id = next(
                (i for i in self._leaf_trail if self._store.exists(self._session_id, i)), message_id
            )
            found = survey(
                self._store, self._session_id, leaf_id, wanted=endpoints(self._compactions)
            )
            for span in found.spans(self._compactions):
                self._chosen[span.compaction.to_message_id] = span
            if found.cyclic and self._left is None:
                self._left = found.length - self._taken
            self._ends = set(self._chosen)
        return self._chosen.get(message_id)

    def cursor(self) -> Cursor:
        return {
            "leaf": self._leaf_trail[:_TRAIL_LENGTH],
            "next": self._next,
            "trail": list(self._trail),
        }

    def moved(self, resolve: Resolve) -> None:
        self._leaf_trail = _resolved(self._leaf_trail, resolve)
        self._trail = deque(_resolved(self._trail, resolve), maxlen=_TRAIL_LENGTH)
        if self._next is not None:
            self._next = resolve(self._next)
        self._chosen = None
        self._ends = {c.to_message_id for c in self._compactions}

    def end(self) -> None:
        self._next = None


def _resolved(ids: Sequence[str] | deque[str], resolve: Resolve) -> list[str]:
    found = (resolve(id_) for id_ in ids)
    return list(dict.fromkeys(id_ for id_ in found if id_ is not None))


def read_texts(store: Store, session_id: str, rows: Sequence[PathRow]) -> list[bytes | None]:
    """Read the content of some rows, payloads inline, in their order; None for one that is gone."""
    texts = [row.text for row in rows]
    if None in texts:
        missing = store.texts(session_id, [row.id for row in rows if row.text is None])
        texts = [missing.get(row.id) if row.text is None else row.text for row in rows]
    for place, text in enumerate(texts):
        if text is not None and may_hold_pointer(text):
            texts[place] = store.payloads.inline(session_id, rows[place].id, text)
    return texts


def open_walker(store: Store, session_id: str, leaf_id: str | None, newest_first: bool) -> Walker:
    """Open a walker over the path of a stored leaf; None: an empty path."""
    trail = [] if leaf_id is None else [leaf_id]
    if newest_first:
        return BackwardWalker(store, session_id, trail, leaf_id)
    return ForwardWalker(store, session_id, trail)


def resume_walker(
    store: Store, session_id: str, newest_first: bool, cursor: Mapping[str, Any]
) -> Walker:
    """Open a walker where another one's cursor stands.

    Raises: RuntimeError when none of the messages that the cursor names is left.
    """
    trail = cursor["trail"]
    known = next((i for i in reversed(trail) if store.exists(session_id, i)), None)
    if not newest_first:
        if trail and known is None:
            raise RuntimeError(_GONE)
        return ForwardWalker(store, session_id, cursor["leaf"], trail)
    at = cursor["next"]
    if at is not None and not store.exists(session_id, at):
        if known is None:
            raise RuntimeError(_GONE)
        at = store.parent_of(session_id, known)
    return BackwardWalker(store, session_id, cursor["leaf"], at, trail)
