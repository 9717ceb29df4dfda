"""The command `doctor`: examines every node of a deployment and says what to do."""

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from .. import checkup
from ..render import clean, count
from .deployment import UNSOUND, Deployment, command

if TYPE_CHECKING:
    from ..client import Client
    from ..settings import Settings

# A node has to start a process before it answers.
ANSWER_S = 60.0
ACTIVE_LOOKED_AT = 1000
_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "fault": ("✗", "bold red")}


_EXAMPLES = {
    "doctor": (
        "sessions-actor doctor",
        "sessions-actor doctor --json",
    ),
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "doctor", examples=_EXAMPLES["doctor"])(doctor)


async def doctor(deployment: Deployment) -> int:
    """Examine a deployment: versions, authentication, storage, leases, clocks, actors, replicas.

    Every node is asked. Each finding comes with advice. Exit code 5 when something is at fault;
    warnings alone are 0.
    """
    out = deployment.output
    async with deployment.connect() as client:
        with out.waiting("Examining"):
            found = checkup.judge(await _gather(client, deployment.namespace))
    level = checkup.worst(found)
    out.json({"level": level, "findings": found})
    for finding in found:
        mark, style = _MARKS[finding.level]
        where = f"{finding.where}: " if finding.where else ""
        said = clean(f"{where}{finding.text}")
        out.show(Text.assemble((f"{mark} {finding.check}", style), " ", said))
        if finding.advice:
            out.show(Text(f"  {clean(finding.advice)}", style="dim"))
    levels = [finding.level for finding in found]
    faults, warnings = levels.count("fault"), levels.count("warning")
    out.note(f"{count(faults, 'fault')}, {count(warnings, 'warning')}")
    return UNSOUND if level == "fault" else 0


async def _gather(client: "Client", namespace: str) -> checkup.Deployment:
    """Ask every node of the cluster, and the router for what is active."""
    settings = client.settings
    known, active, disks, behind, gone = await asyncio.gather(
        client.nodes(),
        client.active(ACTIVE_LOOKED_AT),
        client.disks(),
        client.replicas_behind(),
        asyncio.to_thread(_gone),
    )
    asked = [_ask(node.node_id, namespace, settings) for node in known]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    nodes, silent = [], {}
    for node, answer in zip(known, answers, strict=True):
        if isinstance(answer, checkup.Facts):
            nodes.append(answer)
        elif isinstance(answer, Exception):
            silent[node.node_id] = _why(answer)
        else:
            raise answer
    return checkup.Deployment(
        here=checkup.about_here("here"),
        nodes=tuple(nodes),
        silent=silent,
        known=tuple(known),
        active=tuple(active),
        disks=disks,
        behind=behind,
        gone=gone,
        durability=settings.durability,
    )


def _why(error: Exception) -> str:
    """Return what an error of a call to a node says of the node."""
    import ray.exceptions

    if isinstance(error, ray.exceptions.TaskUnschedulableError):
        return "Ray has lost it, and takes a moment to strike it off"
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _gone() -> tuple[str, ...]:
    """Return what Ray tells of the nodes that have left, in no order but its own."""
    import ray

    if not ray.is_initialized():
        return ()
    nodes: Any = ray.nodes()  # type: ignore[no-untyped-call]
    left = [node for node in nodes if not node["Alive"]]
    return tuple(f"{node['NodeID'][:8]} ({node.get('DeathReasonMessage') or '?'})" for node in left)


async def _ask(node_id: str, namespace: str, settings: "Settings") -> checkup.Facts:
    """Run the examination on a node; its clock is compared over the shortest of two calls."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from ..shards import Shard

    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task: Any = ray.remote(num_cpus=0, max_retries=0)(checkup.examine)
    routers = [one.router_name for one in Shard(0, settings.router_shards).all]
    best: checkup.Facts | None = None
    shortest = float("inf")
    for _ in range(2):  # the first one waits for a process to start
        began = time.time()
        asked = task.options(scheduling_strategy=there).remote(
            node_id, str(settings.storage_root), namespace, routers, settings.durability
        )
        facts: checkup.Facts = await asyncio.wait_for(asked, ANSWER_S)
        ended = time.time()
        if ended - began < shortest:
            shortest = ended - began
            best = replace(facts, skew_s=_skew(facts.clock_s, began, ended))
    assert best is not None
    return best


def _skew(clock_s: float, began: float, ended: float) -> float:
    """Return how far a clock is outside of the time in which it was read."""
    return min(0.0, clock_s - began) + max(0.0, clock_s - ended)
