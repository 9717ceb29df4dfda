"""Tests against the real replication engine; skipped where its package has no build."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router.replication.daemon import Daemon, DaemonTerms
from router.replication.engine import find_program
from sessions_actor.errors import StorageError

DAY_S = 86_400.0
TERMS = DaemonTerms(DAY_S, DAY_S)


@pytest.fixture(autouse=True)
def engine() -> str:
    """The engine's program."""
    try:
        return find_program()
    except StorageError as error:
        pytest.skip(f"the replication engine is not installed: {error.reason}")


@contextlib.asynccontextmanager
async def running(daemon: Daemon) -> AsyncIterator[Daemon]:
    """Run a daemon while this is open."""
    task = asyncio.create_task(daemon.run())
    try:
        await daemon.ready(30.0)
        yield daemon
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    """A daemon for the disk `tmp_path/"disk"`, running."""
    async with running(Daemon(tmp_path / "disk", TERMS)) as started:
        yield started
