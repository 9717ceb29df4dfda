"""Actor processes, kept warm and handed out.

A process costs half a second to start, binding a warm one a few milliseconds: so actors are
reused and a few idle ones stand ready. When none does, the least recently used idle conversation
makes room; another process starts, up to `max_active` per node, when none can make room or when
the one asked for was itself evicted a moment ago. Who asks first is served first; who waits too
long gets NoCapacityError.

It knows processes, not conversations: what may be evicted is the router's to say.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, Protocol

from sessions_actor.errors import NoCapacityError, SessionsActorError

from . import reports
from .cluster import Cluster, ClusterNode, Slot
from .placement import NodeView, default_max_active
from .shards import WHOLE, Shard

Choose = Callable[[list[NodeView]], list[NodeView]]
"""Orders the nodes that may serve a request, best first."""


class Evict(Protocol):
    """Frees an actor of a node by hibernating what it serves; says whether one became free."""

    async def __call__(self, node_id: str, *, idle_s: float, turn: bool = False) -> bool: ...


# Cores for each process that starts at once on one node: it takes one for half a second.
CPUS_PER_START: Final = 2
# A conversation without a call for so long makes room when another waits for an actor, ...
EVICT_IDLE_S: Final = 0.05
# ... and after a longer while so that one stands ready.
REFILL_IDLE_S: Final = 1.0
# Who has waited so long at a node that can start no more processes takes a busy one's turn.
TURN_AFTER_S: Final = 0.1
# Conversations that make room at once on one node.
EVICTIONS_MAX: Final = 4
# How often those who wait look for room while nothing is given back.
PATIENCE_S: Final = 0.02
# A round over those who wait that takes longer is followed by a rest so many times as long.
ROUND_S: Final = 0.001
ROUND_REST: Final = 4
# Idle actors above `warm_actors` are ended after this.
IDLE_KEEP_S: Final = 60.0


class _Waiter:
    __slots__ = ("choose", "found", "grow", "since")

    def __init__(self, choose: Choose, since: float, grow: bool) -> None:
        self.choose, self.since, self.grow = choose, since, grow
        self.found: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()


class Pool:
    """The actor processes of all nodes.

    Args:
        warm_actors, max_active: of a node, for all routers together.
        shard: the router whose part this is.
        evict: hibernates the least recently used conversation of a node that has been idle for
            so many seconds, or, with `turn`, one that has had its turn; says whether it did.
        is_leased: says whether a node renews its lease.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        warm_actors: int,
        max_active: int | None,
        evict: Evict,
        is_leased: Callable[[str], bool] = lambda node_id: True,
        shard: Shard = WHOLE,
    ) -> None:
        self._cluster, self._shard = cluster, shard
        self._warm, self._max_active, self._evict = shard.share(warm_actors), max_active, evict
        self._is_leased = is_leased
        self._nodes: dict[str, ClusterNode] = {}
        self._disks: dict[str, str] = {}
        self._machines: dict[str, str] = {}
        self._draining: set[str] = set()
        self._slots: dict[str, Slot] = {}
        self._starting: Counter[str] = Counter()
        self._evicting: Counter[str] = Counter()
        self._refilling: set[str] = set()
        self._expected = 0
        self._waiters: list[_Waiter] = []
        self._changed = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # ------------------------------------------------------------------------------- nodes

    async def refresh(self) -> list[Slot]:
        """Look at the cluster; returns the slots that went with nodes which are gone."""
        nodes = {node.node_id: node for node in await self._cluster.nodes()}
        gone = [slot for slot in self._slots.values() if slot.node_id not in nodes]
        for node_id in self._nodes.keys() - nodes.keys():
            reports.node_gone(node_id, drained=node_id in self._draining)
        self._nodes = nodes
        for slot in gone:
            self.discard(slot)
        self._changed.set()
        return gone

    def set_disk(self, node_id: str, disk_id: str, machine_id: str) -> None:
        """Note which disk a node mounts, and on which machine it runs.

        May be called from another thread; idle actors of another disk are ended soon after.
        """
        self._disks[node_id], self._machines[node_id] = disk_id, machine_id

    def machine(self, node_id: str) -> str | None:
        """Return a node's machine, where it is known; nodes that are gone are remembered."""
        return self._machines.get(node_id) or None

    def set_draining(self, node_id: str, draining: bool) -> None:
        """Keep new conversations off a node, or let them come again."""
        (self._draining.add if draining else self._draining.discard)(node_id)

    def is_draining(self, node_id: str) -> bool:
        """Say whether new conversations are kept off a node."""
        return node_id in self._draining

    @property
    def nodes(self) -> dict[str, ClusterNode]:
        """The live nodes by id."""
        return self._nodes

    @property
    def slots(self) -> list[Slot]:
        """Every actor process."""
        return list(self._slots.values())

    def views(self) -> list[NodeView]:
        """Return the live nodes as placement sees them."""
        active: Counter[str] = Counter()
        idle: Counter[str] = Counter()
        for slot in self._slots.values():
            (idle if slot.name is None else active)[slot.node_id] += 1
        return [
            NodeView(
                node_id,
                self._disks.get(node_id),
                active[node_id],
                idle[node_id],
                active[node_id] + idle[node_id] + self._starting[node_id],
                self._limit(node),
                node_id in self._draining,
                self._machines.get(node_id, ""),
                self._is_leased(node_id),
            )
            for node_id, node in self._nodes.items()
        ]

    def _limit(self, node: ClusterNode) -> int:
        """Return this router's part of the actors that a node holds."""
        whole = self._max_active or default_max_active(node.memory_bytes)
        return max(1, self._shard.share(whole))

    def slot_on_disk(self, disk_id: str) -> Slot | None:
        """Return some actor of a node that mounts a disk, for chores."""
        return next((slot for slot in self._slots.values() if slot.disk_id == disk_id), None)

    # --------------------------------------------------------------------------- processes

    async def acquire(
        self, name: str, choose: Choose, wait_s: float, *, grow: bool = False
    ) -> Slot:
        """Return an idle actor, now bound to a name; waits for one up to `wait_s`.

        Args: `grow` says that more processes would serve this conversation.
        Raises: NoCapacityError; StorageError when the only nodes that could serve cannot write.
        """
        waiter = _Waiter(choose, asyncio.get_running_loop().time(), grow)
        self._waiters.append(waiter)
        self._assign()
        if not waiter.found.done():
            self._wake_pump()
        try:
            slot = await asyncio.wait_for(waiter.found, wait_s)
        except TimeoutError:
            if not waiter.found.done() or waiter.found.cancelled():
                nodes = len(choose(self.views()))
                reports.no_capacity(name, wait_s, nodes)
                raise NoCapacityError(nodes) from None
            slot = waiter.found.result()  # it came at the last moment
        except asyncio.CancelledError:
            if waiter.found.done() and not waiter.found.cancelled():
                self.release(waiter.found.result())
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        slot.name = name
        reports.waited_for_actor(asyncio.get_running_loop().time() - waiter.since)
        self.keep_warm()
        return slot

    def release(self, slot: Slot) -> None:
        """Take back an actor that is idle again; one of a disk that its node lost is ended."""
        if self._slots.get(slot.actor_name) is slot:
            slot.name = None
            slot.idle_since = asyncio.get_running_loop().time()
            self._assign()
            self._changed.set()

    def discard(self, slot: Slot) -> None:
        """Forget an actor that is gone."""
        self._slots.pop(slot.actor_name, None)
        self._changed.set()

    def add(self, slot: Slot) -> None:
        """Take in an actor; it is idle unless its name is set."""
        self._slots[slot.actor_name] = slot
        self.set_disk(slot.node_id, slot.disk_id, slot.machine_id)
        slot.idle_since = asyncio.get_running_loop().time()
        self._assign()
        self._changed.set()

    def keep_warm(self) -> None:
        """See to it that idle actors stand ready on nodes that serve conversations.

        One that serves a conversation which has been idle for a while is freed, else a process
        started.
        """
        nodes = self._to_refill()
        for node in nodes:
            if node.node_id in self._refilling:
                continue
            if node.idle + self._starting[node.node_id] < self._wanted(len(nodes)):
                self._refilling.add(node.node_id)
                self._spawn(self._refill(node.node_id))

    @contextlib.contextmanager
    def expecting(self, actors: int) -> Iterator[None]:
        """Have so many idle actors more stand ready, on all nodes together, from now on.

        Who must wait before it may ask for an actor says so: processes start meanwhile. What is
        not needed in the end is ended like any idle actor.
        """
        self._expected += actors
        if actors:
            self.keep_warm()
        try:
            yield
        finally:
            self._expected -= actors

    def _to_refill(self) -> list[NodeView]:
        return [node for node in self.views() if not node.draining and node.disk_id is not None]

    def _wanted(self, nodes: int) -> int:
        """Return how many idle actors should stand ready on each of so many nodes."""
        return self._warm + -(-self._expected // nodes)

    async def _refill(self, node_id: str) -> None:
        try:
            while not self._closed:
                nodes = self._to_refill()
                node = next((view for view in nodes if view.node_id == node_id), None)
                if node is None or node.idle + self._starting[node_id] >= self._wanted(len(nodes)):
                    return
                if node.active and await self._evict(node_id, idle_s=REFILL_IDLE_S):
                    continue
                if self._starting[node_id] >= max(self._warm, self._at_once(node_id)):
                    await asyncio.sleep(PATIENCE_S)
                elif not self._start(node_id):
                    return
        finally:
            self._refilling.discard(node_id)

    def _at_once(self, node_id: str) -> int:
        """Return how many processes may start at once on a node."""
        return max(1, self._nodes[node_id].cpus // CPUS_PER_START)

    async def trim(self) -> None:
        """End idle actors that nobody needed for a while."""
        now = asyncio.get_running_loop().time()
        for node in self.views():
            here = [slot for slot in self._slots.values() if slot.node_id == node.node_id]
            idle = [slot for slot in here if not slot.name and not slot.chores]
            idle.sort(key=lambda slot: slot.idle_since)
            keep = 0 if node.draining else self._warm
            for slot in idle[: max(0, len(idle) - keep)]:
                if now - slot.idle_since >= IDLE_KEEP_S:
                    self.discard(slot)
                    await self._cluster.kill(slot.actor)

    async def close(self) -> None:
        """Stop starting and waiting; processes are left as they are."""
        self._closed = True
        for waiter in self._waiters:
            waiter.found.cancel()
        tasks = [*self._tasks, *([self._pump] if self._pump else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------ within

    def _assign(self) -> None:
        """Give idle actors to those who wait, first come first served.

        Cost: one look at the nodes for each actor that is given, while some are idle; who asks in
        a crowd must not hold up the router.
        """
        self._drop_strangers()
        idle = [slot for slot in self._slots.values() if slot.name is None]
        if not idle:
            return
        views = self.views()
        waiting = []
        for waiter in self._waiters:
            if waiter.found.done():
                continue
            slot = _first_of(idle, waiter.choose(views)) if idle else None
            if slot is None:
                waiting.append(waiter)
                continue
            slot.name = ""  # taken; the waiter names it when it wakes
            idle.remove(slot)
            views = self.views()
            waiter.found.set_result(slot)
        self._waiters = waiting

    def _drop_strangers(self) -> None:
        """End idle actors that describe a disk which their node does not mount any more."""
        for slot in self.slots:
            if slot.name is None and slot.disk_id != self._disks.get(slot.node_id):
                self.discard(slot)
                self._spawn(self._cluster.kill(slot.actor))

    def _wake_pump(self) -> None:
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._serve_waiters())

    async def _serve_waiters(self) -> None:
        """Grow and evict until nobody waits."""
        clock = asyncio.get_running_loop().time
        while self._waiters and not self._closed:
            began = clock()
            self._changed.clear()
            self._grow()
            self._make_room()
            self._assign()
            took = clock() - began
            if took > ROUND_S:  # a crowd waits: others have their turn in between
                await asyncio.sleep(took * ROUND_REST)
            if self._waiters:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), PATIENCE_S)

    def _grow(self) -> None:
        """Start processes for those whom an eviction does not help, a few at a time."""
        now = asyncio.get_running_loop().time()
        wanted: Counter[str] = Counter()
        views = self.views()
        for waiter in self._waiters:
            for node in waiter.choose(views):
                if node.processes + wanted[node.node_id] >= node.max_active:
                    continue
                if waiter.grow or node.active == 0 or now - waiter.since >= PATIENCE_S:
                    wanted[node.node_id] += 1
                break
        for node_id, count in wanted.items():
            for _ in range(min(count, self._at_once(node_id)) - self._starting[node_id]):
                self._start(node_id)

    def _make_room(self) -> None:
        """Have conversations evicted on the nodes that those who wait need.

        Nobody waits for an eviction: a frozen actor takes its time, others need not.
        """
        now = asyncio.get_running_loop().time()
        wanted: Counter[str] = Counter()
        turn: dict[str, bool] = {}
        views = self.views()
        for waiter in self._waiters:
            for node in waiter.choose(views):
                if node.active:
                    full = node.active + node.idle >= node.max_active
                    wanted[node.node_id] += 1
                    turn.setdefault(node.node_id, full and now - waiter.since >= TURN_AFTER_S)
                    break
        for node_id, count in wanted.items():
            for _ in range(min(count, EVICTIONS_MAX) - self._evicting[node_id]):
                self._evicting[node_id] += 1
                self._spawn(self._evict_one(node_id, turn[node_id]))

    async def _evict_one(self, node_id: str, turn: bool) -> None:
        try:
            await self._evict(node_id, idle_s=EVICT_IDLE_S, turn=turn)
        finally:
            self._evicting[node_id] -= 1

    def _start(self, node_id: str) -> bool:
        """Start a process on a node; False when that holds as many as it may."""
        node = next((view for view in self.views() if view.node_id == node_id), None)
        if node is None or node.processes >= node.max_active:
            return False
        self._starting[node_id] += 1
        self._spawn(self._start_actor(node_id))
        return True

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start_actor(self, node_id: str) -> None:
        began = asyncio.get_running_loop().time()
        try:
            slot = await self._cluster.start_actor(node_id)
        except asyncio.CancelledError:
            raise
        except SessionsActorError as error:
            # The node cannot serve at all; who can go nowhere else is told why.
            reports.actor_start_failed(node_id, error)
            for waiter in self._waiters:
                nodes = waiter.choose(self.views())
                if [node.node_id for node in nodes] == [node_id] and not waiter.found.done():
                    waiter.found.set_exception(error)
        except Exception as error:
            # The node is going or has no room: those who wait go on waiting for another.
            reports.actor_start_failed(node_id, error)
            await asyncio.sleep(PATIENCE_S)
        else:
            reports.actor_started(node_id, slot.pid, asyncio.get_running_loop().time() - began)
            self.add(slot)
        finally:
            self._starting[node_id] -= 1
            self._changed.set()


def _first_of(idle: list[Slot], nodes: list[NodeView]) -> Slot | None:
    """Return an idle actor of the best node that has one."""
    for node in nodes:
        for slot in idle:
            if slot.node_id == node.node_id:
                return slot
    return None
