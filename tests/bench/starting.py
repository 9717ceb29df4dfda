"""One side of the line `start`, in a process of its own.

`python -m tests.bench.starting SIDE FOLDER` prints its seconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

SIDES = ("connect", "init")


async def connected(folder: str) -> float:
    """Start a deployment on a private cluster; seconds until its first append is durable."""
    from router import Settings, connect

    from .data import Messages

    message = Messages().one()
    began = time.perf_counter()
    async with connect("local", settings=Settings(storage_root=Path(folder))) as conversations:
        await conversations.get("first").session().append_message(message)
        return time.perf_counter() - began


def initialised() -> float:
    """Start a private cluster alone; seconds until it is there."""
    import ray

    began = time.perf_counter()
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=40)
    found = time.perf_counter() - began
    ray.shutdown()
    return found


if __name__ == "__main__":
    side, folder = sys.argv[1:]
    print(asyncio.run(connected(folder)) if side == SIDES[0] else initialised())
