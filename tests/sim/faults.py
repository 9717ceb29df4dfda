"""What goes wrong in a simulated deployment, drawn from the seed, and how it ends.

A fault strikes at a time, or at a trap: when a given method of any actor is called, was carried
out, or was answered. A death may come with a fuse: after some number of callbacks of the process,
so that it falls between any two steps of what the process is doing.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from router.shards import ROUTER_NAME

from .machines import Node, Process
from .network import Call

if TYPE_CHECKING:
    from .world import World

FUSE_MAX: Final = 400
TRAP_FUSE_MAX: Final = 30

# Methods whose moments matter to ownership.
TRAPPED: Final = (
    "serve", "serve", "activate", "hibernate", "receive", "transfer", "seal", "promote", "unseal",
    "discard", "ping", "describe", "remove_files", "renew",
)  # fmt: skip
STAGES: Final = ("called", "done", "answered")


class Faults:
    """Draws faults and carries them out."""

    def __init__(self, world: World, rng: Random) -> None:
        self._world, self._rng = world, rng
        self._kinds: list[tuple[int, Callable[[], None]]] = [
            (6, self._kill_actor),
            (4, self._freeze_actor),
            (6, self._kill_router),
            (2, self._freeze_router),
            (1, self._start_second_router),
            (3, self._part),
            (2, self._kill_node),
            (1, self._lose_node),
            (2, self._kill_raylet),
            (2, self._fill_disk),
            (3, self._lose_messages),
            (2, self._delay_messages),
            (9, self._set_trap),
            (3, self._cancel_migration),
        ]
        if world.theme == "zombies":
            self._kinds = [
                (12, self._part),
                (3, self._freeze_actor),
                (3, self._freeze_node),
                (2, self._freeze_router),
                (2, self._kill_router),
                (3, self._kill_raylet),
                (1, self._kill_actor),
                (3, self._set_trap),
            ]
        if world.copied:
            self._kinds.append((12 if world.theme == "moves" else 5, self._lose_store))

    def plan(self, count: int, until_s: float) -> None:
        """Draw when which faults strike."""
        weights = [weight for weight, _ in self._kinds]
        for _ in range(count):
            kind = self._rng.choices(self._kinds, weights)[0][1]
            self._world.cluster.later(self._rng.uniform(0, until_s), self._strike, kind)
            self._world.troubled = True

    def _strike(self, kind: Callable[[], None]) -> None:
        self._world.trace("fault", kind.__name__)
        kind()

    def end(self) -> None:
        """Undo what is still wrong; what died stays dead."""
        world = self._world
        world.network.loss = world.network.slow = world.network.twice = 0.0
        world.network.traps.clear()
        world.store_away = False
        world.network.heal()
        for process in self._processes():
            process.loop.fuse = None
            if process.frozen:
                process.loop.thaw()
        for disk in world.disks:
            if disk.full:
                self._empty_disk(disk)

    # ------------------------------------------------------------------------------ victims

    def _processes(self) -> list[Process]:
        nodes = {*self._world.cluster.nodes}
        return [p for node in self._world.cluster.nodes if node in nodes for p in node.processes]

    def _actors(self) -> list[Process]:
        return [p for p in self._processes() if p.actor and p.actor.name != ROUTER_NAME]

    def _router(self) -> Process | None:
        return next((p for p in self._processes() if p.actor and p.actor.name == ROUTER_NAME), None)

    def _others(self) -> list[Node]:
        """Machines that may die: the head never does."""
        cluster = self._world.cluster
        return [node for node in cluster.nodes if node is not cluster.head and node.alive]

    def _kill(self, process: Process | None) -> None:
        if process is None or not process.alive:
            return
        kill = self._world.cluster.kill_process
        if self._rng.random() < 0.3 or process.frozen:
            kill(process)
            return
        process.loop.on_fuse = lambda: kill(process)
        process.loop.fuse = int(self._rng.random() ** 2 * FUSE_MAX)

    def _freeze(self, process: Process | None, longest_s: float) -> None:
        if process is None or not process.alive or process.frozen:
            return
        freeze = process.loop.freeze
        if self._rng.random() < 0.3:
            freeze()
        else:
            process.loop.on_fuse = freeze
            process.loop.fuse = int(self._rng.random() ** 2 * FUSE_MAX)
        self._world.cluster.later(self._rng.uniform(0.1, longest_s), process.loop.thaw)

    # -------------------------------------------------------------------------------- kinds

    def _kill_actor(self) -> None:
        actors = self._actors()
        if actors:
            self._kill(self._rng.choice(actors))

    def _freeze_actor(self) -> None:
        actors = self._actors()
        if actors:
            self._freeze(self._rng.choice(actors), 8.0)

    def _freeze_node(self) -> None:
        if nodes := self._others():
            node, longest_s = self._rng.choice(nodes), self._rng.uniform(1.0, 9.0)
            for process in node.processes:
                if not process.frozen:
                    process.loop.freeze()
                    self._world.cluster.later(longest_s, process.loop.thaw)

    def _kill_router(self) -> None:
        self._kill(self._router())

    def _freeze_router(self) -> None:
        self._freeze(self._router(), 6.0)

    def _start_second_router(self) -> None:
        self._world.start_second_router()

    def _part(self) -> None:
        world = self._world
        nodes = [*self._others(), *(client.node for client in world.clients)]
        sides = {node: self._rng.randint(0, 1) for node in nodes}
        if world.theme == "zombies":
            # People on both sides: some reach the old owner, some the router.
            sides |= {client.node: i % 2 for i, client in enumerate(world.clients)}
        if not any(sides.values()):
            return
        world.network.part(sides)
        for node in self._others():
            if sides[node]:
                world.cluster.watch(node)
        longest_s = 14.0 if world.theme == "zombies" else 9.0
        world.cluster.later(self._rng.uniform(0.3, longest_s), world.network.heal)

    def _kill_node(self) -> None:
        if nodes := self._others():
            self._world.cluster.kill_node(self._rng.choice(nodes), returns=True)

    def _lose_node(self) -> None:
        nodes = [node for node in self._others() if node.disk and not node.disk.shared]
        if nodes:
            node = self._rng.choice(nodes)
            self._world.cluster.kill_node(node, returns=False)
            assert node.disk is not None
            node.disk.lose()

    def _kill_raylet(self) -> None:
        if nodes := self._others():
            self._world.cluster.kill_raylet(self._rng.choice(nodes))

    def _lose_store(self) -> None:
        self._world.store_away = True
        self._world.cluster.later(self._rng.uniform(0.2, 6.0), self._find_store)

    def _find_store(self) -> None:
        self._world.store_away = False

    def _fill_disk(self) -> None:
        disks = [disk for disk in self._world.disks if disk.number > 0 and not disk.lost]
        if not disks:
            return
        disk = self._rng.choice(disks)
        disk.full = True
        for gate in self._gates(disk):
            gate.fill()
        self._world.cluster.later(self._rng.uniform(0.2, 6.0), self._empty_disk, disk)

    def _empty_disk(self, disk: object) -> None:
        disk.full = False  # type: ignore[attr-defined]
        for gate in self._gates(disk):
            gate.empty()

    def _gates(self, disk: object) -> list:  # type: ignore[type-arg]
        return [gate for p in self._processes() if p.node.disk is disk for gate in p.gates]

    def _lose_messages(self) -> None:
        network = self._world.network
        network.loss = self._rng.choice((0.03, 0.15))
        network.twice = self._rng.choice((0.0, 0.1))

        def stop() -> None:
            network.loss = network.twice = 0.0

        self._world.cluster.later(self._rng.uniform(0.5, 5.0), stop)

    def _delay_messages(self) -> None:
        network = self._world.network
        network.slow = self._rng.choice((0.05, 0.4))

        def stop() -> None:
            network.slow = 0.0

        self._world.cluster.later(self._rng.uniform(0.5, 5.0), stop)

    def _set_trap(self) -> None:
        method, stage = self._rng.choice(TRAPPED), self._rng.choice(STAGES)
        who, how = self._rng.choice(("callee", "caller")), self._rng.random()

        def spring(call: Call) -> None:
            process = call.target or call.actor.process
            if method == "serve" and self._rng.random() < 0.8:
                self._world.network.traps[method, stage] = spring  # one of the later ones
                return
            if who == "caller" or process is None:
                process = call.caller
            if process.actor is None:
                return  # people do not die
            self._world.trace("trap", method, stage, who)
            # Not within its own step: a process ends or stops between two, soon after this one.
            process.loop.fuse = int(self._rng.random() ** 3 * TRAP_FUSE_MAX)
            if how < 0.7:
                process.loop.on_fuse = lambda: self._world.cluster.kill_process(process)
            else:
                process.loop.on_fuse = process.loop.freeze
                self._world.cluster.later(self._rng.uniform(0.1, 7.0), process.loop.thaw)

        self._world.network.traps[method, stage] = spring

    def _cancel_migration(self) -> None:
        for call in self._world.network.under_way():
            if call.method == "migrate" and call.task is not None and not call.task.done():
                loop: Any = call.task.get_loop()
                loop.post(0.0, call.task.cancel)
                return
