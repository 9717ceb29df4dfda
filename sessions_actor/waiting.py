"""Waiting up to a time, for the hot path: each turn of the event loop saved is microseconds.

Nothing here wraps anything in a task; what is waited for is left alone when the wait ends.
"""

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any


async def settle(futures: Collection[asyncio.Future[Any]], within_s: float) -> None:
    """Return when all futures are done, or when the time is over, whatever comes first."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    left = 0

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def one_done(future: asyncio.Future[Any]) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            wake()

    for future in futures:
        if not future.done():
            left += 1
            future.add_done_callback(one_done)
    if left == 0:
        return
    timer = loop.call_later(within_s, wake)
    try:
        await waiter
    finally:
        timer.cancel()
        if left:
            for future in futures:
                future.remove_done_callback(one_done)


class Countdown:
    """Waits until so many things have happened, told by those who do them."""

    __slots__ = ("_left", "_waiter")

    def __init__(self, count: int) -> None:
        self._left = count
        self._waiter: asyncio.Future[None] | None = None

    def one(self) -> None:
        """Note that one of them has happened."""
        self._left -= 1
        if self._left == 0:
            _wake(self._waiter)

    async def wait(self, within_s: float) -> None:
        """Return when all have happened, or when the time is over. One at a time may wait."""
        if self._left > 0:
            self._waiter = asyncio.get_running_loop().create_future()
            await _wait(self._waiter, within_s)


class Reply:
    """A Ray call's answer in the running loop, waited for in steps.

    A future of the loop and a wait with a limit take three turns of the loop; this takes one.
    """

    __slots__ = ("_asked", "_loop", "_outcome", "_waiter")

    def __init__(self, asked: Any) -> None:
        """Args: an object reference, or a future of the running loop."""
        self._loop = asyncio.get_running_loop()
        self._outcome: Any = None
        self._waiter: asyncio.Future[None] | None = None
        if isinstance(asked, asyncio.Future):
            self._asked: Any = asked
            asked.add_done_callback(self._came)
        else:
            self._asked = asked.future()
            self._asked.add_done_callback(self._came_in_a_thread)

    def _came_in_a_thread(self, outcome: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._came, outcome)

    def _came(self, outcome: Any) -> None:
        self._outcome = outcome
        _wake(self._waiter)

    async def came(self, within_s: float) -> bool:
        """Wait up to a time; tell whether the answer is there. One at a time may wait."""
        if self._outcome is None:
            self._waiter = self._loop.create_future()
            await _wait(self._waiter, within_s)
        return self._outcome is not None

    def result(self) -> Any:
        """Return the answer that came, or raise what came instead."""
        return self._outcome.result()

    def drop(self) -> None:
        """Give up an answer that has not come."""
        if self._outcome is None:
            self._asked.cancel()


async def _wait(waiter: asyncio.Future[None], within_s: float) -> None:
    timer = waiter.get_loop().call_later(within_s, _wake, waiter)
    try:
        await waiter
    finally:
        timer.cancel()


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
