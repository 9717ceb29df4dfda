"""What may wait in one conversation: refused at once past the bounds, at both ends, nobody else."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from router.directory import Directory as RouterDirectory
from router.leases import Leases
from router.router import Router
from router.settings import Settings
from sessions_actor import wire
from sessions_actor.channel import Channel
from sessions_actor.errors import OverloadedError
from sessions_actor.handle import ConversationHandle
from sessions_actor.overload import Bounds, Load

from .fake_cluster import FakeCluster, until
from .test_channel import Directory, Owner, ok
from .test_hosted import call, error_of, host, message, part


def test_calls_are_counted_in_and_out() -> None:
    load = Load(Bounds(calls=3, bytes=100))
    for size in (0, 60, 40):
        load.take(size)
    with pytest.raises(OverloadedError) as refused:
        load.take(0)
    assert (refused.value.pending, refused.value.limit, refused.value.unit) == (3, 3, "calls")
    load.give_back(0)
    with pytest.raises(OverloadedError) as refused:
        load.take(1)
    assert (refused.value.pending, refused.value.limit, refused.value.unit) == (100, 100, "bytes")
    assert "100 bytes" in str(refused.value)
    assert "max_pending_bytes" in str(refused.value)
    load.give_back(40)
    load.take(40)


def test_a_call_larger_than_the_bound_passes_beside_it_one_at_a_time() -> None:
    load = Load(Bounds(calls=10, bytes=100))
    load.take(90)
    load.take(5_000)  # it need not wait for a quiet moment
    load.take(10)  # and keeps nobody out
    with pytest.raises(OverloadedError) as refused:
        load.take(101)
    assert refused.value.pending == 5_000
    load.give_back(5_000)
    load.take(101)


def test_whatever_comes_and_goes_the_bounds_hold_and_nothing_leaks() -> None:
    chance = random.Random(4)
    load, held, refusals = Load(Bounds(calls=20, bytes=1_000)), [], 0
    for _ in range(5_000):
        if held and chance.random() < 0.45:
            load.give_back(held.pop(chance.randrange(len(held))))
        else:
            size = chance.choice((0, 1, 50, 400, 1_000, 1_001, 9_999))
            try:
                load.take(size)
            except OverloadedError:
                refusals += 1
            else:
                held.append(size)
        assert load.calls == len(held) <= 20
        assert load.bytes == sum(size for size in held if size <= 1_000) <= 1_000
        assert sum(size > 1_000 for size in held) <= 1
    assert refusals > 100
    for size in held:
        load.give_back(size)
    assert (load.calls, load.bytes) == (0, 0)


# --------------------------------------------------------------------------- in the conversation


async def test_bytes_past_the_bound_are_refused_and_the_rest_of_the_frame_is_served(
    tmp_path: Path,
) -> None:
    hosted = await host(tmp_path, bounds=Bounds(calls=100, bytes=3_000))
    (held,) = await hosted.serve(3, [call("echo_later", "x" * 2_000)])
    assert held.tag == wire.WAITING
    small = [part("append_message", message(f"m{i}")) for i in range(3)]
    large = [part("append_message", message(f"{i}" * 700)) for i in range(2)]
    answers = await hosted.serve(3, [small[0], large[0], small[1], large[1], small[2]])
    assert [a.tag for a in answers] == [wire.OK, wire.ERROR, wire.OK, wire.ERROR, wire.OK]
    error = error_of(answers[1])
    assert isinstance(error, OverloadedError)
    assert (error.unit, error.limit) == ("bytes", 3_000)
    assert 2_000 < error.pending < 3_000
    hosted.host.release.set()  # type: ignore[attr-defined]
    await until(lambda: hosted.pending == 0)
    (answer,) = await hosted.serve(3, [part("append_message", message("x" * 500_000))])
    assert answer.tag == wire.OK  # larger than the bound, it passes
    await hosted.end()


async def test_what_waits_at_a_seal_counts(tmp_path: Path) -> None:
    hosted = await host(tmp_path, bounds=Bounds(calls=2))
    await hosted.seal(0)
    waiting = [
        asyncio.create_task(hosted.serve(3, [part("append_message", message(f"m{i}"))]))
        for i in range(2)
    ]
    await asyncio.sleep(0)
    (refused,) = await hosted.serve(3, [part("get_message", "m0")])
    assert isinstance(error_of(refused), OverloadedError)
    hosted.unseal()
    answers = [answer for answers in await asyncio.gather(*waiting) for answer in answers]
    assert [answer.tag for answer in answers] == [wire.OK, wire.OK]
    (found,) = await hosted.serve(3, [part("get_message", "m0")])
    assert found.tag == wire.OK
    await hosted.end()


async def test_outcomes_that_nobody_fetches_are_kept_within_the_bounds(tmp_path: Path) -> None:
    hosted = await host(tmp_path, bounds=Bounds(calls=100, bytes=10_000))
    tickets = []
    for i in range(6):
        (held,) = await hosted.serve(3, [call("echo_later", f"{i}", 3_000)])
        assert held.tag == wire.WAITING
        tickets.append(held.data.decode())
    hosted.host.release.set()  # type: ignore[attr-defined]
    await until(lambda: hosted.pending == 0)
    outcomes = [await hosted.remains.collect(ticket, 0) for ticket in tickets]
    assert [outcome.tag for outcome in outcomes] == [wire.CUT] * 3 + [wire.OK] * 3
    assert wire.load_result(wire.ResultKind.PICKLE, outcomes[5].data) == "5" * 3_000
    await hosted.end()


# --------------------------------------------------------------------------------- at the caller


def bounded(owner: Any, **bounds: int) -> Channel:
    directory = Directory(owner)
    directory.bounds = Bounds(**bounds)
    return Channel("a", directory)


async def test_a_caller_that_never_awaits_is_refused_at_once() -> None:
    release = asyncio.Event()

    async def slow(epoch: int, parts: list[Any]) -> list[Any]:
        await release.wait()
        return [ok() for _ in parts]

    owner = Owner(slow)
    calls = bounded(owner, calls=1_000, bytes=50_000)
    tasks = [
        asyncio.create_task(calls.call("", "append_message", b"x" * 1_000)) for _ in range(500)
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    early = [task for task in tasks if task.done()]
    assert len(early) == 450, "refused while the owner has not answered anything"
    assert {type(task.exception()) for task in early} == {OverloadedError}
    release.set()
    assert len(await asyncio.gather(*(t for t in tasks if t not in early))) == 50
    assert sum(map(len, owner.frames)) == 50
    await calls.call("", "append_message", b"x" * 1_000)
    await calls.call("", "append_message", b"x" * 200_000)


async def test_calls_given_up_leave_nothing_behind() -> None:
    owner = Owner()
    calls = bounded(owner, calls=10)
    never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    owner.behaviour = lambda epoch, parts: _waiting(never)
    first = asyncio.create_task(calls.call("", "append_message", b"first"))
    await until(lambda: calls.busy)
    for _ in range(50):  # more than may wait at once, each given up
        later = asyncio.create_task(calls.call("", "append_message", b"later"))
        await asyncio.sleep(0)
        later.cancel()
        await asyncio.wait([later])
    never.set_result([ok()])
    await first
    owner.behaviour = lambda epoch, parts: [ok() for _ in parts]
    await calls.call("", "append_message", b"last")
    assert owner.frames[-1] == ["last"], "what was given up does not travel"


async def _waiting(future: asyncio.Future[Any]) -> Any:
    return await future


# -------------------------------------------------------------------------------- nobody else


class Resolver:
    """Asks a router in this process."""

    call_timeout_s = 20.0
    bounds = Bounds(calls=50, bytes=100_000)

    def __init__(self, router: Router) -> None:
        self._router = router

    async def resolve(self, name: str, failed: Any) -> Any:
        return await self._router.resolve(name, None if failed is None else failed.epoch)

    async def succession(self, name: str, epoch: int, wait_s: float) -> None:
        return None


async def test_a_conversation_that_answers_nothing_holds_up_no_other(tmp_path: Path) -> None:
    """Neither its callers' queue nor its search for an owner stands in anybody's way."""
    root = tmp_path / "data"
    cluster = FakeCluster({"n1": root})
    settings = Settings(storage_root=root, warm_actors=0, max_active=4, lease_ttl_s=60)
    directory = RouterDirectory(root)
    leases = Leases(settings.lease_ttl_s, asyncio.get_running_loop().time)
    router = Router(settings, root, directory, cluster, leases)
    await router.pool.refresh()
    router.pool.set_disk("n1", router.disk_id, "machine")
    resolver = Resolver(router)
    hot = ConversationHandle("hot", resolver).session()
    assert (await hot.append_message(message("m"))).inserted  # type: ignore[arg-type]
    serving = router.serving("hot")
    assert serving is not None
    serving.slot.actor.silent = True

    flood = [asyncio.create_task(hot.append_message(message(f"h{i}"))) for i in range(80)]  # type: ignore[arg-type]
    searching = asyncio.create_task(router.resolve("hot", serving.epoch))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    refused = [task for task in flood if task.done()]
    assert len(refused) == 30
    assert {type(task.exception()) for task in refused} == {OverloadedError}

    for i in range(3):
        other = ConversationHandle(f"other{i}", resolver).session()
        for number in range(20):
            await other.append_message(message(f"m{number}"))  # type: ignore[arg-type]
    assert not searching.done(), "the hot conversation's owner is still asked after"
    assert sum(task.done() for task in flood) == 30
    for task in (searching, *flood):
        task.cancel()
    await asyncio.gather(searching, *flood, return_exceptions=True)
    for _, (actor, _) in cluster.actors.items():
        actor.die()
    await router.pool.close()
    directory.close()
