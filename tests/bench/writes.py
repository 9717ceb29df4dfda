"""Appends: one at a time, in flight together, many in one call, in process, to many at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from . import data
from .bench import Bench, line, skipping
from .data import Messages
from .measure import Call, Work, at_least, at_most, in_turns, medians, middle, now, rate

IN_FLIGHT = 64


def appending(session: Any, supply: Messages) -> Call:
    """Append one new message per call."""
    return lambda _: session.append_message(supply.one())


def calling(actor: Any) -> Call:
    """Call a bare actor with the bytes of one message."""
    text = orjson.dumps(Messages().one())
    return lambda _: actor.call.remote(text)


def synchronising(path: Path) -> Call:
    """Write what an append adds to its log, two pages, and wait for the disk."""
    pages = bytes(2 * 4096)

    async def work(number: int) -> None:
        os.pwrite(descriptor, pages, len(pages) * number)
        os.fdatasync(descriptor)

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    return work


def together(session: Any, supply: Messages, count: int) -> Work:
    """Make a round of appends in flight together; its figure is their rate."""

    async def work() -> float:
        some = supply.many(count)
        return await rate(lambda number: session.append_message(some[number]), count, IN_FLIGHT)

    return work


def sizes(bench: Bench, name: str) -> dict[str, Callable[[], Path]]:
    """Give an empty file and one that holds much already, by the names of their lines."""
    stored = bench.size(200_000, 2_000)

    def full() -> Path:
        return bench.copy_of(bench.built(stored, name=data.random_id))

    return {name: bench.new_file, f"{name}, {stored:,} stored": full}


@line("append")
async def append(bench: Bench) -> None:
    """Compare a durable append, one at a time, with a bare call of the same bytes."""
    (bare,) = await bench.bare()
    count = bench.size(400, 40)
    for name, file in sizes(bench, "append").items():
        session = await bench.holding(name.replace(" ", "-"), file())
        ours = medians(appending(session, Messages()), count)
        disk = medians(synchronising(bench.new_file()), count)
        rounds = await in_turns(bench.repeat, ours, medians(calling(bare), count), disk)
        bench.add(name, middle(rounds), "s", at_most(1.3))
        call = middle(rounds)[1]
        sums = [(one[0], call + one[2]) for one in rounds]
        bench.add(f"{name}, to a bare call and a bare fdatasync", middle(sums), "s")
        bench.report(f"{name}, the disk's fdatasync alone", middle(rounds, 2, 1)[0], "s")


@line("append-pipelined")
async def append_pipelined(bench: Bench) -> None:
    """Compare appends in flight together with as many bare calls."""
    (bare,) = await bench.bare()
    count = bench.size(6_400, 640)
    for name, file in sizes(bench, "append-pipelined").items():
        session = await bench.holding(name.replace(" ", "-"), file())
        ours, floor = together(session, Messages(), count), calling(bare)
        rounds = await in_turns(bench.repeat, ours, partial(rate, floor, count, IN_FLIGHT))
        bench.add(name, middle(rounds), "/s", at_least(3))


def raw_appends(path: Path, count: int, per_transaction: int) -> Work:
    """Make a round of raw inserts into a file; its figure is rows a second."""
    db, done = data.raw(path), 1_000_000

    async def work() -> float:
        nonlocal done
        some = list(data.rows(count, first=done))
        done += count
        began = now()
        for start in range(0, count, per_transaction):
            data.insert(db, some[start : start + per_transaction])
        return count / (now() - began)

    return work


@line("append-many")
async def append_many(bench: Bench) -> None:
    """Compare remote batches of 100 with raw inserts, one transaction per 100."""
    batches = bench.size(40, 4)
    for name, file in sizes(bench, "append-many").items():
        session = await bench.holding(name.replace(" ", "-"), file())
        supply = Messages()

        async def ours(session: Any = session, supply: Messages = supply) -> float:
            some = [supply.many(100) for _ in range(batches)]
            began = now()
            for batch in some:
                await session.append_messages(batch)
            return 100 * batches / (now() - began)

        rounds = await in_turns(bench.repeat, ours, raw_appends(file(), 100 * batches, 100))
        bench.add(name, middle(rounds), "/s", at_least(0.3))


@line("append-local")
async def append_local(bench: Bench) -> None:
    """Compare appends in process, 64 at once, with raw inserts and with the reference."""
    count = bench.size(20_000, 640)
    for name, file in sizes(bench, "append-local").items():
        ours, raw = local_appends(bench, file(), count), raw_appends(file(), count, count)
        bench.add(name, middle(await in_turns(bench.repeat, ours, raw)), "/s", at_least(0.35))
    with skipping(bench, "append-local, reference"):
        peer = reference_appends(bench, bench.size(2_000, 100))
        ours = local_appends(bench, bench.new_file(), count)
        rounds = await in_turns(bench.repeat, ours, peer)
        bench.add("append-local, reference in its object", middle(rounds), "/s", at_least(1))


def local_appends(bench: Bench, path: Any, count: int) -> Work:
    """Make a round of appends in this process, 64 at once, each waiting until it is on disk."""
    supply = Messages()

    async def work() -> float:
        async with bench.opened(path) as session:
            await session.append_message(supply.one())
            return await together(session, supply, count)()

    return work


def reference_appends(bench: Bench, count: int) -> Work:
    """Make a round of appends inside the reference's object, all asked for by one request."""
    bench.reference()
    supply = Messages()

    async def work() -> float:
        some = [[message, {}] for message in supply.many(count)]
        began = now()
        assert bench.refer("appends", "appendMany", some) == count
        return count / (now() - began)

    return work


@line("append-spread")
async def append_spread(bench: Bench) -> None:
    """Compare appends to 20 conversations at once with bare calls to as many actors."""
    width, count = bench.size(20, 3), bench.size(100, 10)
    bare = await bench.bare(width)
    client = await bench.client()
    names = [f"spread-{number}" for number in range(width)]
    sessions = await asyncio.gather(*(bench.holding(name, None) for name in names))
    supply, calls = Messages(), [calling(actor) for actor in bare]

    async def each(works: list[Call]) -> float:
        async def repeat(work: Call) -> None:
            for number in range(count):
                await work(number)

        began = now()
        await asyncio.gather(*map(repeat, works))
        return len(works) * count / (now() - began)

    appends = [appending(session, supply) for session in sessions]
    half = max(1, width // 2)
    rounds = await in_turns(
        bench.repeat,
        *(lambda: each(appends), lambda: each(calls)),
        *(lambda: each(appends[:half]), lambda: each(calls[:half])),
    )
    goal = at_least(0.7)
    bench.add("append-spread", middle(rounds), "/s", goal)
    bench.add(f"append-spread, to {half}", middle(rounds, 2, 3), "/s", goal)
    for name in names:
        await client.hibernate(name)
