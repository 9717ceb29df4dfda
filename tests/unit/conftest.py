"""What most tests of the router begin with."""

import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sessions_actor import meters
from sessions_actor.logs import LOGGER, configure

from .deployments import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Give a cluster of one node; the last router that is started on it is closed."""
    found = World(tmp_path / "data")
    found.root.mkdir()
    yield found
    if found.lives:
        await found.lives[-1].jobs.close()
        await found.lives[-1].upkeep.close()


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """What is logged in this test."""
    handlers, level = list(LOGGER.handlers), LOGGER.level
    found = io.StringIO()
    configure(log_format="json", log_level="info", stream=found)
    yield found
    LOGGER.handlers[:] = handlers
    LOGGER.setLevel(level)
    LOGGER.propagate = True
    meters.REGISTRY._before.clear()
