"""Someone who reads a page and runs its blocks, one after the other: `python -m tests.docs.reader`.

Python blocks of a page share their names; one that awaits outside of a function finds a connected
client under `conversations`. A block with a title is a file too: of Python, one that workers import
from `modules`; of anything else, one in the current folder.
Blocks of shell commands run in a shell whose deployment is the page's. What a page says is printed
(`text title="output"`) has to be what the block before it prints, `...` standing for anything.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import sys
from pathlib import Path
from typing import Any

from .blocks import Block, blocks_of
from .shell import Shell

COMMAND_S = 120
RUN = ("python", "bash")


class Reader:
    """Runs blocks in the current folder; files with a title go to `modules`."""

    def __init__(self, modules: Path) -> None:
        self.modules = modules
        self.shell = Shell()
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def read(self, page: Path) -> int:
        """Run a page; returns how many blocks ran."""
        printed, number = "", 0
        with asyncio.Runner() as runner:
            for block in blocks_of(page):
                if block.language in RUN and not block.not_run:
                    printed, number = self.run(block, runner), number + 1
                elif block.title == "output":
                    check(block, printed)
                elif block.title:
                    Path(block.title).write_text(block.text)
        return number

    def run(self, block: Block, runner: asyncio.Runner) -> str:
        """Run a block; returns what it prints."""
        if block.title:
            (self.modules / block.title).write_text(block.text)
        return self.bash(block) if block.language == "bash" else self.python(block, runner)

    def bash(self, block: Block) -> str:
        """Run a block of shell commands."""
        done = self.shell.run(block.text, COMMAND_S)
        if done.returncode:
            sys.exit(f"{block}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout

    def python(self, block: Block, runner: asyncio.Runner) -> str:
        """Run a block of Python."""
        place = "\n" * block.line + block.text  # tracebacks name the line of the page
        code = compile(place, str(block.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(self.awaited(code))
            else:
                exec(code, self.names)
        return printed.getvalue()

    async def awaited(self, code: Any) -> None:
        """Run what awaits, with a client."""
        from router import connect

        async with connect() as conversations:
            self.names["conversations"] = conversations
            await eval(code, self.names)


def check(block: Block, printed: str) -> None:
    """Compare what a page promises with what was printed."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if not doctest.OutputChecker().check_output(block.text, printed, flags):
        sys.exit(f"{block} says\n{block.text}\nbut the block before it printed\n{printed}")


def end_deployments() -> None:
    """End what the page started on the cluster: the next page has a router of its own."""
    import ray
    from ray.util import list_named_actors

    if not ray.is_initialized():
        ray.init(address="auto", log_to_driver=False, logging_level=40)
    for one in list_named_actors(all_namespaces=True):
        with contextlib.suppress(ValueError):
            ray.kill(ray.get_actor(one["name"], one["namespace"]))


def main(page: str, modules: str) -> None:
    """Read a page."""
    try:
        print(Reader(Path(modules)).read(Path(page)))
    finally:
        end_deployments()


if __name__ == "__main__":
    main(*sys.argv[1:])
