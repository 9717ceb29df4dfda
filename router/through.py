"""Work that cannot be left half done: who waits for it may be cancelled, it is not."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def heed_cancelling() -> None:
    """Raise CancelledError if this task was cancelled and something on the way swallowed it.

    `asyncio.wait_for` does so in Python 3.11 when what it waits for is done at the same moment.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def through(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end however often the caller is cancelled; only then is it cancelled.

    Raises: what the work raised, which comes before the cancelling.
    """
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    result = task.result()
    if cancelled:
        raise asyncio.CancelledError
    return result
