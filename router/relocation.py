"""Moving one conversation to another actor.

The router's part of a migration: the name's lock, the target's actor and file, the seal, the
directory's states, the switch, and what is left to clean up; `migration` copies and verifies.
Until the switch, one compare-and-set in the directory, the source is the owner and any failure
leaves it serving, as does cancelling; from the switch on the target is, and what remains of the
source is waste. Callers meanwhile wait at the sealed source and are sent on; none sees an error.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from sessions_actor.actor import ActivationSpec
from sessions_actor.errors import (
    MigrationFailedError,
    NoCapacityError,
    ReplicaUnavailableError,
)
from sessions_actor.names import check_name
from sessions_actor.retry import is_out_of_reach

from . import migration, reports
from .cluster import Slot, answer, unwrapped
from .directory import Entry, Owner, file_of
from .migration import Copied, End, Gauge
from .models import MigrationProgress, MigrationReport
from .placement import NodeView, migration_targets
from .replication.restore import RESTORE_TIMEOUT_S
from .router import Router, Serving, outcome_is_open
from .through import heed_cancelling, made, through

# Migrations at once; those beyond wait, and their conversations are served meanwhile.
MOVES_MAX: Final = 4
# How often a source may go, as when it hibernates, while an actor for its target is waited for.
TARGET_TRIES_MAX: Final = 4
DISCARD_TIMEOUT_S: Final = 30.0
RETRY_S: Final = 0.1
# How long a target may take to make its file, and to start without a replica of its own.
START_TIMEOUT_S: Final = 60.0
# How long calls that take long may go on before a seal cuts them short.
SEAL_PATIENCE_S: Final = 5.0


class Copy(Protocol):
    """Copies a conversation into a target's file, sealing it when it must, and verifies it."""

    async def __call__(
        self, name: str, source: End, target: End, seal: migration.Seal, gauge: Gauge
    ) -> Copied: ...


@dataclass(slots=True)
class _Moving:
    """A migration under way."""

    ticket: str | None
    regardless: bool
    """Whether its node was being emptied already when it was asked for: somebody wants it so."""
    gauge: Gauge = field(default_factory=Gauge)
    task: asyncio.Future[MigrationReport] | None = None
    cancelled: bool = False
    report: MigrationReport | None = None


