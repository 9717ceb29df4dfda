"""Commands of replicas and copies: restore, restore-points, backup."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ..render import clean, count, facts, size, table
from .deployment import FAILED, PARTLY, Deployment, command

# Points shown to people; programs get all of them.
POINTS_SHOWN = 40

_EXAMPLES = {
    "restore": (
        'sessions-actor restore alice --at "2026-03-01 12:00:00"',
        "sessions-actor restore alice --to alice-copy",
        "sessions-actor restore alice --at 2026-03-01T12:00:00Z --in-place",
    ),
    "restore-points": ("sessions-actor restore-points alice",),
    "backup": ("sessions-actor backup /mnt/backup", "sessions-actor backup /mnt/backup alice bob"),
}

Name = Annotated[str, typer.Argument(help="A conversation's name.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "restore", examples=_EXAMPLES["restore"])(restore)
    command(app, "restore-points", examples=_EXAMPLES["restore-points"])(restore_points)
    command(app, "backup", examples=_EXAMPLES["backup"])(backup)


async def restore(
    deployment: Deployment,
    name: Name,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TIME", help="As it was then, in ISO 8601; without a zone in UTC."
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="NAME", help="The new conversation; with --in-place, where"
                     " the present content is kept."),
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="Give the conversation itself that content."),
    ] = False,
) -> None:  # fmt: skip
    """Bring back a conversation as it was, from its replica, in a new conversation beside it.

    Nothing is written over: in place, the present content is kept under another name. A deleted
    conversation can be brought back until its grace is over.
    """
    out = deployment.output
    moment = None if at is None else parse_time(at)
    async with deployment.connect() as client:
        with out.waiting("Restoring"):
            report = await client.restore(name, at=moment, to=to, in_place=in_place)
    out.json(report)
    lines: list[tuple[str, object]] = [
        ("restored", clean(report.source)),
        ("as of", report.at or "now"),
        ("to", clean(report.name)),
    ]
    if report.kept_as is not None:
        lines.append(("kept as", clean(report.kept_as)))
    out.show(facts(lines))


async def restore_points(deployment: Deployment, name: Name) -> None:
    """List the moments in which something of a conversation was copied.

    `restore --at` may name any moment from the first one on.
    """
    out = deployment.output
    async with deployment.connect() as client:
        points = await client.restore_points(name)
    out.json(points)
    rows = table("at", "file", right=("file",))
    for point in points[-POINTS_SHOWN:]:
        rows.add_row(point.at, str(point.generation))
    out.show(rows)
    hidden = len(points) - POINTS_SHOWN
    first = f", the first {points[0].at}; {hidden:,} not shown" if hidden > 0 else ""
    out.note(f"{count(len(points), 'moment')}{first}")


async def backup(
    deployment: Deployment,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder on this machine.", show_default=False)
    ],
    names: Annotated[
        list[str] | None, typer.Argument(help="Conversations; all of them without.")
    ] = None,
) -> int:
    """Write a consistent copy of each conversation's file, while all are served.

    `backup.jsonl` in the folder tells whose each copy is, with its size and SHA-256.
    """
    out = deployment.output
    async with deployment.connect() as client:
        total = len(names or [name async for name in client.list()])
        with out.progress("Copying", total) as bar:
            report = await client.back_up(
                folder, names or None, progress=lambda done, _: bar.at(done)
            )
    out.json(report)
    for name, reason in sorted(report.failed.items()):
        out.warn(f"{name}: {reason}")
    out.show(
        Text(
            f"{count(report.conversations, 'conversation')}, {size(report.bytes)},"
            f" to {clean(report.folder)}"
        )
    )
    if report.failed:
        return PARTLY if report.conversations else FAILED
    return 0


def parse_time(text: str) -> datetime:
    """Read a moment in ISO 8601; one without a zone is in UTC.

    Raises: ValueError.
    """
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"--at: not a time in ISO 8601: {text!r}") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
