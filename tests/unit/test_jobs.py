"""Drains and rebalancing over a fake cluster: what moves, what is told, what outlives a router."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from router import jobs as module
from router.job_log import ENDED_KEPT, JobLog, JobState
from router.jobs import TRIES, TROUBLES_MAX, each
from router.models import JobReport, MigrationReport, TableDigest
from router.through import heed_cancelling
from sessions_actor.errors import MigrationFailedError, NoCapacityError
from sessions_actor.storage import Storage

from .deployments import Deployment, World, ids, message
from .fake_cluster import until


async def drained(life: Deployment, node_id: str = "node-0", job_id: str = "j1") -> JobReport:
    return await life.jobs.report(await life.jobs.start_drain(node_id, job_id))


async def rebalanced(life: Deployment, job_id: str = "r1") -> JobReport:
    return await life.jobs.report(await life.jobs.start_rebalance(job_id))


async def made(life: Deployment, count: int, text_bytes: int = 10) -> list[str]:
    """Make conversations, which hibernate."""
    names = [f"c{i:02}" for i in range(count)]
    for name in names:
        text = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "x" * text_bytes}]}
        await life.get(name).append_message(text)
        await life.administration.hibernate(name)
    return names


def node_of(life: Deployment, name: str) -> str | None:
    serving = life.router.serving(name)
    return None if serving is None else serving.slot.node_id


def lie_on(life: Deployment) -> Counter[str]:
    """How many conversations lie on the disk of each node that mounts one alone."""
    disks = {view.disk_id: view.node_id for view in life.router.pool.views()}
    return Counter(disks[disk] for _, disk, _ in life.directory.sizes(None, 1000))


async def states(life: Deployment) -> dict[str, str]:
    return {node.node_id: node.state for node in await life.administration.nodes()}


async def for_ever() -> None:
    """Wait until cancelled, also if that happened before."""
    while True:
        heed_cancelling()
        await asyncio.sleep(0.001)


class Gate:
    """Lets a life's migrations begin, and holds them until it is opened."""

    def __init__(self, life: Deployment) -> None:
        self.begun: list[str] = []
        self.opened = asyncio.Event()
        copy = life.relocation._copy

        async def held(name: str, *args: Any) -> Any:
            self.begun.append(name)
            await self.opened.wait()
            return await copy(name, *args)

        life.relocation._copy = held


# ------------------------------------------------------------------------------------- drain


async def test_a_drain_empties_a_node_of_what_only_it_can_open(world: World) -> None:
    life = await world.start()
    for i in range(5):
        await life.get(f"c{i}").append_message(message("m"))
    await life.administration.hibernate("c0")
    with pytest.raises(NoCapacityError):
        await life.jobs.start_drain("node-0", "j1")
    with pytest.raises(ValueError, match="nowhere"):
        await life.jobs.start_drain("nowhere", "j1")
    assert await life.jobs.all() == []
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    report = await drained(life)
    assert (report.state, report.moved, report.failed, report.error) == ("done", 5, {}, None)
    assert {one.target_node_id for one in report.reports} == {"node-1"}
    assert report.bytes == sum(one.bytes for one in report.reports) > 0
    assert node_of(life, "c0") is None  # it slept, and sleeps again
    (info,) = await life.jobs.all()
    assert (info.total, info.moved, info.failed, info.done) == (5, 5, 0, True)
    assert info.ended_at is not None
    for i in range(5):
        assert await ids(life.get(f"c{i}")) == ["m"]
        assert node_of(life, f"c{i}") == "node-1"
    nodes = {node.node_id: node for node in await life.administration.nodes()}
    assert (nodes["node-0"].state, nodes["node-0"].active) == ("draining", 0)
    await life.jobs.undrain("node-0")
    assert (await states(life))["node-0"] == "alive"


async def test_a_drain_of_a_node_on_a_shared_disk_only_lets_go(world: World) -> None:
    world.cluster.roots["node-1"] = world.root
    life = await world.start()
    for i in range(4):
        await life.get(f"c{i}").append_message(message("m"))
    report = await drained(life)
    assert (report.failed, report.reports, report.bytes) == ({}, (), 0)
    for i in range(4):
        assert await ids(life.get(f"c{i}")) == ["m"]
        assert node_of(life, f"c{i}") == "node-1"


