"""Processes and nodes that are killed or frozen under load, on three nodes.

Every acknowledged message is there afterwards, none twice, the order of each writer kept; how long
a writer waited at most is told at the end of the run. Processes are hit by signals from outside;
a raylet takes its workers along or leaves them orphans, as Ray has it.
"""

import asyncio
import contextlib
import json
import subprocess
from typing import Any

import pytest

from sessions_actor import wire
from sessions_actor.errors import StaleEpochError, StorageError
from sessions_actor.retry import is_lost
from tests.cluster.conftest import until

from . import processes
from .alerts import watching
from .nodes import Node


async def test_actors_are_killed(apart: list[Node], loaded: Any) -> None:
    async with loaded(apart) as load:
        for number in range(3):  # node by node: all that serve there, at one moment
            for pid in await load.pids(load.on(number)):
                processes.kill(pid)
            await load.goes_on(5)
        await load.watch.raised("many owners are killed")


async def test_actors_are_frozen_and_acknowledge_nothing_when_they_go_on(
    apart: list[Node], loaded: Any
) -> None:
    async with loaded(apart) as load:
        frozen = [name for number in range(3) for name in load.on(number)[:1]]
        old = [await load.client.get(name).channel().locate() for name in frozen]
        pids = await load.pids(frozen)
        with processes.frozen(*pids):
            late = [_append_to(address, "late") for address in old]
            await load.goes_on(5, frozen)  # others have taken over
            for name, address in zip(frozen, old, strict=True):
                assert (await load.client.info(name)).epoch > address.epoch
        for told in await asyncio.gather(*late):
            assert told in ("gone", "StaleEpochError", "cut"), told
        for told in await asyncio.gather(*(_append_to(address, "later") for address in old)):
            assert told in ("gone", "StaleEpochError"), told
    # `check` finds neither "late" nor "later": they would be foreign.


async def test_a_frozen_actor_that_goes_on_in_time_keeps_its_conversation(
    apart: list[Node], loaded: Any
) -> None:
    async with loaded(apart, lease_ttl_s=20) as load:
        name = load.on(0)[0]
        before = await load.client.info(name)
        with processes.frozen(before.pid):
            await load.goes_on(3, load.on(1) + load.on(2))  # nobody else waits
        await load.goes_on(3)
        assert (await load.client.info(name)).epoch == before.epoch


async def test_the_router_is_killed_and_frozen(apart: list[Node], loaded: Any) -> None:
    async with loaded(apart) as load:
        (router,) = _routers(load)
        before = [(await load.client.info(name)).epoch for name in load.names]
        processes.kill(router)
        await load.goes_on(5)
        (router,) = await until(lambda: _routers(load), "the router is back")
        assert [(await load.client.info(name)).epoch for name in load.names] == before
        with processes.frozen(router):  # for less than a lease: nobody needs it
            await load.goes_on(2)
        (pid,) = await load.pids(load.on(1)[:1])
        (router,) = _routers(load)
        await load.watch.lives(2)
        processes.kill(router)
        processes.kill(pid)  # both at once
        await load.goes_on(5)
        await load.watch.raised("the router dies again and again")


async def test_agents_are_killed_and_frozen(apart: list[Node], loaded: Any) -> None:
    async with loaded(apart) as load:
        for node in apart:
            for pid in node.workers(processes.AGENT):
                processes.kill(pid)
        await load.goes_on(5)

        def back() -> list[int]:
            return apart[0].workers(processes.AGENT)

        frozen = await until(back, "the agent is back")
        with processes.frozen(*frozen):
            # Past its lease the node acknowledges nothing, until another agent renews it.
            await load.goes_on(5)
        await load.watch.raised("an agent freezes")


async def test_a_raylet_is_killed_and_its_disk_comes_back(apart: list[Node], loaded: Any) -> None:
    async with loaded(apart) as load:
        apart[0].kill()
        await load.goes_on(5, load.on(1) + load.on(2))  # the other nodes do not care
        await apart[0].replace()
        await load.goes_on(5)
        await load.watch.raised("a raylet dies")


