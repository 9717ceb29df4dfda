"""One simulated deployment from its seed to its last check.

A seed draws the machines, the settings, the people and the faults; then everything runs on one
virtual clock. Faults end, people finish within a bounded time, and what is left is inspected: the
directory, the actors, the files, and every message that was acknowledged.
"""

from __future__ import annotations

import functools
import math
import pickle
import random
import tempfile
import zlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import router.agent
import router.migration
import router.pool
import router.sweeping
import router.upkeep
from router.client import Client
from router.directory import CONVERSATIONS_FOLDER, Directory, Entry, State
from router.service import RouterActor, router_handle
from router.settings import Settings
from router.shards import ROUTER_NAME
from sessions_actor import channel, wire
from sessions_actor.actor import ActorState, ConversationActor

from .cluster import Cluster
from .faults import Faults
from .loop import Scheduler
from .machines import Disk, Process
from .model import Model, Violation
from .network import Call, Network
from .workload import Feed, Gone, People

NAMESPACE: Final = "sessions"
# Virtual seconds within which everything ends once nothing goes wrong any more.
BOUND_S: Final = 150.0
# Virtual seconds after the last fault from which on nobody is told of trouble.
RECOVERY_S: Final = 15.0
# Virtual seconds after which a follower has heard everything: a poll that was lost takes long.
FEED_S: Final = 90.0
# Virtual seconds that the router is given, so many times, to put the last things in order.
TIDY_S: Final = 2.5
SETTLE_TRIES: Final = 14
LOOK_AROUND_S: Final = 2.0
# The part of all deployments whose directory is replicated.
COPIED: Final = 0.4
# Virtual seconds after which no order to make a file is on its way any more.
LATE_S: Final = 12.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a seed. Two runs of one seed have the same digest."""

    seed: int
    digest: int
    failure: str | None
    virtual_s: float
    calls: int
    acknowledged: int
    moves: int
    faults: int
    error: BaseException | None = None


@functools.cache
def _settings() -> Settings:
    return Settings(metrics=False)


@dataclass(eq=False)
class Acknowledgements:
    """Who acknowledged what, at the moment the reply was let go."""

    epochs: dict[str, int] = field(default_factory=dict)
    owners: dict[tuple[str, int], Process] = field(default_factory=dict)
    count: int = 0

    def note(self, process: Process, call: Call, result: Any) -> None:
        """Note what an actor let go.

        Raises: Violation when it was not the one owner.
        """
        if call.method != "serve":
            return
        if not any(answer.tag == wire.OK for answer in wire.unpack_reply(result)):
            return
        name, epoch, _ = wire.unpack_request(_frame(call))
        self.count += 1
        last = self.epochs.get(name, 0)
        if epoch < last:
            raise Violation(f"{name}: {process} acknowledges in epoch {epoch}, after {last}")
        self.epochs[name] = epoch
        owner = self.owners.setdefault((name, epoch), process)
        if owner is not process:
            raise Violation(f"{name}: {owner} and {process} both acknowledge in epoch {epoch}")


def _frame(call: Call) -> bytes:
    (frame,), _ = pickle.loads(call.data)
    found: bytes = frame
    return found


class World:
    """The deployment of one seed."""

    def __init__(self, seed: int, folder: Path, *, trace: bool = False) -> None:
        self.seed, self._folder, self._print = seed, folder, trace
        self.rng, self.ids = Random(seed), Random(seed + 1)
        random.seed(seed)
        self.scheduler = Scheduler(Random(seed + 2))
        self.digest = 0
        self.failure: BaseException | None = None
        self.network = Network(Random(seed + 3), self.trace)
        self.cluster = Cluster(self.scheduler, self.network, Random(seed + 4), self.trace)
        self.acknowledged = Acknowledgements()
        self.network.on_answer = self._on_answer
        self.disks: list[Disk] = []
        self.clients: list[Process] = []
        self.models: dict[str, Model] = {}
        self.feeds: list[Feed] = []
        self.troubled = False
        self.calm_at = math.inf
        self.weak_locks = False
        # Whether the directory has a replica, and whether that cannot be reached now.
        self.copied = Random(seed + 6).random() < COPIED
        self.store_away = False
        self.moves = self.faults = 0
        self._tasks: list[Any] = []
        self._build()

    def trace(self, *what: Any) -> None:
        """Take an event into the history, and print it if someone looks."""
        kind = what[:3] if what[0] == "done" else what
        text = f"{self.scheduler.now:.6f} {' '.join(map(str, kind))}"
        self.digest = zlib.crc32(text.encode(), self.digest)
        if self._print:
            print(text, *map(_short, what[len(kind) :]))

    @property
    def is_long_calm(self) -> bool:
        """Whether a call that ends now began when all was well again."""
        return self.scheduler.now > self.calm_at + self.settings.call_timeout_s + RECOVERY_S

    def _on_answer(self, process: Process, call: Call, result: Any) -> None:
        try:
            self.acknowledged.note(process, call, result)
        except Violation as error:
            self.failure = self.failure or error

    # -------------------------------------------------------------------------------- building

    def _build(self) -> None:
        rng = self.rng
        # What the seed is about: anything; owners that outlive their node; moves under load.
        self.theme = rng.choices(("mixed", "zombies", "moves"), (5, 3, 3))[0]
        zombies = self.theme == "zombies"
        others = rng.choice((1, 2)) if zombies else rng.choice((0, 1, 1, 2, 2))
        sharing = rng.random() < (0.8 if zombies else 0.3)
        home = self._add_disk(shared=sharing)
        if not zombies and rng.random() < 0.3:
            self.cluster.one_machine = self.cluster.head.machine
        self.cluster.adopt_head(home)
        for _ in range(others):
            disk = home if sharing else self._add_disk()
            self.cluster.add_node(disk, self.cluster.one_machine)
        self.weak_locks = rng.random() < (0.9 if zombies else 0.5)
        self.settings = _settings().model_copy(
            update={
                "storage_root": home.root,
                "max_active": rng.choice((1, 2, 2, 3, 4)) + (others == 0),
                "warm_actors": rng.choice((0, 0, 1)),
                "idle_timeout_s": rng.choice((0.5, 3.0, 300.0)),
                "lease_ttl_s": rng.choice((0.6, 1.0, 2.0)) if zombies else rng.choice((2.0, 5.0)),
                "capacity_wait_s": rng.choice((5.0, 15.0)),
                "call_timeout_s": rng.choice((20.0, 40.0)),
            }
        )
        live = rng.random() < 0.5
        router.migration.SEALED_COPY_BYTES_MAX = 0 if live else 1 << 21
        router.migration.LIVE_WINDOW_BYTES = rng.choice((200, 1 << 19))
        router.migration.ROWS_LEFT_MAX = rng.choice((0, 64))
        router.agent.RENEWALS_PER_TTL = 2
        channel.SUSPECT_AFTER_S, channel.COLLECT_WAIT_S = rng.choice(((1.0, 0.5), (3.0, 2.0)))
        router.sweeping.LATE_S = LATE_S
        router.pool.PATIENCE_S, router.upkeep.LOOK_AROUND_S = 0.08, LOOK_AROUND_S
        for number in range(rng.choice((2, 3)) if zombies else rng.choice((1, 2, 2, 3))):
            self.clients.append(
                Process(self.scheduler, f"client-{number}", self.cluster.make_node(None))
            )

    def _add_disk(self, *, shared: bool = False) -> Disk:
        root = Path(tempfile.mkdtemp(dir=self._folder))
        disk = Disk(len(self.disks), root, shared)
        self.disks.append(disk)
        return disk

    # ------------------------------------------------------------------------------- running

    def run(self) -> Outcome:
        """Live through the seed; a violation ends it."""
        try:
            self._live()
        except Exception as error:
            self.failure = error
        failure = self.failure
        return Outcome(
            self.seed,
            self.digest,
            None if failure is None else f"{type(failure).__name__}: {failure}",
            self.scheduler.now,
            self.network.calls,
            self.acknowledged.count,
            self.moves,
            self.faults,
            failure,
        )

    def _live(self) -> None:
        rng = self.rng
        length_s = (
            rng.choice((7.0, 12.0)) if self.theme == "zombies" else rng.choice((2.0, 4.0, 8.0))
        )
        self.faults = rng.choice((0, 1, 1, 2, 2, 3, 4, 6))
        faults = Faults(self, Random(self.seed + 5))
        faults.plan(self.faults, length_s)
        feeds = self._begin(length_s)
        self._run_for(length_s)
        faults.end()
        self.trace("calm")
        self.calm_at = self.scheduler.now
        self._wait_for(self._tasks, BOUND_S, "what people do")
        self._inspect()
        for feed in feeds:
            feed.cancel()

    def _begin(self, length_s: float) -> list[Any]:
        """Have people begin; returns the tasks of those who follow for ever."""
        rng = self.rng
        moves = self.theme == "moves"
        names = [f"c{number}" for number in range(rng.choice((1, 1, 2, 2, 3)))]
        people = [self._people(client) for client in self.clients]
        feeds = []
        for name in names:
            model = self.models[name] = Model(name)
            for number in range(rng.choice((1, 1, 2))):
                acts = rng.randint(2, 12)
                who = rng.choice(people)
                self._do(who, who.write(model, f"{name}w{number}", acts, length_s / acts))
            # Who reads finds out an owner that does not know of its successor.
            zombies = self.theme == "zombies"
            for place in range(2 if zombies else rng.choice((0, 1))):
                acts = rng.randint(15, 25) if zombies else rng.randint(1, 5)
                who = people[place] if zombies else rng.choice(people)
                self._do(who, who.read(model, acts, length_s / acts))
            if rng.random() < 0.2:
                who = rng.choice(people)
                feeds.append(self._do(who, who.follow(model), ends=False))
        if moves or rng.random() < 0.15:
            # One who never stops, so that something is under way whatever happens.
            who, name = rng.choice(people), rng.choice(names)
            pause = rng.choice((0.005, 0.02, 0.04))
            self._do(who, who.write(self.models[name], f"{name}busy", rng.randint(20, 50), pause))
        if rng.random() < 0.3:
            who = rng.choice(people)
            self._do(who, who.use_alone("mine", "mine", rng.randint(1, 4)))
            names = [*names, "mine"]
        acts = rng.randint(3, 6) if moves else rng.randint(0, 4)
        who = rng.choice(people)
        hasty = moves and rng.random() < 0.5
        self._do(who, who.operate(names, acts, 0.15 if hasty else length_s / max(1, acts)))
        if len(self.cluster.nodes) > 1 and rng.random() < (0.3 if moves else 0.15):
            who = rng.choice(people)
            self._do(who, who.drain(rng.uniform(0, length_s)))
        return feeds

    def _people(self, process: Process) -> People:
        client = Client(None, NAMESPACE, self.settings)
        process.loop.post(0.0, router_handle, NAMESPACE, self.settings)
        return People(self, process, client, Random(self.rng.random()))

    def _do(self, who: People, work: Coroutine[Any, Any, Any], *, ends: bool = True) -> Any:
        task = who.process.loop.create_task(self._watched(work))
        if ends:
            self._tasks.append(task)
        return task

    async def _watched(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except Gone:
            self.trace("gone")
        except Exception as error:
            self.failure = self.failure or error

    def _run_for(self, seconds: float) -> None:
        until = self.scheduler.now + seconds
        self._keep_ticking(until)
        self.scheduler.run_until(lambda: self.scheduler.now >= until or self.failure is not None)
        self._raise()

    def _wait_for(self, tasks: list[Any], within_s: float, what: str) -> None:
        until = self.scheduler.now + within_s
        self._keep_ticking(until)
        self.scheduler.run_until(
            lambda: (
                self.failure is not None
                or self.scheduler.now >= until
                or all(task.done() for task in tasks)
            )
        )
        self._raise()
        stuck = [task for task in tasks if not task.done()]
        if stuck:
            under_way = ", ".join(
                f"{call.method} by {call.caller}" for call in self.network.under_way()
            )
            raise Violation(f"{what} did not end within {within_s:g} s ({under_way})")

    def _wait_until(self, condition: Callable[[], bool], within_s: float) -> None:
        until = self.scheduler.now + within_s
        while not condition() and self.scheduler.now < until:
            self._run_for(0.5)

    def _keep_ticking(self, until: float) -> None:
        self.cluster.later(until - self.scheduler.now, lambda: None)

    def _raise(self) -> None:
        if self.failure is not None:
            raise self.failure

    def start_second_router(self) -> None:
        """Start another router on the same directory; it must not come up beside the first."""
        process = Process(self.scheduler, "second router", self.cluster.head)
        first = self._router()

        async def start() -> None:
            try:
                await RouterActor(self.settings.model_dump_json(), NAMESPACE).settings()
            except Exception as error:
                self.trace("second router", type(error).__name__)
            else:
                if first is not None and first.alive and first.instance._deployment is not None:
                    self.failure = Violation("two routers serve one directory")
            self.cluster.later(0.0, process.die)

        process.loop.post(0.0, lambda: process.loop.create_task(start()) and None)

    def _router(self) -> Process | None:
        return next(
            (p for p in self.cluster.head.processes if p.actor and p.actor.name == ROUTER_NAME),
            None,
        )

    # ------------------------------------------------------------------------------ inspection

    def _inspect(self) -> None:
        """Look at everything once it is calm.

        Raises: Violation.
        """
        process = Process(self.scheduler, "inspector", self.cluster.make_node(None))
        self.clients.append(process)
        client = Client(None, NAMESPACE, self.settings)
        self._wait_until(lambda: self._directory() is not None, BOUND_S)
        lost = {disk.disk_id for disk in self.disks if disk.lost}
        entries = self._entries()
        work = [
            process.loop.create_task(self._watched(self._check(client, name)))
            for name in sorted({*entries, *self.models})
            if name not in entries or entries[name].disk_id not in lost
        ]
        self._wait_for(work, BOUND_S, "the last reads")
        self._wait_until(lambda: all(feed.told for feed in self.feeds), FEED_S)
        for feed in self.feeds:
            feed.check()
        for attempt in range(SETTLE_TRIES):
            self._run_for(TIDY_S)
            wrong = self._disorder(lost)
            if not wrong:
                return
            self.trace("disorder", attempt, wrong[0])
        raise Violation(wrong[0])

    async def _check(self, client: Client, name: str) -> None:
        handle, model = client.get(name), self.models.get(name)
        if model is not None:
            session = handle.session(model.session)
            model.check_all([row.message async for row in session.history_rows()])
            model.check_all([message async for message in session.history()])
        problems = await handle.verify()
        if problems:
            raise Violation(f"{name}: {problems[0]}")

    def _directory(self) -> Directory | None:
        process = self._router()
        deployment = None if process is None else process.instance._deployment
        return None if deployment is None else deployment.router.directory

    def _entries(self) -> dict[str, Entry]:
        directory = self._directory()
        if directory is None:
            return {}
        found = {}
        for name in directory.page(limit=1000):
            entry = directory.get(name)
            assert entry is not None
            found[name] = entry
        return found

    def _disorder(self, lost: set[str]) -> list[str]:
        """List where the directory, the actors and the files disagree."""
        directory = self._directory()
        if directory is None:
            return ["no router serves"]
        wrong = []
        hosting: dict[tuple[str, int], str] = {}
        for node in self.cluster.nodes:
            for process in node.processes:
                if not isinstance(process.instance, ConversationActor):
                    continue
                bound = process.instance._binding
                if bound.state is ActorState.HOSTING:
                    hosting[bound.name, bound.epoch] = process.name
                elif bound.state is not ActorState.IDLE:
                    wrong.append(f"{process} is {bound}")
        for entry in directory.unsettled():
            if entry.disk_id in lost:
                continue  # whoever owned it is gone; it is settled when its disk is back
            if entry.state is not State.ACTIVE:
                wrong.append(f"{entry.name} is {entry.state}")
            elif hosting.pop((entry.name, entry.epoch), None) != entry.actor:
                wrong.append(f"{entry.name} is active, {entry.actor} does not host it")
        wrong += [f"{actor} hosts {key}, nobody knows" for key, actor in hosting.items()]
        return wrong + self._stray_files(directory)

    def _stray_files(self, directory: Directory) -> list[str]:
        wrong = []
        entries = self._entries().values()
        for disk in self.disks:
            if disk.lost or not any(n.disk is disk for n in self.cluster.live_nodes()):
                continue
            folder = disk.root / CONVERSATIONS_FOLDER
            there = {str(p.relative_to(disk.root)) for p in folder.rglob("*.sqlite")}
            wanted = {entry.file for entry in entries if entry.disk_id == disk.disk_id}
            if not self._has_actor(disk):
                # Nobody is there to remove what is noted; someone will be.
                there -= {waste.file for waste in directory.waste(disk.disk_id)}
            wrong += [
                f"nobody needs {file} on disk {disk.number}" for file in sorted(there - wanted)
            ]
            wrong += [f"disk {disk.number} lacks {file}" for file in sorted(wanted - there)]
        return wrong

    def _has_actor(self, disk: Disk) -> bool:
        return any(
            isinstance(process.instance, ConversationActor)
            for node in self.cluster.live_nodes()
            if node.disk is disk
            for process in node.processes
        )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 120 else text[:117] + "..."
