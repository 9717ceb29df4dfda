"""Runs everything that has to hold: `python -m tests [pytest arguments]`.

Without arguments the tests run in two halves at once: those that wait for clusters, and the rest,
which steps back when both want the processor. A few that fail then are run once more, alone, and
named: Ray gives up by its own clock (a node has 30 s to start, 15 s without a heartbeat are its
end), which on a machine that does other work as well is no fault of what is tested.
"""

from __future__ import annotations

import json
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
TESTS_FAILED = 1  # of pytest's exit codes: it ran to its end
AGAIN_MAX = 5


def command(module: list[str]) -> list[str]:
    """Return the command line that runs a module with this interpreter."""
    return [sys.executable, "-m", *module]


def run(module: list[str]) -> bool:
    """Run a module to its end; says whether it found nothing wrong."""
    return subprocess.run(command(module), cwd=ROOT, check=False).returncode == 0


class Half:
    """A part of the tests, which keeps what failed."""

    def __init__(self, paths: list[str], cache: Path) -> None:
        self._paths = paths
        self._cache = ["-o", f"cache_dir={cache}"]
        self._failed = cache / "v" / "cache" / "lastfailed"

    @property
    def module(self) -> list[str]:
        """What runs it."""
        return ["pytest", *self._paths, *self._cache]

    def holds(self, code: int) -> bool:
        """Judge by the code that it ended with; what failed is run again where it is little."""
        if code != TESTS_FAILED:
            return code == 0
        failed = json.loads(self._failed.read_text())
        if len(failed) > AGAIN_MAX:
            return False
        names = "".join(f"  {name}\n" for name in failed)
        print(f"== failed beside the other half; again, alone:\n{names}", flush=True)
        return run([*self.module, "--last-failed", "--last-failed-no-failures=none"])


def run_halves() -> bool:
    """Run all tests, two halves at once; what the second says is printed after the first."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as told:
        clustered = Half([*CLUSTERED], Path(folder, "clustered"))
        others = [f"--ignore={path}" for path in CLUSTERED]
        rest = Half(["tests", *others], Path(folder, "rest"))
        beside = subprocess.Popen(
            ["nice", "-n", str(NICENESS), *command(rest.module)],
            cwd=ROOT,
            stdout=told,
            stderr=subprocess.STDOUT,
        )
        try:
            codes = subprocess.call(command(clustered.module), cwd=ROOT), beside.wait()
        finally:
            beside.terminate()
            beside.wait()
        told.seek(0)
        sys.stdout.buffer.write(told.read())
        sys.stdout.flush()
        halves = zip((clustered, rest), codes, strict=True)
        return all([half.holds(code) for half, code in halves])


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
