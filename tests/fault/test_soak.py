"""The long runs, short: that they work, and find nothing in a moment."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_a_short_soak_loses_nothing() -> None:
    done = run(
        *("tests.soak", "--minutes", "0.25", "--seed", "7", "--conversations", "4"),
        *("--kills-per-minute", "40"),
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "lost: 0, twice: 0, order: 0, foreign: 0, unsound: 0, stuck: 0" in done.stdout
    assert "processes killed" in done.stdout


def test_conversations_in_turn_far_beyond_what_a_node_holds() -> None:
    done = run("tests.bench", "churn", "--small", "--json")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    names = {one["name"]: one for one in json.loads(done.stdout)}
    assert "churn, woken, append, p99" in names
    assert all(one["ours"] > 0 for one in names.values())
