"""Deployments on a private Ray cluster that lasts as long as the test session.

Each test has a namespace, a storage root and a router of its own; what it started is ended with
it. Nothing here joins a cluster that someone else runs.
"""

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sessions_actor.disk import NODE_ROOT_VARIABLE

os.environ.setdefault("RAY_DEDUP_LOGS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_metrics_report_interval_ms", "1000")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

# Workers import the hosted classes of these tests.
ROOT = Path(__file__).resolve().parents[2]

Deploy = Callable[..., Any]

_clusters: list[Any] = []


async def until(
    condition: Callable[[], Awaitable[Any] | Any], what: str, within_s: float = 30.0
) -> Any:
    """Wait for a condition to hold; returns its first true value."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.01)


def message(message_id: str, text: str = "Hello", role: str = "user") -> dict[str, Any]:
    """Make a message."""
    return {"id": message_id, "role": role, "parts": [{"type": "text", "text": text}]}


def is_running(pid: int) -> bool:
    """Say whether a process is there and no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


# As the guide to replication has it: Ray takes a node for dead in 5 s when its machine refuses
# connections, not in 15. A run of the usual length may share its machine with anything.
SOON_DEAD = {"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "2000"}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, long_run: bool) -> Iterator[Any]:
    """A private cluster of one node that this process is in; one for the tests of all folders."""
    if _clusters:
        yield _clusters[0]
        return
    for variable, value in SOON_DEAD.items() if long_run else ():
        os.environ.setdefault(variable, value)
    import ray
    from ray._common.utils import get_ray_address_file
    from ray.cluster_utils import Cluster

    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    os.environ["PYTHONPATH"] = path
    head = {"num_cpus": 4, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args=head)
    # Ray notes the address for whoever asks for "auto" on this machine: it is ours alone.
    Path(get_ray_address_file(None)).unlink(missing_ok=True)
    ray.init(address=found.address, namespace="tests", log_to_driver=False, logging_level=40)
    _clusters.append(found)
    yield found
    _clusters.clear()
    ray.shutdown()
    found.shutdown()


@pytest.fixture(scope="session")
def three_nodes(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two nodes more: `shared` mounts the head's disk, `apart` has a disk of its own."""
    import ray

    head = ray.get_runtime_context().get_node_id()
    shared = cluster.add_node(num_cpus=2)
    own_disk = {NODE_ROOT_VARIABLE: str(tmp_path_factory.mktemp("disk"))}
    apart = cluster.add_node(num_cpus=2, env_vars=own_disk)
    return {"head": head, "shared": shared.node_id, "apart": apart.node_id}


def end_deployment(namespace: str) -> None:
    """End a deployment's router and actors."""
    import ray
    from ray.util import list_named_actors

    for one in list_named_actors(all_namespaces=True):
        if one["namespace"] == namespace:
            with contextlib.suppress(ValueError):
                ray.kill(ray.get_actor(one["name"], namespace))


@pytest.fixture
def deploy(cluster: Any, tmp_path: Path) -> Iterator[Deploy]:
    """Return how to enter a deployment of this test's own: `async with deploy(...) as client`.

    Entered again with the same settings it is the same deployment.
    """
    from router import Settings, connect

    namespace = f"test-{uuid.uuid4().hex}"

    @asynccontextmanager
    async def enter(**settings: Any) -> AsyncIterator[Any]:
        chosen = {"storage_root": tmp_path / "data", "warm_actors": 1} | settings
        async with connect(namespace=namespace, settings=Settings(**chosen)) as client:
            yield client

    yield enter
    end_deployment(namespace)