class Relocation:
    """Migrations over a router."""

    def __init__(self, router: Router, copy: Copy = migration.copy) -> None:
        self._router, self._copy = router, copy
        self._moving: dict[str, list[_Moving]] = {}
        self._moves = 0
        self._move_ended = asyncio.Condition()

    # -------------------------------------------------------------------------- migration

    async def migrate(
        self, name: str, node_id: str | None = None, ticket: str | None = None
    ) -> MigrationReport:
        """Move a conversation to another actor, on a given node or on the best one.

        Cancelling the caller cancels the migration.

        Args: `ticket` names this migration for `cancel`.
        Raises: ConversationNotFoundError; ValueError for an unknown node; NoCapacityError;
            MigrationFailedError, and the source goes on serving.
        """
        check_name(name)
        self._router.entry(name)
        regardless = node_id is not None and self._router.pool.is_draining(node_id)
        moving = _Moving(ticket, regardless)
        moving.task = asyncio.ensure_future(self._migrate(name, node_id, moving))
        self._moving.setdefault(name, []).append(moving)
        try:
            return await moving.task
        except asyncio.CancelledError:
            if not moving.cancelled:
                raise
            if moving.report is not None:  # it had switched before
                return moving.report
            raise MigrationFailedError(name, moving.gauge.phase, "it was cancelled") from None
        finally:
            self._moving[name].remove(moving)
            if not self._moving[name]:
                del self._moving[name]

    def cancel(self, name: str, ticket: str | None = None) -> bool:
        """Give up the migrations of a conversation; says whether there was one.

        Its source goes on serving; one that has switched already is brought to its end.

        Args: `ticket` is that of one migration; None stands for all.
        """
        found = [m for m in self._moving.get(name, ()) if ticket in (None, m.ticket)]
        for moving in found:
            moving.cancelled = True
            if moving.task is not None:
                moving.task.cancel()
        return bool(found)

    def progress(self, name: str) -> MigrationProgress | None:
        """Say how far a conversation's migration has come; None when there is none."""
        found = [moving.gauge for moving in self._moving.get(name, ())]
        if not found:
            return None
        one = next((gauge for gauge in found if gauge.phase != "waiting"), found[0])
        return MigrationProgress(name, one.phase, one.bytes, one.bytes_total, one.rows)

    async def _migrate(self, name: str, node_id: str | None, moving: _Moving) -> MigrationReport:
        router, began = self._router, time.monotonic()
        async with self._turn():
            router.entry(name)
            await router.pool.refresh()
            if node_id is not None and node_id not in router.pool.nodes:
                known = ", ".join(sorted(router.pool.nodes))
                raise ValueError(f"node_id: no live node is {node_id!r}; there are {known}")
            for _ in range(TARGET_TRIES_MAX):
                async with router.locks.hold(name):
                    source = await self._source(name)
                # Waited for without the lock: the conversation is served meanwhile. And never
                # the other way round: who holds the lock may need this very actor.
                choose = partial(_targets, source_node_id=source.slot.node_id, node_id=node_id)
                if not choose(router.pool.views()):
                    break
                with router.keep(name):
                    slot = await router.pool.acquire(
                        name, choose, router.settings.capacity_wait_s, grow=True
                    )
                if router.locks.is_held(name) or router.serving(name) is not source:
                    router.pool.release(slot)
                    continue
                async with router.locks.hold(name):
                    if await self._lives(source, slot):
                        if moving.regardless or not router.pool.is_draining(slot.node_id):
                            return await self._report(source, slot, began, moving)
                        router.pool.release(slot)
                        if node_id is not None:
                            raise MigrationFailedError(name, "begin", "its node is being emptied")
            raise NoCapacityError(len(router.pool.nodes))

    async def _lives(self, source: Serving, slot: Slot) -> bool:
        """Say whether a source is there yet; its target's actor is given back if it is not.

        It may have gone while the actor was waited for, and then its successor is moved.
        """
        lives = False
        try:
            lives = await self._router.is_alive(source)
        finally:
            if not lives:
                self._router.pool.release(slot)
        return lives

    async def _source(self, name: str) -> Serving:
        """Return a conversation's owner, activating it if need be. The caller holds the lock."""
        router = self._router
        router.entry(name)
        source = router.serving(name)
        if source is None or not await router.is_alive(source):
            if source is not None:
                await router.bury(source)
            source = await router.activate(name)
        return source

    async def _report(
        self, source: Serving, slot: Slot, began: float, moving: _Moving
    ) -> MigrationReport:
        with reports.Migration(source, slot.node_id, time.monotonic() - began) as steps:
            moving.gauge.tell = steps.enter
            report = await self._move(source, slot, began, moving)
            steps.moved(report.bytes, report.messages)
        return report

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait until few enough migrations are under way that each finds an actor for its target.

        A source and a target are two actors that nobody can evict meanwhile.
        """
        async with self._move_ended:
            await self._move_ended.wait_for(lambda: self._moves < self._moves_max())
            self._moves += 1
        try:
            yield
        finally:
            self._moves -= 1
            async with self._move_ended:
                self._move_ended.notify_all()

    def _moves_max(self) -> int:
        capacity = sum(view.max_active for view in self._router.pool.views())
        return max(1, min(MOVES_MAX, capacity // 4))

    async def _move(
        self, source: Serving, slot: Slot, began: float, moving: _Moving
    ) -> MigrationReport:
        """Carry out a migration whose target's actor is found. The caller holds the lock."""
        router, name = self._router, source.name
        target = Owner(slot.node_id, slot.actor_name, slot.disk_id)
        entry: Entry | None = None
        try:
            heed_cancelling()
            entry = await through(router.directory.begin_migration(name, source.epoch, target))
            if entry is None:
                raise MigrationFailedError(name, "begin", "its owner changed meanwhile")
            spec = _target_spec(router, entry, slot)
            copied, position = await self._fill(source, slot, spec, moving.gauge)
            heed_cancelling()
        except BaseException as error:
            await through(self._undo(source, slot, entry))
            if isinstance(error, MigrationFailedError) or not isinstance(error, Exception):
                raise
            raise _failure(name, "copy", error) from error

        async def finish() -> MigrationReport:
            switched = await self._switch(source, slot, target, entry)
            if router.failover is not None:
                await made(router.failover.completed(switched, position))
            moving.gauge.enter("switched")
            moving.report = MigrationReport(
                name=name,
                source_node_id=source.slot.node_id,
                target_node_id=slot.node_id,
                epoch=switched.epoch,
                tables=copied.tables,
                messages=copied.messages,
                bytes=copied.bytes,
                seconds=time.monotonic() - began,
            )
            await self._retire(source, entry)
            return moving.report

        # From here on there is no way back, and cancelling comes too late.
        return await through(finish())

    async def _receive(self, slot: Slot, spec: ActivationSpec) -> None:
        """Have the target make its file; one that may do so yet is ended."""
        try:
            await asyncio.wait_for(answer(slot.actor.receive.remote(spec)), START_TIMEOUT_S)
        except BaseException as error:
            if not isinstance(error, Exception) or outcome_is_open(error):
                await through(self._router.end(slot))
            raise

    async def _fill(
        self, source: Serving, slot: Slot, spec: ActivationSpec, gauge: Gauge
    ) -> tuple[Copied, int]:
        """Bring everything to the target, which is ready to serve when this returns.

        Returns: what was copied, and up to where the target's own replica is complete.
        """
        router = self._router
        both = (source.slot, slot)
        hearing = [asyncio.ensure_future(self._end_when_silent(one)) for one in both]
        try:
            await self._receive(slot, spec)

            async def seal() -> None:
                gauge.tell(reports.SEALING)
                asked = source.slot.actor.seal.remote(source.name, source.epoch, SEAL_PATIENCE_S)
                await answer(asked)

            ends = (
                End(source.slot.actor, source.name, source.epoch),
                End(slot.actor, spec.name, spec.epoch, spec.file, spec.replica),
            )
            copied = await self._copy(source.name, *ends, seal, gauge)
            # Its first replica is made of the whole file.
            bound_s = START_TIMEOUT_S if router.failover is None else RESTORE_TIMEOUT_S
            asked = answer(slot.actor.promote.remote(spec.name, spec.epoch))
            position: int = await asyncio.wait_for(asked, bound_s)
            return copied, position
        finally:
            for task in hearing:
                task.cancel()

    async def _end_when_silent(self, slot: Slot) -> None:
        """End an actor that says nothing for a lease: what is asked of it fails, not waits."""
        router = self._router
        period_s = router.settings.lease_ttl_s
        while True:
            try:
                await router.cluster.ping(slot.actor, period_s)
            except TimeoutError:
                await router.kill(slot)
                return
            except Exception as error:
                if not is_out_of_reach(error):
                    return  # it is gone, and whoever waits for it hears so
            await asyncio.sleep(period_s / 2)

    async def _switch(self, source: Serving, slot: Slot, target: Owner, begun: Entry) -> Entry:
        """Make the target the owner, or leave the source as it.

        A directory that breaks here may or may not have switched: nobody serves until it is asked
        again, by the router that starts next.
        """
        router, name = self._router, source.name
        try:
            switched = await router.directory.switch(name, source.epoch, target)
        except ReplicaUnavailableError:
            switched = await self._confirmed(name)
        except Exception as error:
            await router.directory.abandon_migration(name, source.epoch)
            await self._undo(source, slot, begun)
            raise _failure(name, "switch", error) from error
        if switched is None:
            await self._undo(source, slot, begun)
            raise MigrationFailedError(name, "switch", "its owner changed meanwhile")
        router.following.follow(name, source.address)
        router.forget(source)
        router.begin_serving(router.spec_of(switched), slot)
        return switched

    async def _confirmed(self, name: str) -> Entry | None:
        """Wait until the directory's replica has a switch that is made: there is no way back.

        Nobody serves meanwhile, for as long as nobody could be given an acknowledgement anyway.
        """
        directory = self._router.directory
        while True:
            try:
                await directory.durable()
            except ReplicaUnavailableError:
                await asyncio.sleep(RETRY_S)
            else:
                return directory.get(name)

    async def _undo(self, source: Serving, slot: Slot, begun: Entry | None) -> None:
        """Leave the source serving and nothing of the target. Serving again comes first."""
        router = self._router
        await self._unseal(source)
        await made(router.directory.abandon_migration(source.name, source.epoch))
        epoch = 0 if begun is None or begun.target is None else begun.target["epoch"]
        await self._discard(slot, source.name, epoch)
        await self._sweep(slot.disk_id)

    async def _unseal(self, source: Serving) -> None:
        """Have a source serve again; one that cannot be told so is ended, and another follows."""
        router = self._router
        deadline = router.now() + DISCARD_TIMEOUT_S
        while True:
            try:
                asked = answer(source.slot.actor.unseal.remote(source.name, source.epoch))
                await asyncio.wait_for(asked, max(0.001, deadline - router.now()))
            except Exception as error:
                silent = isinstance(error, TimeoutError)
                if not silent and not is_out_of_reach(error):
                    return  # dead: the next call to it finds out
                if not silent and router.now() < deadline:
                    await asyncio.sleep(RETRY_S)
                    continue
                source.silent = True
                await router.kill(source.slot)
                await router.bury(source)
            return

    async def _retire(self, source: Serving, entry: Entry) -> None:
        """End the source and remove its file; who waits at its seal goes to the target."""
        await self._discard(source.slot, source.name, source.epoch)
        await self._sweep(entry.disk_id)

    async def _discard(self, slot: Slot, name: str, epoch: int) -> None:
        try:
            asked = answer(slot.actor.discard.remote(name, epoch))
            await asyncio.wait_for(asked, DISCARD_TIMEOUT_S)
        except Exception:  # dead or silent: recovering it shows which
            await self._router.recover(slot)
        else:
            self._router.pool.release(slot)

    async def _sweep(self, disk_id: str) -> None:
        with contextlib.suppress(Exception):  # it is tried again from time to time
            await self._router.sweeping.sweep(disk_id)

    # ------------------------------------------------------------- moves that jobs are made of

    async def resettle(self, name: str, node_id: str | None = None) -> MigrationReport:
        """Migrate a conversation and leave it as it was: one that hibernated does so again."""
        slept = self._router.serving(name) is None
        report = await self.migrate(name, node_id)
        serving = self._router.serving(name)
        if slept and serving is not None:
            await self._router.let_go(serving, idle_s=0.0)
        return report

    async def hand_over(self, name: str, node_id: str) -> None:
        """Have another node that mounts the same disk serve a conversation: no file moves.

        One that hibernates stays as it is.
        """
        router = self._router
        async with router.locks.hold(name):
            serving = router.serving(name)
            if serving is not None and serving.slot.node_id != node_id:
                await router.let_go_locked(serving, patience_s=SEAL_PATIENCE_S)
                await router.activate(name, node_id=node_id)

    async def put_to_sleep(self, name: str) -> None:
        """Hibernate a conversation, cutting calls short that take too long."""
        serving = self._router.serving(name)
        if serving is not None:
            await self._router.let_go(serving, patience_s=SEAL_PATIENCE_S)


def _failure(name: str, phase: str, error: Exception) -> MigrationFailedError:
    cause = unwrapped(error)
    return MigrationFailedError(name, phase, f"{type(cause).__name__}: {cause}")


def _targets(views: list[NodeView], *, source_node_id: str, node_id: str | None) -> list[NodeView]:
    # Where there is one actor, it is the source's.
    able = [v for v in views if v.max_active > 1 or v.node_id != source_node_id]
    if node_id is not None:
        return [view for view in able if view.node_id == node_id]
    return migration_targets(able, source_node_id)


def _target_spec(router: Router, entry: Entry, slot: Slot) -> ActivationSpec:
    """Return what the target of a migration hosts: the next epoch, in a file of its own."""
    assert entry.target is not None
    return replace(
        router.spec_of(entry),
        epoch=entry.target["epoch"],
        file=file_of(entry.name, entry.target["generation"]),
        follow=True,
        has_file=False,
        term=router.leases.term(slot.node_id),
        replica=router.replica_of(entry.name, entry.target["generation"]),
    )
