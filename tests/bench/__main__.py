"""Measure the product beside its floors: `python -m tests.bench [NAME ...]`.

Each line runs in turns with its floor (a bare Ray call, raw SQLite, ...) or its peer on this
machine, in this run. Figures are medians; the ratio is what counts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

from . import churn, life, observing, reads, scale, sdks, writes
from .bench import LINES, Bench, SkipError, default_reference, say
from .measure import Result, count_cpu, table

ORDER = (
    *("append", "append-pipelined", "append-many", "append-local", "append-spread", "sdk"),
    *("history", "history-deep", "newest-first", "recent", "branches", "search", "attachments"),
    *("activate", "hibernate", "churn", "migrate", "memory", "directory", "start", "metrics"),
)
IN_PROCESS = ("append-local", "sdk", "branches", "search", "attachments")
"""Lines that need no cluster, whose CPU time says something."""

assert set(ORDER) == set(LINES), (churn, life, observing, reads, scale, sdks, writes)


async def run(names: Sequence[str], options: argparse.Namespace) -> tuple[list[Result], list[str]]:
    """Measure the named lines, one after another; tells each on the way.

    Returns: the results, and the lines that failed: the others are worth their time all the same.
    """
    failed = []
    async with Bench(
        small=options.small, repeat=options.repeat, reference=options.reference, note=say
    ) as bench:
        for name in names:
            began, before = time.monotonic(), len(bench.results)
            try:
                await LINES[name](bench)
            except SkipError as error:
                bench.skip(name, str(error))
            except Exception:
                failed.append(name)
                say(f"{name}: failed\n{traceback.format_exc()}")
            if not options.json:
                found = bench.results[before:]
                if found:
                    say(table(found) + f"\n({name}: {time.monotonic() - began:.0f} s)\n")
        return bench.results, failed


@contextlib.contextmanager
def quiet_stdout() -> Iterator[None]:
    """Send what anybody prints to stderr: Ray's processes have things to say."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser("python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"lines: {', '.join(ORDER)}")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON list")
    parser.add_argument("--small", action="store_true", help="small sizes: does it work at all")
    parser.add_argument("--repeat", type=int, metavar="N", help="rounds of each measurement")
    parser.add_argument(
        "--reference", type=Path, metavar="FOLDER", default=default_reference(),
        help="where the reference is, or is installed by npm (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--cpu", action="store_true",
        help=f"CPU time instead of time, for a machine in use: {', '.join(IN_PROCESS)}",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in LINES]
    if unknown:
        parser.error(f"no line is called {', '.join(unknown)}")
    if options.repeat is None:
        options.repeat = 1 if options.small else 3
    names = [name for name in ORDER if name in options.names] or ORDER
    if options.cpu:
        count_cpu()
        names = [name for name in names if name in IN_PROCESS]
    with quiet_stdout():
        results, failed = asyncio.run(run(names, options))
    if options.json:
        print(json.dumps([one.as_json() for one in results], ensure_ascii=False, indent=1))
    else:
        print(table(results))
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
