"""Waiting for futures, up to a time."""

import asyncio
from concurrent.futures import Future

import pytest

from sessions_actor.waiting import future_of, settle


def pending() -> "asyncio.Future[int]":
    return asyncio.get_running_loop().create_future()


async def test_it_returns_when_all_are_done() -> None:
    futures = [pending() for _ in range(3)]
    waiting = asyncio.create_task(settle(futures, 30))
    for future in futures:
        await asyncio.sleep(0)
        assert not waiting.done()
        future.set_result(1)
    await waiting


async def test_it_returns_when_the_time_is_over_and_leaves_nothing_behind() -> None:
    done, never = pending(), pending()
    done.set_exception(ValueError("x"))
    await settle([done, never], 0.001)
    assert not never.done()
    assert never._callbacks in (None, [])
    with pytest.raises(ValueError, match="x"):
        await done


async def test_what_is_done_already_is_not_waited_for() -> None:
    done = pending()
    done.set_result(1)
    await settle([done], 30)
    await settle([], 30)


async def test_cancelling_the_wait_leaves_the_futures_alone() -> None:
    future = pending()
    waiting = asyncio.create_task(settle([future], 30))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not future.cancelled()
    assert future._callbacks in (None, [])


async def test_the_future_of_a_ray_call() -> None:
    class Ref:
        def future(self) -> "Future[int]":
            found: Future[int] = Future()
            found.set_result(7)
            return found

    assert await future_of(Ref()) == 7
    own = pending()
    assert future_of(own) is own
