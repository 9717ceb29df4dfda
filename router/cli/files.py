"""Commands on files: import and export."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from sessions_actor.database_file import private

from ..formats import (
    EXPORTERS,
    IMPORTERS,
    ImportedConversation,
    Importer,
    ImportSummary,
    Problem,
    Reader,
    Source,
    detect,
    export_one,
    import_conversations,
    open_sources,
)
from ..render import clean, count, size
from .deployment import FAILED, PARTLY, Deployment, command
from .output import Output

if TYPE_CHECKING:
    from ..client import Client

PROBLEMS_SHOWN = 20


_EXAMPLES = {
    "import": (
        "sessions-actor import conversations.zip",
        "sessions-actor import --format openai --name alice chat.jsonl",
        "zcat all.jsonl.gz | sessions-actor import -",
    ),
    "export": (
        "sessions-actor export --output all.jsonl",
        "sessions-actor export alice --format ai-sdk",
        "sessions-actor export --prefix user- --format oasst --output users.jsonl",
    ),
}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "import", examples=_EXAMPLES["import"])(import_files)
    command(app, "export", examples=_EXAMPLES["export"])(export)


async def import_files(
    deployment: Deployment,
    files: Annotated[
        list[str],
        typer.Argument(help="Files to import; gzip and ChatGPT's zip as they are, - for stdin."),
    ],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help=f"One of auto, {', '.join(IMPORTERS)}.",
            autocompletion=lambda: ["auto", *IMPORTERS],
        ),
    ] = "auto",
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the conversation, for a file that holds one."),
    ] = None,
) -> int:
    """Import conversations. What is there already stays; importing twice changes nothing.

    Faults of a file are reported by line and left out, the rest is imported: exit code 3.
    """
    if form != "auto" and form not in IMPORTERS:
        raise ValueError(f"--format {form}: one of auto, {', '.join(IMPORTERS)}")
    if name is not None and len(files) > 1:
        raise ValueError("--name names one conversation: give one file")
    faults = _Faults(deployment.output)
    total = ImportSummary()
    async with deployment.connect() as client:
        for path in files:
            try:
                for source in open_sources(path):
                    with source:
                        done = await _import_one(deployment, client, source, form, name, faults)
                    total = total + done
            except (OSError, ValueError) as error:
                faults.fatal(f"{path}: {getattr(error, 'strerror', None) or error}")
    faults.finish()
    out = deployment.output
    result = {
        "conversations": total.conversations,
        "messages": total.messages,
        "new_messages": total.new,
        "new_overlays": total.overlays,
        "problems": [str(problem) for problem in faults.kept],
        "problem_count": faults.number,
    }
    out.json(result)
    known = total.messages - total.new
    parts = [count(total.conversations, "conversation"), count(total.new, "new message")]
    parts += [f"{known:,} already there"] if known else []
    parts += [count(total.overlays, "overlay")] if total.overlays else []
    parts += [count(faults.number, "problem")] if faults.number else []
    out.show("imported " + ", ".join(parts))
    if not faults.number:
        return 0
    return PARTLY if total.messages or total.conversations else FAILED


async def _import_one(
    deployment: Deployment,
    client: "Client",
    source: Source,
    form: str,
    name: str | None,
    faults: "_Faults",
) -> ImportSummary:
    chosen = detect(source) if form == "auto" else form
    if chosen is None:
        raise ValueError(
            f"not a format known here; say which with --format ({', '.join(IMPORTERS)})"
        )
    importer: Importer = IMPORTERS[chosen]
    reader = Reader(source, faults.report, created_at=source.modified_at)
    label = f"Importing {Path(source.label).name}"
    with deployment.output.progress(label, source.size, sizes=True) as bar:

        def moved(summary: ImportSummary) -> None:
            bar.at(source.position, _sum(summary))

        found: Iterator[ImportedConversation] = importer(reader)
        return await import_conversations(
            client, found, report=faults.report, name=name, progress=moved
        )


def _sum(summary: ImportSummary) -> str:
    conversations = count(summary.conversations, "conversation")
    return f"{conversations}, {count(summary.messages, 'message')}"


class _Faults:
    """Problems as they are found: the first ones in full, all of them counted."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.kept: list[Problem | str] = []
        self.number = 0

    def report(self, problem: Problem | str) -> None:
        """Count a problem, and show it while they are few."""
        if isinstance(problem, Problem) and problem.harmless:
            self._output.note(clean(str(problem)))
            return
        self.number += 1
        if self.number <= PROBLEMS_SHOWN or self._output.as_json:
            self.kept.append(problem)
            if not self._output.as_json:
                self._output.warn(str(problem))

    def fatal(self, text: str) -> None:
        """Count what made a whole file unreadable."""
        self.number += 1
        self.kept.append(text)
        if not self._output.as_json:
            self._output.warn(text)

    def finish(self) -> None:
        """Say how many were not shown."""
        hidden = self.number - len(self.kept)
        if hidden > 0:
            self._output.warn(f"and {count(hidden, 'more problem')} (--json lists them all)")


async def export(
    deployment: Deployment,
    names: Annotated[
        list[str] | None, typer.Argument(help="Conversations to export.", show_default=False)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every conversation, which is also meant by no name.")
    ] = False,
    prefix: Annotated[str, typer.Option("--prefix", help="Every one whose name begins so.")] = "",
    form: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help=f"One of {', '.join(EXPORTERS)}.",
            autocompletion=lambda: list(EXPORTERS),
        ),
    ] = "jsonl",
    file: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File to write; standard output without it, or with -."
        ),
    ] = None,
    leaf: Annotated[
        str | None, typer.Option("--leaf", help="End of the path (ai-sdk, openai); else active.")
    ] = None,
    session: Annotated[
        str, typer.Option("--session", "-s", help="Session (oasst, ai-sdk, openai).")
    ] = "",
) -> None:
    """Export conversations. `jsonl` holds everything: every branch, session and overlay.

    A file appears under its name only once it is whole.
    """
    if form not in EXPORTERS:
        raise ValueError(f"--format {form}: one of {', '.join(EXPORTERS)}")
    chosen = list(names or [])
    if chosen and (everything or prefix):
        raise ValueError("names, --all and --prefix exclude each other")
    if file == Path("-"):
        file = None
    out = deployment.output
    async with deployment.connect() as client:
        alone = len(chosen) == 1
        for name in chosen:
            await client.info(name)
        if not chosen:
            chosen = [name async for name in client.list(prefix)]
        written = 0
        with (
            out.progress("Exporting", len(chosen)) as bar,
            _target(file, out) as target,
        ):
            for number, name in enumerate(chosen):
                pieces = export_one(
                    client.get(name), form, session_id=session, leaf_id=leaf, alone=alone
                )
                async for piece in pieces:
                    written += target.write(piece)
                    bar.at(number, size(written))
                bar.at(number + 1, size(written))
    summary = f"exported {count(len(chosen), 'conversation')}, {size(written)}"
    if file is None:
        out.note(summary)
        return
    out.json({"conversations": len(chosen), "bytes": written, "file": str(file)})
    out.show(clean(f"{summary} to {file}"))


@contextmanager
def _target(file: Path | None, out: Output) -> Iterator[BinaryIO | Any]:
    """Open the file to write, private to its owner: under a name of its own until it is whole."""
    if file is None:
        yield out.stdout.buffer
        out.stdout.buffer.flush()
        return
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb", opener=private) as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
