"""Simulated deployments: thousands of seeds without a violation, each a history that repeats."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS, LONG_SEEDS = 2_000, 100_000
LONG_S = 20_000


def simulate(*arguments: str, within_s: float = 600, hash_seed: str = "0") -> tuple[int, str]:
    """Run the command as a person would; returns its code and what it printed."""
    found = subprocess.run(
        [sys.executable, "-m", "tests.sim", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    return found.returncode, found.stdout or found.stderr


@pytest.mark.timeout(LONG_S)
def test_no_seed_breaks_an_invariant(long_run: bool) -> None:
    seeds = LONG_SEEDS if long_run else SEEDS
    code, told = simulate("--seeds", str(seeds), within_s=LONG_S)
    assert code == 0, told
    assert f"{seeds} seeds, 0 failed" in told


def test_a_seed_is_one_history_in_whatever_process() -> None:
    seeds = [str(seed) for seed in (7, 8, 9)]
    runs = [
        [simulate("--seed", seed, hash_seed=hashes)[1] for seed in seeds]
        for hashes in ("0", "1")  # the command sees to it that this makes no difference
    ]
    assert runs[0] == runs[1]
    assert all(re.search(r"digest [0-9a-f]{8}", told) for told in runs[0])
    assert len(set(runs[0])) == len(seeds)


def test_a_seed_is_one_history_whatever_ran_before_it() -> None:
    code = (
        "from tests.sim.run import run_seeds\n"
        "alone = [o.digest for o in run_seeds(range(11, 14))]\n"
        "after = [o.digest for o in run_seeds(range(5, 14))][6:]\n"
        "assert alone == after, (alone, after)\n"
    )
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr


def test_a_failure_says_how_to_replay_it_and_the_replay_fails_alike() -> None:
    broken = ("--mutant", "gate")
    code, told = simulate(*broken, "--seeds", "60")
    assert code == 1
    replay = re.search(r"seed (\d+): (Violation: .*) \(digest (\w+).*\n  replay: (.*)", told)
    assert replay is not None, told
    seed, violation, digest, command = replay.groups()
    assert command == f"python -m tests.sim --mutant gate --seed {seed} --trace"
    code, again = simulate(*command.split()[3:])
    assert code == 1
    assert violation in again
    assert digest in again
