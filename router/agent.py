"""The node agent: one small actor on every node, which holds the node's lease.

It asks each router of the deployment for the node's lease, in one call for all conversations of
that node, and writes what is granted where the node's actors read it. With the request go the
facts that a router should know of a node before any conversation runs there.

The agent is killed and made again at will: a lease belongs to the node, not to the process that
asked for it. What it does not do: own conversations, or decide where they run.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from sessions_actor import meters
from sessions_actor.disk import disk_id, machine_id, root_here
from sessions_actor.lease import NodeLease, lease_file, open_lease
from sessions_actor.metrics_export import MetricsExport
from sessions_actor.observing import Observing, set_up
from sessions_actor.reports import look_at_disk

from . import reports
from .leases import Grant
from .replication.daemon import DaemonTerms, keep_running
from .replication.scratch import clear_scratch

# Renewals in the time that one grant lasts: several may fail before the lease runs out.
RENEWALS_PER_TTL: Final = 4
RETRY_S: Final = 0.1
ASK_TIMEOUT_S: Final = 2.0

assert RENEWALS_PER_TTL >= 2


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What an agent tells of its node."""

    node_id: str
    disk_id: str
    machine_id: str


Ask = Callable[[str], Awaitable[Grant | None]]
"""Asks the router of a name for the node's lease; None: it grants none now, ask again."""


class Agent:
    """Keeps a node's leases renewed, one from each router."""

    def __init__(self, leases: Mapping[str, NodeLease], ask: Ask) -> None:
        self._leases, self._ask = leases, ask
        self._unreachable: set[str] = set()

    async def run(self) -> None:
        """Renew for ever."""
        await asyncio.gather(*(self._keep(name, lease) for name, lease in self._leases.items()))

    async def _keep(self, router: str, lease: NodeLease) -> None:
        timeout_s = ASK_TIMEOUT_S
        while True:
            pause_s, asked_at = RETRY_S, lease.now()
            try:
                grant = await asyncio.wait_for(self._ask(router), timeout_s)
                if grant is not None:
                    lease.grant(grant.term, asked_at, grant.ttl_s)
                    pause_s = grant.ttl_s / RENEWALS_PER_TTL - (lease.now() - asked_at)
                    timeout_s = grant.ttl_s / 2
                    self._tell(router, lease, None)
            except Exception as error:  # whatever it was: the next try sees more
                self._tell(router, lease, error)
            await asyncio.sleep(max(0.0, pause_s))

    def _tell(self, router: str, lease: NodeLease, error: Exception | None) -> None:
        """Report that a router cannot be asked, and that it can again, once each."""
        if (error is not None) is (router in self._unreachable):
            return
        if error is not None:
            self._unreachable.add(router)
            reports.renewal_failed(router, lease.left_s, error)
        else:
            self._unreachable.remove(router)
            reports.renewed_again(router)


class AgentActor:
    """Runs a node's agent on a thread of its own; made by `RayCluster.keep_agent`."""

    def __init__(
        self,
        storage_root: str,
        namespace: str,
        routers: list[str],
        replication: DaemonTerms | None = None,
        observing: Observing | None = None,
    ) -> None:
        import ray

        node_id: str = ray.get_runtime_context().get_node_id()
        self._root = root = root_here(storage_root)
        self._export = MetricsExport("agent", enabled=False)
        if observing is not None:
            self._export = set_up(observing, "agent", node=node_id, pid=os.getpid())
        meters.REGISTRY.before_drain(lambda: look_at_disk(root))
        self._asked = routers
        self._facts = NodeFacts(node_id, disk_id(root), machine_id())
        leases = {name: open_lease(lease_file(namespace, name, node_id)) for name in routers}
        self._namespace = namespace
        self._routers: dict[str, Any] = {}
        agent = Agent(leases, self._renew)
        threading.Thread(target=partial(clear_scratch, root), daemon=True).start()
        threading.Thread(target=lambda: asyncio.run(self._run(agent)), daemon=True).start()
        if replication is not None:
            keep = partial(keep_running, root, replication)
            threading.Thread(target=keep, daemon=True).start()

    async def _run(self, agent: Agent) -> None:
        self._export.begin()
        await agent.run()

    def ping(self) -> list[str]:
        """Answer, as a sign of life, with the routers that are asked for the node's lease."""
        return self._asked

    def pid(self) -> int:
        """Return the agent's process."""
        return os.getpid()

    async def _renew(self, name: str) -> Grant | None:
        from .service import LEASES

        router = self._find(name)
        try:
            renewed = router.renew.options(concurrency_group=LEASES).remote(self._facts_now())
            grant: Grant | None = await renewed
        except BaseException:
            self._routers.pop(name, None)
            raise
        if grant is None:
            router.settings.remote()  # one that was started again waits for its first call
        return grant

    def _facts_now(self) -> NodeFacts:
        """What is true now: another disk may have come in the place of the one there was."""
        return replace(self._facts, disk_id=disk_id(self._root))

    def _find(self, name: str) -> Any:
        import ray

        if name not in self._routers:
            self._routers[name] = ray.get_actor(name, self._namespace)
        return self._routers[name]


def lease_here(namespace: str, router: str) -> NodeLease:
    """Open the lease that a router granted to the node this process runs on."""
    import ray

    return open_lease(lease_file(namespace, router, ray.get_runtime_context().get_node_id()))