async def test_who_asks_again_joins_the_drain_under_way(world: World) -> None:
    life = await world.start()
    await made(life, 3)
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    gate = Gate(life)
    assert await life.jobs.start_drain("node-0", "j1") == "j1"
    assert await life.jobs.start_drain("node-0", "j2") == "j1"
    assert await life.jobs.start_drain("node-0", "j1") == "j1"  # the same question, asked twice
    await until(lambda: gate.begun)
    progress = await life.jobs.progress("j1")
    assert (progress.state, progress.total, progress.moved) == ("running", 3, 0)
    assert not progress.done
    gate.opened.set()
    assert (await life.jobs.report("j1")).moved == 3
    assert await life.jobs.start_drain("node-0", "j1") == "j1"
    assert [job.id for job in await life.jobs.all()] == ["j1"]


async def test_what_cannot_move_is_tried_again_and_reported(world: World) -> None:
    life = await world.start()
    await made(life, 4)
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    copy, tries = life.relocation._copy, Counter[str]()

    async def fails(name: str, *args: Any) -> Any:
        tries[name] += 1
        if name == "c01" or (name == "c02" and tries[name] == 1):
            raise OSError("the network is gone")
        return await copy(name, *args)

    life.relocation._copy = fails
    report = await drained(life)
    assert (report.state, report.moved, list(report.failed)) == ("done", 3, ["c01"])
    assert "the network is gone" in report.failed["c01"]
    assert tries == {"c00": 1, "c01": TRIES, "c02": 2, "c03": 1}
    life.relocation._copy = copy
    assert (await drained(life, job_id="j2")).moved == 1
    assert lie_on(life) == {"node-1": 4}


async def test_one_that_is_deleted_meanwhile_is_no_failure(world: World) -> None:
    life = await world.start()
    await made(life, 3)
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    gate = Gate(life)
    await life.jobs.start_drain("node-0", "j1")
    await until(lambda: gate.begun)
    waiting = [name for name in ("c00", "c01", "c02") if name not in gate.begun]
    assert waiting
    await life.administration.delete(waiting[-1])
    gate.opened.set()
    report = await life.jobs.report("j1")
    assert (report.moved, report.failed) == (2, {})


async def test_few_moves_go_on_at_once(world: World) -> None:
    life = await world.start(max_active=40)
    await made(life, 12)
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    copy, now, most = life.relocation._copy, 0, 0

    async def counted(*args: Any) -> Any:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        try:
            return await copy(*args)
        finally:
            now -= 1

    life.relocation._copy = counted
    assert (await drained(life)).moved == 12
    assert 1 < most <= 4


async def test_a_drain_that_is_cancelled_leaves_everything_whole(world: World) -> None:
    life = await world.start()
    names = await made(life, 5)
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    gate = Gate(life)
    await life.jobs.start_drain("node-0", "j1")
    waiter = asyncio.ensure_future(life.jobs.report("j1"))
    await until(lambda: gate.begun)
    assert await life.jobs.cancel("j1")
    report = await waiter
    assert (report.state, report.moved, report.failed) == ("cancelled", 0, {})
    assert not await life.jobs.cancel("j1")
    with pytest.raises(ValueError, match="none is 'x'"):
        await life.jobs.cancel("x")
    assert (await states(life))["node-0"] == "alive"
    assert lie_on(life) == {"node-0": 5}
    for name in names:
        assert await ids(life.get(name)) == ["m"]
    gate.opened.set()
    assert (await drained(life, job_id="j2")).moved == 5


# ---------------------------------------------------------------------- a router that restarts


async def test_a_router_that_starts_goes_on_with_a_drain(world: World) -> None:
    first = await world.start()
    names = await made(first, 6)
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    copy = first.relocation._copy
    blocked = asyncio.Event()

    async def some(name: str, *args: Any) -> Any:
        if name in ("c00", "c01"):
            return await copy(name, *args)
        if name == "c02":
            raise OSError("for good")
        blocked.set()
        await for_ever()

    first.relocation._copy = some
    await first.jobs.start_drain("node-0", "j1")
    await blocked.wait()
    await until(lambda: first.directory.jobs.counts("j1")[:2] == (2, 1))
    await first.die()
    second = await world.start()
    report = await second.jobs.report("j1")  # nobody asked it to go on
    assert (report.state, report.moved, report.failed) == ("done", 6, {})
    assert len(report.reports) == 6
    assert lie_on(second) == {"node-1": 6}
    assert (await states(second))["node-0"] == "draining"
    for name in names:
        assert await ids(second.get(name)) == ["m"]


