"""The process that a storage fault test kills: writes pairs of rows, tells what is durable.

Usage: python -m tests.fault.storage_child PATH FIRST POINT SEED

It stores pairs from number FIRST on, one op each, eight at once, and prints the highest number of
each durable batch. With POINT above 0 it dies before that write or sync of the file system, and
with SEED not negative it first loses what was not synced.
"""

import asyncio
import random
import sys

from sessions_actor.storage import Storage

from .faulty_vfs import FaultyVfs, die_at

AT_ONCE, BATCHES = 8, 40


async def _write(storage: Storage, first: int) -> None:
    def pair(number: int) -> None:
        storage.write("INSERT INTO pairs VALUES (?, 'left', ?)", (number, "x" * 700))
        storage.write("INSERT INTO pairs VALUES (?, 'right', ?)", (number, "y" * 700))

    for batch in range(BATCHES):
        numbers = range(first + batch * AT_ONCE, first + (batch + 1) * AT_ONCE)
        await asyncio.gather(*(storage.submit(lambda n=n: pair(n)) for n in numbers))
        print(numbers[-1], flush=True)


def main(path: str, first: int, point: int, seed: int) -> None:
    """Run as told by the command line."""
    vfs = FaultyVfs("storage-child")
    storage = Storage(path, vfs=vfs.name)
    storage.sql.exec(
        "CREATE TABLE IF NOT EXISTS pairs"
        " (number INTEGER, side TEXT, data TEXT, PRIMARY KEY (number, side)) WITHOUT ROWID"
    )
    if point > 0:
        vfs.arm(die_at(vfs, point, power_loss=random.Random(seed) if seed >= 0 else None))
    asyncio.run(_write(storage, first))
    storage.close()


if __name__ == "__main__":
    main(sys.argv[1], *(int(argument) for argument in sys.argv[2:5]))