async def test_a_node_is_killed_and_another_mounts_its_disk(
    together: list[Node], loaded: Any
) -> None:
    async with loaded(together) as load:
        together[0].kill(with_workers=True)
        await load.goes_on(5)
        await load.watch.raised("a node dies")


async def test_a_node_is_frozen_and_goes_on(apart: list[Node], loaded: Any) -> None:
    async with loaded(apart) as load:
        node = apart[1]
        with processes.frozen(node.raylet, *node.workers(processes.ACTOR, processes.AGENT)):
            await load.goes_on(5, load.on(0) + load.on(2))
            waits = [w for name in load.on(1) for w in load.writers[name]]
            await until(lambda: all(w.waits_s > 2.0 for w in waits), "its writers wait")
        await node.revive()
        await load.goes_on(5)
        await load.watch.raised("a node freezes or is cut off")


# ------------------------------------------------------------------------------------- disks


async def test_a_full_disk_fails_its_conversations_until_there_is_room(
    cluster: Any, small_disk: Any, loaded: Any, long_run: bool
) -> None:
    if not long_run:
        pytest.skip("takes minutes on a busy machine: --long runs it")
    node = Node(cluster, small_disk)
    node.start()
    try:
        async with loaded([node]) as load:
            ballast = small_disk / "ballast"
            _fill(ballast)
            await until(lambda: load.ledger.errors, "a writer is told", 60)
            await load.goes_on(3, load.names[1::2])  # on the other disk
            await load.watch.raised("a disk is full")
            ballast.unlink()
            await load.goes_on(5)
            told = " ".join(load.ledger.errors)
            assert "OutputGateBrokenError" in told or "StorageError" in told, told
    finally:
        node.end()


async def test_a_disk_that_can_only_be_read_says_so(
    cluster: Any, small_disk: Any, deploy: Any, long_run: bool
) -> None:
    node = Node(cluster, small_disk)
    node.start()
    try:
        async with deploy(max_active=8, call_timeout_s=20) as client:
            session = client.get("alice").session()
            message: Any = {"id": "m", "role": "user", "parts": []}
            await session.append_message(message)
            await client.migrate("alice", node.node_id)
            await client.hibernate("alice")
            for pid in node.workers(processes.ACTOR):
                processes.kill(pid)
            await until(lambda: not node.workers(processes.ACTOR), "its actors are gone")
            async with watching(blind=not long_run) as watch:
                _remount(small_disk, "ro")
                with pytest.raises(StorageError, match=r"[Rr]ead-?only"):
                    await session.append_message({**message, "id": "n"})
                await watch.raised("a disk can only be read")
            _remount(small_disk, "rw")
            assert (await session.append_message({**message, "id": "n"})).inserted
            assert [m["id"] for m in await session.get_history()] == ["m", "n"]
    finally:
        node.end()


def _remount(folder: Any, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


def _fill(ballast: Any) -> None:
    """Write until nothing fits any more."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def _routers(load: Any) -> list[int]:
    """The routers of this deployment: its client's own namespace."""
    note = load.client.settings.storage_root / "deployment.json"
    pid = int(json.loads(note.read_text())["pid"])
    return [pid] if processes.is_running(pid) else []


async def _append_to(address: Any, message_id: str) -> str:
    """Append at an address that was an owner's once; returns what it answers."""
    message = {"id": message_id, "role": "user", "parts": []}
    args = wire.dump_args([message], {}, ["message"])
    frame = wire.pack_request(address.name, address.epoch, [wire.Part("", "append_message", args)])
    try:
        (answer,) = wire.unpack_reply(await address.actor.serve.remote(frame))
    except Exception as error:
        return "gone" if is_lost(error) else repr(error)
    if answer.tag == wire.CUT:
        return "cut"
    if answer.tag != wire.ERROR:
        return f"tag {answer.tag}"
    error = wire.load_error(answer.data)
    assert isinstance(error, StaleEpochError)
    return type(error).__name__
