"""Waiting for several futures, up to a time: `asyncio.wait` for the hot path.

It wraps nothing in a task and leaves cancellation to its caller, which makes it twice as fast.
"""

import asyncio
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


def future_of(asked: Any) -> asyncio.Future[Any]:
    """Return the future of a Ray call in the running loop."""
    if isinstance(asked, asyncio.Future):
        return asked
    return asyncio.wrap_future(asked.future())
