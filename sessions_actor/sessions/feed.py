"""The change feed: what was written, in order, after it is durable.

Rules: events are dispatched one after another, to listeners in the order they subscribed. A
listener that raises is reported as `session:error` and the rest still run. A listener may write:
the events of its writes follow the one it is handling.

This is a local cache-coherence feed, not an event log: nothing is kept for those who come later.

Source: specification, "Observe changes".
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from ..messages import SessionMessage
from ..records import ChangeEvent

Listener = Callable[[ChangeEvent], Awaitable[object] | object]
Report = Callable[[str, dict[str, Any]], object]

_dispatching: ContextVar[ChangeFeed | None] = ContextVar("_dispatching", default=None)


class ChangeFeed:
    """Ordered dispatch of change events to this activation's listeners."""

    def __init__(self, report: Report) -> None:
        self._listeners: list[Listener] = []
        self._report = report
        self._queue: deque[ChangeEvent] = deque()
        self._lock = asyncio.Lock()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; returns the function that removes it."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    @property
    def heard(self) -> bool:
        """Whether anyone listens."""
        return bool(self._listeners)

    async def publish(self, *events: ChangeEvent) -> None:
        """Dispatch events of a durable write; returns when every listener has seen them."""
        if not self._listeners:
            return
        self._queue.extend(events)
        if _dispatching.get() is self and self._lock.locked():
            return  # the write of a listener: its events follow the one being handled
        async with self._lock:
            token = _dispatching.set(self)
            try:
                while self._queue:
                    await self._dispatch(self._queue.popleft())
            finally:
                _dispatching.reset(token)

    async def _dispatch(self, event: ChangeEvent) -> None:
        for listener in tuple(self._listeners):
            try:
                outcome = listener(event)
                if inspect.isawaitable(outcome):
                    await outcome
            except Exception as error:
                self._report(
                    "session:error",
                    {"session_id": event.session_id, "event": event.type, "error": str(error)},
                )


def mirror_listener(
    session_id: str,
    *,
    get: Callable[[], list[SessionMessage]],
    set: Callable[[list[SessionMessage]], object],
    transform: Callable[[SessionMessage], SessionMessage] = lambda message: message,
    intercept: Callable[[ChangeEvent], Awaitable[object] | object] | None = None,
    on_applied: Callable[[ChangeEvent, SessionMessage, SessionMessage | None], object]
    | None = None,
) -> Listener:
    """Build the listener that keeps a transcript in memory in step with one session.

    append: replace the entry with this id, or push; a duplicate changes nothing. update: replace;
    an id the cache does not hold stays out. delete: filter. clear: empty. import, compact and
    compaction have no patch: a host that must react intercepts them (a true answer ends the
    event).
    """

    async def apply(event: ChangeEvent) -> None:
        if event.session_id != session_id:
            return
        if intercept is not None:
            handled = intercept(event)
            if inspect.isawaitable(handled):
                handled = await handled
            if handled:
                return
        if event.type == "delete":
            removed = frozenset(event.message_ids or ())
            set([m for m in get() if m["id"] not in removed])
        elif event.type == "clear":
            set([])
        elif event.type == "update" or (event.type == "append" and event.inserted):
            assert event.message is not None
            cache, message_id = get(), event.message["id"]
            index = next((i for i, m in enumerate(cache) if m["id"] == message_id), None)
            if index is None and event.type == "update":
                return
            message = transform(event.message)
            previous = None if index is None else cache[index]
            if index is None:
                cache.append(message)
            else:
                cache[index] = message
            if on_applied is not None:
                on_applied(event, message, previous)

    return apply
