"""Runs everything that has to hold: `python -m tests [pytest arguments]`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKS = (
    ("formatter", ["ruff", "format", "--check", "."]),
    ("linter", ["ruff", "check", "."]),
    ("type checker", ["mypy"]),
    ("dependencies", ["tests.audit"]),
    ("secrets", ["tests.secret_scan"]),
)


def main(arguments: list[str]) -> int:
    """Run formatter, linter, type checker and tests; say which of them failed."""
    failed = []
    for name, command in (*CHECKS, ("tests", ["pytest", *arguments])):
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=os.environ).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