@pytest.mark.parametrize("moved", range(4))
async def test_a_router_that_dies_after_any_move_loses_none(world: World, moved: int) -> None:
    first = await world.start()
    names = await made(first, 4)
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    note, died, noted = first.directory.jobs.moved, asyncio.Event(), 0

    async def dies(job_id: str, *args: Any) -> None:
        nonlocal noted
        noted += 1
        if noted > moved:
            died.set()
            await for_ever()
        await note(job_id, *args)

    first.directory.jobs.moved = dies  # type: ignore[method-assign]
    await first.jobs.start_drain("node-0", "j1")
    await died.wait()
    await first.die()
    second = await world.start()
    report = await second.jobs.report("j1")
    assert (report.state, report.failed) == ("done", {})
    assert lie_on(second) == {"node-1": 4}
    for name in names:
        assert await ids(second.get(name)) == ["m"]


async def test_a_node_that_went_before_it_was_empty_is_said(world: World) -> None:
    first = await world.start()
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    await first.router.pool.refresh()
    first.router.pool.set_draining("node-0", True)
    await made(first, 2)  # on node-1
    first.router.pool.set_draining("node-0", False)
    assert lie_on(first) == {"node-1": 2}
    Gate(first)
    await first.jobs.start_drain("node-1", "j1")
    await first.die()
    del world.cluster.roots["node-1"]
    for actor, node in world.cluster.actors.values():
        if node == "node-1":
            actor.die()
    second = await world.start()
    report = await second.jobs.report("j1")
    assert report.state == "failed"
    assert report.error == "the node is gone, and 2 conversations are on its disk"


@pytest.mark.parametrize("troubles", [2, 99])
async def test_a_cluster_in_trouble_does_not_end_a_drain_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, troubles: int
) -> None:
    monkeypatch.setattr(module, "TROUBLE_PAUSE_S", 0.0)
    life = await world.start()
    await made(life, 2)
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    refresh, asked = life.router.pool.refresh, 0

    async def troubled() -> Any:
        nonlocal asked
        asked += 1
        if 1 < asked <= 1 + troubles:  # the first is asked when the drain begins
            raise OSError("the cluster does not answer")
        return await refresh()

    monkeypatch.setattr(life.router.pool, "refresh", troubled)
    report = await drained(life)
    if troubles == 2:
        assert (report.state, report.moved) == ("done", 2)
    else:
        assert (report.state, report.error) == ("failed", "the cluster does not answer")
        assert asked == 2 + TROUBLES_MAX


# --------------------------------------------------------------------------------- rebalance


async def test_rebalancing_fills_a_new_node_and_then_rests(world: World) -> None:
    life = await world.start()
    names = await made(life, 8, 50_000)
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    report = await rebalanced(life)
    assert (report.state, report.moved, report.failed) == ("done", 4, {})
    assert {one.target_node_id for one in report.reports} == {"node-1"}
    assert lie_on(life) == {"node-0": 4, "node-1": 4}
    assert not life.router.servings()
    again = await rebalanced(life, "r2")
    assert (again.state, again.moved) == ("done", 0)
    for name in names:
        assert await ids(life.get(name)) == ["m"]


async def test_rebalancing_hands_active_conversations_over_without_a_copy(world: World) -> None:
    life = await world.start(max_active=8)
    for i in range(6):
        await life.get(f"c{i}").append_message(message("m"))
    world.cluster.roots["node-1"] = world.root
    epochs = {one.name: one.epoch for one in life.router.servings()}  # some made room for others
    report = await rebalanced(life)
    assert (report.reports, report.bytes, report.failed) == ((), 0, {})
    assert report.moved == len(epochs) // 2 > 0
    on_nodes = Counter(node_of(life, name) for name in epochs)
    assert on_nodes["node-1"] == report.moved
    assert on_nodes["node-0"] == len(epochs) - report.moved
    for name, epoch in epochs.items():
        after = life.directory.get(name)
        assert after is not None
        assert after.epoch == epoch + (node_of(life, name) == "node-1")
    assert (await rebalanced(life, "r2")).moved == 0
    for name in epochs:
        assert await ids(life.get(name)) == ["m"]


