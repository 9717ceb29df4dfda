"""What most tests of the router begin with."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from sessions_actor import meters
from sessions_actor.logs import LOGGER, configure

from .deployments import World
from .virtual_time import VirtualTimeLoop

CLOSE_TIMEOUT_S = 30.0


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Have tests run on virtual time, unless their module names another event loop."""
    assert isinstance(item, pytest.Function)
    return {"loop": getattr(item.module, "LOOP", VirtualTimeLoop)}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Give a cluster of one node; the last router that is started on it is closed."""
    found = World(tmp_path / "data")
    found.root.mkdir()
    yield found
    if not found.lives:
        return

    async def close() -> None:
        await found.lives[-1].jobs.close()
        await found.lives[-1].upkeep.close()

    closing = asyncio.ensure_future(close())
    if (await asyncio.wait([closing], timeout=CLOSE_TIMEOUT_S))[1]:
        # What a test that failed holds up is waited for, and never comes: so end all there is.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=CLOSE_TIMEOUT_S)
        pytest.fail("the router did not close: something is still held up")
    closing.result()


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
