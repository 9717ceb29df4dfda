"""The change feed of one activation, kept for those who pull it.

Events are numbered from 0, or from 1 when recording began after the activation did: who asks from
0 on then learns that some are lost. A bounded number of them is kept: who falls behind is told so,
and goes on. When the activation ends the log is closed; what is left can still be pulled, so that
a follower misses nothing when a conversation hibernates or moves.

Pure asyncio; one thread. It records nothing durable: a crash loses what was not yet pulled.
"""

import asyncio
import contextlib
from collections import deque

from .limits import MIB
from .wire import FeedPage

EVENTS_MAX = 4096
BYTES_MAX = 16 * MIB
PAGE_BYTES = MIB

assert PAGE_BYTES <= BYTES_MAX


class ChangeLog:
    """A ring of encoded events.

    Args: `complete` says that it records from the activation's start.
    """

    def __init__(self, *, complete: bool) -> None:
        self._events: deque[bytes] = deque()
        self._first = 0 if complete else 1
        self._bytes = 0
        self._closed = False
        self._changed = asyncio.Event()
        self.polled_at = asyncio.get_running_loop().time()

    @property
    def place(self) -> int:
        """The number of the next event."""
        return self._first + len(self._events)

    @property
    def size(self) -> int:
        """Bytes kept."""
        return self._bytes

    def record(self, event: bytes) -> None:
        """Add an event, dropping the oldest beyond the bounds; the newest always stays."""
        self._events.append(event)
        self._bytes += len(event)
        while len(self._events) > 1 and (self._bytes > BYTES_MAX or len(self._events) > EVENTS_MAX):
            self._bytes -= len(self._events.popleft())
            self._first += 1
        self._wake()

    def skip(self) -> None:
        """Say that something is missing here: everyone who follows is told so, and goes on."""
        self._first = self.place + 1
        self._events.clear()
        self._bytes = 0
        self._wake()

    def close(self) -> None:
        """Say that nothing will follow."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def poll(self, after: int, wait_s: float) -> FeedPage:
        """Return the events from a place on, waiting a while for the first.

        Returns: about `PAGE_BYTES` of events, none when the wait ran out.
        """
        loop = asyncio.get_running_loop()
        self.polled_at = loop.time()
        if after >= self.place and not self._closed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)
            self.polled_at = loop.time()
        lost = after < self._first
        start = max(after, self._first)
        page: list[bytes] = []
        size = 0
        for index in range(start - self._first, len(self._events)):
            if page and size >= PAGE_BYTES:
                break
            page.append(self._events[index])
            size += len(self._events[index])
        place = start + len(page)
        return FeedPage(page, place, self._closed and place >= self.place, lost)
