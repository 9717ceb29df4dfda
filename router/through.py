"""Work that cannot be left half done: who waits for it may be cancelled, it is not."""

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from sessions_actor.errors import ReplicaUnavailableError

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


async def made(change: Awaitable[T]) -> T | None:
    """Wait for a change of the directory that nothing depends on if its copy is late; None then.

    A replicated directory that raises ReplicaUnavailableError has made the change: only the
    confirmation of its replica is missing, and comes with that of a later change.
    """
    with contextlib.suppress(ReplicaUnavailableError):
        return await change
    return None