async def test_writers_go_on_while_it_is_evened_out(world: World) -> None:
    life = await world.start(max_active=8)
    names = await made(life, 6, 20_000)
    written: dict[str, list[str]] = {name: ["m"] for name in names}
    stop = False

    async def write(name: str) -> None:
        session = life.get(name)
        while not stop:
            one = f"w{len(written[name])}"
            await session.append_message(message(one))
            written[name].append(one)

    writers = [asyncio.create_task(write(name)) for name in names]
    await until(lambda: min(map(len, written.values())) > 3)
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    report = await rebalanced(life)
    assert report.failed == {}
    assert report.moved >= 2
    stop = True
    await asyncio.gather(*writers)
    for name in names:
        assert await ids(life.get(name)) == written[name]


async def test_a_router_that_starts_goes_on_rebalancing(world: World) -> None:
    first = await world.start()
    await made(first, 8, 50_000)
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    copy, copied = first.relocation._copy, 0

    async def one(*args: Any) -> Any:
        nonlocal copied
        copied += 1
        return await (copy(*args) if copied == 1 else for_ever())

    first.relocation._copy = one
    assert await first.jobs.start_rebalance("r1") == "r1"
    assert await first.jobs.start_rebalance("r2") == "r1"
    await until(lambda: first.directory.jobs.counts("r1").moved == 1 and copied > 1)
    await first.die()
    second = await world.start()
    report = await second.jobs.report("r1")
    assert (report.state, report.moved, report.failed) == ("done", 4, {})
    assert lie_on(second) == {"node-0": 4, "node-1": 4}


async def test_a_conversation_that_cannot_move_is_not_planned_for_ever(world: World) -> None:
    life = await world.start()
    await made(life, 4, 50_000)
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    tries = Counter[str]()

    async def fails(name: str, *args: Any) -> Any:
        tries[name] += 1
        raise MigrationFailedError(name, "copy", "no")

    life.relocation._copy = fails
    report = await rebalanced(life)
    assert (report.state, report.moved) == ("done", 0)
    assert set(tries.values()) == {1}
    assert set(report.failed) == set(tries)


# ----------------------------------------------------------------------------------- notices


async def test_a_node_whose_end_is_announced_is_drained(world: World) -> None:
    life = await world.start()
    await made(life, 3)
    world.cluster.announced.add("node-0")
    await life.jobs.heed()  # nobody else is there: nothing can be done yet
    assert await life.jobs.all() == []
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    for _ in range(2):
        await life.jobs.heed()
    (job,) = await life.jobs.all()
    assert (job.announced, job.node_id) == (True, "node-0")
    assert (await life.jobs.report(job.id)).moved == 3
    assert (await states(life))["node-0"] == "draining"
    await life.jobs.heed()
    assert len(await life.jobs.all()) == 1
    world.cluster.announced.clear()
    await life.jobs.heed()
    assert (await states(life))["node-0"] == "alive"
    world.cluster.announced.add("node-0")  # a second notice is heeded as the first was
    await life.jobs.heed()
    assert (await states(life))["node-0"] == "draining"


async def test_a_notice_that_ends_ends_its_drain(world: World) -> None:
    life = await world.start()
    await made(life, 3)
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    world.cluster.announced.add("node-0")
    Gate(life)
    await life.jobs.heed()
    world.cluster.announced.clear()
    await life.jobs.heed()
    (job,) = await life.jobs.all()
    assert (job.state, job.error) == (
        "cancelled", "the notice ended and the node is still there"
    )  # fmt: skip
    assert (await states(life))["node-0"] == "alive"
    assert lie_on(life) == {"node-0": 3}


@pytest.mark.parametrize("asked", ["before", "while", "after"])
async def test_a_drain_that_somebody_asked_for_outlasts_a_notice(world: World, asked: str) -> None:
    life = await world.start()
    await made(life, 3)
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    gate = Gate(life)
    if asked == "before":
        await life.jobs.start_drain("node-0", "j1")
    world.cluster.announced.add("node-0")
    await life.jobs.heed()
    if asked == "while":
        assert (await life.jobs.start_drain("node-0", "j1")).startswith("notice-")
    gate.opened.set()
    await asyncio.gather(*(life.jobs.report(job.id) for job in await life.jobs.all()))
    if asked == "after":
        await drained(life)
    world.cluster.announced.clear()
    await life.jobs.heed()
    assert (await states(life))["node-0"] == "draining"
    assert lie_on(life) == {"node-1": 3}


