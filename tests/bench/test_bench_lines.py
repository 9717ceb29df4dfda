"""Every line of the bench runs, small. Times are not judged here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.__main__ import ORDER

ROOT = Path(__file__).resolve().parents[2]
IN_PROCESS = {"append-local", "branches", "search", "attachments"}
"""Those that `tests/unit/test_bench.py` runs."""


@pytest.mark.timeout(1200)
def test_every_line_runs() -> None:
    """About 40 s on two free cores; the reference is left out, npm would fetch it."""
    names = [name for name in ORDER if name not in IN_PROCESS]
    command = [sys.executable, "-m", "tests.bench", "--small", "--json", *names]
    environment = os.environ | {"PATH": str(Path(sys.executable).parent)}  # no npm there
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert {name.split(",")[0] for name in names} <= {one["name"].split(",")[0] for one in results}
    for one in results:
        assert one["ours"] >= 0, one
