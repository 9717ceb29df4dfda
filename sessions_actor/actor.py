"""The Ray actor that hosts one conversation at a time.

An actor is a process kept warm: `activate` binds it to a conversation, `hibernate` lets go of it.
Every call carries a name and an epoch; one that is not for the bound activation is refused and does
nothing: two conversations that an actor hosts one after the other may have the same epoch.
Nothing is acknowledged past the node's lease: a call that comes then waits a moment for the next
grant and is refused, one whose answer comes too late is told that it was cut short.
`ping` and `describe` answer from a thread of their own (the group CONTROL), so that a busy actor
can be told from a frozen one.

The class is plain; whoever creates it makes it an actor (see `actor_options`).
"""

import asyncio
import dataclasses
import importlib
import os
import pickle
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from . import reports, wire
from .disk import disk_id, file_bytes, machine_id, remove_file, root_here
from .durable_object import DurableObject
from .errors import LeaseMissingError, RoutingError, StaleEpochError, StorageError
from .hosted import Ended, Hosted, Remains
from .lease import NodeLease
from .limits import NO_CLIENT_LIMITS, ClientLimits
from .metrics_export import MetricsExport
from .observing import Observing, set_up
from .open_object import Activation
from .overload import Bounds
from .replica import Replica, ReplicaSpec, forget_file, socket_path
from .retry import BoundError
from .storage import Storage

T = TypeVar("T")

CONTROL: Final = "control"
CALLS_MAX: Final = 10_000
MISSING_FILE: Final = (
    "the conversation's file is missing here: mount the disk that holds it, bring the file back"
    " from a copy, or delete the conversation"
)

# Activations that ended and may still be asked for outcomes and changes.
REMAINS_MAX: Final = 64

# How long a conversation stays for the next step of who works on it.
STEP_PAUSE_S: Final = 10.0

# How long a call waits for the node's lease before it is told to come again.
LEASE_WAIT_S: Final = 1.0
LEASE_LOOK_S: Final = 0.01

OpenLease = Callable[[], NodeLease]
"""Opens the lease of the node that an actor finds itself on; picklable."""


def actor_options() -> dict[str, Any]:
    """Return what `ray.remote` needs to make this class an actor."""
    return {
        "concurrency_groups": {CONTROL: 2},
        "max_concurrency": CALLS_MAX,
        "max_restarts": 0,
        "max_task_retries": 0,
    }


class ActorState(StrEnum):
    """What an actor is doing."""

    IDLE = "idle"
    STARTING = "starting"
    HOSTING = "hosting"
    RECEIVING = "receiving"
    ENDING = "ending"


class Binding(NamedTuple):
    """What an actor is bound to; the epoch is 0 while it is idle."""

    state: ActorState
    name: str | None
    epoch: int


@dataclass(frozen=True, slots=True)
class ActivationSpec:
    """All an actor needs to host a conversation.

    `file` is relative to the storage root; `term` is that of the node's lease. `has_file` says
    that somebody was served from the file already: without it there is nothing to start from.
    """

    name: str
    epoch: int
    file: str
    quota_bytes: int
    object_class: str
    bounds: Bounds = field(default_factory=Bounds)
    follow: bool = False
    client_limits: ClientLimits = NO_CLIENT_LIMITS
    term: int = 1
    has_file: bool = False
    replica: ReplicaSpec | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """An actor's place and state, as the router asks for it."""

    node_id: str
    actor_id: str
    pid: int
    disk_id: str
    machine_id: str
    binding: Binding
    file: str | None
    file_bytes: int
    last_active_at: int
    idle_s: float
    replica_lag_s: float = 0.0


class Refusal(NamedTuple):
    """Why a conversation does not hibernate now: it was used so many seconds ago."""

    idle_s: float


