"""Commands of moves that go on by themselves: drain, rebalance, jobs; and reshard."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from ..render import clean, count, moment, size, table
from .deployment import FAILED, PARTLY, Deployment, command
from .operations import node_of, show_moves

if TYPE_CHECKING:
    from ..models import JobInfo, JobReport

_STYLES = {"running": "yellow", "done": "green", "cancelled": "dim", "failed": "bold red"}


_EXAMPLES = {
    "drain": (
        "sessions-actor drain 3f2a",
        "sessions-actor drain self",
        "sessions-actor drain 3f2a --undo",
    ),
    "rebalance": ("sessions-actor rebalance", "sessions-actor rebalance --json"),
    "reshard": ("sessions-actor reshard 4 --storage-root /data/sessions",),
    "jobs": ("sessions-actor jobs", "sessions-actor jobs --cancel drain-1f0c2a9b"),
}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "drain", examples=_EXAMPLES["drain"])(drain)
    command(app, "rebalance", examples=_EXAMPLES["rebalance"])(rebalance)
    command(app, "jobs", examples=_EXAMPLES["jobs"])(jobs)
    command(app, "reshard", examples=_EXAMPLES["reshard"])(split)


async def drain(
    deployment: Deployment,
    node_id: Annotated[
        str, typer.Argument(metavar="NODE", help="Node to empty: its id, or `self`.")
    ],
    undo: Annotated[
        bool, typer.Option("--undo", help="Let the node take conversations again instead.")
    ] = False,
) -> int:
    """Move every conversation off a node, so that it can be taken away.

    It goes on without this command, which only follows it; `jobs --cancel` ends it.
    """
    out = deployment.output
    async with deployment.connect() as client:
        node = await node_of(client, node_id)
        if undo:
            await client.undrain(node)
            out.json({"node_id": node, "state": "alive"})
            out.show(f"{node} takes conversations again")
            return 0
        return await _follow(
            deployment, f"Draining {node[:8]}", lambda told: client.drain(node, progress=told)
        )


async def rebalance(deployment: Deployment) -> int:
    """Even out bytes over the disks and active conversations over the nodes.

    Nothing moves while all are within a tenth of the average. It goes on without this command,
    which only follows it; `jobs --cancel` ends it.
    """
    async with deployment.connect() as client:
        return await _follow(
            deployment, "Rebalancing", lambda told: client.rebalance(progress=told)
        )


async def _follow(
    deployment: Deployment,
    what: str,
    start: "Callable[[Callable[[JobInfo], object]], Awaitable[JobReport]]",
) -> int:
    """Show how a job goes, then what it did."""
    out = deployment.output
    with out.progress(what, None) as bar:

        def told(step: "JobInfo") -> None:
            note = f"{size(step.bytes)} copied" if step.bytes else ""
            bar.at(step.moved + step.failed, note, total=step.total)

        try:
            report = await start(told)
        except asyncio.CancelledError:
            out.note("the job goes on: see `sessions-actor jobs`, end it with `jobs --cancel ID`")
            raise
    out.json(report)
    show_moves(deployment, list(report.reports), report.failed, report.moved)
    if report.state != "done":
        out.warn(f"{report.id} was {report.state}" + (f": {report.error}" if report.error else ""))
    if report.failed or report.state != "done":
        return PARTLY if report.moved else FAILED
    return 0


async def jobs(
    deployment: Deployment,
    cancel: Annotated[
        str | None,
        typer.Option("--cancel", metavar="ID", help="Give up a job; what it moved stays moved."),
    ] = None,
) -> None:
    """Show drains and rebalancing runs: those under way, and the last that have ended."""
    out = deployment.output
    async with deployment.connect() as client:
        if cancel is not None:
            was_running = await client.cancel_job(cancel)
            out.json({"id": cancel, "cancelled": was_running})
            out.show(f"{clean(cancel)} " + ("is given up" if was_running else "had ended already"))
            return
        found = await client.jobs()
    out.json(found)
    if not found:
        out.show("no jobs")
        return
    shown = table(
        "JOB", "STATE", "NODE", "MOVED", "FAILED", "OF", "COPIED", "BEGAN", "WHY",
        right=("MOVED", "FAILED", "OF", "COPIED"),
    )  # fmt: skip
    for job in found:
        shown.add_row(
            clean(job.id),
            Text(job.state, style=_STYLES[job.state]),
            (job.node_id or "")[:8],
            f"{job.moved:,}",
            f"{job.failed:,}",
            f"{job.total:,}",
            size(job.bytes),
            moment(job.started_at),
            Text(clean(job.error or ("Ray announced its end" if job.announced else ""))),
        )
    out.show(shown, count(sum(not job.done for job in found), "job") + " under way")


async def split(
    deployment: Deployment,
    routers: Annotated[int, typer.Argument(metavar="COUNT", help="How many routers.")],
) -> None:
    """Split the directory over another number of routers, while nothing serves it.

    Run it where the directory lies, on the head node, and start the deployment with
    SESSIONS_ACTOR_ROUTER_SHARDS=COUNT afterwards. No conversation is touched; interrupted, it is
    finished by asking again.
    """
    from ..reshard import reshard
    from ..settings import Settings

    out = deployment.output
    root = deployment.storage_root or Settings().storage_root
    done = await asyncio.to_thread(reshard, root, routers)
    out.json(done._asdict())
    held = count(done.conversations, "conversation")
    out.show(f"{held} of {count(done.before, 'router')} are split over {done.after}")
    out.note(f"start the deployment with SESSIONS_ACTOR_ROUTER_SHARDS={done.after}")
