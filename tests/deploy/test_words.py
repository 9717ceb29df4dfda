"""Every command in deploy/ is one that the programs have, with options that they take."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from router.cli import app, with_options_last

from . import shapes

# Bare examples in guides: NAME, NODE and the like stand for what a reader puts there.
_FENCE = re.compile(r"```(?:bash|console|sh)\n(.*?)```", re.DOTALL)


def check(words: list[str]) -> None:
    """Parse a command as its program would, without running it.

    Raises: LookupError for no command; what click raises for arguments that do not fit.
    """
    program, rest = words[0], words[1:]
    # Typer brings a click of its own: the two programs share no class.
    command: Any = get_command(app)
    if program == "sessions-actor":
        rest = with_options_last(rest)
    else:
        from ray.scripts.scripts import cli as command
    while hasattr(command, "commands"):
        name, *rest = rest
        if name.startswith("-"):
            known = {option for one in command.params for option in one.opts}
            if name not in known | {"--help", "-h"}:
                raise LookupError(f"{program}: no such option: {name}")
            return
        if name not in command.commands:
            raise LookupError(f"{program} has no command {name!r}")
        command = command.commands[name]
    command.make_context(command.name, list(rest))


@pytest.mark.parametrize(
    ("place", "words"), list(shapes.commands()), ids=[place for place, _ in shapes.commands()]
)
def test_a_command_is_one(place: str, words: list[str]) -> None:
    assert words[0] in ("sessions-actor", "ray")
    check(words)


def _guides() -> list[Path]:
    return [shapes.ROOT / "README.md", *sorted(shapes.DEPLOY.rglob("*.md"))]


def _in_guides() -> list[tuple[str, str]]:
    found = []
    for file in _guides():
        for block in _FENCE.findall(file.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                command = line.split(" #")[0]
                start = command.find("sessions-actor ")
                if start < 0 or command.lstrip().startswith("#") or "pip install" in command:
                    continue
                if command[:start].rstrip().endswith(("/", ".")) or "-actor " in command[:start]:
                    continue
                found.append((f"{file.relative_to(shapes.ROOT)}: {line.strip()}", command[start:]))
    return found


@pytest.mark.parametrize(("place", "command"), _in_guides(), ids=[p for p, _ in _in_guides()])
def test_a_command_in_a_guide_is_one(place: str, command: str) -> None:
    command = re.split(r"[|>&;]", command)[0]
    check(shlex.split(command))


@pytest.mark.parametrize(
    "words",
    [
        ["sessions-actor", "up", "--detatch"],
        ["sessions-actor", "drian", "self"],
        ["sessions-actor", "drain"],
        ["ray", "start", "--heads"],
    ],
)
def test_the_check_sees_mistakes(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"no command|[Nn]o such option|Missing"):
        check(words)
