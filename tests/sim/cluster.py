"""A simulated Ray cluster: nodes, actors and what Ray believes of them. Not a real word of Ray.

The head keeps the books: it hears of a death after a while, it takes a machine for dead that it
has not heard from, right or wrong, and a machine that it took for dead ends its processes when it
learns so. A kill travels: a machine out of reach does not hear of it, a frozen process may stand
for a while longer. Named actors are found by their name; one that restarts gets a new process.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from random import Random
from typing import Any, Final

from ray.exceptions import ActorDiedError

from .loop import Scheduler, SimFuture
from .machines import Disk, Node, Process
from .network import Call, Network

START_S: Final = (0.05, 0.6)
RESTART_S: Final = (0.1, 1.5)
# How long the head waits before it takes a silent machine for dead.
SILENT_NODE_S: Final = (1.5, 5.0)
# How long the processes of a machine go on after its raylet is gone.
ORPHAN_S: Final = 1.5
NODE_BACK_S: Final = (0.3, 3.0)
# How much faster or slower than another a machine's clock may run, at most: half of this.
CLOCK_DRIFT: Final = 0.004


class Actor:
    """What the head knows of an actor."""

    def __init__(
        self, cluster: Cluster, actor_id: str, name: str | None, cls: type, args: tuple[Any, ...],
        node: Node, *, restarts: bool, repeats: bool,
    ) -> None:  # fmt: skip
        self.cluster, self.actor_id, self.name = cluster, actor_id, name
        self.cls, self.args, self.node = cls, args, node
        self.restarts, self.repeats = restarts, repeats
        self.process: Process | None = None
        self.dead = False
        self.waiting: list[Call] = []

    def is_gone_for(self, node: Node) -> bool:
        """Say whether a machine has heard that this actor is dead."""
        return self.dead and self.cluster.network.reaches(node, self.cluster.head)


class Handle:
    """An actor's handle, as the product sees it."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Method:
        if name.startswith("__"):
            raise AttributeError(name)
        return Method(self._actor, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return Cluster.find_handle, (self._actor.actor_id,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other._actor is self._actor

    def __hash__(self) -> int:
        return hash(self._actor.actor_id)


class Method:
    """A method of a handle: `.options(...).remote(...)`."""

    __slots__ = ("_actor", "_name", "_returns")

    def __init__(self, actor: Actor, name: str, returns: int = 1) -> None:
        self._actor, self._name, self._returns = actor, name, returns

    def options(self, *, num_returns: int = 1, **_: Any) -> Method:
        """Take any option."""
        return Method(self._actor, self._name, num_returns)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Make the call; the results are futures, which other calls take as arguments."""
        cluster = self._actor.cluster
        caller = cluster.current()
        whole = cluster.network.call(caller, self._actor, self._name, args, kwargs)
        if self._returns == 1:
            return whole
        parts = [SimFuture(loop=caller.loop) for _ in range(self._returns)]

        def split(done: asyncio.Future[Any]) -> None:
            for index, part in enumerate(parts):
                if part.done() or done.cancelled():
                    continue
                error = done.exception()
                if error is None:
                    part.set_result(done.result()[index])
                else:
                    part.set_exception(error)

        whole.add_done_callback(split)
        return parts


class ActorClass:
    """What `ray.remote(...)(cls)` gives."""

    def __init__(self, cluster: Cluster, cls: type, options: dict[str, Any]) -> None:
        self._cluster, self._cls, self._options = cluster, cls, options

    def options(self, **options: Any) -> ActorClass:
        """Add options."""
        return ActorClass(self._cluster, self._cls, self._options | options)

    def remote(self, *args: Any) -> Handle:
        """Have the actor started; returns its handle at once."""
        return self._cluster.start(self._cls, args, self._options)


class Cluster:
    """The cluster's books, and the hands that kill and start."""

    _of_now: Cluster | None = None

    def __init__(
        self, scheduler: Scheduler, network: Network, rng: Random, trace: Callable[..., None]
    ) -> None:
        self.scheduler, self.network, self._rng, self._trace = scheduler, network, rng, trace
        self._actor_ids, self._node_ids = itertools.count(1), itertools.count()
        self.nodes: list[Node] = []
        self.actors: dict[str, Actor] = {}
        self._names: dict[str, Actor] = {}
        self.head = self.make_node(None)
        # The head's own process: it carries what happens to machines, and never dies.
        self.fate = Process(scheduler, "fate", self.head)
        # The machine of all nodes, when they are containers of one.
        self.one_machine: str | None = None
        self.on_start: Callable[[Process, Actor], None] = lambda *_: None
        Cluster._of_now = self

    def make_node(self, disk: Disk | None, machine: str | None = None) -> Node:
        """Make a machine that is in no cluster, such as a client's."""
        rng = self._rng
        number = next(self._node_ids)
        return Node(
            f"{number:056x}",  # Ray looks at its form
            disk,
            machine or f"machine-{number}",
            rng.uniform(0, 1000),
            rng.uniform(1 - CLOCK_DRIFT, 1 + CLOCK_DRIFT),
        )

    # ------------------------------------------------------------------------------ machines

    def add_node(self, disk: Disk | None, machine: str | None = None) -> Node:
        """Have a machine join."""
        node = self.make_node(disk, machine)
        self.nodes.append(node)
        self._trace("joined", node.node_id[-3:])
        return node

    def adopt_head(self, disk: Disk) -> None:
        """Give the head a disk, and let it host actors like any other node."""
        self.head.disk = disk
        self.nodes.append(self.head)

    def live_nodes(self) -> list[Node]:
        """Machines that the head takes for alive."""
        return [node for node in self.nodes if not node.known_dead]

    def kill_node(self, node: Node, *, returns: bool) -> None:
        """End a machine with all its processes; another with its disk may join later."""
        node.alive = False
        for process in list(node.processes):
            self.kill_process(process)
        self.later(self._rng.uniform(0.05, SILENT_NODE_S[1]), self.declare_dead, node)
        if returns:
            self.later(self._rng.uniform(*NODE_BACK_S), self._come_back, node, self.one_machine)

    def kill_raylet(self, node: Node) -> None:
        """End a machine's raylet: its workers notice soon, but for those that are frozen."""
        self.declare_dead(node)
        self._end_orphans(node)

    def watch(self, node: Node) -> None:
        """Have the head take a machine for dead that stays out of reach."""

        def look() -> None:
            if node.alive and not self.network.reaches(node, self.head):
                self.declare_dead(node)
                self.network.when_reachable(node, self.head, lambda: self._end_orphans(node))

        self.later(self._rng.uniform(*SILENT_NODE_S), look)

    def declare_dead(self, node: Node) -> None:
        """Note that a machine is gone for good, whether it is or not."""
        if node.known_dead or node is self.head:
            return
        node.known_dead = True
        self._trace("declared dead", node.node_id[-3:])
        for actor in self.actors.values():
            if actor.node is node:
                self._note_dead(actor)

    def _end_orphans(self, node: Node) -> None:
        for process in list(node.processes):
            self.later(self._rng.random() * ORPHAN_S, self._end_orphan, process)
        self.later(ORPHAN_S + self._rng.uniform(*NODE_BACK_S), self._come_back, node, node.machine)

    def _end_orphan(self, process: Process) -> None:
        if process.alive and process.frozen:
            self.later(0.2, self._end_orphan, process)  # it notices once it goes on
        else:
            self.kill_process(process)

    def _come_back(self, node: Node, machine: str | None) -> None:
        if node.replaced:
            return
        node.replaced = True
        node.alive = False
        for process in list(node.processes):
            self.kill_process(process)
        self.declare_dead(node)
        if node.disk is not None and not node.disk.lost:
            self.add_node(node.disk, machine)

    def later(self, delay: float, work: Callable[..., Any], *args: Any) -> None:
        """Do something to the world after a while."""
        self.fate.loop.post(delay, work, *args)

    # ------------------------------------------------------------------------------- actors

    def current(self) -> Process:
        """The process whose code is running."""
        assert self.scheduler.current is not None
        owner: Process = self.scheduler.current.owner
        return owner

    def start(self, cls: type, args: tuple[Any, ...], options: dict[str, Any]) -> Handle:
        """Enter an actor in the books and have its process started."""
        name = options.get("name")
        known = self._names.get(name) if name else None
        if known is not None:
            if options.get("get_if_exists"):
                return Handle(known)
            raise ValueError(f"the actor name {name} is taken")
        strategy = options.get("scheduling_strategy")
        wanted = None if strategy is None else strategy.node_id
        node = next((n for n in self.live_nodes() if n.node_id == wanted), None)
        actor = Actor(
            self, f"actor-{next(self._actor_ids)}", name,
            cls, args,
            self.head if wanted is None else node or self.head,
            restarts=options.get("max_restarts", 0) != 0,
            repeats=options.get("max_task_retries", 0) != 0,
        )  # fmt: skip
        self.actors[actor.actor_id] = actor
        if wanted is not None and node is None:
            actor.dead = True
            return Handle(actor)
        if name:
            self._names[name] = actor
        self.later(self._rng.uniform(*START_S), self._launch, actor)
        return Handle(actor)

    def _launch(self, actor: Actor) -> None:
        if actor.dead or actor.process is not None:
            return
        if not actor.node.alive or not self.network.reaches(actor.node, self.head):
            self.later(0.1, self._launch, actor)
            return
        process = Process(self.scheduler, f"{actor.name or actor.actor_id}", actor.node)
        process.actor = actor
        self.on_start(process, actor)

        def construct() -> None:
            try:
                process.instance = actor.cls(*actor.args)
            except Exception as error:
                self._trace("construction failed", actor.name, error)
                self.kill_process(process)
                return
            actor.process = process
            self.network.resume(actor)

        process.loop.post(0.0, construct)

    def kill_process(self, process: Process) -> None:
        """End a process at once; the head hears of it."""
        if not process.alive:
            return
        self._trace("killed", process.name)
        process.die()
        actor: Actor | None = process.actor
        if actor is None:
            return
        actor.process = None
        self.network.process_died(process)
        if actor.restarts and not actor.dead and process.node.alive:
            self.later(self._rng.uniform(*RESTART_S), self._launch, actor)
        else:
            self._note_dead(actor)

    def _note_dead(self, actor: Actor) -> None:
        if actor.dead:
            return
        actor.dead = True
        if actor.name and self._names.get(actor.name) is actor:
            del self._names[actor.name]
        waiting, actor.waiting = actor.waiting, []
        for call in waiting:
            self.network.fail(call, ActorDiedError())
        self.network.actor_gone(actor)

    # ----------------------------------------------------------- what the module `ray` offers

    @staticmethod
    def find_handle(actor_id: str) -> Handle:
        """Return a handle that was pickled."""
        cluster = Cluster._of_now
        assert cluster is not None
        return Handle(cluster.actors[actor_id])

    @classmethod
    def forget(cls) -> None:
        """Drop the cluster that handles belonged to."""
        cls._of_now = None

    def remote(self, **options: Any) -> Callable[[type], ActorClass]:
        """Stand for `ray.remote`."""
        return lambda cls: ActorClass(self, cls, options)

    def ray_nodes(self) -> list[dict[str, Any]]:
        """Stand for `ray.nodes`."""
        return [
            {
                "NodeID": node.node_id,
                "NodeManagerAddress": "127.0.0.1",
                "Resources": {"memory": 1 << 34, "CPU": 4.0},
                "Alive": not node.known_dead,
            }
            for node in self.nodes
        ]

    def get_actor(self, name: str, namespace: str | None = None) -> Handle:
        """Stand for `ray.get_actor`."""
        found = self._names.get(name)
        if found is None:
            raise ValueError(f"no actor is named {name}")
        return Handle(found)

    def list_named_actors(self, all_namespaces: bool = False) -> list[dict[str, str]]:
        """Stand for `ray.util.list_named_actors`."""
        return [{"name": name, "namespace": "sessions"} for name in self._names]

    def kill(self, handle: Handle, *, no_restart: bool = True) -> None:
        """Stand for `ray.kill`: the head takes it for dead at once, its process hears later."""
        actor = handle._actor
        process = actor.process
        if no_restart:
            actor.restarts = False
            self._note_dead(actor)
        if process is None:
            return

        def arrive() -> None:
            slow = process.frozen and self._rng.random() < 0.3
            self.later(self._rng.uniform(0.5, 5.0) if slow else 0.0, self.kill_process, process)

        self.later(
            self._rng.random() * 0.05,
            lambda: self.network.when_reachable(self.head, process.node, arrive),
        )


class RuntimeContext:
    """Stands for Ray's runtime context of the process that runs."""

    gcs_address = "127.0.0.1:0"
    was_current_actor_reconstructed = False

    def __init__(self, process: Process) -> None:
        self._process = process

    def get_node_id(self) -> str:
        """Return the machine's id."""
        return self._process.node.node_id

    def get_actor_id(self) -> str | None:
        """Return the actor's id."""
        actor = self._process.actor
        return None if actor is None else actor.actor_id
