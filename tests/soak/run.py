"""One soak: nodes, conversations, writers, faults for a while, and the verdict."""

import asyncio
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fault import processes
from tests.fault.nodes import Node
from tests.fault.writers import Ledger, Writer, compare

from .faults import Faults

ROOT = Path(__file__).resolve().parents[2]

# Ray takes a node for dead sooner than usual, so that a run holds more deaths.
RAY_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
}

# How long the first append of every writer may take.
START_S = 300.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a soak does; the same seed draws the same faults, though not the same moments."""

    seconds: float
    seed: int
    kills_per_minute: float
    conversations: int = 30
    writers_each: int = 2
    max_active: int = 12
    lease_ttl_s: float = 10.0
    call_timeout_s: float = 120.0
    pause_s: float = 0.3
    shared_disk: bool = False


@dataclass(slots=True)
class Verdict:
    """What a soak found."""

    acknowledged: int = 0
    kills: int = 0
    worst_s: float = 0.0
    worst_of: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    writer_errors: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    details: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether every promise was kept."""
        return not self.details


async def soak(plan: Plan, folder: Path, say: Callable[[str], object]) -> Verdict:
    """Run a plan on a cluster of its own, whose files lie in a folder."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ.update(RAY_VARIABLES)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    os.environ["PYTHONPATH"] = path
    processes.adopt_orphans()
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    _forget_address()
    try:
        ray.init(address=cluster.address, namespace="soak", log_to_driver=False, logging_level=40)
        folders = [None if plan.shared_disk else folder / f"disk{number}" for number in (1, 2)]
        nodes = [Node(cluster, one) for one in folders]
        for node in nodes:
            node.start()
        return await _run(plan, folder / "data", nodes, say)
    finally:
        ray.shutdown()
        cluster.shutdown()
        for pid in processes.descendants(os.getpid()):
            processes.kill(pid)


def _forget_address() -> None:
    """Remove Ray's note of the cluster for whoever asks for "auto" here: it is ours alone."""
    from ray._common.utils import get_ray_address_file

    Path(get_ray_address_file(None)).unlink(missing_ok=True)


async def _run(plan: Plan, root: Path, nodes: list[Node], say: Callable[[str], object]) -> Verdict:
    from router import Settings, connect

    settings = Settings(
        storage_root=root,
        max_active=plan.max_active,
        warm_actors=1,
        lease_ttl_s=plan.lease_ttl_s,
        call_timeout_s=plan.call_timeout_s,
        capacity_wait_s=30.0,
        idle_timeout_s=20.0,
    )
    chance = random.Random(plan.seed)
    verdict, ledger = Verdict(), Ledger()
    async with connect(namespace="soak", settings=settings) as client:
        names = [f"c{number:02}" for number in range(plan.conversations)]
        writers = {
            name: [
                Writer(client.get(name).session(), f"{name}-{number}-", ledger,
                       chance=random.Random(chance.random()), pause_s=plan.pause_s)
                for number in range(plan.writers_each)
            ]
            for name in names
        }  # fmt: skip
        for writer in itertools.chain(*writers.values()):
            await writer.came_to(1, START_S)
        faults = Faults(
            client, names, nodes, below=os.getpid(), chance=chance,
            longest_freeze_s=1.5 * plan.lease_ttl_s, say=say,
        )  # fmt: skip
        raging = asyncio.create_task(faults.rage(plan.seconds, plan.kills_per_minute))
        began = time.monotonic()
        while not raging.done():
            await asyncio.wait([raging], timeout=10.0)
            processes.reap()
            told = _progress(time.monotonic() - began, ledger, faults, writers)
            say(f"{told}; {await _occupied(client)}")
        raging.result()
        await _judge(client, writers, faults, verdict)
    verdict.acknowledged = ledger.acknowledged
    verdict.worst_s, verdict.worst_of = ledger.worst_s, ledger.worst_of
    verdict.writer_errors = dict(ledger.errors)
    verdict.kills, verdict.counts = faults.kills, dict(faults.counts)
    verdict.refused = dict(faults.refused)
    return verdict


def _progress(
    seconds: float, ledger: Ledger, faults: Faults, writers: dict[str, list[Writer]]
) -> str:
    waits = sorted(((w.waits_s, w.prefix) for ws in writers.values() for w in ws), reverse=True)
    return (
        f"{seconds:.0f} s: {ledger.acknowledged} acknowledged, {faults.kills} kills,"
        f" worst {ledger.worst_s:.1f} s, waiting {waits[0][0]:.1f} s ({waits[0][1]}),"
        f" errors {sum(ledger.errors.values())}{ledger.errors.most_common(1)}"
    )


async def _occupied(client: Any) -> str:
    """Tell what the nodes hold, if the router answers at once."""
    try:
        nodes = await asyncio.wait_for(client.nodes(), 1.0)
    except Exception as error:
        return f"router: {type(error).__name__}"
    return "nodes " + ", ".join(f"{node.active}+{node.idle}" for node in nodes)


async def _judge(
    client: Any, writers: dict[str, list[Writer]], faults: Faults, verdict: Verdict
) -> None:
    """Wait for everyone, then read every conversation back."""
    wrong: Counter[str] = Counter()

    def note(kind: str, what: str) -> None:
        wrong[kind] += 1
        verdict.details.append(f"{kind}: {what}")

    for _ in range(await faults.calm()):
        note("stuck", "a fault or a piece of work did not come to its end")
    flat = [writer for some in writers.values() for writer in some]
    for writer, ended in zip(flat, await asyncio.gather(*(w.stop() for w in flat)), strict=True):
        if not ended:
            note("stuck", f"writer {writer.prefix} waits after {len(writer.acknowledged)}")
    for name, some in writers.items():
        try:
            stored = await asyncio.wait_for(_stored(client, name), 120)
            for kind, ids in compare(stored, some).items():
                note(kind, f"{name}: {len(ids)}, first {ids[:3]}")
            for problem in await asyncio.wait_for(client.get(name).verify(), 120):
                note("unsound", f"{name}: {problem}")
        except Exception as error:
            note("stuck", f"{name}: {type(error).__name__}: {error}")
    if sorted(await client.list()) != sorted(writers):
        note("stuck", "the directory lists other names")
    verdict.wrong = dict(wrong)


async def _stored(client: Any, name: str) -> list[str]:
    return [message["id"] async for message in client.get(name).session().history()]
