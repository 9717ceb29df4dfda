"""What a node's agent tells: that no router renews its lease, and that one does again."""

import asyncio
import contextlib
import io
import json
from typing import Any

import pytest

from router.agent import Agent, AgentActor
from router.leases import Grant
from sessions_actor import meters
from sessions_actor.lease import NodeLease
from sessions_actor.observing import Observing

from .fake_cluster import until

LOOP = asyncio.new_event_loop  # an agent has threads of its own


def told(stream: io.StringIO) -> list[tuple[str, str]]:
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [(e["event"], e["router"]) for e in events if e["event"].startswith("lease.")]


async def test_each_outage_is_told_once_and_its_end(stream: io.StringIO) -> None:
    asked, reachable = 0, True

    async def ask(router: str) -> Grant | None:
        nonlocal asked
        asked += 1
        if not reachable:
            raise ConnectionError("the router's address")
        return Grant(1, 0.04)

    task = asyncio.create_task(Agent({"router-1": NodeLease.in_memory()}, ask).run())
    try:
        for outage in range(2):
            reachable, before = True, asked
            await until(lambda: asked > before + 2)  # noqa: B023
            reachable, before = False, asked
            await until(lambda: asked > before + 2)  # noqa: B023
            assert [event for event, _ in told(stream)].count("lease.renewal_failed") == outage + 1
        reachable = True
        await until(lambda: told(stream)[-1][0] == "lease.renewed_again")
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    outage_and_end = [("lease.renewal_failed", "router-1"), ("lease.renewed_again", "router-1")]
    assert told(stream) == outage_and_end * 2
    assert "address" not in stream.getvalue(), "an error is told by its class"


class Context:
    """What the agent asks Ray about itself."""

    def get_node_id(self) -> str:
        return "node-1"


class NoRouter(AgentActor):
    """An agent in a cluster without a router."""

    def _find(self, name: str) -> Any:
        raise ValueError(f"no actor is called {name}")


async def test_an_agent_looks_at_its_disk_and_tells_who_it_misses(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, capsys: Any
) -> None:
    monkeypatch.setattr("ray.get_runtime_context", Context)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    lines: list[dict[str, Any]] = []

    def heard() -> bool:
        lines.extend(json.loads(one) for one in capsys.readouterr().err.splitlines())
        return any(line["event"] == "lease.renewal_failed" for line in lines)

    agent = NoRouter(str(tmp_path / "data"), "tests", ["router-1"], None, Observing())
    assert agent.ping() == ["router-1"]
    await until(heard)
    (failed,) = [line for line in lines if line["event"] == "lease.renewal_failed"]
    assert (failed["role"], failed["node"], failed["router"]) == ("agent", "node-1", "router-1")
    meters.DISK_FREE_BYTES.reset()
    meters.REGISTRY.drain("agent")
    assert (meters.DISK_FREE_BYTES.value() or 0) > 0
