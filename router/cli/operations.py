"""Commands of operation: status, migrate, verify."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.text import Text

from ..render import clean, count, facts, size, table
from .deployment import FAILED, PARTLY, UNSOUND, Deployment, command, infos

if TYPE_CHECKING:
    from ..client import Client
    from ..models import MigrationProgress, MigrationReport, NodeInfo

T = TypeVar("T")

SIZED_MAX = 5_000
MOVES_AT_ONCE = 4
CHECKS_AT_ONCE = 4
REPLICAS_SAMPLED = 20

Names = Annotated[
    list[str] | None, typer.Argument(help="Names of conversations.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="Every conversation.")]
Prefix = Annotated[str, typer.Option("--prefix", help="Every one whose name begins so.")]


_EXAMPLES = {
    "status": (
        "sessions-actor status",
        "sessions-actor --address 10.0.0.1:6379 status --json",
    ),
    "migrate": (
        "sessions-actor migrate alice",
        "sessions-actor migrate alice bob --to 3f2a",
        "sessions-actor migrate --prefix user- --json",
        "sessions-actor migrate alice --cancel",
    ),
    "verify": (
        "sessions-actor verify",
        "sessions-actor verify alice bob --json",
    ),
}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "status", examples=_EXAMPLES["status"])(status)
    command(app, "migrate", examples=_EXAMPLES["migrate"])(migrate)
    command(app, "verify", examples=_EXAMPLES["verify"])(verify)


async def status(deployment: Deployment) -> None:
    """Show the nodes, and how many conversations are active or hibernate, and their size.

    The size is that of every file, which takes a question each: beyond 5,000 it is left out.
    """
    out = deployment.output
    states: Counter[str] = Counter()
    total = 0
    async with deployment.connect() as client:
        nodes = await client.nodes()
        with out.progress("Counting", None) as bar:
            number = 0
            async for _ in client.list():
                number += 1
                bar.at(number)
            if number <= SIZED_MAX:
                async for info in infos(client):
                    states[info.state] += 1
                    total += info.file_bytes
            else:
                active = sum(node.active for node in nodes)
                states.update(active=active, hibernated=max(0, number - active))
    counts = {state: held for state, held in sorted(states.items()) if held}
    out.json(
        {
            "namespace": deployment.namespace,
            "nodes": nodes,
            "conversations": {"total": number, **counts},
            "file_bytes": total if number <= SIZED_MAX else None,
        }
    )
    counted = ", ".join(f"{held:,} {state}" for state, held in counts.items())
    lines: list[tuple[str, object]] = [
        ("namespace", deployment.namespace),
        ("conversations", f"{number:,}" + (f" ({counted})" if counted else "")),
        ("nodes", len(nodes)),
    ]
    if number <= SIZED_MAX:
        lines.insert(2, ("on disk", size(total)))
    out.show(facts(lines), _node_table(nodes))


def _node_table(nodes: "list[NodeInfo]") -> Any:
    shown = table(
        "NODE", "ADDRESS", "STATE", "ACTIVE", "IDLE", "LIMIT", right=("ACTIVE", "IDLE", "LIMIT")
    )
    for node in nodes:
        shown.add_row(
            node.node_id,
            node.address,
            Text(node.state, style="green" if node.state == "alive" else "yellow"),
            f"{node.active:,}",
            f"{node.idle:,}",
            f"{node.max_active:,}",
        )
    return shown


async def _chosen(
    client: "Client", names: list[str] | None, everything: bool, prefix: str
) -> list[str]:
    """Return the names that a command's arguments mean.

    Raises: ValueError when they name none or too much; ConversationNotFoundError.
    """
    if bool(names) == (everything or bool(prefix)):
        raise ValueError("name the conversations, or say --all or --prefix")
    if names:
        for name in names:
            await client.info(name)
        return names
    return [name async for name in client.list(prefix)]


async def _each(
    names: list[str],
    work: Callable[[str], Awaitable[T]],
    done: Callable[[int], None],
    *,
    at_once: int,
) -> tuple[dict[str, T], dict[str, str]]:
    """Do something to each conversation, some at a time; returns results and failures by name."""
    results: dict[str, T] = {}
    failures: dict[str, str] = {}
    slots = asyncio.Semaphore(at_once)

    async def one(name: str) -> None:
        async with slots:
            try:
                results[name] = await work(name)
            except Exception as error:  # whatever is wrong with one, the others go on
                failures[name] = str(error) or type(error).__name__
            done(len(results) + len(failures))

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(one(name))
    return results, failures


async def migrate(
    deployment: Deployment,
    names: Names = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="NODE", help="Node to move to; else the best.")
    ] = None,
    everything: All = False,
    prefix: Prefix = "",
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Give up migrations that are under way instead.")
    ] = False,
) -> int:
    """Move conversations to other actors, verified, while they are read and written.

    Ctrl-C gives up what is under way: those conversations stay where they were.
    """
    out = deployment.output
    async with deployment.connect() as client:
        chosen = await _chosen(client, names, everything, prefix)
        if cancel:
            return await _cancel(deployment, client, chosen)
        if len(chosen) == 1:
            reports, failures = await _migrate_one(deployment, client, chosen[0], to)
        else:
            with out.progress("Migrating", len(chosen)) as bar:
                reports, failures = await _each(
                    chosen, lambda name: client.migrate(name, to), bar.at, at_once=MOVES_AT_ONCE
                )
    out.json({"migrated": [reports[name] for name in sorted(reports)], "failed": failures})
    show_moves(deployment, [reports[name] for name in sorted(reports)], failures, len(reports))
    if failures:
        return PARTLY if reports else FAILED
    return 0


async def _migrate_one(
    deployment: Deployment, client: "Client", name: str, to: str | None
) -> "tuple[dict[str, MigrationReport], dict[str, str]]":
    """Migrate one conversation, telling how many of its bytes have arrived."""
    with deployment.output.progress("Migrating", None, sizes=True) as bar:

        def told(step: "MigrationProgress") -> None:
            total = None if step.bytes_total is None else max(step.bytes, step.bytes_total)
            bar.at(step.bytes, f"{step.phase}, {count(step.rows, 'row')}", total=total)

        return await _each(
            [name], lambda one: client.migrate(one, to, progress=told), lambda _: None, at_once=1
        )


async def _cancel(deployment: Deployment, client: "Client", names: list[str]) -> int:
    out = deployment.output
    found, failures = await _each(
        names, client.cancel_migration, lambda _: None, at_once=MOVES_AT_ONCE
    )
    cancelled = sorted(name for name, was in found.items() if was)
    out.json({"cancelled": cancelled, "failed": failures})
    for name, reason in sorted(failures.items()):
        out.warn(f"{name}: {reason}")
    out.show(f"{count(len(cancelled), 'migration')} given up")
    return FAILED if failures else 0


def show_moves(
    deployment: Deployment,
    reports: "list[MigrationReport]",
    failures: dict[str, str],
    moved_count: int,
) -> None:
    """Show which conversations were copied where, what failed, and how many moved in all."""
    out = deployment.output
    moved = table(
        "NAME", "FROM", "TO", "MESSAGES", "SIZE", "TOOK", right=("MESSAGES", "SIZE", "TOOK")
    )
    for report in reports:
        moved.add_row(
            Text(clean(report.name)),
            report.source_node_id[:8],
            report.target_node_id[:8],
            f"{report.messages:,}",
            size(report.bytes),
            f"{report.seconds:.2f} s",
        )
    if reports:
        out.show(moved)
    for name, reason in sorted(failures.items()):
        out.warn(f"{name}: {reason}")
    rows = sum(digest.rows for report in reports for digest in report.tables.values())
    out.note(f"{count(moved_count, 'conversation')} moved, {count(rows, 'row')} verified")


async def node_of(client: "Client", wanted: str) -> str:
    """Find a node by its id or the beginning of it; `self` is the one this process is on."""
    if wanted == "self":
        import ray

        wanted = ray.get_runtime_context().get_node_id()
    found = [node.node_id for node in await client.nodes() if node.node_id.startswith(wanted)]
    if len(found) != 1:
        many = "several nodes have ids" if found else "no live node has an id"
        raise ValueError(f"{many} beginning {wanted!r}: see `sessions-actor status`")
    return found[0]


async def verify(
    deployment: Deployment,
    names: Names = None,
    everything: All = False,
    prefix: Prefix = "",
    replicas: Annotated[
        bool,
        typer.Option("--replicas", help="Restore their replicas and compare every table instead."),
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option("--sample", min=1, help="Only so many of them, drawn at random."),
    ] = None,
) -> int:
    """Check conversations: SQLite's integrity, parents, references, index, digests.

    Without a name, all of them; with --replicas, 20 drawn at random.
    """
    out = deployment.output
    async with deployment.connect() as client:
        everything = everything or not (names or prefix)
        if replicas and everything and sample is None:
            sample = REPLICAS_SAMPLED
        chosen = await _chosen(client, names, everything, prefix)
        if sample is not None and sample < len(chosen):
            chosen = sorted(random.sample(chosen, sample))
        check = client.verify_replica if replicas else client.verify
        with out.progress("Verifying", len(chosen)) as bar:
            found, failures = await _each(chosen, check, bar.at, at_once=CHECKS_AT_ONCE)
    faults = {name: problems for name, problems in sorted(found.items()) if problems}
    out.json(
        {
            "verified": len(found),
            "sound": len(found) - len(faults),
            "problems": faults,
            "failed": failures,
        }
    )
    for name, problems in faults.items():
        out.show(Text(clean(name), style="bold red"))
        for problem in problems:
            out.show(Text(f"  {clean(problem)}"))
    for name, reason in sorted(failures.items()):
        out.warn(f"{name}: {reason}")
    sound = count(len(found) - len(faults), "conversation")
    out.show(f"{sound} sound" + (f", {len(faults):,} with faults" if faults else ""))
    if faults:
        return UNSOUND
    return FAILED if failures else 0
