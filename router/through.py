"""Work that cannot be left half done: who waits for it may be cancelled, it is not."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
