"""Actor processes: reused, kept warm, bounded, handed out in order."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from router.cluster import Slot
from router.placement import candidates
from router.pool import EVICTIONS_MAX, Pool
from sessions_actor import meters
from sessions_actor.errors import NoCapacityError, StorageError

from .fake_cluster import FakeCluster, until

ANY = partial(candidates, disk_id=None)


class Rig:
    """A pool over a fake cluster, and what it may evict."""

    def __init__(self, cluster: FakeCluster, **options: Any) -> None:
        self.cluster = cluster
        self.evictable: list[Slot] = []
        self.asked = self.turns = 0
        chosen = {"warm_actors": 0, "max_active": 3} | options
        self.pool = Pool(cluster, evict=self.evict, **chosen)

    async def evict(self, node_id: str, *, idle_s: float, turn: bool = False) -> bool:
        self.asked += 1
        self.turns += turn
        if not self.evictable:
            return False
        await asyncio.sleep(0)
        self.pool.release(self.evictable.pop(0))
        return True


@pytest.fixture
async def rigs(tmp_path: Path) -> AsyncIterator[Any]:
    made: list[Rig] = []

    async def make(nodes: int = 1, **options: Any) -> Rig:
        cluster = FakeCluster({f"node-{i}": tmp_path / f"disk-{i}" for i in range(nodes)})
        rig = Rig(cluster, **options)
        await rig.pool.refresh()
        made.append(rig)
        return rig

    yield make
    for rig in made:
        await rig.pool.close()


async def test_a_released_actor_is_used_again(rigs: Any) -> None:
    rig = await rigs()
    first = await rig.pool.acquire("a", ANY, 5)
    assert first.name == "a"
    rig.pool.release(first)
    assert await rig.pool.acquire("b", ANY, 5) is first
    assert rig.cluster.starts == 1


async def test_processes_are_bounded_and_waiting_too(rigs: Any) -> None:
    rig = await rigs()
    slots = await asyncio.gather(*(rig.pool.acquire(f"c{i}", ANY, 5) for i in range(3)))
    assert len({slot.actor_name for slot in slots}) == 3
    with pytest.raises(NoCapacityError) as refused:
        await rig.pool.acquire("late", ANY, 0.1)
    assert refused.value.node_count == 1
    assert rig.cluster.starts == 3
    assert rig.asked > 0


async def test_an_eviction_that_hangs_holds_up_nobody(rigs: Any) -> None:
    rig = await rigs(nodes=2, max_active=2)
    asked = 0

    async def hang(node_id: str, *, idle_s: float, turn: bool = False) -> bool:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()
        return True

    rig.pool._evict = hang
    for i in range(4):  # each next one would need an eviction, or a process started
        await rig.pool.acquire(f"c{i}", ANY, 5)
    assert asked > 0
    waiting = [asyncio.create_task(rig.pool.acquire(f"late{i}", ANY, 5)) for i in range(2)]
    await asyncio.sleep(0.1)
    assert asked <= 2 * EVICTIONS_MAX, "those that hang are counted"
    slot = rig.pool.slots[0]
    rig.pool.release(slot)
    assert await waiting[0] is slot
    waiting[1].cancel()


async def test_who_asks_first_is_served_first(rigs: Any) -> None:
    rig = await rigs(max_active=1)
    slot = await rig.pool.acquire("holder", ANY, 5)
    order: list[int] = []

    async def wait(number: int) -> None:
        found = await rig.pool.acquire(f"c{number}", ANY, 5)
        order.append(number)
        rig.pool.release(found)

    waiting = [asyncio.create_task(wait(i)) for i in range(10)]
    await asyncio.sleep(0)
    rig.pool.release(slot)
    await asyncio.gather(*waiting)
    assert order == list(range(10))


async def test_an_idle_conversation_makes_room_instead_of_a_new_process(rigs: Any) -> None:
    rig = await rigs()
    rig.evictable.append(await rig.pool.acquire("old", ANY, 5))
    slot = await rig.pool.acquire("new", ANY, 5)
    assert slot.name == "new"
    assert rig.cluster.starts == 1


async def test_a_conversation_that_was_evicted_lately_brings_a_new_process(rigs: Any) -> None:
    rig = await rigs()
    rig.cluster.start_delay_s = 0.01
    rig.evictable.append(await rig.pool.acquire("old", ANY, 5))
    await rig.pool.acquire("again", ANY, 5, grow=True)
    assert rig.cluster.starts == 2


async def test_warm_actors_stand_ready_within_the_bound(rigs: Any) -> None:
    rig = await rigs(warm_actors=2)
    await rig.pool.acquire("a", ANY, 5)
    await until(lambda: sum(view.idle for view in rig.pool.views()) == 2)
    await asyncio.gather(*(rig.pool.acquire(f"c{i}", ANY, 5) for i in range(2)))
    assert rig.cluster.starts == 3


async def test_actors_that_are_expected_stand_ready_on_all_nodes_together(rigs: Any) -> None:
    rig = await rigs(nodes=2, warm_actors=1, max_active=3)
    for name in rig.cluster.roots:
        rig.pool.set_disk(name, f"disk of {name}", "machine")

    def idle() -> list[int]:
        return [view.idle for view in rig.pool.views()]

    with contextlib.ExitStack() as held:
        held.enter_context(rig.pool.expecting(1))
        await until(lambda: idle() == [2, 2])
        for _ in range(9):
            held.enter_context(rig.pool.expecting(1))
        await until(lambda: idle() == [3, 3])
        await until(lambda: not rig.pool._refilling)
    assert rig.cluster.starts == 6
    await asyncio.gather(*(rig.pool.acquire(f"c{i}", ANY, 5) for i in range(6)))
    assert rig.cluster.starts == 6


async def test_actors_that_are_expected_start_a_few_at_a_time(rigs: Any) -> None:
    rig = await rigs(max_active=9)
    rig.pool.set_disk("node-0", "disk", "machine")
    rig.cluster.start_delay_s = 0.1
    most = 0
    with rig.pool.expecting(6):
        while sum(view.idle for view in rig.pool.views()) < 6:
            most = max(most, *(view.processes - view.idle for view in rig.pool.views()))
            await asyncio.sleep(0.01)
    assert most == 2, "half of the node's cores"


async def test_an_idle_conversation_makes_the_next_warm_actor(rigs: Any) -> None:
    rig = await rigs(warm_actors=1, max_active=10)
    rig.evictable.append(await rig.pool.acquire("old", ANY, 5))
    for i in range(20):
        rig.evictable.append(await rig.pool.acquire(f"c{i}", ANY, 5))
        await until(lambda: not rig.pool._refilling)
    assert rig.cluster.starts <= 3


async def test_the_busy_lose_their_turn_only_where_no_process_can_be_added(rigs: Any) -> None:
    rig = await rigs(max_active=2)
    rig.cluster.start_delay_s = 0.15
    await rig.pool.acquire("a", ANY, 5)
    await rig.pool.acquire("b", ANY, 5)
    assert rig.turns == 0
    with pytest.raises(NoCapacityError):
        await rig.pool.acquire("c", ANY, 0.3)
    assert rig.turns > 0


async def test_an_actor_that_is_gone_is_not_handed_out(rigs: Any) -> None:
    rig = await rigs(max_active=1)
    slot = await rig.pool.acquire("a", ANY, 5)
    rig.pool.discard(slot)
    rig.pool.release(slot)
    assert await rig.pool.acquire("b", ANY, 5) is not slot


async def test_slots_go_with_their_node(rigs: Any) -> None:
    rig = await rigs(nodes=2)
    slot = await rig.pool.acquire("a", ANY, 5)
    del rig.cluster.roots[slot.node_id]
    assert await rig.pool.refresh() == [slot]
    other = await rig.pool.acquire("b", ANY, 5)
    assert other.node_id != slot.node_id


async def test_a_node_that_leaves_counts_as_lost_unless_it_was_drained(rigs: Any) -> None:
    rig = await rigs(nodes=3)
    await rig.pool.refresh()
    first, second, _ = sorted(rig.cluster.roots)
    before = {how: meters.NODES_GONE.value(how) for how in ("lost", "drained")}
    del rig.cluster.roots[first]
    await rig.pool.refresh()
    rig.pool.set_draining(second, True)
    del rig.cluster.roots[second]
    await rig.pool.refresh()
    await rig.pool.refresh()
    assert {how: meters.NODES_GONE.value(how) - before[how] for how in before} == {
        "lost": 1,
        "drained": 1,
    }


async def test_a_node_that_cannot_write_says_so(rigs: Any, tmp_path: Path) -> None:
    rig = await rigs()
    (tmp_path / "disk-0").write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="disk-0"):
        await rig.pool.acquire("a", ANY, 5)


async def test_a_caller_that_gives_up_leaves_the_actor_to_others(rigs: Any) -> None:
    rig = await rigs(max_active=1)
    slot = await rig.pool.acquire("a", ANY, 5)
    waiting = asyncio.create_task(rig.pool.acquire("b", ANY, 5))
    await asyncio.sleep(0)
    rig.pool.release(slot)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        rig.pool.release(await waiting)  # Python 3.11 lets a result that was there win
    assert await rig.pool.acquire("c", ANY, 1) is slot


@pytest.mark.parametrize("busy", [False, True])
async def test_an_actor_of_a_disk_that_its_node_lost_is_not_given_out(
    rigs: Any, busy: bool
) -> None:
    rig = await rigs(max_active=1)
    old = await rig.pool.acquire("a", ANY, 5)
    if not busy:
        rig.pool.release(old)
    rig.pool.set_disk("node-0", "another", "machine")
    if busy:
        rig.pool.release(old)
    (rig.cluster.roots["node-0"] / "disk-id").write_text("another")
    found = await rig.pool.acquire("b", ANY, 5)
    assert found.disk_id == "another"
    await until(lambda: old.actor.dead)
    assert rig.pool.slots == [found]


async def test_a_crowd_that_waits_costs_one_look_a_round(rigs: Any) -> None:
    rig = await rigs(max_active=2)
    held = [await rig.pool.acquire(name, ANY, 5) for name in "ab"]
    views, looks = rig.pool.views, 0

    def counted() -> Any:
        nonlocal looks
        looks += 1
        return views()

    rig.pool.views = counted
    crowd = [asyncio.create_task(rig.pool.acquire(f"c{i}", ANY, 5)) for i in range(300)]
    await until(lambda: len(rig.pool._waiters) == len(crowd))
    assert looks < 20
    looks = 0
    rig.pool.release(held[0])
    assert (await crowd[0]) is held[0]
    assert looks < 20
    for task in crowd:
        task.cancel()
    await asyncio.wait(crowd)


async def test_an_actor_that_comes_as_the_wait_ends_is_not_lost(
    rigs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await rigs(max_active=1)
    held = await rig.pool.acquire("a", ANY, 5)

    async def both_at_once(future: asyncio.Future[Slot], timeout: float) -> Slot:
        rig.pool.release(held)
        assert future.done()
        raise TimeoutError  # as from Python 3.12 on

    monkeypatch.setattr(asyncio, "wait_for", both_at_once)
    assert await rig.pool.acquire("b", ANY, 0.01) is held
    assert held.name == "b"
