"""Three nodes with a disk each, or one for all, on the cluster that the test session shares."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Deploy, cluster, deploy
from tests.fault.alerts import watching
from tests.fault.load import OUTAGES, Load
from tests.fault.nodes import Node
from tests.replication.stores import KEY_VARIABLES

__all__ = ["cluster", "deploy"]

CONVERSATIONS, WRITERS_EACH = 6, 2

# The nodes' daemons find here what a test's own S3 server asks for, and never looks at.
for variable in KEY_VARIABLES:
    os.environ.setdefault(variable, "testing")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell how long writers waited at most."""
    if OUTAGES:
        terminalreporter.section("longest waits of writers under faults")
        for line in OUTAGES:
            terminalreporter.write_line(line)


@pytest.fixture
async def apart(nodes_apart: list[Node]) -> list[Node]:
    """Two nodes beside the head, each with a disk of its own; both live."""
    for node in nodes_apart:
        await node.revive()
    return nodes_apart


@pytest.fixture(scope="session")
def nodes_apart(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    found = [Node(cluster, tmp_path_factory.mktemp(f"disk{number}")) for number in (1, 2)]
    for node in found:
        node.start()
    yield found
    for node in found:
        _end(cluster, node)


@pytest.fixture
def together(cluster: Any) -> Iterator[list[Node]]:
    """Two nodes beside the head that mount its disk."""
    found = [Node(cluster, None) for _ in range(2)]
    for node in found:
        node.start()
    yield found
    for node in found:
        _end(cluster, node)


def _end(cluster: Any, node: Node) -> None:
    with contextlib.suppress(Exception):  # Ray complains about what a test has killed
        node.end()


@pytest.fixture
def loaded(deploy: Deploy, request: pytest.FixtureRequest, long_run: bool) -> Any:
    """Return how to deploy with writers on conversations of every node.

    `async with loaded(nodes, ...) as load`; it checks every acknowledged message at the end.
    """

    @asynccontextmanager
    async def enter(
        nodes: list[Node],
        *,
        conversations: int = CONVERSATIONS,
        writers_each: int = WRITERS_EACH,
        pause_s: float = 0.0,
        **settings: Any,
    ) -> AsyncIterator[Load]:
        chosen = {"lease_ttl_s": 1.5, "max_active": 8, "warm_actors": 1, "capacity_wait_s": 60}
        async with deploy(**(chosen | settings)) as client:
            load = Load(client, request.node.name, conversations, writers_each, pause_s)
            try:
                await load.spread([node.node_id for node in nodes])
                async with watching(blind=not long_run) as load.watch:
                    yield load
                await load.check()
            finally:
                await load.abandon()

    return enter


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MB, room for a few logs, where this user may mount one."""
    import subprocess

    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may mount no file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
