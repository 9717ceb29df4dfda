"""Runs everything that has to hold: `python -m tests [pytest arguments]`.

Without arguments the tests run in two halves at once: those that wait for clusters, and the rest,
which steps back when both want the processor.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKS = (
    ("formatter", ["ruff", "format", "--check", "."]),
    ("linter", ["ruff", "check", "."]),
    ("type checker", ["mypy"]),
    ("dependencies", ["tests.audit"]),
    ("secrets", ["tests.secret_scan"]),
)
# What starts clusters one after the other, and has bounds of real time.
CLUSTERED = (
    "tests/cluster",
    "tests/conformance/test_scenarios_remote.py",
    "tests/conformance/test_user_reports_owners.py",
    "tests/docs",
    "tests/fault",
)
NICENESS = 10


def command(module: list[str]) -> list[str]:
    """Return the command line that runs a module with this interpreter."""
    return [sys.executable, "-m", *module]


def run(module: list[str]) -> bool:
    """Run a module to its end; says whether it found nothing wrong."""
    return subprocess.run(command(module), cwd=ROOT, check=False).returncode == 0


def run_halves() -> bool:
    """Run all tests, two halves at once; what the second says is printed after the first."""
    rest = ["pytest", "tests", *(f"--ignore={path}" for path in CLUSTERED)]
    rest += ["-p", "no:cacheprovider"]  # the first half's is enough
    with tempfile.TemporaryFile() as told:
        second = subprocess.Popen(
            ["nice", "-n", str(NICENESS), *command(rest)],
            cwd=ROOT,
            stdout=told,
            stderr=subprocess.STDOUT,
        )
        try:
            sound = run(["pytest", *CLUSTERED])
            sound &= second.wait() == 0
        finally:
            second.terminate()
            second.wait()
        told.seek(0)
        sys.stdout.buffer.write(told.read())
        sys.stdout.flush()
    return sound


def main(arguments: list[str]) -> int:
    """Run formatter, linter, type checker and tests; say which of them failed."""
    failed = []
    for name, module in CHECKS:
        print(f"== {name}", flush=True)
        if not run(module):
            failed.append(name)
    print("== tests", flush=True)
    if not (run(["pytest", *arguments]) if arguments else run_halves()):
        failed.append("tests")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
