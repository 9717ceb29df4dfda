"""Where a command's words go: results to stdout, progress and trouble to stderr.

With `--json`, stdout holds exactly one JSON value, and an error is a JSON object on stderr.
"""

import io
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import fields, is_dataclass
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from sessions_actor.codec import dumps

from ..render import clean

# Columns of a table that goes to a file or a pipe.
PIPED_WIDTH = 200


class _Nowhere(io.TextIOBase):
    """Takes text and drops it. Never closed: what Ray loads keeps it until the process ends."""

    def write(self, text: str) -> int:
        return len(text)


class Output:
    """The two streams of a command."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.stdout, self.stderr = sys.stdout, sys.stderr
        self.console = Console(file=self.stdout, highlight=False)
        if not self.console.is_terminal and "COLUMNS" not in os.environ:
            self.console.width = PIPED_WIDTH
        self._err = Console(file=self.stderr, highlight=False)

    def show(self, *parts: RenderableType) -> None:
        """Print for people; nothing with `--json`."""
        if not self.as_json:
            for part in parts:
                self.console.print(part, markup=False, soft_wrap=isinstance(part, str | Text))
            self.stdout.flush()  # `up` goes on for days

    def json(self, value: Any) -> None:
        """Print a value for programs; nothing without `--json`."""
        if self.as_json:
            self.write(dumps(plain(value)) + b"\n")

    async def json_array(self, values: AsyncIterator[Any]) -> None:
        """Print values as one JSON array, one per line, as they come; only with `--json`."""
        first = True
        async for value in values:
            self.write((b"[\n" if first else b",\n") + dumps(plain(value)))
            first = False
        self.write(b"[]\n" if first else b"\n]\n")

    def write(self, data: bytes) -> None:
        """Write bytes to stdout as they are."""
        self.stdout.buffer.write(data)
        self.stdout.buffer.flush()

    def note(self, text: str) -> None:
        """Say something on stderr, unless only programs listen."""
        if not self.as_json:
            self._say(Text(text, style="dim"))

    def warn(self, text: str) -> None:
        """Report trouble that does not end the command."""
        if self.as_json:
            self.stderr.write(dumps({"warning": clean(text)}).decode() + "\n")
        else:
            self._say(Text.assemble(("warning: ", "yellow"), clean(text)))

    def error(self, text: str, cause: BaseException) -> None:
        """Report what ended the command."""
        if self.as_json:
            fault = {"error": clean(text), "type": type(cause).__name__}
            self.stderr.write(dumps(fault).decode() + "\n")
        else:
            self._say(Text.assemble(("error: ", "bold red"), clean(text)))

    def _say(self, line: Text) -> None:
        # One line, however long: it may be read by grep as well.
        self._err.print(line, soft_wrap=True)

    def waiting(self, what: str) -> AbstractContextManager[Any]:
        """Show that something takes its time, on a terminal."""
        if self.as_json or not self._err.is_terminal:
            return nullcontext()
        return self._err.status(what)

    @contextmanager
    def without_chatter(self) -> Iterator[None]:
        """Keep what Ray prints to `sys.stdout`, of workers and nodes, away from people's results.

        With SESSIONS_ACTOR_DEBUG it goes to stderr, else nowhere.
        """
        debug = os.environ.get("SESSIONS_ACTOR_DEBUG")
        with redirect_stdout(self.stderr if debug else _Nowhere()):
            yield

    @contextmanager
    def progress(self, what: str, total: int | None, *, sizes: bool = False) -> Iterator["Bar"]:
        """Show a bar on a terminal; `sizes` when it counts bytes."""
        amount = DownloadColumn() if sizes else MofNCompleteColumn()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), amount)
        with Progress(
            *columns,
            TextColumn("[dim]{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self._err,
            transient=True,
            disable=self.as_json or not self._err.is_terminal,
        ) as shown:
            yield Bar(shown, what, total)


class Bar:
    """A progress bar that may not be visible."""

    def __init__(self, shown: Progress, what: str, total: int | None) -> None:
        self._shown = shown
        self._task = shown.add_task(what, total=total, note="")

    def at(self, done: int, note: str = "", *, total: int | None = None) -> None:
        """Move to a place."""
        changes: dict[str, Any] = {} if total is None else {"total": total}
        self._shown.update(self._task, completed=done, note=note, **changes)


def plain(value: Any) -> Any:
    """Return records as JSON objects, in lists and as values of an object too.

    Messages are passed through: they are JSON already, and may be nested deeper than Python
    recurses.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict) and any(map(_has_records, value.values())):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def _has_records(value: Any) -> bool:
    return is_dataclass(value) or (
        isinstance(value, list | tuple) and any(map(_has_records, value))
    )
