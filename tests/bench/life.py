"""The life of a conversation: awake, asleep, moved; and the start of a deployment."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import Any

from sessions_actor.handle import ConversationHandle

from . import data
from .bench import ROOT, Bench, line
from .data import MESSAGE_BYTES, Messages
from .measure import Goal, Pair, at_most, in_turns, medians, middle, seconds
from .starting import SIDES
from .writes import calling

APPENDS_PER_S = 200


def _fresh(client: Any, name: str) -> Any:
    """Return a handle that has not found its conversation yet."""
    return ConversationHandle(name, client.get(name)._resolver)


@line("activate")
async def activate(bench: Bench) -> None:
    """Compare the way to a conversation that sleeps, and to a new one, with a bare call."""
    (bare,) = await bench.bare()
    client, count = await bench.client(), bench.size(40, 5)
    stored = bench.size(200_000, 2_000)
    await bench.holding("asleep", None)
    await client.get("asleep").session().append_message(Messages().one())
    await bench.holding("asleep-long", bench.copy_of(bench.built(stored)))
    supply, new = Messages(), iter(range(1_000_000))

    async def asleep(name: str, step: Any) -> float:
        """Measure one step after each time of putting it to sleep."""
        times = []
        for _ in range(count):
            await client.hibernate(name)
            times.append(await seconds(step(_fresh(client, name))))
        return sorted(times)[count // 2]

    async def created(step: Any) -> float:
        times = []
        for _ in range(count):
            name = f"new-{next(new)}"
            times.append(await seconds(step(_fresh(client, name))))
            await client.hibernate(name)
        return sorted(times)[count // 2]

    async def located(handle: Any) -> None:
        await handle.channel().locate()

    async def read(handle: Any) -> None:
        await handle.session().get_compactions()

    async def append(handle: Any) -> None:
        await handle.session().append_message(supply.one())

    rounds = await in_turns(
        bench.repeat,
        *(lambda: asleep("asleep", located), lambda: asleep("asleep", read)),
        *(lambda: asleep("asleep", append), lambda: asleep("asleep-long", append)),
        *(lambda: created(located), lambda: created(append)),
        medians(calling(bare), 5 * count),
    )
    goal = at_most(3)
    bench.add("activate, until it is bound", middle(rounds, 0, 6), "s", goal)
    bench.add("activate, until it has answered", middle(rounds, 1, 6), "s")
    bench.add("activate, until an append is durable", middle(rounds, 2, 6), "s")
    bench.add(f"activate, the same, {stored:,} stored", middle(rounds, 3, 6), "s")
    bench.add("activate, new, until it is bound", middle(rounds, 4, 6), "s", goal)
    bench.add("activate, new, until an append is durable", middle(rounds, 5, 6), "s")


@line("hibernate")
async def hibernate(bench: Bench) -> None:
    """Report how long a conversation takes to let go of its actor."""
    (bare,) = await bench.bare()
    client, count = await bench.client(), bench.size(40, 5)
    stored = bench.size(20_000, 500)
    await bench.holding("sleeper", None)
    await bench.holding("sleeper-long", bench.copy_of(bench.built(stored)))
    supply = Messages()

    async def asleep(name: str) -> float:
        times = []
        for _ in range(count):
            await client.get(name).session().append_message(supply.one())
            times.append(await seconds(client.hibernate(name)))
        return sorted(times)[count // 2]

    rounds = await in_turns(
        bench.repeat,
        *(lambda: asleep("sleeper"), lambda: asleep("sleeper-long")),
        medians(calling(bare), 5 * count),
    )
    bench.add("hibernate", middle(rounds, 0, 2), "s")
    bench.add(f"hibernate, {stored:,} stored", middle(rounds, 1, 2), "s")


# --------------------------------------------------------------------------------- migration

# One of few large messages, one of many small ones.
LARGE_COUNT, LARGE_BYTES = 64_000, 16_000


@line("migrate")
async def migrate(bench: Bench) -> None:
    """Compare a migration with a Ray transfer and a disk write; appends go on meanwhile."""
    large, small = bench.size(LARGE_COUNT, 500), bench.size(200_000, 2_000)
    floor = min(await _transfer_rate(bench), _disk_rate(bench))
    pace = Goal("≥ 60 MB/s", ours_min=60e6)
    for name, count, size in (
        ("migrate, idle", large, LARGE_BYTES),
        ("migrate, idle, a tenth of the size", large // 10, LARGE_BYTES),
        ("migrate, idle, small messages", small, MESSAGE_BYTES),
    ):
        found = await _moved(bench, name, count, size, appends=False)
        bench.add(name, Pair(found[0], floor), "B/s", pace)
    stall = Goal("p99 ≤ 100 ms", ours_max=0.1)
    for name, count in (
        (f"migrate, under {APPENDS_PER_S} appends/s", large),
        (f"migrate, under {APPENDS_PER_S} appends/s, a tenth of the size", large // 10),
    ):
        speed, latencies = await _moved(bench, name, count, LARGE_BYTES, appends=True)
        bench.add(name, Pair(speed, floor), "B/s", pace)
        latencies.sort()
        bench.report(f"{name}, p99", latencies[len(latencies) * 99 // 100], "s", stall)
        bench.report(f"{name}, longest", latencies[-1], "s")


async def _moved(
    bench: Bench, name: str, count: int, size: int, *, appends: bool
) -> tuple[float, list[float]]:
    """Migrate a conversation; returns its bytes a second, and how long appends took meanwhile."""
    client = await bench.client()
    path = bench.copy_of(bench.built(count, size))
    file_bytes = path.stat().st_size
    session = await bench.holding(name, path)
    supply, latencies, moving = Messages(), list[float](), True
    loop = asyncio.get_running_loop()

    async def append(due: float) -> None:
        await session.append_message(supply.one())
        latencies.append(loop.time() - due)

    async def steadily() -> None:
        """Append at a fixed pace, whether or not the last one has ended."""
        tasks, due = [], loop.time()
        while moving:
            tasks.append(asyncio.create_task(append(due)))
            due += 1 / APPENDS_PER_S
            await asyncio.sleep(max(0.0, due - loop.time()))
        await asyncio.gather(*tasks)

    writer = asyncio.create_task(steadily()) if appends else None
    began = time.perf_counter()
    try:
        await client.migrate(name)
    finally:
        took, moving = time.perf_counter() - began, False
        if writer is not None:
            await writer
    assert await session.get_message(data.rising_id(count - 1))
    await client.delete(name)
    return file_bytes / took, latencies


async def _transfer_rate(bench: Bench) -> float:
    """Measure bytes a second from one actor to another, in windows of 4 MiB."""
    source, sink = await bench.bare(2)
    size, count = 4 << 20, bench.size(64, 8)

    async def work() -> float:
        began = time.perf_counter()
        for _ in range(count):
            await sink.call.remote(source.give.remote(size))
        return size * count / (time.perf_counter() - began)

    return max(one for (one,) in await in_turns(bench.repeat, work))


def _disk_rate(bench: Bench) -> float:
    """Measure bytes a second into a file, synchronised at the end."""
    block, count = os.urandom(4 << 20), bench.size(128, 8)
    path = bench.new_file()
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(count):
            file.write(block)
        os.fsync(file.fileno())
    took = time.perf_counter() - began
    path.unlink()
    return len(block) * count / took


# ------------------------------------------------------------------------------------- start


@line("start")
async def start(bench: Bench) -> None:
    """Compare `connect()` until the first append is durable with `ray.init` alone."""
    await bench.leave_cluster()

    async def side(which: str) -> float:
        command = [
            sys.executable,
            "-m",
            "tests.bench.starting",
            which,
            str(bench.new_file().parent),
        ]
        done = await asyncio.to_thread(
            subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stderr}")
        return float(done.stdout.split()[-1])

    ours, floor = SIDES
    rounds = await in_turns(
        bench.repeat, lambda: side(ours), lambda: side(floor), warm_up=not bench.small
    )
    bench.add("start", middle(rounds), "s", Goal("+ ≤ 2 s", more_max=2.0))
