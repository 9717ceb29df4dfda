"""Moves of many conversations: emptying a node, evening out a deployment. They outlive a router.

Rules:
- A job is a row before its first move, each move a row when it has ended; what is left to do is
  looked up in the directory, so a router that starts goes on where the last one was.
- At most one drain of a node and one rebalancing run at a time: who asks again joins it.
- A few moves go on at once, each whole or not at all; cancelling a job gives up those under way.
- A conversation that cannot move is tried once more, then reported with the reason. The rest goes
  on.
- A node whose end Ray announces is drained without being asked, and takes conversations again if
  the notice ends and the node does not.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from sessions_actor.errors import ConversationNotFoundError, NoCapacityError
from sessions_actor.records import iso_from_ms

from . import reports
from .balance import BYTES_MIN, Move, plan_moves
from .entries import Entry
from .job_log import Counts, Job, JobState
from .models import JobInfo, JobReport, MigrationReport
from .placement import NodeView
from .relocation import MOVES_MAX, Relocation
from .router import Router
from .survey import survey
from .through import heed_cancelling, made

T = TypeVar("T")

DRAIN_PAGE: Final = 100
TRIES: Final = 2
# How often a job is taken up again when the cluster is in trouble, and after what pause.
TROUBLES_MAX: Final = 5
TROUBLE_PAUSE_S: Final = 2.0
# How long a node may take to start the actor that tells its disk.
MEET_TIMEOUT_S: Final = 30.0


@dataclass(slots=True)
class _Run:
    """A job under way."""

    job: Job
    tries: Counter[str] = field(default_factory=Counter)
    failed: set[str] = field(default_factory=set)
    attempts: int = 0
    left: int = 0
    stopped: bool = False
    task: asyncio.Task[None] | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class NodeGoneError(Exception):
    """A node went before it was empty, and took its disk along."""


class _TargetClosedError(Exception):
    """The node that a plan chose is being emptied meanwhile."""


class Jobs:
    """Drains and rebalancing over a router."""

    def __init__(
        self, router: Router, relocation: Relocation, *, bytes_min: int = BYTES_MIN
    ) -> None:
        self._router, self._relocation, self._bytes_min = router, relocation, bytes_min
        self._log = router.directory.jobs
        self._running: dict[str, _Run] = {}
        self._starting = asyncio.Lock()
        self._heeded: set[str] = set()

    async def resume(self) -> None:
        """Go on with what an earlier router began."""
        for job in self._log.standing():
            assert job.node_id is not None
            self._router.pool.set_draining(job.node_id, True)
        for job in self._log.running():
            self._launch(job)

    async def close(self) -> None:
        """Stop; the next router goes on."""
        runs = list(self._running.values())
        for run in runs:
            await self._stop(run)
            self._forget(run)

    # --------------------------------------------------------------------------- beginning

    async def start_drain(self, node_id: str, job_id: str, *, announced: bool = False) -> str:
        """Begin to empty a node: it takes nothing new, and what it holds moves to others.

        Returns: the job's id, that of the drain under way where there is one.
        Raises: ValueError for an unknown node; NoCapacityError when there is no other.
        """
        pool = self._router.pool
        async with self._starting:
            if not announced and self._known(job_id):
                return job_id
            for running in self._log.running("drain", node_id):
                if not announced:
                    await self._log.own(running.id)
                return running.id
            await pool.refresh()
            if node_id not in pool.nodes:
                raise ValueError(f"node_id: no live node is {node_id!r}")
            views = pool.views()
            if all(view.draining for view in views if view.node_id != node_id):
                raise NoCapacityError(0)
            disk = next(view.disk_id for view in views if view.node_id == node_id)
            job = await self._log.begin(
                job_id, "drain", node_id, disk, announced=announced, alive=pool.nodes
            )
            try:
                await self._mark(node_id, True)
            finally:
                self._launch(job)
            return job.id

    async def start_rebalance(self, job_id: str) -> str:
        """Begin to even out bytes and activity.

        Returns: the job's id, that of the rebalancing under way where there is one.
        """
        async with self._starting:
            if self._known(job_id):
                return job_id
            for running in self._log.running("rebalance"):
                return running.id
            nodes = self._router.pool.nodes
            self._launch(job := await self._log.begin(job_id, "rebalance", alive=nodes))
            return job.id

    def _known(self, job_id: str) -> bool:
        """Say whether a job was begun already: the question was asked twice."""
        return self._log.get(job_id) is not None

    def _launch(self, job: Job) -> None:
        run = self._running[job.id] = _Run(job)
        run.tries.update(self._log.names(job.id) if job.kind == "rebalance" else ())
        run.task = asyncio.create_task(self._run(run))
        reports.job_started(job)

    async def _run(self, run: _Run) -> None:
        try:
            reason = await self._carry_through(run)
            state = JobState.DONE if reason is None else JobState.FAILED
            await self._end(run.job, state, reason)
        finally:
            if not run.stopped:
                self._forget(run)

    async def _carry_through(self, run: _Run) -> str | None:
        """Do a job, again after trouble that is not its own; returns why it cannot be done."""
        for troubles in range(TROUBLES_MAX + 1):
            try:
                await (self._drain(run) if run.job.kind == "drain" else self._rebalance(run))
            except NodeGoneError as error:
                return str(error)
            except Exception as error:
                cause: BaseException = error
                while isinstance(cause, BaseExceptionGroup):
                    cause = cause.exceptions[0]
                if troubles == TROUBLES_MAX:
                    return str(cause) or type(cause).__name__
                await asyncio.sleep(TROUBLE_PAUSE_S)
            else:
                return None
        raise AssertionError

    async def _end(self, job: Job, state: JobState, reason: str | None = None) -> None:
        if await self._log.end(job.id, state, reason):
            moved, failed, _ = self._log.counts(job.id)
            reports.job_ended(job, state, moved, failed)

    async def _stop(self, run: _Run) -> None:
        """Give up what is under way; its row says that it runs until somebody ends it."""
        assert run.task is not None
        run.stopped = True
        run.task.cancel()
        await asyncio.wait([run.task])

    def _forget(self, run: _Run) -> None:
        self._running.pop(run.job.id, None)
        run.ended.set()

    # ---------------------------------------------------------------------------- watching

    async def all(self) -> list[JobInfo]:
        """Return the jobs that run and the last that have ended, in the order they began."""
        await self._log.durable()
        return [self._info(job) for job in self._log.all()]

    async def progress(self, job_id: str) -> JobInfo:
        """Say how far a job has come.

        Raises: ValueError for an unknown one.
        """
        await self._log.durable()
        return self._info(self._job(job_id))

    async def report(self, job_id: str) -> JobReport:
        """Wait for a job and return what it did.

        Raises: ValueError for an unknown one.
        """
        self._job(job_id)
        run = self._running.get(job_id)
        if run is not None:
            await run.ended.wait()
        job = self._job(job_id)
        counts = self._log.counts(job_id)
        ended = self._router.directory.now_ms() if job.ended_at is None else job.ended_at
        await self._log.durable()
        return JobReport(
            id=job.id,
            kind=job.kind,
            node_id=job.node_id,
            state=job.state.value,
            moved=counts.moved,
            bytes=counts.bytes,
            reports=tuple(self._log.reports(job_id)),
            failed=self._log.failed(job_id),
            seconds=(ended - job.started_at) / 1000,
            error=job.error,
        )

    def _job(self, job_id: str) -> Job:
        job = self._log.get(job_id)
        if job is None:
            raise ValueError(f"job: none is {job_id!r}, see jobs()")
        return job

    def _info(self, job: Job) -> JobInfo:
        counts: Counts = self._log.counts(job.id)
        run = self._running.get(job.id)
        return JobInfo(
            id=job.id,
            kind=job.kind,
            node_id=job.node_id,
            state=job.state.value,
            total=counts.moved + counts.failed + (0 if run is None else run.left),
            moved=counts.moved,
            failed=counts.failed,
            bytes=counts.bytes,
            started_at=iso_from_ms(job.started_at),
            ended_at=None if job.ended_at is None else iso_from_ms(job.ended_at),
            announced=job.announced,
            error=job.error,
        )

    # ---------------------------------------------------------------------------- giving up

    async def cancel(self, job_id: str) -> bool:
        """Give up a job; says whether it was running. What it has moved stays moved.

        A node that it was emptying takes conversations again.
        Raises: ValueError for an unknown one.
        """
        async with self._starting:
            job = self._job(job_id)
            if job.state is not JobState.RUNNING:
                return False
            await self._cancel(job, None)
            if job.node_id is not None:
                await self._open(job.node_id)
            return True

    async def undrain(self, node_id: str) -> None:
        """Let a node take conversations again, giving up a drain under way."""
        async with self._starting:
            for job in self._log.running("drain", node_id):
                await self._cancel(job, None)
            await self._open(node_id)

    async def _cancel(self, job: Job, reason: str | None) -> None:
        run = self._running.get(job.id)
        if run is not None:
            await self._stop(run)
        await self._end(job, JobState.CANCELLED, reason)
        if run is not None:
            self._forget(run)

    async def _open(self, node_id: str) -> None:
        await self._log.open(node_id)
        await self._mark(node_id, False)

    async def _mark(self, node_id: str, draining: bool) -> None:
        pool = self._router.pool
        pool.set_draining(node_id, draining)
        disk = next((v.disk_id for v in pool.views() if v.node_id == node_id), None)
        if disk is not None:
            noted = self._router.directory.note_node(
                node_id, disk, draining=draining, machine_id=pool.machine(node_id) or ""
            )
            await made(noted)

    # ----------------------------------------------------------------------------- notices

    async def heed(self) -> None:
        """Drain the nodes whose end Ray announces; open those whose notice ended without it."""
        nodes = self._router.pool.nodes
        announced = await self._router.cluster.draining() & set(nodes)
        for node_id in sorted(announced - self._heeded):
            job = self._log.get(_notice(node_id))
            if job is None or not job.announced:  # else an earlier router saw to it
                try:
                    await self.start_drain(node_id, _notice(node_id), announced=True)
                except (NoCapacityError, ValueError):  # no other node yet, or it has gone
                    continue
            self._heeded.add(node_id)
        self._heeded &= announced
        for job in self._log.all():
            if job.announced and job.node_id in nodes and job.node_id not in announced:
                await self._withdraw(job)

    async def _withdraw(self, job: Job) -> None:
        """End what was done on account of a notice that has ended, unless somebody asked too."""
        assert job.node_id is not None
        async with self._starting:
            await self._cancel(job, "the notice ended and the node is still there")
            await self._log.own(job.id, standing=False)
            if not self._log.standing(job.node_id):
                await self._mark(job.node_id, False)

    # ------------------------------------------------------------------------------- drain

    async def _drain(self, run: _Run) -> None:
        """Empty a node in passes, until one finds nothing that it could still try."""

        async def empty(item: tuple[str, str | None]) -> None:
            name, disk_id = item
            if run.tries[name] < TRIES:
                moved = await self._attempt(run, name, lambda: self._bring_off(name, disk_id))
                if moved and disk_id is not None:
                    del run.tries[name]  # it is off the disk, and need not be remembered
            elif name not in run.failed:
                await self._fail(run, name, "it came back: no other node could serve it")
            run.left = max(0, run.left - 1)

        attempts = -1
        while run.attempts > attempts or await self._await_arrivals(run.job):
            attempts = run.attempts
            await self._router.pool.refresh()
            await self._learn_disk(run)
            run.left, held = self._held(run.job)
            await each(held, empty, MOVES_MAX)
        run.left = 0

    async def _await_arrivals(self, job: Job) -> bool:
        """Wait for what was on its way to a node before it was emptied; says whether any was.

        Moves that had begun, and owners that were being started: each holds its name's lock.
        """
        router = self._router

        def comes(entry: Entry) -> bool:
            if entry.node_id == job.node_id and router.serving(entry.name) is None:
                return True
            target = entry.target or {}
            return job.node_id == target.get("node_id") or (
                job.disk_id is not None and job.disk_id == target.get("disk_id")
            )

        names = [entry.name for entry in router.directory.unsettled() if comes(entry)]
        names = [name for name in names if router.locks.is_held(name)]
        for name in names:
            async with router.locks.hold(name):
                pass
        return bool(names)

    async def _learn_disk(self, run: _Run) -> None:
        """Learn which disk a node mounts that has not told, and remember it beyond its end."""
        for view in self._router.pool.views():
            if view.node_id != run.job.node_id:
                continue
            disk = view.disk_id or await self._meet(view)
            if disk is not None and disk != run.job.disk_id:
                run.job = replace(run.job, disk_id=disk)
                await self._log.learn_disk(run.job.id, disk)

    def _held(self, job: Job) -> tuple[int, AsyncIterator[tuple[str, str | None]]]:
        """List what a node holds: how many, their names, each with the disk it has to leave, if so.

        Raises: NodeGoneError when the node is gone and took its disk along; RuntimeError when it
            is not known which disk that is.
        """
        router, node_id = self._router, job.node_id
        assert node_id is not None
        views = {view.node_id: view for view in router.pool.views()}
        disk = job.disk_id
        served = [s.name for s in router.servings() if s.slot.node_id == node_id]
        if disk is None and node_id not in views:
            raise NodeGoneError("the node is gone, and did not tell which disk it mounted")
        if disk is None:
            raise RuntimeError(
                "which disk the node mounts is not known: no actor could start there"
            )
        others = [v for v in views.values() if v.disk_id == disk and v.node_id != node_id]
        if any(not view.draining for view in others):
            return len(served), _in_turn((name, None) for name in served)
        count = router.directory.count_on_disk(disk)
        if node_id not in views and not others and count:
            raise NodeGoneError(f"the node is gone, and {count} conversations are on its disk")
        return count, self._on_disk(disk)

    async def _on_disk(self, disk_id: str) -> AsyncIterator[tuple[str, str | None]]:
        after: str | None = None
        while page := self._router.directory.on_disk(disk_id, after, DRAIN_PAGE):
            after = page[-1].name
            for entry in page:
                yield entry.name, disk_id
            await asyncio.sleep(0)

    async def _bring_off(self, name: str, disk_id: str | None) -> MigrationReport | None:
        """Bring one conversation off a disk; None: its file stays there, and it wakes elsewhere."""
        if disk_id is not None:
            if self._router.entry(name).disk_id != disk_id:  # somebody moved it meanwhile
                raise ConversationNotFoundError(name)
            return await self._relocation.resettle(name)
        await self._relocation.put_to_sleep(name)
        return None

    # --------------------------------------------------------------------------- rebalance

    async def _rebalance(self, run: _Run) -> None:
        """Plan and move until a plan holds nothing new."""
        router = self._router
        await router.pool.refresh()
        strangers = [v for v in router.pool.views() if v.disk_id is None and not v.draining]
        await asyncio.gather(*map(self._meet, strangers))
        while True:
            await router.pool.refresh()
            disks, held = await survey(router)
            candidates = [one for one in held if one.name not in run.tries]
            plan = partial(plan_moves, bytes_min=self._bytes_min)
            moves = await asyncio.to_thread(plan, router.pool.views(), disks, candidates)
            run.left = len(moves)
            if not moves:
                return

            async def carry_out(move: Move) -> None:
                await self._attempt(run, move.name, lambda: self._carry_out(move))
                run.left -= 1

            await each(_in_turn(moves), carry_out, MOVES_MAX)

    async def _meet(self, node: NodeView) -> str | None:
        """Learn which disk a node mounts, from an actor on it; None when it can have none now."""

        def only(views: list[NodeView]) -> list[NodeView]:
            return [view for view in views if view.node_id == node.node_id]

        pool = self._router.pool
        try:
            slot = await pool.acquire("", only, MEET_TIMEOUT_S, grow=True)
        except Exception:
            return None
        pool.release(slot)
        return slot.disk_id

    async def _carry_out(self, move: Move) -> MigrationReport | None:
        entry = self._router.entry(move.name)
        if entry.disk_id != move.source_disk_id:  # somebody moved it meanwhile
            raise ConversationNotFoundError(move.name)
        if self._router.pool.is_draining(move.node_id):
            raise _TargetClosedError
        if move.copies:
            return await self._relocation.resettle(move.name, move.node_id)
        await self._relocation.hand_over(move.name, move.node_id)
        return None

    # ------------------------------------------------------------------------------- moves

    async def _attempt(
        self, run: _Run, name: str, move: Callable[[], Awaitable[MigrationReport | None]]
    ) -> bool:
        """Move one conversation and note what came of it; says whether this moved it."""
        run.tries[name] += 1
        run.attempts += 1
        try:
            report = await move()
        except ConversationNotFoundError:  # deleted, or moved by somebody
            return False
        except _TargetClosedError:  # the next plan finds another place for it
            del run.tries[name]
            return False
        except Exception as error:
            await self._fail(run, name, str(error) or type(error).__name__)
            return False
        await self._log.moved(run.job.id, name, report)
        run.failed.discard(name)
        return True

    async def _fail(self, run: _Run, name: str, reason: str) -> None:
        run.failed.add(name)
        await self._log.could_not(run.job.id, name, reason)


def _notice(node_id: str) -> str:
    """Return the id of the drain that a node's announced end begins."""
    return f"notice-{node_id[:12]}"


async def _in_turn(items: Iterable[T]) -> AsyncIterator[T]:
    for item in items:
        yield item


async def each(items: AsyncIterator[T], work: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Do something for each item, some at once; the next is asked for when one is done."""
    asking = asyncio.Lock()

    async def worker() -> None:
        while True:
            heed_cancelling()
            async with asking:
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
