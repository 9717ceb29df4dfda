"""A node's agent as the router keeps it: replaced when it is of no use, told of when it fails."""

import asyncio
import io
import json
from typing import Any

import pytest

from router import cluster, upkeep
from router.cluster import RayCluster
from sessions_actor import actor
from sessions_actor.lease import NodeLease

from .deployments import World, message
from .fake_cluster import until


class Agent:
    """Stands for an agent's class, its options and its handle; answers a ping as told."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.ping = self

    def options(self, **_: Any) -> "Agent":
        """Take any."""
        return self

    def remote(self, *args: Any) -> Any:
        """Make it, which takes arguments, or ask it."""
        return self if args else self._ping()

    async def _ping(self) -> Any:
        if self.answer is None:
            await asyncio.Event().wait()
        return self.answer


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each agent that was killed may start again."""
    found: list[bool] = []
    monkeypatch.setattr("ray.kill", lambda agent, no_restart=True: found.append(not no_restart))
    monkeypatch.setattr(cluster, "AGENT_TIMEOUT_S", 0.05)
    return found


def keeper(agent: Agent, routers: list[str]) -> RayCluster:
    found = RayCluster("tests", "/nowhere", 0.01, routers[0], routers)
    found._agent_class = agent
    return found


NODE = "0" * 56


async def test_an_agent_that_asks_the_routers_there_are_is_left_alone(killed: list[bool]) -> None:
    await keeper(Agent(["router-0", "router-1"]), ["router-0", "router-1"]).keep_agent(NODE)
    assert killed == []


async def test_an_agent_that_outlived_a_resharding_is_replaced(killed: list[bool]) -> None:
    await keeper(Agent(["router"]), ["router-0", "router-1"]).keep_agent(NODE)
    assert killed == [False]


async def test_a_frozen_agent_starts_again_and_is_told_of(killed: list[bool]) -> None:
    with pytest.raises(TimeoutError):
        await keeper(Agent(None), ["router"]).keep_agent(NODE)
    assert killed == [True]


async def test_a_node_that_gets_no_lease_is_told_of_once_and_why(
    world: World, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "TEND_S", 0.01)

    async def keep_agent(node_id: str) -> None:
        raise OSError("its disk is full")

    def told(event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]

    life = await world.start(lease_ttl_s=0.05)
    monkeypatch.setattr(world.cluster, "keep_agent", keep_agent)
    await until(lambda: told("lease.absent"))
    await asyncio.sleep(0.1)  # rounds in which nothing is new
    (absent,), (failed,) = told("lease.absent"), told("agent.failed")
    assert absent["node"] == failed["node"] == "node-0"
    assert absent["seconds"] >= 2 * 0.05
    assert failed["error"] == "builtins.OSError"
    life.leases.ttl_s = 60.0
    life.leases.renew("node-0")
    await until(lambda: not life.upkeep._told)


async def test_a_call_to_a_node_without_a_lease_fails_in_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor, "LEASE_WAIT_S", 0.05)
    world.cluster.leases["node-0"] = NodeLease.in_memory()
    life = await world.start()
    life.call_timeout_s = 0.3
    with pytest.raises(TimeoutError, match="has no lease"):
        await asyncio.wait_for(life.get("alice").append_message(message("m")), 20)
