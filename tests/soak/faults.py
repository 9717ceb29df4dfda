"""What goes wrong in a soak: kinds of faults and of work, how often each, and doing one.

Kills and freezes hit processes directly, never through what is tested. What is frozen is always
resumed; of nodes at most one is down or frozen at a time, because two of three disks away is
another promise. Work (migrations, hibernations, drains) goes through the client, and may fail while
faults go on: such errors are counted, never hidden.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tests.fault import processes
from tests.fault.nodes import Node

Do = Callable[["Faults"], Awaitable[None]]


class Faults:
    """Draws and carries out faults over a deployment.

    Args:
        below: the process under which all of the cluster runs.
        longest_freeze_s: of a process; a node's raylet may be frozen three times as long.
    """

    def __init__(
        self,
        client: Any,
        names: list[str],
        nodes: list[Node],
        *,
        below: int,
        chance: random.Random,
        longest_freeze_s: float,
        say: Callable[[str], object],
    ) -> None:
        self.client, self.names, self.nodes = client, names, nodes
        self.below, self.chance, self.longest_freeze_s = below, chance, longest_freeze_s
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.kills = 0
        self._say = say
        self._node_busy = asyncio.Lock()
        self._drain_busy = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = asyncio.Event()

    async def rage(self, seconds: float, kills_per_minute: float) -> None:
        """Let faults happen for a while, at random moments."""
        weights = [kind.weight for kind in KINDS.values()]
        share = sum(kind.weight for kind in KINDS.values() if kind.kills) / sum(weights)
        every_s = 60.0 * share / kills_per_minute
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(self.chance.expovariate(1.0 / every_s))
            (kind,) = self.chance.choices(list(KINDS), weights)
            task = asyncio.create_task(self._one(kind), name=kind)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def calm(self, within_s: float = 180.0) -> int:
        """Stop: resume what is frozen, bring nodes back, wait for work under way.

        On a slow machine much work has gathered; it is waited for while some of it comes to its
        end at least every `within_s`.

        Returns: how much of it did not come to its end.
        """
        self._ending.set()
        pending = set(self._tasks)
        while pending:
            done, pending = await asyncio.wait(
                pending, timeout=within_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
        for task in pending:
            self._say(f"stuck: {task.get_name()}")
            task.cancel()
        return len(pending)

    async def _one(self, kind: str) -> None:
        self._say(f"begin {kind}")
        try:
            await KINDS[kind].do(self)
        except Exception as error:
            self.refused[f"{kind}: {type(error).__name__}: {str(error)[:140]}"] += 1
            self._say(f"{kind}: {type(error).__name__}: {str(error)[:300]}")
        else:
            self._say(f"ended {kind}")

    async def nap(self, most_s: float) -> None:
        """Wait for a random while, or until the run ends."""
        try:
            await asyncio.wait_for(self._ending.wait(), self.chance.random() * most_s)
        except TimeoutError:
            return

    # ------------------------------------------------------------------------- processes

    def any_of(self, *classes: str) -> int | None:
        """Choose a process that runs an actor of one of these classes."""
        found = processes.workers(self.below, *classes)
        return self.chance.choice(found) if found else None

    def note_kill(self, kind: str, killed: int | bool) -> None:
        """Count processes that were there and are dead now."""
        self.kills += int(killed)
        self.counts[kind] += int(killed)

    async def kill_worker(self, kind: str, *classes: str) -> None:
        pid = self.any_of(*classes)
        if pid is not None:
            self.note_kill(kind, processes.kill(pid))

    async def freeze_worker(self, kind: str, *classes: str) -> None:
        pid = self.any_of(*classes)
        if pid is not None and not processes.is_frozen(pid):
            self.counts[kind] += 1
            with processes.frozen(pid):
                await self.nap(self.longest_freeze_s)

    # ----------------------------------------------------------------------------- nodes

    async def kill_node(self, *, with_workers: bool) -> None:
        """Kill a raylet; another node mounts the folder after a while."""
        if self._node_busy.locked():
            return
        async with self._node_busy:
            node = self.chance.choice(self.nodes)
            self.note_kill("node killed" if with_workers else "raylet killed",
                           node.kill(with_workers=with_workers))  # fmt: skip
            await self.nap(5.0)
            await self.replace(node)

    async def replace(self, node: Node) -> None:
        """Start another node in a dead one's place; tries until it stands."""
        while True:
            try:
                return await node.replace()
            except Exception as error:
                self._say(f"a node does not start: {type(error).__name__}: {error}")
                await asyncio.sleep(1.0)

    async def freeze_node(self, *, with_workers: bool) -> None:
        if self._node_busy.locked():
            return
        async with self._node_busy:
            node = self.chance.choice(self.nodes)
            below = node.workers(processes.ACTOR, processes.AGENT) if with_workers else []
            self.counts["node frozen" if with_workers else "raylet frozen"] += 1
            with processes.frozen(node.raylet, *below):
                await self.nap(3 * self.longest_freeze_s)
            if not processes.is_running(node.raylet):
                await self.replace(node)

    def node_ids(self) -> list[str]:
        """Return the nodes that may be drained."""
        return [node.node_id for node in self.nodes if node.is_up]

    # ------------------------------------------------------------------------------ work

    async def migrate(self) -> None:
        nodes = [node.node_id for node in await self.client.nodes()]
        await self.client.migrate(self.chance.choice(self.names), self.chance.choice(nodes))
        self.counts["migrated"] += 1

    async def hibernate(self) -> None:
        await self.client.hibernate(self.chance.choice(self.names))
        self.counts["hibernated"] += 1

    async def drain(self) -> None:
        if self._drain_busy.locked():
            return
        async with self._drain_busy:
            node_id = self.chance.choice(self.node_ids())
            try:
                report = await self.client.drain(node_id)
                self.counts["drained"] += 1
                self.counts["drained, conversations moved"] += report.moved
            finally:
                await self.client.undrain(node_id)


class Kind:
    """A kind of fault: how often among all, whether it kills, what it does."""

    def __init__(self, weight: float, do: Do, *, kills: bool = False) -> None:
        self.weight, self.do, self.kills = weight, do, kills


def _kill(kind: str, *classes: str) -> Do:
    return lambda faults: faults.kill_worker(kind, *classes)


def _freeze(kind: str, *classes: str) -> Do:
    return lambda faults: faults.freeze_worker(kind, *classes)


KINDS: Final[dict[str, Kind]] = {
    "kill actor": Kind(40, _kill("actor killed", processes.ACTOR), kills=True),
    "freeze actor": Kind(8, _freeze("actor frozen", processes.ACTOR)),
    "kill router": Kind(6, _kill("router killed", processes.ROUTER), kills=True),
    "freeze router": Kind(2, _freeze("router frozen", processes.ROUTER)),
    "kill agent": Kind(6, _kill("agent killed", processes.AGENT), kills=True),
    "freeze agent": Kind(3, _freeze("agent frozen", processes.AGENT)),
    "kill raylet": Kind(3, lambda f: f.kill_node(with_workers=False), kills=True),
    "kill node": Kind(3, lambda f: f.kill_node(with_workers=True), kills=True),
    "freeze raylet": Kind(1, lambda f: f.freeze_node(with_workers=False)),
    "freeze node": Kind(1, lambda f: f.freeze_node(with_workers=True)),
    "migrate": Kind(25, Faults.migrate),
    "hibernate": Kind(15, Faults.hibernate),
    "drain": Kind(2, Faults.drain),
}
