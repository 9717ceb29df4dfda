"""A cluster in one process: real actor objects, real files, no Ray.

An actor dies when told to: calls under way and to come fail as Ray makes them fail, and its file is
let go. A silent one never answers.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError

from router.cluster import ClusterNode, Slot
from sessions_actor.actor import Binding, ConversationActor, Description
from sessions_actor.disk import disk_id, file_bytes
from sessions_actor.lease import NodeLease


async def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    """Wait for a condition that other tasks bring about."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0)


class FakeActor:
    """Stands for an actor's handle: `actor.method.remote(...)`."""

    def __init__(self, target: ConversationActor) -> None:
        self.target = target
        self.dead = False
        self.silent = False
        self._ended = asyncio.Event()
        self.calls: list[str] = []
        self._under_way: set[asyncio.Task[Any]] = set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return FakeMethod(self, name)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Start a call."""
        self.calls.append(name)
        task = asyncio.ensure_future(self._run(name, args, kwargs))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _run(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        if self.dead:
            raise ActorDiedError
        if self.silent:
            await self._ended.wait()
            raise ActorDiedError
        args = tuple([await a if isinstance(a, asyncio.Future) else a for a in args])
        work = asyncio.ensure_future(_awaited(getattr(self.target, name)(*args, **kwargs)))
        while not work.done() and not self.dead:
            await asyncio.wait([work], timeout=0.01)
        if self.dead:
            work.cancel()
            raise ActorDiedError
        return work.result()

    def die(self) -> None:
        """End the process: nothing of it answers any more, its file's lock is free."""
        if self.dead:
            return
        self.dead = True
        self._ended.set()
        hosted = self.target._hosted
        if hosted is not None:
            hosted.storage.close()
        site = self.target._site
        if site is not None:
            site.storage.close()


async def _awaited(value: Any) -> Any:
    return await value if isinstance(value, Coroutine) else value


class FakeMethod:
    """Stands for a method of an actor's handle."""

    def __init__(self, actor: FakeActor, name: str, num_returns: int = 1) -> None:
        self._actor, self._name, self._num_returns = actor, name, num_returns

    def options(self, *, num_returns: int = 1, **_: Any) -> "FakeMethod":
        """Take any option."""
        return FakeMethod(self._actor, self._name, num_returns)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Start the call; its results are refs, which other calls take as arguments."""
        whole = self._actor.call(self._name, args, kwargs)
        if self._num_returns == 1:
            return whole
        return [asyncio.ensure_future(_item(whole, i)) for i in range(self._num_returns)]


async def _item(whole: Any, index: int) -> Any:
    return (await whole)[index]


class FakeCluster:
    """Nodes and actors, all in this process."""

    def __init__(self, roots: dict[str, Path]) -> None:
        self.roots = roots
        self.actors: dict[str, tuple[FakeActor, str]] = {}
        self.announced: set[str] = set()
        self.unreached: list[FakeActor] = []
        """Actors of which the next question about themselves is lost on the way."""
        self.starts = 0
        self.start_delay_s = 0.0
        self.machines: dict[str, str] = {}
        self.leases = {node_id: standing_lease() for node_id in roots}
        self._ids = itertools.count(1)

    def machine(self, node_id: str) -> str:
        """The machine a node runs on: one for all unless `machines` says otherwise."""
        return self.machines.get(node_id, "machine")

    async def nodes(self) -> list[ClusterNode]:
        return [ClusterNode(node_id, "127.0.0.1", 1 << 34, 4) for node_id in self.roots]

    async def draining(self) -> set[str]:
        return set(self.announced)

    async def start_actor(self, node_id: str) -> Slot:
        self.starts += 1
        await asyncio.sleep(self.start_delay_s)
        number = next(self._ids)
        name = f"actor-{number}"
        root = self.roots[node_id]
        disk = disk_id(root)
        lease = self.leases.setdefault(node_id, standing_lease())
        actor = FakeActor(ConversationActor(str(root), lambda: lease))
        self.actors[name] = (actor, node_id)
        machine = self.machine(node_id)
        return Slot(name, actor, node_id, disk, machine, f"id-{number}", number)

    async def find_actors(self) -> list[tuple[str, Any]]:
        return [(name, actor) for name, (actor, _) in self.actors.items() if not actor.dead]

    async def ping(self, actor: Any, timeout_s: float) -> Binding:
        found: Binding = await asyncio.wait_for(actor.ping.remote(), timeout_s)
        return found

    async def describe(self, actor: Any, timeout_s: float) -> Description:
        if actor in self.unreached:
            self.unreached.remove(actor)
            raise ActorUnavailableError("the connection broke", None)
        bound = await self.ping(actor, timeout_s)
        target = actor.target
        name, node_id = next((n, node) for n, (a, node) in self.actors.items() if a is actor)
        hosted, spec = target._hosted, target._spec
        return Description(
            node_id=node_id,
            actor_id=name,
            pid=1,
            disk_id=disk_id(self.roots[node_id]),
            machine_id=self.machine(node_id),
            binding=bound,
            file=None if spec is None else spec.file,
            file_bytes=0 if spec is None else file_bytes(self.roots[node_id], spec.file) or 0,
            last_active_at=0 if hosted is None else hosted.last_active_at,
            idle_s=0.0 if hosted is None else hosted.idle_s,
        )

    async def kill(self, actor: Any) -> None:
        actor.die()

    async def keep_agent(self, node_id: str) -> None:
        """Nothing to do: leases are in the hands of the test."""

    async def end_agent(self, node_id: str) -> None:
        """Nothing to do."""


def standing_lease() -> NodeLease:
    """Make a node's lease that stands for ever, in the first term."""
    lease = NodeLease.in_memory(clock=lambda: 0.0)
    lease.grant(1, 0.0, 1e6)
    return lease
