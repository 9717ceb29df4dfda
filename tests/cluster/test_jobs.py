"""Jobs on a real cluster: they outlive the router, and Ray's notices are heeded."""

import asyncio
import json
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

from sessions_actor.disk import NODE_ROOT_VARIABLE

from .conftest import Deploy, is_running, message, until
from .test_crash import Writer

Nodes = dict[str, str]
NOTICE_S = 120
PATIENCE: dict[str, Any] = {"capacity_wait_s": 120, "call_timeout_s": 180}


def announce_the_end(address: str, node_id: str) -> None:
    """Tell Ray that a node will be preempted, as its autoscaler and `ray drain-node` do."""
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2

    accepted, reason = GcsClient(address=address).drain_node(
        node_id,
        autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
        "a test says so",
        time.time_ns() // 1_000_000 + NOTICE_S * 1000,
    )
    assert accepted, reason


async def test_a_node_whose_end_ray_announces_is_emptied_before_it_goes(
    deploy: Deploy, cluster: Any, three_nodes: Nodes, tmp_path: Path
) -> None:
    node = cluster.add_node(num_cpus=2, env_vars={NODE_ROOT_VARIABLE: str(tmp_path / "own")})
    async with deploy(**PATIENCE) as client:
        names = [f"notice/{i}" for i in range(5)]
        for name in names:
            await client.get(name).session().append_message(message("m"))
            await client.migrate(name, node.node_id)
        await client.hibernate(names[0])
        writer = Writer(client.get(names[1]).session())
        await writer.came_to(5)
        announce_the_end(cluster.address, node.node_id)

        async def emptied() -> bool:
            jobs = await client.jobs()
            return bool(jobs) and all(job.done for job in jobs)

        await until(emptied, "the node is emptied", NOTICE_S / 2)
        (job,) = await client.jobs()
        assert (job.node_id, job.announced, job.state) == (node.node_id, True, "done")
        assert (job.moved, job.failed) == (5, 0)
        for name in names:
            assert (await client.info(name)).node_id != node.node_id
        await writer.came_to(5)
        acknowledged = await writer.stop()
        await asyncio.to_thread(cluster.remove_node, node, False)
        for name in names:
            stored = [m["id"] async for m in client.get(name).session().history()]
            assert stored == ["m", *(acknowledged if name == names[1] else [])]
            await client.delete(name)


async def test_a_drain_goes_on_when_the_router_is_killed_and_nobody_asks(
    deploy: Deploy, three_nodes: Nodes, tmp_path: Path
) -> None:
    root = tmp_path / "data"
    async with deploy(**PATIENCE) as client:
        names = [f"killed/{i}" for i in range(8)]
        for name in names:
            await client.get(name).session().append_message(message("m"))
            await client.migrate(name, three_nodes["apart"])
        router = json.loads((root / "deployment.json").read_text())["pid"]
        job_id = await client._ask(0, "start_drain", three_nodes["apart"], "drain-1")
        os.kill(router, signal.SIGKILL)
        await until(lambda: not is_running(router), "the router is gone")

        def state() -> tuple[str, int]:
            directory = sqlite3.connect(f"file:{root / 'directory.sqlite'}?mode=ro", uri=True)
            try:
                [(found,)] = directory.execute("SELECT state FROM jobs WHERE id = ?", (job_id,))
                [(moved,)] = directory.execute("SELECT count(*) FROM job_moves WHERE moved")
            finally:
                directory.close()
            return found, moved

        await until(lambda: state()[0] != "running", "the drain is done", 90)
        assert state() == ("done", 8)
        report = await client.drain(three_nodes["apart"])
        assert (report.moved, report.failed) == (0, {})
        # Ray may not have noticed yet that the node is gone whose end it was told of.
        (first, second) = [job for job in await client.jobs() if not job.announced]
        assert (first.id, first.moved, second.moved) == ("drain-1", 8, 0)
        await client.undrain(three_nodes["apart"])
        evened = await client.rebalance()
        assert (evened.state, evened.failed) == ("done", {})
        for name in names:
            assert await client.get(name).session().get_history() == [message("m")]


async def test_a_migration_tells_how_far_it_is_and_ends_with_its_caller(
    deploy: Deploy, three_nodes: Nodes
) -> None:
    async with deploy(**PATIENCE) as client:
        session = client.get("alice").session()
        for i in range(12):
            await session.append_messages([message(f"m{i}-{j}", "x" * 100_000) for j in range(10)])
        await client.migrate("alice", three_nodes["head"])
        told: list[Any] = []
        report = await client.migrate("alice", three_nodes["apart"], progress=told.append)
        assert report.bytes > 12_000_000
        assert told
        assert {step.name for step in told} == {"alice"}
        assert [step.bytes for step in told] == sorted(step.bytes for step in told)
        assert not await client.cancel_migration("alice")

        moving = asyncio.ensure_future(
            client.migrate("alice", three_nodes["head"], progress=told.append)
        )
        told.clear()
        await until(lambda: moving.done() or any(step.bytes for step in told), "it is under way")
        moving.cancel()
        [outcome] = await asyncio.gather(moving, return_exceptions=True)
        info = await client.info("alice")
        if isinstance(outcome, asyncio.CancelledError) and info.epoch == report.epoch:
            assert info.node_id == three_nodes["apart"]
        else:  # the switch was faster
            assert info.node_id == three_nodes["head"]
        assert info.state == "active"
        await session.append_message(message("after"))
        assert [m["id"] async for m in session.history()] == [
            *(f"m{i}-{j}" for i in range(12) for j in range(10)), "after"
        ]  # fmt: skip
        assert await client.get("alice").verify() == []
