"""The clock that tests run on which wait for no other."""

import asyncio
import time

import pytest


async def test_timers_come_in_their_order_and_nobody_waits_for_them() -> None:
    loop, seen = asyncio.get_running_loop(), []

    async def after(seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((seconds, loop.time()))

    began = loop.time()
    await asyncio.gather(*(after(seconds) for seconds in (7200.0, 3600.0, 0.5)))
    assert seen == [(s, pytest.approx(began + s, abs=0.01)) for s in (0.5, 3600.0, 7200.0)]


async def test_what_the_process_does_or_misses_takes_no_time() -> None:
    async def slow() -> str:
        for _ in range(5):
            time.sleep(0.01)  # noqa: ASYNC251 - the stall itself, as long as the whole bound
            await asyncio.sleep(0)
        return "answer"

    assert await asyncio.wait_for(slow(), 0.01) == "answer"
