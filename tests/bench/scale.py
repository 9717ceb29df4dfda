"""Memory and the directory: what does not grow with what is stored."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from router.directory import DIRECTORY_FILE, Directory, Owner
from sessions_actor.disk import disk_id
from sessions_actor.limits import MIB

from .bench import Bench, line
from .life import LARGE_BYTES, LARGE_COUNT
from .measure import Goal, Pair, at_most, in_turns, middle, p50

PAGE_NAMES = 100
_SAMPLE_S = 0.05
_numbers = itertools.count()


# ------------------------------------------------------------------------------------ memory


def own_bytes(pid: int) -> int:
    """Return the memory that a process shares with no other."""
    found = 0
    for text in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if text.startswith("Private_"):
            found += int(text.split()[1]) * 1024
    return found


def descendants(pid: int) -> list[int]:
    """Return the processes below this one."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    pending = [pid]
    while pending:
        below = parents.get(pending.pop(), [])
        found += below
        pending += below
    return found


def named(title: str) -> list[int]:
    """Return our own cluster's workers of a class."""
    found = []
    for pid in descendants(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if command.startswith(f"ray::{title}".encode()):
            found.append(pid)
    return found


async def peak(pid: int, work: Any) -> int:
    """Return the most memory a process of our own holds while some work runs."""
    task, most = asyncio.ensure_future(work), own_bytes(pid)
    while not task.done():
        await asyncio.wait([task], timeout=_SAMPLE_S)
        most = max(most, own_bytes(pid))
    await task
    return most


@line("memory")
async def memory(bench: Bench) -> None:
    """Compare the memory of actors with a bare one's, the router's with and without a crowd."""
    (bare,) = await bench.bare()
    client = await bench.client()
    count = bench.size(LARGE_COUNT, 500)
    await bench.holding("memory-idle", None)
    idle = (await client.info("memory-idle")).pid
    await client.hibernate("memory-idle")
    floor = own_bytes(await bare.pid.remote())
    goal = Goal("+ ≤ 12 MB", more_max=12e6)
    bench.add("memory, warm idle actor", Pair(own_bytes(idle), floor), "B", goal)

    for part in (count // 10, count):
        await _streaming(bench, part)

    sizes = bench.size(100, 10), bench.size(10_000, 1_000)
    held = []
    for count in sizes:
        async with crowded(bench, filled_root(bench, count)) as crowd:
            for name in await crowd.client.list(limit=1_000):
                await crowd.client.info(name)
            held.append(own_bytes(crowd.router_pid))
    name = f"memory, router of {sizes[1]:,} conversations, to {sizes[0]:,}"
    bench.add(name, Pair(held[1], held[0]), "B", Goal("flat", ratio_max=1.1))


async def _streaming(bench: Bench, count: int) -> None:
    client = await bench.client()
    path = bench.copy_of(bench.built(count, LARGE_BYTES))
    size = path.stat().st_size / 1e6
    session = await bench.holding("memory-stream", path)
    pid = (await client.info("memory-stream")).pid
    before, own_before = own_bytes(pid), own_bytes(os.getpid())

    async def stream() -> None:
        async for _ in session.history():
            pass

    goal = Goal("+ ≤ 64 MiB", more_max=64 * MIB)
    most = await peak(pid, stream())
    bench.add(f"memory, actor that streams {size:,.0f} MB", Pair(most, before), "B", goal)
    most = await peak(os.getpid(), stream())
    bench.add(f"memory, reader of {size:,.0f} MB", Pair(most, own_before), "B", goal)
    await client.delete("memory-stream")


# --------------------------------------------------------------------------------- directory


class Crowd(NamedTuple):
    """A deployment beside the run's own, on the same cluster."""

    client: Any
    router_pid: int
    start_s: float


def filled_root(bench: Bench, count: int) -> Path:
    """Make a storage root whose directory knows so many conversations, all asleep.

    Their files are not there: nothing here wakes them.
    """
    root = bench.new_file().parent
    disk = disk_id(root)
    Directory(root).close()
    now = time.time_ns() // 1_000_000
    db: Any = apsw.Connection(str(root / DIRECTORY_FILE))
    with db:
        db.executemany(
            "INSERT INTO conversations (name, state, epoch, generation, disk_id, file_bytes,"
            " created_at, last_active_at) VALUES (?, 'hibernated', 7, 1, ?, 65536, ?, ?)",
            ((name_of(number).encode(), disk, now, now) for number in range(count)),
        )
    db.close()
    return root


def name_of(number: int) -> str:
    """Name a conversation, as applications do."""
    return f"tenant-{number % 100:02d}/user-{number:09d}"


@asynccontextmanager
async def crowded(bench: Bench, root: Path) -> AsyncIterator[Crowd]:
    """Serve a storage root by a deployment of its own; ends it afterwards."""
    import ray
    from ray.util import list_named_actors

    from router import Settings, connect

    await bench.client()
    others, namespace = set(named("RouterActor")), f"crowd-{next(_numbers)}"
    began = time.perf_counter()
    async with connect(namespace=namespace, settings=Settings(storage_root=root)) as client:
        took = time.perf_counter() - began
        try:
            (pid,) = set(named("RouterActor")) - others
            yield Crowd(client, pid, took)
        finally:
            for one in list_named_actors(all_namespaces=True):
                if one["namespace"] == namespace:
                    with contextlib.suppress(ValueError):
                        ray.kill(ray.get_actor(one["name"], namespace))


def _page(found: Directory, number: int) -> None:
    """List a page that begins at some tenant with users enough behind it."""
    after = name_of(number % 80)
    assert len(found.page("", after, PAGE_NAMES)) == PAGE_NAMES


@line("directory")
async def directory(bench: Bench) -> None:
    """Compare the directory of very many conversations with one of few."""
    few, many = bench.size(1_000, 1_000), bench.size(1_000_000, 10_000)
    roots = [filled_root(bench, count) for count in (many, few)]
    count, goal = bench.size(500, 50), at_most(1.2)
    kinds: dict[str, Callable[[Directory, int], Any]] = {
        "look up": lambda found, number: found.get(name_of(number)),
        "list page": lambda found, number: _page(found, number),
    }
    opened = [Directory(root) for root in roots]
    try:
        for kind, work in kinds.items():

            def reading(place: int, work: Callable[[Directory, int], Any] = work) -> Any:
                async def one(number: int) -> None:
                    work(opened[place], number * 7919 % few)

                return lambda: p50(one, count)

            rounds = await in_turns(bench.repeat, reading(0), reading(1))
            bench.add(f"directory, {kind}, {many:,} to {few:,}", middle(rounds), "s", goal)

        def claiming(place: int) -> Any:
            found, disk = opened[place], disk_id(roots[place])
            owner = Owner("node", "actor", disk)

            async def one(number: int) -> None:
                name = name_of(number * 7919 % few)
                entry = found.get(name)
                assert entry is not None
                active = await found.activate(name, entry.epoch, owner)
                assert active is not None
                await found.hibernate(name, active.epoch, file_bytes=1, last_active_at=1)

            return lambda: p50(one, count)

        rounds = await in_turns(bench.repeat, claiming(0), claiming(1))
        name = f"directory, resolve (claim and let go), {many:,} to {few:,}"
        bench.add(name, middle(rounds), "s", goal)
    finally:
        for found in opened:
            found.close()
    files = [float((root / DIRECTORY_FILE).stat().st_size) for root in roots]
    most = Goal("≤ 300 MB", ours_max=300e6)
    bench.add(f"directory, file, {many:,} to {few:,}", Pair(files[0], files[1]), "B", most)

    async def starting(root: Path) -> float:
        async with crowded(bench, root) as crowd:
            assert await crowd.client.list(limit=1)
            return crowd.start_s

    rounds = await in_turns(
        bench.repeat, lambda: starting(roots[0]), lambda: starting(roots[1]), warm_up=False
    )
    name = f"directory, router start, {many:,} to {few:,}"
    bench.add(name, middle(rounds), "s", Goal("≤ 2 s", ours_max=2.0))
