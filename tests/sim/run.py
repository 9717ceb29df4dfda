"""Run seeds: one, or many over several processes, each in a folder of its own in memory."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from . import seams
from .world import Outcome, World

# Seeds after which memory is looked through for what cycles hold.
COLLECT_EVERY = 25
CHUNK = 10
CHUNKS_PER_PROCESS = 50


def scratch() -> str | None:
    """Return a folder in memory, where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run_seed(seed: int, *, trace: bool = False) -> Outcome:
    """Live through one seed. The seams must be installed."""
    folder = Path(tempfile.mkdtemp(prefix="sessions-sim-", dir=scratch()))
    try:
        world = World.__new__(World)
        with seams.running(world):
            world.__init__(seed, folder, trace=trace)  # type: ignore[misc]
            return world.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_seeds(seeds: Iterable[int]) -> Iterator[Outcome]:
    """Run seeds one after the other in this process."""
    enabled = gc.isenabled()
    gc.freeze()  # what was there before need not be looked through again
    gc.disable()  # what a finalizer does must not depend on when memory was short
    try:
        with seams.installed():
            for count, seed in enumerate(seeds, 1):
                yield run_seed(seed)
                if count % COLLECT_EVERY == 0:
                    gc.collect()
    finally:
        gc.collect()
        if enabled:
            gc.enable()


def _chunk(seeds: range) -> list[Outcome]:
    os.environ.pop("SESSIONS_ACTOR_STORAGE_ROOT", None)
    return [replace(outcome, error=None) for outcome in run_seeds(seeds)]


def run_parallel(seeds: range, jobs: int) -> Iterator[Outcome]:
    """Run seeds over several processes; outcomes come as they are known."""
    parts = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
    if jobs <= 1:
        for part in parts:
            yield from _chunk(part)
        return
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    # A process that was killed closes nothing, here neither: its files go with the real process.
    with context.Pool(jobs, maxtasksperchild=CHUNKS_PER_PROCESS) as pool:
        for outcomes in pool.imap_unordered(_chunk, parts):
            yield from outcomes
