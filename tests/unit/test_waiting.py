"""Waiting for futures, up to a time."""

import asyncio
from concurrent.futures import Future

import pytest

from sessions_actor.waiting import Countdown, Reply, settle


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


class Ref:
    """Stands for an object reference: its future is settled in another thread."""

    def __init__(self) -> None:
        self.found: Future[int] = Future()

    def future(self) -> "Future[int]":
        return self.found


async def test_an_answer_comes_from_another_thread() -> None:
    ref = Ref()
    reply = Reply(ref)
    assert not await reply.came(0.001)
    waiting = asyncio.create_task(reply.came(30))
    await asyncio.sleep(0)
    await asyncio.to_thread(ref.found.set_result, 7)
    assert await waiting
    assert await reply.came(0)
    assert reply.result() == 7
    reply.drop()
    assert not ref.found.cancelled()


async def test_an_answer_that_was_there_at_once_and_one_that_is_an_error() -> None:
    ref = Ref()
    ref.found.set_result(7)
    reply = Reply(ref)
    assert await reply.came(30)
    assert reply.result() == 7
    own = pending()
    reply = Reply(own)
    own.set_exception(ValueError("x"))
    assert await reply.came(30)
    with pytest.raises(ValueError, match="x"):
        reply.result()


async def test_an_answer_given_up() -> None:
    own, ref = pending(), Ref()
    for asked, future in ((own, own), (ref, ref.found)):
        reply = Reply(asked)
        waiting = asyncio.create_task(reply.came(30))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not future.cancelled()
        reply.drop()
        assert future.cancelled()


async def test_an_answer_after_its_loop_was_closed_disturbs_nobody() -> None:
    ref = Ref()

    async def ask() -> None:
        assert not await Reply(ref).came(0)

    await asyncio.to_thread(asyncio.run, ask())
    ref.found.set_result(7)


async def test_counting_down() -> None:
    count = Countdown(2)
    waiting = asyncio.create_task(count.wait(30))
    for _ in range(2):
        await asyncio.sleep(0)
        assert not waiting.done()
        count.one()
    await waiting
    await count.wait(30)
    await Countdown(0).wait(30)
    late = Countdown(1)
    await late.wait(0.001)
    late.one()
