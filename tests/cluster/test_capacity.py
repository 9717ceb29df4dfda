"""More conversations than actors: everyone is served, nothing is lost, memory stays bounded."""

import asyncio
import time

import pytest

from sessions_actor.errors import NoCapacityError

from .conftest import Deploy, message, until

HOST = "tests.cluster.hosts:Host"


async def test_a_hundred_conversations_written_at_once_by_few_actors(deploy: Deploy) -> None:
    async with deploy(max_active=4) as client:

        async def write(name: str) -> None:
            session = client.get(name).session()
            for i in range(8):
                await session.append_message(message(f"m{i}"))

        names = [f"c{i:03}" for i in range(100)]
        await asyncio.gather(*map(write, names))
        assert await client.list() == names
        (node,) = [n for n in await client.nodes() if n.active or n.idle]
        assert node.active + node.idle <= 4 == node.max_active
        for name in names:
            ids = [m["id"] async for m in client.get(name).session().history()]
            assert ids == [f"m{i}" for i in range(8)]


async def test_conversations_in_turn_reuse_actors(deploy: Deploy) -> None:
    async with deploy(max_active=8, object_class=HOST) as client:
        pids = set()
        for i in range(40):
            alice = client.get(f"c{i}")
            await alice.session().append_message(message("m"))
            pids.add(await alice.call("pid"))
        assert len(pids) <= 8
        assert len(await client.list()) == 40


async def test_busy_conversations_are_not_evicted_and_the_wait_is_bounded(deploy: Deploy) -> None:
    async with deploy(max_active=2, object_class=HOST, capacity_wait_s=6) as client:
        held = [asyncio.create_task(client.get(f"busy{i}").call("hold")) for i in range(2)]
        await until(lambda: _active(client, 2), "both are active")
        began = time.monotonic()
        with pytest.raises(NoCapacityError) as refused:
            await client.get("late").session().append_message(message("m"))
        assert time.monotonic() - began < 20
        assert refused.value.node_count >= 1
        assert await client.list() == ["busy0", "busy1"]  # what failed left nothing behind
        for i in range(2):
            await client.get(f"busy{i}").call("let_go")
        assert await asyncio.gather(*held) == ["released"] * 2
        assert (await client.get("late").session().append_message(message("m"))).inserted


async def test_idle_conversations_hibernate(deploy: Deploy) -> None:
    async with deploy(idle_timeout_s=3.0) as client:  # longer than a call takes on a busy machine
        session = client.get("sleepy").session()
        await session.append_message(message("m"))
        info = await until(lambda: _asleep(client, "sleepy"), "it hibernates")
        assert (info.pid, info.node_id, info.actor_id) == (None, None, None)
        assert info.file_bytes > 0
        assert info.epoch == 1
        assert await session.get_message("m") == message("m")
        assert (await client.info("sleepy")).epoch == 2


async def test_used_conversations_do_not_hibernate(deploy: Deploy) -> None:
    async with deploy(idle_timeout_s=1.0, object_class=HOST) as client:
        alice = client.get("alice")
        held = asyncio.create_task(alice.call("hold"))
        await client.get("other").session().append_message(message("m"))
        await until(lambda: _asleep(client, "other"), "the other one hibernates")
        assert (await client.info("alice")).state == "active"
        await alice.call("let_go")
        assert await held == "released"


async def test_warm_actors_stand_ready(deploy: Deploy) -> None:
    async with deploy(warm_actors=2) as client:

        async def idle() -> int:
            return sum(node.idle for node in await client.nodes())

        await until(lambda: _reached(idle, 2), "two actors are warm")
        await client.get("alice").session().append_message(message("m"))
        await until(lambda: _reached(idle, 2), "two actors are warm again")


async def _reached(count, wanted: int) -> bool:  # type: ignore[no-untyped-def]
    return bool(await count() == wanted)


async def _active(client, count: int) -> bool:  # type: ignore[no-untyped-def]
    return bool(sum(node.active for node in await client.nodes()) >= count)


async def _asleep(client, name: str):  # type: ignore[no-untyped-def]
    info = await client.info(name)
    return info if info.state == "hibernated" else None
