"""Nodes that are gone for good with their disks, while 30 conversations are written to.

The small runs are part of every run of the tests, with a folder for the replicas. The full ones,
with `--long`, are what is promised: 30 writers, a lease of 10 s, replicas in a folder and on an S3
server. Everything that was acknowledged reads back, and how long a writer waited at most is told at
the end. The full runs with a folder fail when that is the lease and 10 s or more: they want a
machine that does nothing else. The S3 server is one process of Python's, and decides the figure.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import message
from tests.replication.stores import s3_server, s3_url, skip_without_engine

from . import processes
from .load import Load
from .nodes import Node, remove_folder

BEYOND_LEASE_S = 10.0


@dataclass(frozen=True)
class Size:
    """How much is at stake."""

    conversations: int
    writers_each: int
    pause_s: float
    lease_s: float
    is_full: bool = False
    in_s3: bool = False


SMALL = Size(conversations=6, writers_each=2, pause_s=0.0, lease_s=3.0)
FULL = Size(conversations=30, writers_each=1, pause_s=0.3, lease_s=10.0, is_full=True)
FULL_S3 = replace(FULL, in_s3=True)


@pytest.fixture(params=[SMALL, FULL, FULL_S3], ids=["small", "full", "full-s3"])
def size(request: pytest.FixtureRequest, long_run: bool) -> Size:
    found: Size = request.param
    if found.is_full and not long_run:
        pytest.skip("30 writers and a lease of 10 s: --long")
    return found


@pytest.fixture(autouse=True)
def engine() -> None:
    skip_without_engine()


@pytest.fixture
def replicated(size: Size, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The settings of a deployment whose acknowledged writes survive a node and its disk."""
    common: dict[str, Any] = {
        "durability": "replicated",
        "lease_ttl_s": size.lease_s,
        "max_active": size.conversations,
        "conversations": size.conversations,
        "writers_each": size.writers_each,
        "pause_s": size.pause_s,
        # Writers of all nodes share one small store, and all of them these cores.
        "replica_timeout_s": 60.0,
    }
    if not size.in_s3:
        (tmp_path / "far").mkdir()
        yield common | {"replica_url": f"file://{tmp_path}/far"}
        return
    with s3_server() as port:
        yield common | {"replica_url": s3_url(port, "losses")}


@pytest.fixture
async def nodes(apart: list[Node]) -> AsyncIterator[list[Node]]:
    """Two nodes beside the head; what is lost of them is replaced at the end."""
    yield apart
    for node in apart:
        if not node.is_up:
            await node.replace()


def lose_head(cluster: Any, disk: Path) -> None:
    """End all that runs on the head at one moment, and delete its disk. Ray's own stays: it has no
    other head to go to.
    """
    (raylet,) = cluster.head_node.all_processes["raylet"]
    classes = (processes.ROUTER, processes.AGENT, processes.ACTOR)
    assert processes.workers(raylet.process.pid, processes.ROUTER)
    # The daemon that copies the disk is below its agent, or below the router.
    processes.kill_with_all_below(*processes.workers(raylet.process.pid, *classes))
    remove_folder(disk)


def in_time(load: Load, size: Size) -> None:
    """No writer waited longer than is promised, where that depends on this package alone."""
    if size.is_full and not size.in_s3:
        assert load.ledger.worst_s < size.lease_s + BEYOND_LEASE_S, vars(load.ledger)


async def test_a_node_and_its_disk_are_lost(
    nodes: list[Node], loaded: Any, replicated: dict[str, Any], size: Size
) -> None:
    async with loaded(nodes, **replicated) as load:
        lost, gone = nodes[0].node_id, load.on(0)
        asleep = load.client.get("asleep").session()
        await asleep.append_message(message("m0"))
        await load.client.migrate("asleep", lost)
        await load.client.hibernate("asleep")
        before = [await load.client.info(name) for name in gone]
        assert {info.node_id for info in before} == {lost}
        await asyncio.to_thread(nodes[0].lose)
        await load.goes_on(5)
        for info in before:
            after = await load.client.info(info.name)
            assert after.node_id != lost
            assert after.epoch > info.epoch
        assert [one["id"] for one in await asleep.get_history()] == ["m0"]
    in_time(load, size)


async def test_the_heads_router_and_disk_are_lost(
    cluster: Any, nodes: list[Node], loaded: Any, replicated: dict[str, Any], size: Size
) -> None:
    async with loaded(nodes, **replicated) as load:
        await load.client.get("deleted").session().append_message(message("m0"))
        await load.client.delete("deleted")
        known = [name async for name in load.client.list()]
        await asyncio.to_thread(lose_head, cluster, load.client.settings.storage_root)
        await load.goes_on(5)
        assert [name async for name in load.client.list()] == known
        assert all([(await load.client.info(name)).state == "active" for name in load.names])
    in_time(load, size)


async def test_one_node_after_the_other_is_lost(
    nodes: list[Node], loaded: Any, replicated: dict[str, Any], size: Size
) -> None:
    async with loaded(nodes, **replicated) as load:
        for node in nodes:
            for name in load.names[:2]:
                if (await load.client.info(name)).node_id != node.node_id:
                    await load.client.migrate(name, node.node_id)
            await load.goes_on(2)
            await asyncio.to_thread(node.lose)
            await load.goes_on(3)
        await load.client.hibernate(load.names[0])
    in_time(load, size)
