"""Where the product touches the world outside, and what a simulation puts in its place.

Clocks, ids, randomness, Ray's functions, SQLite connections, file locks and the disk's free space.
Everything else is the product's own code. The replacements look up the world that runs, so they
are put in place once for many seeds, and taken away again by whoever did.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import ray
from ray.util import list_named_actors

import router.agent
from router.cluster import draining_nodes
from router.directory import DIRECTORY_FILE
from sessions_actor.confirmation import Confirmation
from sessions_actor.database_file import FileLock
from sessions_actor.disk import machine_id, root_here
from sessions_actor.gate import Gate
from sessions_actor.lease import WORD_BYTES, NodeLease, lease_file, open_lease
from sessions_actor.logs import LOGGER
from sessions_actor.metrics_export import MetricsExport
from sessions_actor.observing import set_up

from .cluster import Cluster, RuntimeContext

if TYPE_CHECKING:
    from .machines import Process
    from .world import World

# The wall clock at virtual time 0, in seconds: some day in 2026.
EPOCH_S = 1_780_000_000
# How long a copy of the directory takes, and how long a change waits for one.
COPY_S = 0.002
COPY_TIMEOUT_S = 1.0
_Connection = apsw.Connection

_world: World | None = None


def world() -> World:
    """Return the world that runs."""
    assert _world is not None, "no simulation is running"
    return _world


@contextlib.contextmanager
def running(one: World) -> Iterator[None]:
    """Make a world the one that the seams serve."""
    global _world
    before, _world = _world, one
    try:
        yield
    finally:
        _world = before
        Cluster.forget()


class SimConnection(_Connection):
    """A connection that dies with its simulated process and never waits in real time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        here = _process()
        if here is not None:
            here.connections.append(self)

    def set_busy_timeout(self, milliseconds: int) -> None:
        super().set_busy_timeout(0)

    def pragma(self, name: str, value: Any = None, **kwargs: Any) -> Any:
        if name == "synchronous":  # a simulated death keeps what the kernel was given
            value = "off"
        return super().pragma(name, value, **kwargs) if value is not None else super().pragma(name)


def _process() -> Process | None:
    if _world is None or _world.scheduler.current is None:
        return None
    owner: Process = _world.scheduler.current.owner
    return owner


class SimLock(FileLock):
    """A lock that dies with its simulated process.

    On a shared disk whose locks do not hold across machines, each machine has its own.
    """

    def acquire(self) -> None:
        here = _process()
        if here is not None:
            disk = here.node.disk
            if disk is not None and disk.shared and world().weak_locks:
                self._lock_path = f"{self._path}.{here.node.machine}.lock"
            here.locks.append(self)
        super().acquire()


class SimGate(Gate):
    """A gate whose disk may be full; the directory's may wait for a replica that is away."""

    def __init__(self, db: Any, path: str, quota_bytes: int) -> None:
        super().__init__(db, path, quota_bytes)
        here = _process()
        if here is not None:
            here.gates.append(self)
            if world().copied and Path(path).name == DIRECTORY_FILE:
                self.confirm_with(Confirmation(_copy, COPY_TIMEOUT_S))
            if here.node.disk is not None and here.node.disk.full:
                self.fill()

    def fill(self) -> None:
        """Leave no free page on the disk."""
        with contextlib.suppress(apsw.Error):
            self._db.pragma("max_page_count", 1)

    def empty(self) -> None:
        """Give the disk space again."""
        with contextlib.suppress(apsw.Error):
            most = max(self._page_limit, self._pages) + self._slack_pages
            self._db.pragma("max_page_count", most)


async def _copy() -> None:
    """Stand for what a replica does, somewhere else."""
    await asyncio.sleep(COPY_S)
    if world().store_away:
        raise OSError("the store is away")


def _seconds() -> float:
    scheduler = world().scheduler
    loop = scheduler.current
    return scheduler.now if loop is None else loop.time()


def _root_here(storage_root: str) -> Path:
    here = _process()
    assert here is not None
    assert here.node.disk is not None
    return here.node.disk.root


def _machine_id() -> str:
    here = _process()
    assert here is not None
    return here.node.machine


def _lease_file(namespace: str, router: str, node_id: str) -> Path:
    return Path(router)


def _open_lease(file: Path) -> NodeLease:
    here = _process()
    assert here is not None
    return NodeLease(memoryview(here.node.words.setdefault(file.name, bytearray(WORD_BYTES))))


class Threads:
    """Stands for `threading` where a thread runs a loop: that work joins the process's."""

    class Thread:
        """A thread that is none."""

        def __init__(self, *, target: Callable[[], object], daemon: bool = False) -> None:
            self._target = target

        def start(self) -> None:
            """Begin its work, which calls `asyncio.run`."""
            self._target()


def _run(work: Coroutine[Any, Any, Any]) -> None:
    asyncio.get_running_loop().create_task(work)


def _of_modules() -> list[tuple[Any, str, Any]]:
    """Replacements in the modules that these functions are written in."""
    return [
        (time, "time_ns", lambda: int((EPOCH_S + world().scheduler.now) * 1e9)),
        (time, "time", lambda: EPOCH_S + world().scheduler.now),
        (time, "monotonic", _seconds),
        (time, "monotonic_ns", lambda: int(_seconds() * 1e9)),
        (time, "clock_gettime", lambda clock: _seconds()),
        (uuid, "uuid4", lambda: uuid.UUID(int=world().ids.getrandbits(128), version=4)),
        (apsw, "Connection", SimConnection),
        (asyncio, "run", _run),
        (router.agent, "threading", Threads),
        (ray, "remote", lambda **options: world().cluster.remote(**options)),
        (ray, "nodes", lambda: world().cluster.ray_nodes()),
        (ray, "get_actor", lambda *args: world().cluster.get_actor(*args)),
        (ray, "kill", lambda *args, **options: world().cluster.kill(*args, **options)),
        (ray, "get_runtime_context", lambda: RuntimeContext(world().cluster.current())),
    ]


# Replacements wherever the product imported a name: the thing itself, and what stands for it.
_BY_IDENTITY: list[tuple[Any, Any]] = [
    (FileLock, SimLock),
    (Gate, SimGate),
    (root_here, _root_here),
    (machine_id, _machine_id),
    (lease_file, _lease_file),
    (open_lease, _open_lease),
    (draining_nodes, dict),
    (set_up, lambda observing, role, **context: MetricsExport(role, enabled=False)),
    (list_named_actors, lambda *args: world().cluster.list_named_actors(*args)),
]


def _replacements() -> list[tuple[Any, str, Any]]:
    found = _of_modules()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("router", "sessions_actor"):
            for key, value in list(vars(module).items()):
                found += [(module, key, new) for old, new in _BY_IDENTITY if value is old]
    return found


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Put all replacements in place."""
    wanted = _replacements()
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in wanted]
    state, hook, show = random.getstate(), sys.unraisablehook, warnings.showwarning
    try:
        for owner, name, value in wanted:
            setattr(owner, name, value)
        # Coroutines of killed processes end when they are collected, and may complain.
        sys.unraisablehook = lambda _: None
        warnings.showwarning = lambda *_, **__: None
        LOGGER.disabled = True
        yield
    finally:
        LOGGER.disabled = False
        gc.collect()  # while nothing that still ends can reach the world outside
        sys.unraisablehook, warnings.showwarning = hook, show
        for owner, name, value in kept:
            setattr(owner, name, value)
        random.setstate(state)
