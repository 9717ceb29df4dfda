"""The command line: `sessions-actor`."""

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from . import conversations, doctor, files, jobs, operations, replicas, running, watching
from .deployment import EXIT_CODES, SHARED_OPTIONS

app = typer.Typer(
    name="sessions-actor",
    help="Durable conversations on a Ray cluster: one actor and one SQLite file for each.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (running, conversations, files, operations, jobs, replicas, watching, doctor):
    module.register(app)


def _print_version(asked: bool) -> None:
    if asked:
        try:
            typer.echo(version("sessions-actor"))
        except PackageNotFoundError:
            typer.echo("unknown (not installed)")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command that the arguments name."""
    app(args=with_options_last(sys.argv[1:]))


def with_options_last(arguments: list[str]) -> list[str]:
    """Move the options that every command has from before the command to behind it.

    `sessions-actor --address X ls` means `sessions-actor ls --address X`.
    """
    moved: list[str] = []
    rest = list(arguments)
    while rest and rest[0].partition("=")[0] in SHARED_OPTIONS:
        name, has_value, _ = rest[0].partition("=")
        takes = 1 if has_value or not SHARED_OPTIONS[name] else 2
        moved, rest = moved + rest[:takes], rest[takes:]
    return [*rest[:1], *moved, *rest[1:]]


__all__ = ["app", "main"]
