"""What most tests of the router begin with."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

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
