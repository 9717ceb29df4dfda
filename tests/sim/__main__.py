"""Simulate a deployment, seed after seed: `python -m tests.sim --seeds 1000`, or replay one.

python -m tests.sim --seeds 2000 --jobs 2      many seeds, the first failures in full
python -m tests.sim --seed 1234 --trace        one seed, with all that happens in it
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from dataclasses import replace

from . import seams
from .mutations import MUTANTS, OPEN, Mutant, broken, find
from .run import Outcome, run_parallel, run_seed

FAILURES_SHOWN = 10


def main() -> int:
    """Run what was asked for; returns 1 when a seed failed."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of text is a part of the history that a seed stands for.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="print what happens in it")
    parser.add_argument(
        "--mutants", nargs="*", metavar="NAME", help="run broken builds: these, or all of them"
    )
    parser.add_argument("--mutant", help="break the build like this, with --seed or --seeds")
    given = parser.parse_args()
    if given.mutants is not None:
        known = (*MUTANTS, *OPEN)
        wanted = [one for one in known if one.name in given.mutants] or list(MUTANTS)
        return _mutants(wanted, given.jobs)
    if given.mutant:
        mutant = next(one for one in (*MUTANTS, *OPEN) if one.name == given.mutant)
        with broken(mutant):
            return _run(given)
    return _run(given)


def _run(given: argparse.Namespace) -> int:
    if given.seed is not None:
        return _one(given.seed, given.trace)
    replay = "python -m tests.sim" + (f" --mutant {given.mutant}" if given.mutant else "")
    return _many(range(given.first, given.first + given.seeds), given.jobs, replay)


def _one(seed: int, trace: bool) -> int:
    with seams.installed():
        outcome = run_seed(seed, trace=trace)
    print(_line(outcome))
    if outcome.error is not None:
        traceback.print_exception(outcome.error)
    return outcome.failure is not None


def _many(seeds: range, jobs: int, replay: str) -> int:
    began, failed = time.monotonic(), 0
    done: list[Outcome] = []
    for outcome in run_parallel(seeds, jobs):
        done.append(outcome)
        if outcome.failure is not None:
            failed += 1
            if failed <= FAILURES_SHOWN:
                again = f"{replay} --seed {outcome.seed} --trace"
                print(f"{_line(outcome)}\n  replay: {again}", flush=True)
        if len(done) % 1000 == 0:
            print(
                f"{len(done)} seeds, {failed} failed, {time.monotonic() - began:.0f} s", flush=True
            )
    took = time.monotonic() - began
    print(
        f"{len(done)} seeds, {failed} failed; {sum(o.faults for o in done)} faults,"
        f" {sum(o.acknowledged for o in done)} acknowledgements,"
        f" {sum(o.moves for o in done)} moves, {sum(o.calls for o in done)} calls,"
        f" {sum(o.virtual_s for o in done) / 3600:.1f} h of virtual time in {took:.0f} s"
    )
    return failed > 0


def _mutants(wanted: list[Mutant], jobs: int) -> int:
    missed = 0
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for mutant, caught in pool.imap_unordered(_find, wanted, 1):
            missed += caught is None
            told = f"not caught in {mutant.seeds} seeds" if caught is None else _line(caught)
            print(f"{mutant.name}: {mutant.lacks}\n  {told}", flush=True)
    return missed > 0


def _find(mutant: Mutant) -> tuple[Mutant, Outcome | None]:
    caught = find(mutant)
    return mutant, None if caught is None else replace(caught, error=None)


def _line(outcome: Outcome) -> str:
    told = outcome.failure or "clean"
    return f"seed {outcome.seed}: {told} (digest {outcome.digest:08x}, {outcome.virtual_s:.1f} s)"


if __name__ == "__main__":
    sys.exit(main())
