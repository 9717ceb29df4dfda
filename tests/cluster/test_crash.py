"""Processes that die or freeze: a client sees a delay, and what was acknowledged is there."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sessions_actor.errors import MigratingError
from sessions_actor.retry import is_lost

from .conftest import Deploy, is_running, message, until

HOST = "tests.cluster.hosts:Host"


class Writer:
    """Appends one message after the other until told to stop; keeps what was acknowledged."""

    def __init__(self, session: Any, prefix: str = "w") -> None:
        self.acknowledged: list[str] = []
        self._session, self._prefix = session, prefix
        self._stop = False
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._stop:
            name = f"{self._prefix}{len(self.acknowledged)}"
            await self._session.append_message(message(name))
            self.acknowledged.append(name)

    async def came_to(self, count: int) -> None:
        """Wait until so many more appends were acknowledged."""
        wanted = len(self.acknowledged) + count
        await until(
            lambda: len(self.acknowledged) >= wanted or self.task.done(), f"{count} appends"
        )
        if self.task.done():
            self.task.result()

    async def stop(self) -> list[str]:
        """Stop after the append under way; raises what it met."""
        self._stop = True
        await asyncio.wait_for(self.task, 60)
        return self.acknowledged


async def test_kill_of_the_actor_during_appends(deploy: Deploy) -> None:
    async with deploy() as client:
        session = client.get("alice").session()
        writers = [Writer(session, f"w{i}-") for i in range(4)]
        pids, epochs = set(), []
        for _ in range(3):
            await asyncio.gather(*(writer.came_to(20) for writer in writers))
            info = await client.info("alice")
            pids.add(info.pid)
            epochs.append(info.epoch)
            os.kill(info.pid, signal.SIGKILL)
        await asyncio.gather(*(writer.came_to(20) for writer in writers))
        acknowledged = [name for writer in writers for name in await writer.stop()]
        stored = [m["id"] async for m in session.history()]
        assert len(stored) == len(set(stored))
        assert set(acknowledged) <= set(stored)
        for writer in writers:  # each writer's messages stand in its order
            place = [stored.index(name) for name in writer.acknowledged]
            assert place == sorted(place)
        assert len(pids) == 3
        assert epochs == sorted(set(epochs))
        assert await client.get("alice").verify() == []


async def test_kill_while_frames_of_many_appends_are_under_way(deploy: Deploy) -> None:
    async with deploy() as client:
        session = client.get("alice").session()
        await session.append_message(message("first"))
        pid = (await client.info("alice")).pid
        pending = [asyncio.create_task(session.append_message(message(f"m{i}")))
                   for i in range(1500)]  # fmt: skip
        await until(lambda: any(task.done() for task in pending), "the first acknowledgement")
        os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*pending)
        stored = [m["id"] async for m in session.history()]
        assert stored == ["first", *(f"m{i}" for i in range(1500))]


async def test_kill_of_the_router_during_appends(deploy: Deploy, tmp_path: Path) -> None:
    async with deploy() as client:
        sessions = [client.get(f"c{i}").session() for i in range(3)]
        writers = [Writer(session) for session in sessions]
        await asyncio.gather(*(writer.came_to(5) for writer in writers))

        async def all_active() -> bool:
            return bool(sum(node.active for node in await client.nodes()) == 3)

        await until(all_active, "each has an actor of its own")
        before = await client.info("c0")
        router = router_pid(tmp_path)
        os.kill(router, signal.SIGKILL)
        await asyncio.gather(*(writer.came_to(5) for writer in writers))
        after = await client.info("c0")  # the router is back, and the owner is the same
        assert router_pid(tmp_path) != router
        assert (after.pid, after.epoch, after.state) == (before.pid, before.epoch, "active")
        os.kill(router_pid(tmp_path), signal.SIGKILL)
        os.kill(after.pid, signal.SIGKILL)  # both at once
        await asyncio.gather(*(writer.came_to(5) for writer in writers))
        for writer, session in zip(writers, sessions, strict=True):
            acknowledged = await writer.stop()
            assert [m["id"] async for m in session.history()] == acknowledged


async def test_a_frozen_owner_is_replaced_and_stays_silent(deploy: Deploy) -> None:
    async with deploy(lease_ttl_s=1.0) as client:
        session = client.get("alice").session()
        await session.append_message(message("before"))
        frozen = await client.info("alice")
        os.kill(frozen.pid, signal.SIGSTOP)
        try:
            assert (await session.append_message(message("after"))).inserted
            info = await client.info("alice")
            assert info.pid != frozen.pid
            assert info.epoch > frozen.epoch
        finally:
            if is_running(frozen.pid):
                os.kill(frozen.pid, signal.SIGCONT)
        await until(lambda: not is_running(frozen.pid), "the frozen process is gone")
        assert [m["id"] async for m in session.history()] == ["before", "after"]


async def test_a_stream_goes_on_after_the_owner_died(deploy: Deploy) -> None:
    async with deploy() as client:
        session = client.get("alice").session()
        ids = [f"m{i}" for i in range(3000)]
        for start in range(0, len(ids), 500):
            await session.append_messages([message(i, "x" * 500) for i in ids[start:][:500]])
        for newest_first in (False, True):
            seen = []
            async for one in session.history(newest_first=newest_first):
                seen.append(one["id"])
                if len(seen) in (1, 700):
                    os.kill((await client.info("alice")).pid, signal.SIGKILL)
                if len(seen) == 1500:
                    await client.hibernate("alice")
            assert seen == (ids[::-1] if newest_first else ids)
        rows = []
        async for row in session.history_rows():
            rows.append(row.message["id"])
            if len(rows) == 500:
                os.kill((await client.info("alice")).pid, signal.SIGKILL)
        assert rows == ids


async def test_a_method_of_ones_own_is_not_run_twice(deploy: Deploy) -> None:
    async with deploy(object_class=HOST) as client:
        alice = client.get("alice")
        await alice.call("count")
        held = asyncio.create_task(alice.call("hold"))
        pid = await alice.call("pid")
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Exception, match=r".") as lost:
            await held
        assert is_lost(lost.value) or isinstance(lost.value, MigratingError)
        assert await alice.call("count") == 2  # the next call finds the next owner


async def test_an_owner_that_died_while_nobody_called(deploy: Deploy) -> None:
    async with deploy() as client:
        session = client.get("alice").session()
        await session.append_message(message("m"))
        info = await client.info("alice")
        os.kill(info.pid, signal.SIGKILL)
        await until(lambda: not is_running(info.pid), "the process is gone")
        assert await session.get_message("m") == message("m")
        assert (await client.info("alice")).epoch == info.epoch + 1


def router_pid(tmp_path: Path) -> int:
    """Return the process of the router that serves this test."""
    note = json.loads((tmp_path / "data" / "deployment.json").read_text())
    return int(note["pid"])
