"""The virtual clock and the loops of processes: order, time, death, freezing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from .loop import ProcessLoop, Scheduler


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(Random(1))


def run(scheduler: Scheduler, *work: tuple[ProcessLoop, Coroutine[Any, Any, Any]]) -> list[Any]:
    tasks = [loop.create_task(one) for loop, one in work]
    scheduler.run_until(lambda: all(task.done() for task in tasks))
    return [task.result() for task in tasks]


def test_time_jumps_to_the_next_timer(scheduler: Scheduler) -> None:
    loop = ProcessLoop(scheduler, None, clock_offset=500.0)

    async def work() -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time() - began

    (slept,) = run(scheduler, (loop, work()))
    assert slept == pytest.approx(3600, abs=0.01)
    assert scheduler.now == pytest.approx(3600, abs=0.01)


def test_a_clock_may_run_fast_and_its_timers_with_it(scheduler: Scheduler) -> None:
    loop = ProcessLoop(scheduler, None, clock_rate=2.0)

    async def work() -> float:
        await asyncio.sleep(10)
        return asyncio.get_running_loop().time()

    (time,) = run(scheduler, (loop, work()))
    assert time == pytest.approx(10, abs=0.01)
    assert scheduler.now == pytest.approx(5, abs=0.01)


def test_within_a_loop_first_come_is_first_served(scheduler: Scheduler) -> None:
    loop, seen = ProcessLoop(scheduler, None), []

    async def work() -> None:
        for number in range(100):
            asyncio.get_running_loop().call_soon(seen.append, number)
        await asyncio.sleep(0)

    run(scheduler, (loop, work()))
    scheduler.run_until(lambda: len(seen) == 100)
    assert seen == list(range(100))


def interleaving(seed: int) -> list[str]:
    scheduler, seen = Scheduler(Random(seed)), []

    async def work(name: str) -> None:
        for _ in range(50):
            seen.append(name)
            await asyncio.sleep(0)

    run(scheduler, *((ProcessLoop(scheduler, name), work(name)) for name in "ab"))
    return seen


def test_which_process_runs_is_the_seeds_choice_and_stays_it() -> None:
    assert interleaving(1) == interleaving(1)
    assert len({"".join(interleaving(seed)) for seed in range(10)}) > 5


def test_a_halted_loop_runs_nothing_again_not_even_what_is_left_to_clean_up(
    scheduler: Scheduler,
) -> None:
    loop, other, seen = ProcessLoop(scheduler, None), ProcessLoop(scheduler, None), []

    async def work() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            seen.append("cleaned up")

    task = loop.create_task(work())
    other.post(0.5, loop.halt)
    run(scheduler, (other, asyncio.sleep(5)))
    assert seen == []
    assert not task.done()


def test_a_frozen_loop_goes_on_where_it_stood_and_its_clock_never_stopped(
    scheduler: Scheduler,
) -> None:
    loop, other, seen = ProcessLoop(scheduler, None), ProcessLoop(scheduler, None), []

    async def work() -> None:
        await asyncio.sleep(1)
        seen.append(asyncio.get_running_loop().time())

    loop.create_task(work())
    other.post(0.5, loop.freeze)
    other.post(3.0, loop.thaw)
    run(scheduler, (other, asyncio.sleep(5)))
    assert seen == [pytest.approx(3.0, abs=0.01)]


def test_a_fuse_ends_a_process_between_two_of_its_steps(scheduler: Scheduler) -> None:
    loop, other, seen = ProcessLoop(scheduler, None), ProcessLoop(scheduler, None), []

    async def work() -> None:
        for number in range(100):
            seen.append(number)
            await asyncio.sleep(0)

    loop.create_task(work())
    loop.fuse, loop.on_fuse = 7, loop.halt
    run(scheduler, (other, asyncio.sleep(1)))
    assert seen == list(range(7))


def test_standing_still_is_an_error(scheduler: Scheduler) -> None:
    loop = ProcessLoop(scheduler, None)

    async def work() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(AssertionError, match="stands still"):
        run(scheduler, (loop, work()))


async def _raise() -> None:
    raise ValueError("mine")


def test_an_error_of_a_task_is_its_own(scheduler: Scheduler) -> None:
    loop = ProcessLoop(scheduler, None)
    with pytest.raises(ValueError, match="mine"):
        run(scheduler, (loop, _raise()))
