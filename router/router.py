"""Who serves a conversation: activation, hibernation, eviction, deletion. No Ray calls of its own.

Rules:
- Whatever changes a conversation's owner holds its name's lock; a name that is served is answered
  without it. The directory is written first, the actor told second, memory changed last.
- An address that a caller found wanting is verified before anything is taken from its owner: a
  live owner keeps its conversation, a silent one is ended before another starts.
- What makes an owner, or unmakes one, runs to its end however its caller is cancelled.
- An owner that may still be there is followed as `take_over` says.

What it does not do: touch messages. It is asked on a miss, never on the data path.
"""

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from sessions_actor.actor import ActivationSpec, ActorState, Binding, Refusal
from sessions_actor.channel import Address, Succession
from sessions_actor.disk import disk_id
from sessions_actor.errors import (
    ConversationNotFoundError,
    NoCapacityError,
    QuotaExceededError,
    StaleEpochError,
    StorageCorruptError,
    StorageError,
)
from sessions_actor.hosted import Ended
from sessions_actor.names import check_name
from sessions_actor.replica import ReplicaSpec
from sessions_actor.retry import BoundError, is_lost, is_out_of_reach

from . import reports
from .agent import NodeFacts
from .cluster import Cluster, Slot, answer
from .directory import Directory, Entry, Owner, State
from .failover import FailOver
from .following import Following
from .leases import FIRST_TERM, LEASE_LOW, Grant, Leases
from .locks import NameLocks
from .placement import candidates
from .pool import EVICT_IDLE_S, TURN_AFTER_S, Choose, Pool
from .replication.replicas import Replicas
from .settings import Settings
from .shards import WHOLE, Shard
from .sweeping import Sweeping
from .take_over import TakeOver
from .through import made, through

# A turn: how long a busy conversation keeps its actor when others wait for one.
TURN_S: Final = 0.5
EVICT_TRIES_MAX: Final = 16

# One that comes back within this after its eviction shows that more processes are needed.
GHOST_S: Final = 60.0
GHOSTS_MAX: Final = 4096

ACTIVATION_TRIES_MAX: Final = 4
ACTIVATION_TIMEOUT_S: Final = 60.0
# How long the file of an owner that died may stay locked while its process goes.
LOCK_WAIT_S: Final = 15.0
HIBERNATE_TIMEOUT_S: Final = 30.0

assert EVICT_IDLE_S < TURN_AFTER_S < TURN_S


@dataclass(slots=True, eq=False)
class Serving:
    """A conversation and the actor that serves it."""

    name: str
    epoch: int
    slot: Slot
    spec: ActivationSpec
    used_at: float
    silent: bool = False
    """Whether it was ended because it did not answer: its process may not be gone yet."""

    @property
    def address(self) -> Address:
        """What callers are told."""
        return Address(self.name, self.epoch, self.slot.actor)


