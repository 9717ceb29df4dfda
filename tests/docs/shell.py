"""A shell in which `sessions-actor` costs no process of Ray's: the reader's own process runs it.

A command in a block starts a small program instead, which hands its arguments and standard input
over a socket, and gives back what was printed and the exit code. Everything else is the shell's.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

# Runs alone, without site-packages: it starts in a few hundredths of a second.
_PROGRAM = """\
#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({address!r})
    asked = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd(),
              "input": sys.stdin.buffer.read().decode()}}
    line.sendall(json.dumps(asked).encode())
    line.shutdown(socket.SHUT_WR)
    told = json.load(line.makefile())
sys.stdout.write(told["output"])
sys.stderr.write(told["error"])
sys.exit(told["code"])
"""


class Shell:
    """Runs blocks of shell commands in the current folder."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        address = f"{self._folder.name}/line"
        program = Path(self._folder.name, "sessions-actor")
        program.write_text(_PROGRAM.format(python=sys.executable, address=address))
        program.chmod(0o700)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(address)
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def run(self, text: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run commands, stopping at the first that fails."""
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            env={**os.environ, "PATH": f"{self._folder.name}{os.pathsep}{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _serve(self) -> None:
        while True:
            line, _ = self._socket.accept()
            with line:
                asked = json.load(line.makefile())
                line.sendall(json.dumps(command(asked)).encode())


def command(asked: dict[str, object]) -> dict[str, object]:
    """Run one command as it was asked for."""
    from typer.testing import CliRunner

    from router.cli import app, with_options_last

    os.chdir(str(asked["folder"]))
    done = CliRunner(env=asked["environment"]).invoke(  # type: ignore[arg-type]
        app,
        with_options_last(list(asked["arguments"])),  # type: ignore[call-overload]
        input=str(asked["input"]),
    )
    return {"output": done.stdout, "error": done.stderr, "code": done.exit_code}
