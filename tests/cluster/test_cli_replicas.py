"""The commands of replicas and copies, against a deployment that has them."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.replication.stores import skip_without_engine

from .conftest import end_deployment
from .test_cli_cluster import Deployment


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """The folder of the replicas."""
    (tmp_path / "far").mkdir()
    return tmp_path / "far"


@pytest.fixture
def replicated(
    cluster: Any, tmp_path: Path, far: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Deployment]:
    skip_without_engine()
    monkeypatch.setenv("SESSIONS_ACTOR_DURABILITY", "replicated")
    monkeypatch.setenv("SESSIONS_ACTOR_REPLICA_URL", f"file://{far}")
    found = Deployment(tmp_path / "data")
    yield found
    end_deployment(found.namespace)


def test_a_moment_is_restored_copies_are_made_and_replicas_verified(
    replicated: Deployment, far: Path, tmp_path: Path
) -> None:
    here = replicated
    assert here.run("append", "alice", "first").exit_code == 0
    moment = datetime.now(UTC)
    while datetime.now(UTC) - moment <= timedelta(milliseconds=1):
        pass  # restores are exact to the millisecond: what comes next has another
    assert here.run("append", "alice", "second").exit_code == 0
    points = [point["at"] for point in here.json("restore-points", "alice")]
    assert datetime.fromisoformat(points[0]) <= moment
    restored = here.json("restore", "alice", "--at", moment.isoformat(), "--to", "then")
    assert (restored["name"], restored["source"]) == ("then", "alice")
    assert texts(here, "then") == ["first"]
    placed = here.json("restore", "alice", "--at", moment.isoformat(), "--in-place", "--to", "kept")
    assert (placed["name"], placed["kept_as"]) == ("alice", "kept")
    assert (texts(here, "alice"), texts(here, "kept")) == (["first"], ["first", "second"])

    copies = here.json("backup", str(tmp_path / "copies"))
    assert (copies["conversations"], copies["failed"]) == (3, {})
    listed = (tmp_path / "copies" / "backup.jsonl").read_text().splitlines()
    for line in map(json.loads, listed):
        data = (tmp_path / "copies" / line["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == line["sha256"]

    sound = here.json("verify", "--replicas")
    assert (sound["verified"], sound["problems"], sound["failed"]) == (3, {}, {})
    # One that is woken makes a replica that is gone anew: these are there, and damaged.
    for file in far.glob("*/conversations/**/*.ltx"):
        os.truncate(file, file.stat().st_size // 2)
    told = here.run("verify", "--replicas", "--json")
    assert told.exit_code != 0
    assert len(json.loads(told.stdout)["failed"]) == 3


def test_a_store_that_cannot_be_used_is_told_by_the_first_command(
    replicated: Deployment, far: Path
) -> None:
    shutil.rmtree(far)
    far.write_text("no folder")
    told = replicated.run("append", "alice", "Hello")
    assert told.exit_code != 0
    assert "replicas cannot be written" in told.stderr


def texts(here: Deployment, name: str) -> list[str]:
    """Return what a conversation says."""
    rows = here.json("show", name)["rows"]
    return [part["text"] for row in rows for part in row["message"]["parts"]]