class Router:
    """The router's decisions over a directory and a cluster."""

    def __init__(
        self,
        settings: Settings,
        root: Path,
        directory: Directory,
        cluster: Cluster,
        leases: Leases,
        replicas: Replicas | None = None,
        shard: Shard = WHOLE,
    ) -> None:
        self.settings, self.root, self.directory = settings, root, directory
        self.cluster, self.leases = cluster, leases
        self.locks = NameLocks()
        self.pool = Pool(
            cluster,
            warm_actors=settings.warm_actors,
            max_active=settings.max_active,
            evict=self._evict,
            is_leased=lambda node_id: leases.left_s(node_id) >= LEASE_LOW * leases.ttl_s,
            shard=shard,
        )
        self.take_over = TakeOver(directory, leases, self.pool)
        self.disk_id = disk_id(root)
        self._serving: dict[str, Serving] = {}
        self._ghosts: OrderedDict[str, float] = OrderedDict()
        self._kept: Counter[str] = Counter()
        self.now: Callable[[], float] = asyncio.get_running_loop().time
        self.following = Following(self.now)
        self.sweeping = Sweeping(directory, self.pool, self.now)
        self._activated = asyncio.Event()
        self.failover = None if replicas is None else FailOver(self, replicas, self.now)
        self._confirm_s = 0.0 if replicas is None else settings.replica_timeout_s

    # ------------------------------------------------------------------------------ leases

    def renew(self, facts: NodeFacts) -> Grant | None:
        """Grant a node its lease; None for one that the cluster does not know as alive.

        May be called from another thread.
        """
        if facts.node_id not in self.pool.nodes:
            reports.lease_refused(facts.node_id)
            return None
        self.pool.set_disk(facts.node_id, facts.disk_id, facts.machine_id)
        grant = self.leases.renew(facts.node_id)
        if grant is not None:
            reports.lease_renewed()
        return grant

    # -------------------------------------------------------------------------- resolution

    async def resolve(self, name: str, failed: int | None = None, create: bool = True) -> Address:
        """Return the owner's address, activating the conversation if nobody serves it.

        Args: `failed` is that of an address which did not work for the caller.
        Raises: ValueError for a bad name; NoCapacityError; StorageError; what the hosted class
            raised at its start; ConversationNotFoundError without `create`.
        """
        check_name(name)
        serving = self._serving.get(name)
        if serving is not None and await self._serves(serving, failed):
            return serving.address
        async with self.locks.hold(name):
            serving = self._serving.get(name)
            if serving is not None:
                if await self._serves(serving, failed):
                    return serving.address
                await self.bury(serving)
            if not create:
                self.entry(name)
            return (await self.activate(name)).address

    def serving(self, name: str) -> Serving | None:
        """Return who serves a conversation."""
        return self._serving.get(name)

    def servings(self) -> list[Serving]:
        """Return everything that is served, the least recently used first."""
        return sorted(self._serving.values(), key=lambda serving: serving.used_at)

    async def _serves(self, serving: Serving, failed_epoch: int | None) -> bool:
        """Say whether an owner can be given out; asks it when a caller had trouble with it."""
        trusted = failed_epoch is None or failed_epoch < serving.epoch
        if not trusted and not await self.is_alive(serving):
            return False
        if self._serving.get(serving.name) is not serving:
            return False
        serving.used_at = self.now()
        return True

    async def is_alive(self, serving: Serving) -> bool:
        """Ask an owner whether it still is; one that stays silent for a lease is ended."""
        if serving.spec.term != self.leases.term(serving.slot.node_id):
            return False  # it was outlasted
        deadline = self.now() + self.settings.lease_ttl_s
        while True:
            try:
                bound = await self.cluster.ping(
                    serving.slot.actor, max(0.001, deadline - self.now())
                )
            except TimeoutError:
                break
            except Exception as error:
                if not is_lost(error):
                    raise
                if not is_out_of_reach(error):
                    return False
                if self.now() >= deadline:
                    break
                await asyncio.sleep(0.1)
            else:
                return bound == Binding(ActorState.HOSTING, serving.name, serving.epoch)
        serving.silent = True
        await self.kill(serving.slot)
        return False

    async def bury(self, serving: Serving) -> None:
        """Note that an owner serves no more; its actor is used again if it turns out to be idle.

        The directory goes on naming an owner whose process was not seen to end, for `activate`.
        """
        await through(self._bury(serving))

    async def _bury(self, serving: Serving) -> None:
        reports.owner_lost(serving)
        if self._serving.get(serving.name) is serving:
            del self._serving[serving.name]
        gone = await self.recover(serving.slot)
        await self.pool.refresh()
        if gone and not serving.silent and serving.slot.node_id in self.pool.nodes:
            await made(
                self.directory.hibernate(
                    serving.name, serving.epoch, file_bytes=None, last_active_at=None
                )
            )

    async def recover(self, slot: Slot) -> bool:
        """Take an actor back once it is idle, end it if it does not become so.

        Returns: whether it was heard of that it serves nobody: idle, or dead before it was ended.
        """
        deadline = self.now() + LOCK_WAIT_S
        gone = False
        while self.now() < deadline:
            try:
                bound = await self.cluster.ping(slot.actor, self.settings.lease_ttl_s)
            except Exception as error:  # dead or silent
                gone = is_lost(error) and not is_out_of_reach(error) and not slot.killed
                break
            if bound.state is ActorState.IDLE:
                self.pool.release(slot)
                return True
            if bound.state is not ActorState.ENDING:
                break
            await asyncio.sleep(0.01)
        await self.end(slot)
        return gone

    async def give_back(self, slot: Slot, error: BaseException) -> None:
        """Take an actor back from work that failed, after a look at it if it may be the reason."""
        if is_lost(error) or isinstance(error, TimeoutError):
            await self.recover(slot)
        else:
            self.pool.release(slot)

    async def end(self, slot: Slot) -> None:
        """End an actor's process: what may still be on its way to it must find nobody."""
        self.pool.discard(slot)
        await self.kill(slot)

    async def kill(self, slot: Slot) -> None:
        """Have an actor ended; that it is called dead from now on says nothing of its process."""
        slot.killed = True
        await self.cluster.kill(slot.actor)

    # -------------------------------------------------------------------------- activation

    @reports.activation
    async def activate(self, name: str, node_id: str | None = None) -> Serving:
        """Give a conversation that nobody serves an owner. The caller holds the lock.

        Args: `node_id` is the one node that will do, which mounts its disk.
        """
        ghost = self._ghosts.pop(name, None)
        grow = ghost is not None and self.now() - ghost < GHOST_S
        deadline = self.now() + self.settings.capacity_wait_s
        tries = 0
        while tries < ACTIVATION_TRIES_MAX or self.now() < deadline:
            tries += 1
            entry = self.directory.get(name)
            lost = entry is not None and await self._is_lost(entry)
            machine_id: str | None = None
            if entry is not None and not lost and entry.state is not State.HIBERNATED:
                machine_id = await self.take_over.succeed(entry)
            entry = self.directory.get(name)
            choose = partial(
                candidates,
                disk_id=None if entry is None or lost else entry.disk_id,
                machine_id=machine_id,
                only=node_id,
            )
            slot = await self._acquire(name, choose, grow, None if lost else entry)
            if slot is None:
                continue
            if entry is not None and not lost and slot.disk_id != entry.disk_id:
                self.pool.release(slot)  # its disk was not known before
                continue
            serving = await through(self._begin(name, entry, slot, lost=lost))
            if serving is not None:
                return serving
        raise NoCapacityError(len(self.pool.nodes))

    async def _begin(
        self, name: str, entry: Entry | None, slot: Slot, *, lost: bool
    ) -> Serving | None:
        """Make an actor the owner and start it; None when that failed and may be tried again."""
        try:
            claimed = await self._claim(name, entry, slot, lost=lost)
        except BaseException as error:
            await self.give_back(slot, error)
            if is_lost(error):
                return None
            raise
        if claimed is None:
            self.pool.release(slot)
            return None
        at_rest = entry is None or entry.state is State.HIBERNATED
        return await self.start(claimed, slot, is_new=entry is None, at_rest=at_rest)

    async def _is_lost(self, entry: Entry) -> bool:
        """Say whether a conversation must come back from its replica; see `FailOver.takes`."""
        return self.failover is not None and await self.failover.takes(entry)

    async def _acquire(
        self, name: str, choose: Choose, grow: bool, entry: Entry | None
    ) -> Slot | None:
        """Get an actor that can open a conversation's file; None when its disk goes meanwhile."""
        asked = self.pool.acquire(name, choose, self.settings.capacity_wait_s, grow=grow)
        if entry is None or self.failover is None:
            return await asked
        return await self.failover.unless_gone(entry.disk_id, asked)

    async def _claim(
        self, name: str, entry: Entry | None, slot: Slot, *, lost: bool = False
    ) -> Entry | None:
        if lost and entry is not None:
            assert self.failover is not None
            return await self.failover.claim(entry, slot)
        owner = Owner(slot.node_id, slot.actor_name, slot.disk_id)
        if entry is None:
            return await self.directory.create(name, owner)
        return await self.directory.activate(name, entry.epoch, owner)

    async def start(
        self, entry: Entry, slot: Slot, *, is_new: bool, at_rest: bool = True
    ) -> Serving | None:
        """Have an actor start what it was given in the directory; None when the actor died.

        Args: `at_rest` says that nobody else may still have the file.
        """
        give_up = partial(self._give_up, slot=slot, is_new=is_new, at_rest=at_rest)
        deadline = self.now() + LOCK_WAIT_S
        while True:
            spec = self.spec_of(entry)
            try:
                started = answer(slot.actor.activate.remote(spec))
                position = await asyncio.wait_for(started, ACTIVATION_TIMEOUT_S + self._confirm_s)
                if not entry.has_file:
                    await made(self.directory.note_file(entry.name, entry.epoch))
                if self.failover is not None:
                    await made(self.failover.completed(entry, position))
                return self.begin_serving(spec, slot)
            except StaleEpochError as error:
                try:
                    later = await self._follow_file(entry, error.current, slot)
                except Exception:
                    await give_up(entry)
                    raise
                if later is None:
                    await give_up(entry)
                    return None
                entry = later
            except Exception as error:
                if _is_locked(error) and self.now() < deadline:
                    await asyncio.sleep(0.05)
                    continue
                await give_up(entry, locked=_is_locked(error), heard=not outcome_is_open(error))
                if is_lost(error) or isinstance(error, TimeoutError | BoundError):
                    return None
                if self.failover is not None and self.failover.is_missing(entry, error):
                    return None
                raise

    async def _follow_file(self, entry: Entry, epoch: int, slot: Slot) -> Entry | None:
        """Go past the epoch of a file that is ahead of this directory (restored from a copy)."""
        raised = await self.directory.raise_epoch(entry.name, entry.epoch, epoch)
        return None if raised is None else await self._claim(entry.name, raised, slot)

    async def _give_up(
        self,
        entry: Entry,
        *,
        slot: Slot,
        is_new: bool,
        at_rest: bool,
        locked: bool = False,
        heard: bool = True,
    ) -> None:
        """Take back what an actor could not start; the row comes to rest if nobody has the file.

        Args: `heard` says that the actor answered; else the order may reach it yet.
        """
        gone = heard and await self.recover(slot)
        if not heard:
            await self.end(slot)
        if is_new:
            await made(self.directory.forget_new(entry.name, entry.epoch))
        elif gone and at_rest and not locked:
            await made(
                self.directory.hibernate(
                    entry.name, entry.epoch, file_bytes=None, last_active_at=None
                )
            )

    def begin_serving(self, spec: ActivationSpec, slot: Slot) -> Serving:
        """Give out an activation that has started, from now on."""
        slot.name = spec.name
        serving = Serving(spec.name, spec.epoch, slot, spec, self.now())
        self._serving[spec.name] = serving
        self.following.activated(serving.address)
        self._activated.set()
        self._activated = asyncio.Event()
        return serving

    def spec_of(self, entry: Entry) -> ActivationSpec:
        """Return what an actor needs to host what a row says."""
        return ActivationSpec(
            name=entry.name,
            epoch=entry.epoch,
            file=entry.file,
            quota_bytes=entry.quota_bytes or self.settings.quota_bytes,
            object_class=self.settings.object_class,
            bounds=self.settings.bounds,
            has_file=entry.has_file,
            follow=self.following.is_followed(entry.name),
            replica=self.replica_of(entry.name, entry.generation, entry.line),
            client_limits=self.settings.client_limits,
            term=FIRST_TERM if entry.node_id is None else self.leases.term(entry.node_id),
        )

    def replica_of(self, name: str, generation: int, line: int = 0) -> ReplicaSpec | None:
        """Return what an actor needs to replicate a conversation's file of some generation."""
        kept = None if self.failover is None else self.failover.replicas
        return None if kept is None else kept.spec(name, generation, line)

    # ------------------------------------------------------------------------- hibernation

    async def let_go(
        self, serving: Serving, *, idle_s: float | None = None,
        resident_s: float | None = None, patience_s: float = 0.0,
    ) -> bool:  # fmt: skip
        """Hibernate what is served; says whether it was. See `ConversationActor.hibernate`."""
        async with self.locks.hold(serving.name):
            if self._serving.get(serving.name) is not serving:
                return False
            return await self.let_go_locked(
                serving, idle_s=idle_s, resident_s=resident_s, patience_s=patience_s
            )

    async def let_go_locked(
        self, serving: Serving, *, idle_s: float | None = None,
        resident_s: float | None = None, patience_s: float = 0.0,
    ) -> bool:  # fmt: skip
        """Hibernate what is served, by one who holds its lock."""
        asked = serving.slot.actor.hibernate.remote(
            serving.name,
            serving.epoch,
            idle_s=idle_s,
            resident_s=resident_s,
            patience_s=patience_s,
        )
        try:
            result = await asyncio.wait_for(answer(asked), HIBERNATE_TIMEOUT_S)
        except Exception as error:
            if isinstance(error, TimeoutError):
                await self.kill(serving.slot)
            # Stale, dead, or its disposal failed: it serves no more. One not heard of may.
            serving.silent |= isinstance(error, TimeoutError) or is_out_of_reach(error)
            await self.bury(serving)
            return True
        if isinstance(result, Refusal):
            serving.used_at = self.now() - result.idle_s
            return False
        await through(self._ended(serving, result))
        reports.hibernated(serving, self._reason(idle_s), result.file_bytes)
        return True

    async def _ended(self, serving: Serving, result: Ended) -> None:
        """Note that an owner let go, and take its actor back."""
        del self._serving[serving.name]
        if result.followed:
            self.following.follow(serving.name, serving.address)
        await made(
            self.directory.hibernate(
                serving.name,
                serving.epoch,
                file_bytes=result.file_bytes,
                last_active_at=result.last_active_at,
                position=result.position,
                behind=result.behind,
            )
        )
        self.pool.release(serving.slot)

    def _reason(self, idle_s: float | None) -> str:
        """Say why a conversation was let go, from how long it had to be idle for that."""
        if idle_s is None:
            return "asked"
        return "idle" if idle_s >= self.settings.idle_timeout_s else "evicted"

    @contextlib.contextmanager
    def keep(self, name: str) -> Iterator[None]:
        """Have a conversation make room for no other meanwhile."""
        self._kept[name] += 1
        try:
            yield
        finally:
            self._kept[name] -= 1
            if not self._kept[name]:
                del self._kept[name]

    async def _evict(self, node_id: str, *, idle_s: float, turn: bool = False) -> bool:
        """Free an actor on a node; see `pool.Evict`."""
        resident_s = TURN_S if turn else None
        tries = 0
        for serving in self.servings():
            name = serving.name
            if serving.slot.node_id != node_id or self._kept[name] or self.locks.is_held(name):
                continue
            if await self.let_go(serving, idle_s=idle_s, resident_s=resident_s):
                self._ghosts[serving.name] = self.now()
                while len(self._ghosts) > GHOSTS_MAX:
                    self._ghosts.popitem(last=False)
                return True
            tries += 1
            if tries >= EVICT_TRIES_MAX:
                break
        return False

    # -------------------------------------------------------------------------- following

    async def succession(self, name: str, epoch: int, wait_s: float) -> Succession | None:
        """Wait for an activation after an epoch, without causing one; None when none came."""
        check_name(name)
        deadline = self.now() + wait_s
        self.following.follow(name, Address(name, epoch, None))
        while True:
            successor = self.following.successor(name, epoch)
            if successor is not None:
                return Succession(successor, True)
            serving = self._serving.get(name)
            if serving is not None and serving.epoch > epoch:
                return Succession(serving.address, False)
            left = deadline - self.now()
            if left <= 0:
                return None
            try:
                await asyncio.wait_for(self._activated.wait(), left)
            except TimeoutError:
                return None

    def entry(self, name: str) -> Entry:
        """Return a conversation's row.

        Raises: ConversationNotFoundError; ValueError for a bad name.
        """
        found = self.directory.get(name)
        if found is None or found.state is State.DELETING:
            raise ConversationNotFoundError(name)
        return found

    def forget(self, serving: Serving) -> None:
        """Stop giving out an owner whose place another takes, or nobody."""
        if self._serving.get(serving.name) is serving:
            del self._serving[serving.name]

    def adopt(self, serving: Serving) -> None:
        """Give out an owner that an earlier router made."""
        self._serving[serving.name] = serving


def _is_locked(error: Any) -> bool:
    """Say whether a file could not be opened because another process still has it."""
    return (
        isinstance(error, StorageError)
        and not isinstance(error, QuotaExceededError | StorageCorruptError)
        and "open already" in error.reason
    )


def outcome_is_open(error: Exception) -> bool:
    """Say whether an order that failed so may still be carried out."""
    return isinstance(error, TimeoutError) or is_out_of_reach(error)
