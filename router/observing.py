"""The router's gauges: what it holds, counted when the metrics are read.

What is served and which actors there are is known in memory. How many conversations hibernate is
counted in the directory from time to time, a page at a time, so that nobody waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from sessions_actor import meters
from sessions_actor.metrics_export import MetricsExport
from sessions_actor.reports import look_at_disk

from . import reports
from .directory import State

if TYPE_CHECKING:
    from .router import Router

CENSUS_S: Final = 60.0
CENSUS_PAGE: Final = 5_000


class Watch:
    """Sets a router's gauges each time they are read, and has them sent, until it is ended."""

    def __init__(self, router: Router, home_node_id: str) -> None:
        self._router = router
        self._export = MetricsExport("router", enabled=router.settings.metrics)
        self._total = 0
        self._nodes: set[str] = set()
        self._end = meters.REGISTRY.before_drain(self.look)
        self._counting = asyncio.get_running_loop().create_task(self._count_for_ever())
        self._export.begin()
        reports.router_started(home_node_id)

    def end(self) -> None:
        """Look no more, and send what is left."""
        reports.router_stopped()
        self._end()
        self._export.end()
        self._counting.cancel()

    def look(self) -> None:
        """Set the gauges."""
        router = self._router
        counts = router.directory.count_states()
        counts[State.HIBERNATED] = max(0, self._total - sum(counts.values()))
        for state in State:
            meters.CONVERSATIONS.set(counts.get(state, 0), state.value)
        look_at_disk(router.root)
        if router.failover is not None:
            _, lag_s = router.failover.directory.count_behind()
            meters.REPLICATION_LAG_SECONDS.set(lag_s)
        self._look_at_nodes()

    def _look_at_nodes(self) -> None:
        views = self._router.pool.views()
        for view in views:
            node = view.node_id
            meters.ACTORS.set(view.active, node, "active")
            meters.ACTORS.set(view.idle, node, "idle")
            starting = max(0, view.processes - view.active - view.idle)
            meters.ACTORS.set(starting, node, "starting")
            meters.ACTORS_MAX.set(view.max_active, node)
            meters.NODE_DRAINING.set(float(view.draining), node)
            leases = self._router.leases
            meters.LEASE_REMAINING_RATIO.set(leases.left_s(node) / leases.ttl_s, node)
        present = {view.node_id for view in views}
        for node in self._nodes - present:
            for state in ("active", "idle", "starting"):
                meters.ACTORS.clear(node, state)
            meters.ACTORS_MAX.clear(node)
            meters.NODE_DRAINING.clear(node)
            meters.LEASE_REMAINING_RATIO.clear(node)
        self._nodes = present

    async def _count_for_ever(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # the next round counts again
                self._total = await census(self._router)
            await asyncio.sleep(CENSUS_S)


async def census(router: Router) -> int:
    """Count the conversations. Cost: reads every key, a page at a time, others in between."""
    total, after = 0, b""
    while True:
        count, last = router.directory.count_after(after, CENSUS_PAGE)
        total += count
        if count < CENSUS_PAGE or last is None:
            return total
        after = last
        await asyncio.sleep(0)
