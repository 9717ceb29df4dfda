"""Ray as the router sees it: nodes, and the actors on them. The one seam to the cluster.

Actors are detached and named, so that a router that starts again finds them; they hold a small Ray
resource, so that a node with conversations is not taken for idle.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import ray
import ray.exceptions
from ray._private.state import state as global_state
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sessions_actor.actor import CONTROL, Binding, ConversationActor, Description, actor_options
from sessions_actor.observing import Observing

from .agent import AgentActor, lease_here
from .replication.daemon import DaemonTerms
from .shards import ACTOR_PREFIX

T = TypeVar("T")

AGENT_PREFIX: Final = "agent-"
AGENT_TIMEOUT_S: Final = 2.0
START_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A live node and what it has."""

    node_id: str
    address: str
    memory_bytes: int
    cpus: int


@dataclass(eq=False, slots=True)
class Slot:
    """One actor process; `name` is the conversation it was given, None while it is idle.

    `chores` counts what it does meanwhile for conversations that nobody serves. `killed` says that
    somebody here had it ended: from then on it is called dead, whether its process is gone or not.
    """

    actor_name: str
    actor: Any
    node_id: str
    disk_id: str
    machine_id: str
    actor_id: str
    pid: int
    name: str | None = None
    idle_since: float = 0.0
    chores: int = 0
    killed: bool = False


class Cluster(Protocol):
    """What the router needs of a cluster."""

    async def nodes(self) -> list[ClusterNode]:
        """Return the live nodes that have CPUs for an actor."""

    async def draining(self) -> set[str]:
        """Return the nodes whose end Ray announces: by its autoscaler, or by `ray drain-node`."""

    async def start_actor(self, node_id: str) -> Slot:
        """Start an actor process on a node and wait until it answers.

        Raises: StorageError when the node's storage root cannot be used; RayError.
        """

    async def find_actors(self) -> list[tuple[str, Any]]:
        """Return the actors that are there already: name and handle."""

    async def ping(self, actor: Any, timeout_s: float) -> Binding:
        """Ask an actor what it is bound to. Raises: TimeoutError; RayActorError."""

    async def describe(self, actor: Any, timeout_s: float) -> Description:
        """Ask an actor about itself. Raises: TimeoutError; RayActorError; StorageError."""

    async def kill(self, actor: Any) -> None:
        """End an actor's process, frozen or not."""

    async def keep_agent(self, node_id: str) -> None:
        """Make sure that a node has an agent, that it answers, and asks the routers there are.

        One that is frozen, or asks others, is replaced.
        Raises: TimeoutError, RayActorError when it did not answer.
        """

    async def end_agent(self, node_id: str) -> None:
        """End a node's agent for good."""


async def answer(asked: Awaitable[T]) -> T:
    """Await a Ray call, raising what the callee raised as it was."""
    try:
        return await asked
    except ray.exceptions.RayTaskError as error:
        raise unwrapped(error) from None


def unwrapped(error: Exception) -> Exception:
    """Return what a callee raised, without the wrapping that Ray gives it."""
    if isinstance(error, ray.exceptions.RayTaskError) and isinstance(error.cause, Exception):
        return error.cause
    return error


def draining_nodes() -> dict[str, int]:
    """Ask Ray which nodes are to end, and when: in ms, 0 for no deadline. It blocks."""
    found: dict[str, int] = global_state.get_draining_nodes()
    return found


class RayCluster:
    """A real cluster."""

    def __init__(
        self,
        namespace: str,
        storage_root: str,
        actor_cpus: float,
        router: str,
        routers: list[str],
        observing: Observing | None = None,
        replication: DaemonTerms | None = None,
        actor_prefix: str = ACTOR_PREFIX,
    ) -> None:
        self._actor_prefix = actor_prefix
        self._namespace, self._storage_root = namespace, storage_root
        self._router, self._routers = router, routers
        self._observing, self._replication = observing, replication
        self._actor_cpus = actor_cpus
        self._actor_class = ray.remote(num_cpus=actor_cpus, **actor_options())(ConversationActor)
        self._agent_class = ray.remote(num_cpus=0, max_restarts=-1)(AgentActor)

    async def nodes(self) -> list[ClusterNode]:
        found = await asyncio.to_thread(ray.nodes)
        return [
            ClusterNode(
                node["NodeID"],
                node["NodeManagerAddress"],
                int(node["Resources"].get("memory", 0)),
                int(node["Resources"]["CPU"]),
            )
            for node in found
            # A head that runs with `--num-cpus=0` has no room for an actor.
            if node["Alive"] and node["Resources"].get("CPU", 0) >= self._actor_cpus
        ]

    async def draining(self) -> set[str]:
        return set(await asyncio.to_thread(draining_nodes))

    async def start_actor(self, node_id: str) -> Slot:
        name = self._actor_prefix + uuid.uuid4().hex
        actor: Any = self._actor_class.options(
            name=name,
            namespace=self._namespace,
            lifetime="detached",
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        ).remote(
            self._storage_root,
            partial(lease_here, self._namespace, self._router),
            self._observing,
        )
        try:
            found = await self.describe(actor, START_TIMEOUT_S)
        except BaseException:
            ray.kill(actor)
            raise
        return slot_of(name, actor, found)

    async def find_actors(self) -> list[tuple[str, Any]]:
        names = await asyncio.to_thread(list_named_actors, True)
        found = []
        for one in names:
            name = one["name"]
            if one["namespace"] == self._namespace and name.startswith(self._actor_prefix):
                try:
                    actor = await asyncio.to_thread(ray.get_actor, name, self._namespace)
                except ValueError:  # it ended meanwhile
                    continue
                found.append((name, actor))
        return found

    async def ping(self, actor: Any, timeout_s: float) -> Binding:
        asked = actor.ping.options(concurrency_group=CONTROL).remote()
        return await asyncio.wait_for(answer(asked), timeout_s)

    async def describe(self, actor: Any, timeout_s: float) -> Description:
        asked = actor.describe.options(concurrency_group=CONTROL).remote()
        return await asyncio.wait_for(answer(asked), timeout_s)

    async def kill(self, actor: Any) -> None:
        ray.kill(actor)

    async def keep_agent(self, node_id: str) -> None:
        agent: Any = self._agent_class.options(
            name=AGENT_PREFIX + node_id,
            namespace=self._namespace,
            lifetime="detached",
            get_if_exists=True,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        ).remote(
            self._storage_root,
            self._namespace,
            self._routers,
            self._replication,
            self._observing,
        )
        try:
            asked = await asyncio.wait_for(agent.ping.remote(), AGENT_TIMEOUT_S)
        except TimeoutError:
            ray.kill(agent, no_restart=False)
            raise
        if asked != self._routers:
            ray.kill(agent)  # it outlived a resharding; the next look finds none, and makes one

    async def end_agent(self, node_id: str) -> None:
        with contextlib.suppress(ValueError):  # there is none
            ray.kill(ray.get_actor(AGENT_PREFIX + node_id, self._namespace))


def slot_of(actor_name: str, actor: Any, found: Description) -> Slot:
    """Make a slot of an actor that described itself."""
    return Slot(
        actor_name,
        actor,
        found.node_id,
        found.disk_id,
        found.machine_id,
        found.actor_id,
        found.pid,
    )
