"""Nodes of a local Ray cluster that can die, freeze and come back with their disks.

All run on this machine; a node's disk is a folder. A node that is killed loses its raylet first,
so its workers are orphans for as long as they take to notice: what happens when a machine's Ray
dies and the machine does not. The head node holds the router's directory and Ray's own state, and
is never killed.
"""

import asyncio
import contextlib
import shutil
import uuid
from pathlib import Path
from typing import Any

from sessions_actor.disk import NODE_ROOT_VARIABLE

from . import processes


def remove_folder(folder: Path) -> None:
    """Take a folder away at one moment, whoever still writes to it, and delete it."""
    gone = folder.with_name(f"{folder.name}.gone-{uuid.uuid4().hex}")
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


class Node:
    """A node beside the head: `folder` is its disk, None for the deployment's own folder."""

    def __init__(self, cluster: Any, folder: Path | None, cpus: int = 2) -> None:
        self._cluster, self.folder, self._cpus = cluster, folder, cpus
        self._ray_node: Any = None

    def start(self) -> None:
        """Start a raylet that mounts the folder; blocks until Ray lists the node."""
        variables = {} if self.folder is None else {NODE_ROOT_VARIABLE: str(self.folder)}
        # Ray's own hooks want the main thread; whoever made the cluster ends this node with it.
        hooks, self._cluster._shutdown_at_exit = self._cluster._shutdown_at_exit, False
        try:
            self._ray_node = self._cluster.add_node(num_cpus=self._cpus, env_vars=variables)
        finally:
            self._cluster._shutdown_at_exit = hooks

    @property
    def is_up(self) -> bool:
        """Whether it was started and not ended."""
        return self._ray_node is not None

    @property
    def node_id(self) -> str:
        """Ray's name for it, another after each start."""
        return str(self._ray_node.node_id)

    @property
    def raylet(self) -> int:
        """The process of its raylet."""
        (found,) = self._ray_node.all_processes["raylet"]
        return int(found.process.pid)

    def workers(self, *classes: str) -> list[int]:
        """Return its processes that run actors of these classes."""
        return processes.workers(self.raylet, *classes) if self.is_up else []

    def kill(self, *, with_workers: bool = False) -> int:
        """Kill the raylet without warning; its workers are orphans, or die with it.

        Returns: how many processes were killed.
        """
        below = self.workers(processes.ACTOR, processes.AGENT) if with_workers else []
        killed = [pid for pid in (self.raylet, *below) if processes.kill(pid)]
        return len(killed)

    def lose(self) -> None:
        """End everything that runs on the node at one moment, and delete its disk."""
        assert self.folder is not None
        processes.kill_with_all_below(self.raylet)
        remove_folder(self.folder)
        self.end()
        self.folder.mkdir(mode=0o700)

    def end(self) -> None:
        """End what runs of the node; what a kill left, too."""
        ray_node, self._ray_node = self._ray_node, None
        with contextlib.suppress(Exception):  # Ray complains about what is dead already
            self._cluster.remove_node(ray_node, False)

    async def revive(self) -> None:
        """Replace it if Ray has struck it off, as it does with one that a slow machine held up."""
        import ray

        alive = {one["NodeID"] for one in ray.nodes() if one["Alive"]}
        if not self.is_up or self.node_id not in alive:
            await self.replace()

    async def replace(self) -> None:
        """Start another node in its place, which mounts the same folder."""
        if self.is_up:
            await asyncio.to_thread(self.end)
        await asyncio.to_thread(self.start)