async def test_an_announced_drain_that_is_cancelled_stays_so(world: World) -> None:
    first = await world.start()
    await made(first, 2)
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    world.cluster.announced.add("node-0")
    Gate(first)
    await first.jobs.heed()
    (job,) = await first.jobs.all()
    assert await first.jobs.cancel(job.id)
    await first.jobs.heed()
    assert (await states(first))["node-0"] == "alive"
    await first.die()
    second = await world.start()
    await second.jobs.heed()
    assert (await states(second))["node-0"] == "alive"


async def test_a_notice_that_ends_while_no_router_runs(world: World) -> None:
    first = await world.start()
    await made(first, 2)
    world.cluster.roots["node-1"] = world.root.parent / "other-disk"
    world.cluster.announced.add("node-0")
    await first.jobs.heed()
    (job,) = await first.jobs.all()
    await first.jobs.report(job.id)
    await first.die()
    world.cluster.announced.clear()
    second = await world.start()
    assert (await states(second))["node-0"] == "draining"
    await second.jobs.heed()
    assert (await states(second))["node-0"] == "alive"


async def test_upkeep_heeds_notices(world: World) -> None:
    life = await world.start(idle_timeout_s=0.1)
    world.cluster.roots["node-1"] = world.root
    life.upkeep.chores.append(life.jobs.heed)
    await life.router.pool.refresh()
    world.cluster.announced.add("node-1")
    await until(lambda: "node-1" in life.router.pool._draining)


# -------------------------------------------------------------------------------------- rows


async def test_the_log_tells_what_was_written(tmp_path: Path) -> None:
    clock = iter(range(1000, 5000))
    storage = Storage(tmp_path / "d.sqlite")
    log = JobLog(storage, lambda: next(clock))
    report = MigrationReport("b", "n1", "n2", 3, {"t": TableDigest(3, "x")}, 3, 4096, 0.25)
    await log.begin("j1", "drain", "n1", "d1")
    await log.could_not("j1", "b", "for now")
    await log.moved("j1", "b", report)
    await log.moved("j1", "a", None)
    await log.could_not("j1", "é", "for good")
    assert log.counts("j1") == (2, 1, 4096)
    assert (log.reports("j1"), log.failed("j1")) == ([report], {"é": "for good"})
    assert log.names("j1") == {"a", "b", "é"}
    await log.end("j1", JobState.DONE)
    await log.end("j1", JobState.FAILED, "too late")
    job = log.get("j1")
    assert job is not None
    assert (job.state, job.error, job.standing) == (JobState.DONE, None, True)
    for i in range(ENDED_KEPT + 5):
        await log.begin(f"r{i}", "rebalance", alive=["n1"])
        await log.moved(f"r{i}", "a", None)
        await log.end(f"r{i}", JobState.DONE)
    kept = [job.id for job in log.all()]
    assert len(kept) <= ENDED_KEPT + 2
    assert kept[0] == "j1"  # its node still takes nothing
    assert kept[-1] == f"r{ENDED_KEPT + 4}"
    left = storage.fetch("SELECT DISTINCT job_id FROM job_moves")
    assert {row[0] for row in left} == set(kept)
    await log.begin("last", "rebalance", alive=["n2"])
    assert log.get("j1") is None, "its node is gone for good"
    storage.close()


async def test_each_item_is_asked_for_when_somebody_is_free() -> None:
    asked: list[int] = []
    done: list[int] = []
    go_on = asyncio.Event()

    async def items() -> AsyncIterator[int]:
        for i in range(7):
            asked.append(i)
            yield i

    async def work(item: int) -> None:
        await go_on.wait()
        done.append(item)

    running = asyncio.ensure_future(each(items(), work, 3))
    for _ in range(20):
        await asyncio.sleep(0)
    assert asked == [0, 1, 2]
    go_on.set()
    await running
    assert sorted(done) == list(range(7))
