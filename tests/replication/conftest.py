"""Tests against the real replication engine; skipped where its package has no build."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router.replication.daemon import Daemon

from .deployments import TERMS, World, running
from .stores import skip_without_engine


@pytest.fixture(autouse=True)
def engine() -> str:
    """The engine's program."""
    return skip_without_engine()


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    """A daemon for the disk `tmp_path/"disk"`, running."""
    async with running(Daemon(tmp_path / "disk", TERMS)) as started:
        yield started


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Three nodes with their daemons, and a router."""
    made = World(tmp_path)
    await made.start()
    yield made
    await made.stop()
