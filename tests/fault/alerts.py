"""Which alerts the faults of these tests raise: the endpoints are read while a fault goes on.

What was read is replayed through promtool with the rules of the deployment, so an alert counts
whose expression holds over what real processes left. Its `for` need not have passed: these faults
last as long as a test does. Nodes are read with `--long`, since waiting for what they tell takes as
long as the faults themselves. Without promtool nothing is read, and the tests go on as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from sessions_actor.meters import REGISTRY
from sessions_actor.telemetry import Kind
from tests.cluster.endpoint import Series, endpoints, read
from tests.promql import alerts_of, prometheus

# Over before anybody could look: what fails is replaced, and callers see a delay.
HEALED: Final = ("one owner is killed or frozen", "an agent is killed", "the router dies once")
# What every other fault raises; the table of deploy/README.md has a row for each, in these words.
FAULTS: Final[dict[str, set[str]]] = {
    "many owners are killed": {"SessionsActorOwnersLost"},
    "an agent freezes": {"SessionsActorLeaseLow"},
    "the router dies again and again": {"SessionsActorRouterRestarting"},
    "a raylet dies": {"SessionsActorNodeLost"},
    "a node dies": {"SessionsActorNodeLost"},
    "a node freezes or is cut off": {"SessionsActorLeaseLow"},
    "a disk is full": {"SessionsActorGateBroken"},
    "a disk can only be read": {"SessionsActorActivationsFailing"},
    "a replica is out of reach": {"SessionsActorReplicaSyncsFail"},
}
ROUTER_LIFE: Final = "ray_sessions_actor_router_start_time_seconds"
PERIOD_S: Final = 1
ANSWER_S: Final = 2
WITHIN_S: Final = 60


Read = Callable[[], Awaitable[Series]]


async def endpoints_of_all() -> Series:
    """Read every node's endpoint; one that does not answer shows nothing."""
    found: Series = {}

    async def one(address: str) -> None:
        with contextlib.suppress(OSError):
            found.update(await asyncio.to_thread(read, address, ANSWER_S))

    await asyncio.gather(*map(one, endpoints()))
    return found


class Here:
    """Reads what this process counts, where a test runs the parts without Ray."""

    def __init__(self) -> None:
        self._found: Series = {}

    async def __call__(self) -> Series:
        for sample in REGISTRY.drain():
            key = (f"ray_{sample.name}", frozenset({**sample.labels, "node": "here"}.items()))
            before = self._found.get(key, 0.0) if sample.kind is Kind.COUNTER else 0.0
            self._found[key] = before + sample.value
        return dict(self._found)


class Watch:
    """Reads series once a second, until it is asked what they raised; a blind one sees nothing."""

    def __init__(self, read: Read, *, blind: bool = False) -> None:
        self._read = read
        self._seen: list[Series] = []
        self._reads = not blind and prometheus("promtool") is not None

    async def look(self) -> None:
        """Read once."""
        if self._reads:
            self._seen.append(await self._read())

    async def run(self) -> None:
        """Read for ever."""
        while self._reads:
            await asyncio.sleep(PERIOD_S)
            await self.look()

    async def lives(self, count: int) -> None:
        """Wait until so many lives of a router have shown themselves."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + WITHIN_S
        while self._reads and len(self._routers()) < count:
            assert clock() < deadline, f"not {count} lives: {self._routers()}"
            await asyncio.sleep(PERIOD_S / 10)

    def _routers(self) -> set[object]:
        return {key for one in self._seen for key in one if key[0] == ROUTER_LIFE}

    async def raised(self, fault: str) -> None:
        """Wait until every alert of a fault was raised."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + WITHIN_S
        while self._reads and (missing := FAULTS[fault] - await asyncio.to_thread(self._alerts)):
            assert clock() < deadline, f"{fault}: not raised: {missing}"
            await asyncio.sleep(PERIOD_S)

    def _alerts(self) -> set[str]:
        seen = list(self._seen)
        if not seen:
            return set()
        (found,) = alerts_of([timeline(seen)], PERIOD_S, len(seen) * PERIOD_S, ever=True)
        return {name for name, _ in found}


def timeline(seen: list[Series]) -> dict[str, str]:
    """Return what was read, one moment after the other, as promtool writes series."""
    found = {}
    for key in sorted(set().union(*seen), key=str):
        name, labels = key
        written = ",".join(f"{label}={_quoted(value)}" for label, value in sorted(labels))
        values = (repr(float(one[key])) if key in one else "_" for one in seen)
        found[f"{name}{{{written}}}"] = " ".join(values)
    return found


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


@contextlib.asynccontextmanager
async def watching(read: Read = endpoints_of_all, *, blind: bool = False) -> AsyncIterator[Watch]:
    """Read from now on; by default the endpoints of the cluster that this process is in."""
    watch = Watch(read, blind=blind)
    await watch.look()
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.wait([task])