@dataclass(slots=True)
class Site:
    """What steps work on: those of a migration, at the source or at the target, and of a copy.

    `storage` is the open file; `host` the object at the source, None at a target that has not
    started. `kept` holds what one step leaves for the next.
    """

    storage: Storage
    host: DurableObject | None
    replica: Replica | None = None
    kept: dict[str, Any] = field(default_factory=dict)
    _running: int = 0
    _used_at: float = 0.0

    async def run(self, step: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run `await step(self, *args)`."""
        self._running += 1
        try:
            return await step(self, *args)
        finally:
            self._running -= 1
            self._used_at = asyncio.get_running_loop().time()

    @property
    def in_use(self) -> bool:
        """Whether a step is under way, or one just left something for the next."""
        pause_s = asyncio.get_running_loop().time() - self._used_at
        return self._running > 0 or (bool(self.kept) and pause_s < STEP_PAUSE_S)

    def close(self) -> None:
        """Close what steps kept, where it can be closed, and forget it."""
        for thing in self.kept.values():
            if callable(getattr(thing, "close", None)):
                thing.close()
        self.kept.clear()


_IDLE = Binding(ActorState.IDLE, None, 0)
_CUT = wire.Answer(wire.CUT, b"")


class ConversationActor:
    """Hosts one conversation at a time; see the module."""

    def __init__(
        self, storage_root: str, open_lease: OpenLease, observing: Observing | None = None
    ) -> None:
        self._export = _set_up(observing)
        self._root: Path = root_here(storage_root)
        self._lease = open_lease()
        self._binding = _IDLE
        self._spec: ActivationSpec | None = None
        self._hosted: Hosted | None = None
        self._site: Site | None = None
        self._remains: OrderedDict[tuple[str, int], tuple[Remains, int]] = OrderedDict()
        self._change = asyncio.Lock()
        self._chores: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------------------- state

    def ping(self) -> Binding:
        """Say what the actor is bound to; runs in a thread of its own and waits for nothing."""
        return self._binding

    def describe(self) -> Description:
        """Say where the actor is and how its conversation does; from the same thread as `ping`.

        Raises: StorageError when this node's storage root cannot be used.
        """
        import ray

        context = ray.get_runtime_context()
        hosted, spec = self._hosted, self._spec
        return Description(
            node_id=context.get_node_id(),
            actor_id=context.get_actor_id() or "",
            pid=os.getpid(),
            disk_id=disk_id(self._root),
            machine_id=machine_id(),
            binding=self._binding,
            file=None if spec is None else spec.file,
            file_bytes=0 if spec is None else file_bytes(self._root, spec.file) or 0,
            last_active_at=0 if hosted is None else hosted.last_active_at,
            idle_s=0.0 if hosted is None else hosted.idle_s,
            replica_lag_s=0.0 if hosted is None else hosted.replica_lag_s,
        )

    # -------------------------------------------------------------------------- activation

    async def activate(self, spec: ActivationSpec) -> int:
        """Bind to a conversation and start it; binding again to the same activation is fine.

        Returns: the transaction up to which its replica is complete; 0 without one.
        Raises: StaleEpochError when the file carries a later epoch; StorageError; what the hosted
            class raised at its start, as RemoteCallError when it does not pickle.
        """
        async with self._change:
            if self._hosted is None or self._spec != spec:
                self._require_idle()
                await self._start(spec)
            return self._position()

    async def _start(self, spec: ActivationSpec) -> None:
        self._bind(ActorState.STARTING, spec)
        try:
            if spec.has_file and not (self._root / spec.file).exists():
                raise StorageError(str(self._root / spec.file), MISSING_FILE)
            activation = Activation(
                load_class(spec.object_class),
                name=spec.name,
                path=self._root / spec.file,
                quota_bytes=spec.quota_bytes,
                epoch=spec.epoch,
                replica=self._replica_here(spec.replica),
            )
            await activation.start()
            try:
                self._hosted = Hosted(
                    activation,
                    name=spec.name,
                    epoch=spec.epoch,
                    bounds=spec.bounds,
                    client_limits=spec.client_limits,
                    follow=spec.follow,
                    on_lost=self._on_lost,
                )
            except BaseException:
                await activation.close()
                raise
        except BaseException as error:
            self._unbind()
            reports.start_failed(spec.name, spec.epoch, error)
            if isinstance(error, Exception):
                raise wire.load_error(wire.dump_error(error)) from None
            raise
        self._bind(ActorState.HOSTING, spec)

    def _replica_here(self, replica: ReplicaSpec | None) -> ReplicaSpec | None:
        """Add where this node's replication daemon listens."""
        if replica is None:
            return None
        return dataclasses.replace(replica, socket=socket_path(self._root))

    async def hibernate(
        self, name: str, epoch: int, *, idle_s: float | None = None,
        resident_s: float | None = None, patience_s: float = 0.0,
    ) -> Ended | Refusal:  # fmt: skip
        """Let go of the conversation and become idle.

        Args:
            idle_s: only when no call came for so long; None: in any case, see `Hosted.seal`.
            resident_s: or when it is this old and others wait; see `Hosted.yield_if_idle`.

        Returns: what the directory should know, or a refusal.
        Raises: StaleEpochError when another activation is bound, or none.
        """
        async with self._change:
            hosted = self._hosting(name, epoch)
            if idle_s is None:
                await hosted.seal(patience_s)
            elif self._is_in_use(hosted):
                return Refusal(0.0)
            elif not await hosted.yield_if_idle(idle_s=idle_s, resident_s=resident_s):
                return Refusal(hosted.idle_s)
            hosted.storage.thaw()  # after a move that was given up: its end may write
            return await self._end(hosted)

    def _is_in_use(self, hosted: Hosted) -> bool:
        """Say whether something would have to begin anew that is done for nobody's call."""
        is_copied = hosted.replica is not None and hosted.replica.is_copying
        return is_copied or (self._site is not None and self._site.in_use)

    async def _end(self, hosted: Hosted) -> Ended:
        assert self._spec is not None
        self._bind(ActorState.ENDING, self._spec)
        self._close_site()
        self._remains[hosted.name, hosted.epoch] = hosted.remains, self._spec.term
        while len(self._remains) > REMAINS_MAX:
            self._remains.popitem(last=False)
        try:
            return await hosted.end()
        finally:
            self._unbind()

    def _on_lost(self) -> None:
        """End an activation whose output gate broke: nothing more can be acknowledged."""

        async def end(hosted: Hosted) -> None:
            async with self._change:
                if self._hosted is hosted:
                    try:
                        await self._end(hosted)
                    except Exception as error:  # its callers were told why
                        reports.end_failed(hosted.name, hosted.epoch, error)

        assert self._hosted is not None
        self._start_chore(end(self._hosted))

    def _start_chore(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    def _bind(self, state: ActorState, spec: ActivationSpec) -> None:
        self._spec = spec
        self._binding = Binding(state, spec.name, spec.epoch)
        self._export.begin()

    def _close_site(self) -> None:
        site, self._site = self._site, None
        if site is not None:
            site.close()

    def _unbind(self) -> None:
        self._close_site()
        self._hosted = self._spec = None
        self._binding = _IDLE
        self._export.end()

    def _require_idle(self) -> None:
        if self._binding.state is not ActorState.IDLE:
            raise BoundError(f"the actor is bound to {self._binding.name!r}")

    def _hosting(self, name: str, epoch: int) -> Hosted:
        if not self._hosts(name, epoch):
            raise StaleEpochError(epoch, self._epoch_of(name))
        assert self._hosted is not None
        return self._hosted

    def _hosts(self, name: str, epoch: int) -> bool:
        hosted = self._hosted
        return hosted is not None and (hosted.name, hosted.epoch) == (name, epoch)

    def _epoch_of(self, name: str) -> int:
        """The epoch of a conversation here; 0 when it is another's turn."""
        return self._binding.epoch if self._binding.name == name else 0

    # ------------------------------------------------------------------------------- calls

    async def serve(self, frame: bytes) -> bytes:
        """Carry out the parts of one frame; see `wire` and `Hosted.serve`."""
        name, epoch, parts = wire.unpack_request(frame)
        hosted, spec = self._hosted, self._spec
        refusal: RoutingError | None = None
        if hosted is None or spec is None or not self._hosts(name, epoch):
            refusal = StaleEpochError(epoch, self._epoch_of(name))
        elif not self._lease.holds(spec.term):
            refusal = await self._await_lease(hosted, spec)
        if refusal is not None:
            answer = wire.Answer(wire.REFUSED, wire.dump_error(refusal))
            return wire.pack_reply([answer] * len(parts))
        assert hosted is not None
        assert spec is not None
        answers = await hosted.serve(epoch, parts)
        if not self._lease.holds(spec.term):
            reports.lease_missing(spec.name, spec.epoch, spec.term)
            answers = [_CUT] * len(parts)
        return wire.pack_reply(answers)

    async def _await_lease(self, hosted: Hosted, spec: ActivationSpec) -> RoutingError | None:
        """Wait a moment for the lease to be renewed; return why the call is refused, if it is."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + LEASE_WAIT_S
        while not self._lease.holds(spec.term):
            if self._lease.ended(spec.term):
                # Others may own the conversation by now: nothing of this activation counts.
                if self._hosted is hosted:
                    reports.lease_ended(spec.name, spec.epoch, spec.term)
                    self._on_lost()
                return StaleEpochError(spec.epoch, 0)
            if clock() >= deadline:
                reports.lease_missing(spec.name, spec.epoch, spec.term)
                return LeaseMissingError(spec.name, LEASE_WAIT_S)
            await asyncio.sleep(LEASE_LOOK_S)
        return None

    async def collect(self, name: str, epoch: int, ticket: str, wait_s: float) -> bytes:
        """Return the outcome of a call that took long, also after its activation ended."""
        answer = _CUT
        found = self._remains_of(name, epoch)
        if found is not None:
            remains, term = found
            answer = await remains.collect(ticket, wait_s)
            if not self._lease.holds(term):
                answer = _CUT
        return wire.pack_reply([answer])

    async def changes(self, name: str, epoch: int, place: int, wait_s: float) -> bytes:
        """Return changes of an activation from a place on, waiting for the first."""
        found = self._remains_of(name, epoch)
        page = wire.FeedPage([], 0, ended=True, lost=True)
        if found is not None:
            remains, term = found
            if self._hosted is not None and remains is self._hosted.remains:
                self._hosted.follow()
            if remains.log is not None:
                page = await remains.log.poll(place, wait_s)
            if not self._lease.holds(term):
                # What is told of now may not be true of the next owner: read again there.
                page = wire.FeedPage([], place, ended=True, lost=True)
        return pickle.dumps(page, 5)

    def _remains_of(self, name: str, epoch: int) -> tuple[Remains, int] | None:
        if self._hosted is not None and self._spec is not None and self._hosts(name, epoch):
            return self._hosted.remains, self._spec.term
        return self._remains.get((name, epoch))

    # --------------------------------------------------------------------------- migration

    async def seal(self, name: str, epoch: int, patience_s: float) -> None:
        """Let callers of the source wait; nothing writes to its file any more when this returns.

        Raises: StaleEpochError, OutputGateBrokenError.
        """
        async with self._change:
            hosted = self._hosting(name, epoch)
            await hosted.seal(patience_s)
            hosted.freeze()

    async def unseal(self, name: str, epoch: int) -> None:
        """Serve again; nothing happens when another activation is bound."""
        async with self._change:
            if self._hosted is not None and self._hosts(name, epoch):
                self._close_site()
                self._hosted.unseal()

    async def receive(self, spec: ActivationSpec) -> None:
        """Open the file of a target, for steps to fill; nobody is served.

        Raises: StorageError; RuntimeError when the actor is bound already.
        """
        async with self._change:
            self._require_idle()
            self._bind(ActorState.RECEIVING, spec)
            try:
                storage = Storage(self._root / spec.file, quota_bytes=spec.quota_bytes)
            except BaseException:
                self._unbind()
                raise
            self._site = Site(storage, None)

    def _position(self) -> int:
        """The transaction up to which the hosted conversation's replica is complete."""
        replica = None if self._hosted is None else self._hosted.replica
        return 0 if replica is None else replica.position

    async def promote(self, name: str, epoch: int) -> int:
        """Start the conversation that a target received; it serves from now on.

        Returns: as `activate`.
        Raises: StaleEpochError when nothing was received under this epoch; as `activate`.
        """
        async with self._change:
            site, spec = self._receiving(name, epoch)
            if site.storage.is_replicated and spec.replica is not None:
                known = dataclasses.replace(spec.replica, is_new=False)
                spec = dataclasses.replace(spec, replica=known)
            self._close_site()
            site.storage.close()
            await self._start(spec)
            return self._position()

    async def discard(self, name: str, epoch: int) -> bool:
        """Give up what a target received or started; returns whether its file is gone."""
        async with self._change:
            if self._spec is None or (self._spec.name, self._spec.epoch) != (name, epoch):
                return True
            file = self._spec.file
            try:
                if self._hosted is not None:
                    await self._end(self._hosted)
                elif self._site is not None:
                    self._site.storage.close()
            except Exception:  # the file is thrown away: how it ended does not matter
                pass
            finally:
                self._unbind()
            await forget_file(self._root, file)
            return remove_file(self._root, file)

    async def transfer(
        self, name: str, epoch: int, step: Callable[..., Awaitable[T]], *args: Any
    ) -> T:
        """Run one step of a migration or a copy: `await step(site, *args)`.

        At the source the site is kept while it serves; at the target since `receive`.
        Args: `step` is a function of a module, which crosses by its name.
        Raises: StaleEpochError, also when the activation ended meanwhile; what the step raised.
        """
        if self._hosted is None or not self._hosts(name, epoch):
            site, _ = self._receiving(name, epoch)
            return await site.run(step, *args)
        if self._site is None:
            hosted = self._hosted
            self._site = Site(hosted.storage, hosted.host, hosted.replica)
        try:
            return await self._site.run(step, *args)
        except Exception as error:
            if self._hosts(name, epoch) and self._binding.state is ActorState.HOSTING:
                raise
            raise StaleEpochError(epoch, self._epoch_of(name)) from error

    def _receiving(self, name: str, epoch: int) -> tuple[Site, ActivationSpec]:
        bound = self._binding
        if bound != Binding(ActorState.RECEIVING, name, epoch):
            raise StaleEpochError(epoch, self._epoch_of(name))
        assert self._site is not None
        assert self._spec is not None
        return self._site, self._spec

    # ------------------------------------------------------------------------------ chores

    async def remove_files(self, files: list[str]) -> list[str]:
        """Remove files that no conversation needs; returns those that are gone."""
        gone = []
        for file in files:
            await forget_file(self._root, file)
            if remove_file(self._root, file):
                gone.append(file)
        return gone

    async def chore(self, work: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run something on this node's disk: `await work(root, *args)`.

        Args: `work` is a function of a module, which crosses by its name.
        """
        return await work(self._root, *args)


def _set_up(observing: Observing | None) -> MetricsExport:
    """Set up what this process tells; nothing of it outside a deployment."""
    if observing is None:
        return MetricsExport("actor", enabled=False)
    import ray

    node = ray.get_runtime_context().get_node_id()
    return set_up(observing, "actor", node=node, pid=os.getpid())


def load_class(reference: str) -> type[DurableObject]:
    """Import the class that `module:Class` names.

    Raises: ImportError, AttributeError naming what is missing; TypeError for another thing.
    """
    module, _, path = reference.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    if not (isinstance(found, type) and issubclass(found, DurableObject)):
        raise TypeError(f"object_class {reference!r} is no class derived from DurableObject")
    return found


def check_writable(root: Path) -> None:
    """Make sure that a storage root can be used, before anything relies on it.

    Raises: StorageError.
    """
    disk_id(root)
    if not os.access(root, os.W_OK | os.X_OK):
        raise StorageError(str(root), "permission denied; set storage_root to a folder of yours")
