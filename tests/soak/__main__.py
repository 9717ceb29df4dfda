"""Kill and freeze at random under load, then check every message: `python -m tests.soak`.

Three nodes, each with a disk of its own (or one that they share); writers on 30 conversations;
actors, router, agents and nodes are killed and frozen while conversations migrate, hibernate and
are drained. Afterwards every acknowledged message must be there, once, in its writer's order, and
every file sound. The exit code is 1 when one is not.
"""

import argparse
import asyncio
import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from .run import Plan, Verdict, soak


def report(plan: Plan, verdict: Verdict) -> str:
    """Write a verdict for people."""
    lines = [
        f"seed {plan.seed}, {plan.seconds:.0f} s, {plan.conversations} conversations,"
        f" {plan.conversations * plan.writers_each} writers,"
        f" {'one disk' if plan.shared_disk else 'a disk per node'}",
        f"{verdict.acknowledged} messages acknowledged, {verdict.kills} processes killed",
        *(f"  {count:5} {kind}" for kind, count in sorted(verdict.counts.items())),
        f"longest wait of a writer: {verdict.worst_s:.1f} s ({verdict.worst_of})",
    ]
    for title, found in (
        ("errors that writers saw (and asked again)", verdict.writer_errors),
        ("work that was refused", verdict.refused),
    ):
        lines.append(f"{title}: {sum(found.values())}")
        lines += [f"  {count:5} {kind}" for kind, count in sorted(found.items())]
    kinds = ("lost", "twice", "order", "foreign", "unsound", "stuck")
    lines.append(", ".join(f"{kind}: {verdict.wrong.get(kind, 0)}" for kind in kinds))
    return "\n".join([*lines, *verdict.details])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, required=True, metavar="N")
    parser.add_argument("--seed", type=int, metavar="S", default=None)
    parser.add_argument("--kills-per-minute", type=float, default=20.0, metavar="K")
    parser.add_argument("--conversations", type=int, default=30, metavar="C")
    parser.add_argument("--lease-ttl", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--shared-disk", action="store_true", help="one disk for all nodes")
    parser.add_argument("--folder", type=Path, help="keep the files here instead of removing them")
    parser.add_argument("--verbose", action="store_true", help="tell of each fault")
    options = parser.parse_args(arguments)
    plan = Plan(
        seconds=options.minutes * 60,
        seed=random.SystemRandom().randrange(10**6) if options.seed is None else options.seed,
        kills_per_minute=options.kills_per_minute,
        conversations=options.conversations,
        lease_ttl_s=options.lease_ttl,
        shared_disk=options.shared_disk,
    )
    began = time.monotonic()

    def say(text: str) -> None:
        if options.verbose or text[:1].isdigit():
            print(f"[{time.monotonic() - began:6.1f}] {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="sessions-soak-", ignore_cleanup_errors=True) as own:
        folder = options.folder or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        # Ray prints every death it sees to this process's standard output.
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            verdict = asyncio.run(soak(plan, folder.absolute(), say))
    print(report(plan, verdict))
    return 0 if verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
