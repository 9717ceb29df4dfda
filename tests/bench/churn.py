"""Very many conversations on one node that holds few: what it costs to come and go."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from pathlib import Path
from typing import Any

from .bench import Bench, line
from .data import MESSAGE_BYTES, Messages
from .measure import REPORT, Goal, Pair, seconds
from .scale import named, own_bytes

ACTIVE_MAX = 50
CALLER = "caller"
_numbers = itertools.count()


@line("churn")
async def churn(bench: Bench) -> None:
    """Touch conversations in turn, each asleep by its next turn; compare with a bare call.

    Twice: first each is new, then each wakes. Every append has to succeed. Memory is compared from
    half of the turns on, when processes have filled their caches.
    """
    import ray
    from ray.util import list_named_actors

    from router import Settings, connect

    (bare,) = await bench.bare()
    count, namespace = bench.size(5_000, 120), f"churn-{next(_numbers)}"
    root: Path = bench.new_file().parent
    active = min(ACTIVE_MAX, count // 3)
    settings = Settings(storage_root=root, max_active=active, warm_actors=1)
    names = [f"tenant-{number % 10}/user-{number}" for number in range(count)]
    supply, payload = Messages(), bytes(MESSAGE_BYTES)
    titles = ("ConversationActor", "RouterActor")
    others = {pid for title in titles for pid in named(title)}

    def held(title: str) -> float:
        """Return what one process of the deployment holds, on average: their number is bounded."""
        if title == CALLER:
            return own_bytes(os.getpid())
        found = []
        for pid in set(named(title)) - others:
            with contextlib.suppress(OSError):
                found.append(own_bytes(pid))
        return sum(found) / len(found)

    async with connect(namespace=namespace, settings=settings) as client:
        try:
            for kind in ("new", "woken"):
                times, floor, held_at = [], [], []
                began = time.perf_counter()
                for number, name in enumerate(names):
                    session: Any = client.get(name).session()
                    times.append(await seconds(session.append_message(supply.one())))
                    if number % 5 == 0:
                        floor.append(await seconds(bare.call.remote(payload)))
                    if number in (count // 2, count - 1):
                        held_at.append([held(title) for title in (*titles, CALLER)])
                took = time.perf_counter() - began
                for part in (0.5, 0.99):
                    pair = Pair(_quantile(times, part), _quantile(floor, part))
                    bench.add(f"churn, {kind}, append, p{100 * part:.0f}", pair, "s", REPORT)
                bench.report(f"churn, {kind}, in turn", count / took, "/s")
                flat = Goal("flat", ratio_max=1.15)
                for who, before, after in zip((*titles, CALLER), *held_at, strict=True):
                    title = f"churn, {kind}, memory of a {who} after {count:,}, to {count // 2:,}"
                    bench.add(title, Pair(after, before), "B", flat)
            (node,) = [n for n in await client.nodes() if n.active or n.idle]
            assert node.active + node.idle <= active
            assert len(await client.list(limit=count + 1)) == count
        finally:
            for one in list_named_actors(all_namespaces=True):
                if one["namespace"] == namespace:
                    with contextlib.suppress(ValueError):
                        ray.kill(ray.get_actor(one["name"], namespace))


def _quantile(times: list[float], part: float) -> float:
    return sorted(times)[min(len(times) - 1, int(part * len(times)))]
