"""What the router does on its own: settle the world at its start, tend it, leave it in order.

A router that starts finds things as they are, whenever the one before it died: it adopts owners
that match the directory, has others let go, and settles what was half done.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sessions_actor.actor import ActorState, Binding, Description
from sessions_actor.disk import machine_id
from sessions_actor.retry import is_lost, is_out_of_reach

from . import reports
from .cluster import Slot, answer, slot_of
from .directory import Entry, State
from .leases import FIRST_TERM, LEASE_LOW
from .router import HIBERNATE_TIMEOUT_S, Router, Serving
from .through import made

TEND_S: Final = 1.0
LOOK_AROUND_S: Final = 5.0
CLOSE_PATIENCE_S: Final = 2.0
# Conversations that hibernate for idleness at once.
LETTING_GO_MAX: Final = 16
# A node that has not renewed its lease for so many times its duration is told of.
ABSENT_TTLS: Final = 2


class Upkeep:
    """The life of a router around its calls."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._tending: asyncio.Task[None] | None = None
        self.chores: list[Callable[[], Awaitable[None]]] = []
        """What others have done at each round."""
        self._letting_go: set[asyncio.Task[bool]] = set()
        self._looking_after: dict[str, asyncio.Task[None]] = {}
        self._low_since: dict[str, float] = {}
        self._told: dict[str, set[str]] = {}
        """What was told of each node since it last had its lease."""

    async def start(self, home_node_id: str, granting: Callable[[], None] = lambda: None) -> None:
        """Settle what an earlier router left, and keep actors warm.

        Args: `granting` is called as soon as leases may be granted, before all is settled.
        """
        await self._look_first(home_node_id)
        granting()
        for node_id in self._router.pool.nodes:
            self._look_after(node_id)
        await self._reconcile()
        self._router.pool.keep_warm()
        self._tending = asyncio.create_task(self._tend())

    async def _look_first(self, home_node_id: str) -> None:
        """Learn which nodes there are, and which may hold a lease of an earlier router."""
        router, pool = self._router, self._router.pool
        await pool.refresh()
        known = router.directory.nodes()
        await router.directory.forget_nodes([node for node in known if node not in pool.nodes])
        for node_id, row in known.items():
            pool.set_disk(node_id, row.disk_id, row.machine_id)
            pool.set_draining(node_id, row.draining)
            router.leases.expect(node_id, row.term)
        pool.set_disk(home_node_id, router.disk_id, machine_id())
        named = {entry.node_id for entry in router.directory.unsettled() if entry.node_id}
        for node_id in {*named, *pool.nodes} - set(known):
            router.leases.expect(node_id, FIRST_TERM)

    async def abandon(self) -> None:
        """Stop as one that dies: nothing is put in order, the next start settles it."""
        tasks = [*self._letting_go, *self._looking_after.values()]
        for task in tasks if self._tending is None else [*tasks, self._tending]:
            task.cancel()
        await self._router.pool.close()

    async def close(self) -> None:
        """Hibernate everything and stop; what cannot hibernate is settled at the next start."""
        if self._tending is not None:
            self._tending.cancel()
        router = self._router
        held = [
            router.let_go(serving, patience_s=CLOSE_PATIENCE_S) for serving in router.servings()
        ]
        await asyncio.gather(*held, return_exceptions=True)
        await asyncio.gather(*self._looking_after.values(), return_exceptions=True)
        for node_id in router.pool.nodes:
            with contextlib.suppress(Exception):  # its node is going
                await router.cluster.end_agent(node_id)
        await router.pool.close()
        if router.failover is not None:
            await router.failover.keeping.close()
        await router.directory.finish_replica()
        router.directory.close()

    # ------------------------------------------------------------------------ at the start

    async def _reconcile(self) -> None:
        router = self._router
        found = await router.cluster.find_actors()
        limit = router.settings.lease_ttl_s
        described = await asyncio.gather(
            *(router.cluster.describe(actor, limit) for _, actor in found), return_exceptions=True
        )
        entries = {entry.name: entry for entry in router.directory.unsettled()}
        let_go: set[str] = set()

        async def settle(actor_name: str, actor: Any, one: Description | BaseException) -> None:
            if isinstance(one, Description):
                slot = slot_of(actor_name, actor, one)
                adopted = await self._adopt(slot, one, entries)
                if not adopted and await self._take_in(slot, one.binding):
                    let_go.add(actor_name)
            elif not is_lost(one) or is_out_of_reach(one):
                await router.cluster.kill(actor)  # silent: it may hold files that others need

        settled = await asyncio.gather(
            *(settle(*who, one) for who, one in zip(found, described, strict=True)),
            return_exceptions=True,
        )
        for error in settled:
            if error is not None:
                raise error
        for entry in entries.values():
            if entry.state is State.DELETING or entry.actor in let_go or self._is_locked_out(entry):
                await router.take_over.settle(entry)
            elif entry.state is State.MIGRATING:
                await router.directory.abandon_migration(entry.name, entry.epoch)

    def _is_locked_out(self, entry: Entry) -> bool:
        """Say whether file locks keep an owner that nobody saw let go from its successor.

        It may come back, a killed one too: the kill may not have arrived. Where other machines
        mount its disk, it is followed with care when its conversation is called.
        """
        pool, node_id = self._router.pool, entry.node_id
        if node_id is None or node_id not in pool.nodes or pool.machine(node_id) is None:
            return node_id is None
        mounts = (v.node_id for v in pool.views() if v.disk_id in (None, entry.disk_id))
        return {pool.machine(node_id)}.issuperset(map(pool.machine, mounts))

    async def _adopt(self, slot: Slot, found: Description, entries: dict[str, Entry]) -> bool:
        """Take in an owner that the directory agrees with; takes its entry out of the rest."""
        router, bound = self._router, found.binding
        entry = None if bound.name is None else entries.get(bound.name)
        if (
            entry is None
            or entry.state is State.DELETING
            or bound.state is not ActorState.HOSTING
            or (entry.epoch, entry.actor) != (bound.epoch, slot.actor_name)
        ):
            return False
        if entry.state is State.MIGRATING:
            await router.directory.abandon_migration(entry.name, entry.epoch)
        try:
            await _in_time(slot.actor.unseal.remote(entry.name, entry.epoch))
        except Exception:  # it died this moment, or hangs
            return False
        slot.name = entry.name
        router.pool.add(slot)
        router.adopt(
            Serving(
                entry.name, entry.epoch, slot, router.spec_of(entry), router.now() - found.idle_s
            )
        )
        del entries[entry.name]
        if router.failover is not None:
            await made(router.failover.completed(entry, 0))
        return True

    async def _take_in(self, slot: Slot, bound: Binding) -> bool:
        """Take in an actor as an idle one, having it let go of what is not its own; or end it.

        Returns: whether it was seen to let go.
        """
        try:
            if bound.state is ActorState.RECEIVING:
                await _in_time(slot.actor.discard.remote(bound.name, bound.epoch))
            elif bound.state is not ActorState.IDLE:
                await _in_time(slot.actor.hibernate.remote(bound.name, bound.epoch))
        except Exception:  # whatever it is: only an idle actor is of use
            await self._router.kill(slot)
            return False
        self._router.pool.add(slot)
        return True

    # ------------------------------------------------------------------------------- tending

    async def _tend(self) -> None:
        """Hibernate what is idle, look after nodes and processes, for ever."""
        router = self._router
        tick = min(TEND_S, router.settings.idle_timeout_s / 4)
        looked = router.now()
        while True:
            await asyncio.sleep(tick)
            try:
                self._watch_leases()
                self._hibernate_idle()
                if router.now() - looked >= LOOK_AROUND_S:
                    looked = router.now()
                    await self._look_around()
            except Exception as error:  # a cluster in trouble: the next round sees more
                reports.upkeep_failed(error)
            for chore in self.chores:
                try:
                    await chore()
                except Exception as error:
                    reports.upkeep_failed(error)

    def _watch_leases(self) -> None:
        leases, now, nodes = self._router.leases, self._router.now(), self._router.pool.nodes
        low = [node for node in nodes if leases.left_s(node) < LEASE_LOW * leases.ttl_s]
        for node_id in set(self._low_since) - set(low):
            self._told.pop(node_id, None)
        self._low_since = {node: self._low_since.get(node, now) for node in low}
        for node_id, since in self._low_since.items():
            self._look_after(node_id)
            if now - since >= ABSENT_TTLS * leases.ttl_s and self._is_news(node_id, "absent"):
                reports.lease_absent(node_id, now - since)

    def _is_news(self, node_id: str, what: str) -> bool:
        """Say whether something of a node was not told yet."""
        told = self._told.setdefault(node_id, set())
        is_news = what not in told
        told.add(what)
        return is_news

    def _look_after(self, node_id: str) -> None:
        """Make sure that a node has an agent, without waiting for it."""
        running = self._looking_after.get(node_id)
        if running is None or running.done():
            self._looking_after[node_id] = asyncio.create_task(self._keep_agent(node_id))

    async def _keep_agent(self, node_id: str) -> None:
        try:
            await self._router.cluster.keep_agent(node_id)
        except Exception as error:  # the next round tries again
            if self._is_news(node_id, type(error).__name__):
                reports.agent_failed(node_id, error)

    def _hibernate_idle(self) -> None:
        router = self._router
        limit = router.settings.idle_timeout_s
        for serving in router.servings():
            if router.now() - serving.used_at < limit:
                break
            if len(self._letting_go) >= LETTING_GO_MAX:
                break
            if not router.locks.is_held(serving.name):
                self._let_go(serving, limit)

    def _let_go(self, serving: Serving, idle_s: float) -> None:
        """Hibernate without waiting for it: a frozen owner must not stop all upkeep."""
        task = asyncio.create_task(self._router.let_go(serving, idle_s=idle_s))
        self._letting_go.add(task)
        task.add_done_callback(self._let_go_ended)

    def _let_go_ended(self, task: asyncio.Task[bool]) -> None:
        self._letting_go.discard(task)
        if not task.cancelled():
            task.exception()  # whatever it was: the next round sees more

    async def _look_around(self) -> None:
        router, pool = self._router, self._router.pool
        for slot in await pool.refresh():
            serving = router.serving(slot.name) if slot.name else None
            if serving is not None and serving.slot is slot:
                async with router.locks.hold(serving.name):
                    await router.bury(serving)
        for node_id in set(self._looking_after) - set(pool.nodes):
            self._looking_after.pop(node_id).cancel()
            self._told.pop(node_id, None)
            await router.cluster.end_agent(node_id)
        for node in pool.views():
            if node.disk_id is not None:
                await router.directory.note_node(
                    node.node_id,
                    node.disk_id,
                    draining=node.draining,
                    machine_id=node.machine_id,
                )
                await router.sweeping.sweep(node.disk_id)
        if router.failover is not None:
            router.failover.keeping.start()
        await pool.trim()
        pool.keep_warm()


async def _in_time(asked: Any) -> None:
    """Wait for an actor to do what it was told, but not for ever: nobody is served meanwhile.

    Raises: TimeoutError; what the actor raised.
    """
    await asyncio.wait_for(answer(asked), HIBERNATE_TIMEOUT_S)


async def _quietly(work: Awaitable[None]) -> None:
    """Await what is tried again when it fails."""
    with contextlib.suppress(Exception):
        await work
