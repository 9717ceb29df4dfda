"""What the router does on its own: settle the world at its start, tend it, leave it in order.

A router that starts finds things as they are, whenever the one before it died: it adopts owners
that match the directory, has others let go, and settles what was half done.
"""

import asyncio
import contextlib
from typing import Final

from sessions_actor.actor import ActorState, Binding, Description
from sessions_actor.retry import is_lost

from .cluster import Slot, answer, slot_of
from .directory import Entry, State
from .router import Router, Serving

TEND_S: Final = 1.0
LOOK_AROUND_S: Final = 5.0
CLOSE_PATIENCE_S: Final = 2.0
# Conversations that hibernate for idleness at once.
LETTING_GO_MAX: Final = 16


class Upkeep:
    """The life of a router around its calls."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._tending: asyncio.Task[None] | None = None
        self._letting_go: set[asyncio.Task[bool]] = set()

    async def start(self, home_node_id: str) -> None:
        """Settle what an earlier router left, and keep actors warm on the home node."""
        router, pool = self._router, self._router.pool
        await pool.refresh()
        known = router.directory.nodes()
        await router.directory.forget_nodes([node for node in known if node not in pool.nodes])
        for node_id, (disk, draining) in known.items():
            pool.set_disk(node_id, disk)
            pool.set_draining(node_id, draining)
        pool.set_disk(home_node_id, router.disk_id)
        await self._reconcile()
        pool.keep_warm()
        self._tending = asyncio.create_task(self._tend())

    async def close(self) -> None:
        """Hibernate everything and stop; what cannot hibernate is settled at the next start."""
        if self._tending is not None:
            self._tending.cancel()
        router = self._router
        held = [
            router.let_go(serving, patience_s=CLOSE_PATIENCE_S) for serving in router.servings()
        ]
        await asyncio.gather(*held, return_exceptions=True)
        await router.pool.close()
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
        for (actor_name, actor), one in zip(found, described, strict=True):
            if isinstance(one, Description):
                slot = slot_of(actor_name, actor, one)
                if not await self._adopt(slot, one, entries):
                    await self._take_in(slot, one.binding)
            elif not is_lost(one):
                await router.cluster.kill(actor)  # silent: it may hold files that others need
        for entry in entries.values():
            await router.settle(entry)

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
            await answer(slot.actor.unseal.remote(entry.name, entry.epoch))
        except Exception:  # it died this moment
            return False
        slot.name = entry.name
        router.pool.add(slot)
        router.adopt(
            Serving(
                entry.name, entry.epoch, slot, router.spec_of(entry), router.now() - found.idle_s
            )
        )
        del entries[entry.name]
        return True

    async def _take_in(self, slot: Slot, bound: Binding) -> None:
        """Take in an actor as an idle one, having it let go of what is not its own; or end it."""
        try:
            if bound.state is ActorState.RECEIVING:
                await answer(slot.actor.discard.remote(bound.name, bound.epoch))
            elif bound.state is not ActorState.IDLE:
                await answer(slot.actor.hibernate.remote(bound.name, bound.epoch))
        except Exception:  # whatever it is: only an idle actor is of use
            await self._router.cluster.kill(slot.actor)
        else:
            self._router.pool.add(slot)

    # ------------------------------------------------------------------------------- tending

    async def _tend(self) -> None:
        """Hibernate what is idle, look after nodes and processes, for ever."""
        router = self._router
        tick = min(TEND_S, router.settings.idle_timeout_s / 4)
        looked = router.now()
        while True:
            await asyncio.sleep(tick)
            with contextlib.suppress(Exception):  # a cluster in trouble: the next round sees more
                self._hibernate_idle()
                if router.now() - looked >= LOOK_AROUND_S:
                    looked = router.now()
                    await self._look_around()

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
        for node in pool.views():
            if node.disk_id is not None:
                await router.directory.note_node(node.node_id, node.disk_id, draining=node.draining)
                await router.sweep(node.disk_id)
        await pool.trim()
        pool.keep_warm()
