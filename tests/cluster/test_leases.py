"""Node agents and their leases, on a real cluster: killed, frozen, and gone for good."""

import asyncio
import os
import signal
from typing import Any

from router.cluster import AGENT_PREFIX
from router.shards import ROUTER_NAME
from sessions_actor.lease import NodeLease, lease_clock, lease_file, open_lease

from .conftest import Deploy, is_running, message, until


def agent_of(client: Any, node_id: str) -> Any:
    """The handle of a node's agent."""
    import ray

    return ray.get_actor(AGENT_PREFIX + node_id, client._namespace)


async def agent_pid(client: Any, node_id: str) -> int | None:
    """The process of a node's agent, while it answers."""
    import ray

    try:
        pid: int = await asyncio.wait_for(agent_of(client, node_id).pid.remote(), 2)
    except (TimeoutError, ValueError, ray.exceptions.RayActorError):
        return None
    return pid


def lease_of(client: Any, node_id: str) -> NodeLease:
    """A node's lease, as its actors read it: in these tests nodes share a machine."""
    return open_lease(lease_file(client._namespace, ROUTER_NAME, node_id))


async def test_a_nodes_agent_renews_its_lease_and_comes_back_when_killed(deploy: Deploy) -> None:
    async with deploy() as client:
        session = client.get("alice").session()
        await session.append_message(message("m0"))
        (node_id,) = [n.node_id for n in await client.nodes() if n.active]
        lease = lease_of(client, node_id)
        assert lease.holds(1)
        pid = await agent_pid(client, node_id)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for i in range(1, 20):
            await session.append_message(message(f"m{i}"))
        later = await until(lambda: agent_pid(client, node_id), "another agent")
        assert later != pid
        left_s = lease.left_s
        await until(lambda: lease.left_s > left_s, "a renewal")
        assert lease.term == 1


async def test_a_frozen_agent_is_replaced_and_nobody_sees_an_error(deploy: Deploy) -> None:
    async with deploy(lease_ttl_s=4) as client:
        session = client.get("alice").session()
        await session.append_message(message("m0"))
        (node_id,) = [n.node_id for n in await client.nodes() if n.active]
        pid = await agent_pid(client, node_id)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            await until(lambda: not is_running(pid), "the frozen agent is ended")
        finally:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        await session.append_message(message("m1"))
        assert await until(lambda: agent_pid(client, node_id), "another agent") != pid
        assert [m["id"] for m in await session.get_history()] == ["m0", "m1"]


async def test_past_its_lease_a_node_acknowledges_nothing(deploy: Deploy) -> None:
    async with deploy(lease_ttl_s=60) as client:
        session = client.get("alice").session()
        await session.append_message(message("m0"))
        (node_id,) = [n.node_id for n in await client.nodes() if n.active]
        lease = lease_of(client, node_id)
        lease._word[0] = int(lease_clock() * 1000) << 20 | 1  # it runs out now
        asked = asyncio.create_task(session.append_message(message("m1")))
        done, _ = await asyncio.wait([asked], timeout=1.5)
        assert not done
        assert lease.left_s == 0
        lease.grant(1, lease.now(), 60)
        assert (await asked).inserted
