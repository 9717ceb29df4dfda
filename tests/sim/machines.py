"""Simulated machines: disks, nodes and the processes on them, and what a death does to each.

A process that dies does so at once: its tasks never run again, its SQLite connections close
without a commit, the kernel frees its file locks. A frozen one stays as it is, its locks held.
Locks and connections are real ones on real files; they are told apart by who took them.
"""

import contextlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from sessions_actor.database_file import FileLock
from sessions_actor.disk import disk_id

from .loop import ProcessLoop, Scheduler


@dataclass(eq=False)
class Disk:
    """A folder that nodes mount. `shared` ones are mounted by several."""

    number: int
    root: Path
    shared: bool = False
    full: bool = False
    lost: bool = False

    disk_id: str = ""

    def __post_init__(self) -> None:
        self.disk_id = disk_id(self.root)

    def lose(self) -> None:
        """Destroy it with all that it holds."""
        self.lost = True
        shutil.rmtree(self.root, ignore_errors=True)


@dataclass(eq=False)
class Node:
    """A node of the cluster on a machine of its own, or with others on one.

    `known_dead` is what the cluster's head believes; node ids never return, `machine` is what file
    locks hold across. `words` are the leases in the memory that its processes share.
    """

    node_id: str
    disk: Disk | None
    machine: str
    clock_offset: float
    clock_rate: float
    processes: list["Process"] = field(default_factory=list)
    alive: bool = True
    known_dead: bool = False
    replaced: bool = False
    words: dict[str, bytearray] = field(default_factory=dict)


class Process:
    """One operating system process on a node."""

    def __init__(self, scheduler: Scheduler, name: str, node: Node) -> None:
        self.name, self.node = name, node
        self.loop = ProcessLoop(scheduler, self, node.clock_offset, node.clock_rate)
        self.alive = True
        self.connections: list[apsw.Connection] = []
        self.locks: list[FileLock] = []
        self.gates: list[Any] = []
        self.instance: Any = None
        self.actor: Any = None
        node.processes.append(self)

    def __repr__(self) -> str:
        return self.name

    @property
    def frozen(self) -> bool:
        """Whether it was stopped."""
        return self.loop.frozen

    def die(self) -> None:
        """End as by SIGKILL."""
        if not self.alive:
            return
        self.alive = False
        self.loop.halt()
        for connection in self.connections:
            with contextlib.suppress(apsw.Error):
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                connection.close(True)
        for lock in self.locks:
            descriptor, lock._descriptor = lock._descriptor, None
            if descriptor is not None:
                os.close(descriptor)
        self.node.processes.remove(self)
