"""Commands against real deployments: files in and out, moves, and the programs that run alone."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from router.cli import app, with_options_last

from .conftest import ROOT, end_deployment

FIXTURES = ROOT / "tests" / "conformance" / "fixtures"
# A program of its own: Ray starts, works and ends within this, on a busy machine.
PROGRAM_S = 240
MAIN = "import sys; sys.argv[0] = 'sessions-actor'; from router.cli import main; main()"


class Deployment:
    """A deployment of this test's own, reached by commands."""

    def __init__(self, folder: Path) -> None:
        self.namespace = f"test-{uuid.uuid4().hex}"
        self.folder = folder

    def run(self, *arguments: str, text: str | None = None) -> Result:
        """Run a command in this process, which is in the cluster."""
        env = {
            "SESSIONS_ACTOR_NAMESPACE": self.namespace,
            "SESSIONS_ACTOR_STORAGE_ROOT": str(self.folder),
        }
        return CliRunner(env=env).invoke(app, with_options_last(list(arguments)), input=text)

    def json(self, *arguments: str) -> Any:
        """Run a command that has to succeed; returns what it prints."""
        done = self.run(*arguments, "--json")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def new_deployment(cluster: Any, tmp_path: Path) -> Iterator[Callable[[], Deployment]]:
    """Return how to make deployments, all empty, which are ended with the test."""
    made: list[Deployment] = []

    def make() -> Deployment:
        made.append(Deployment(tmp_path / f"data{len(made)}"))
        return made[-1]

    yield make
    for one in made:
        end_deployment(one.namespace)


@pytest.fixture
def here(new_deployment: Callable[[], Deployment]) -> Deployment:
    """Return an empty deployment."""
    return new_deployment()


def tree(name: str, width: int) -> dict[str, Any]:
    """Return a tree of the OpenAssistant form: a question and some answers."""
    answers = [
        {
            "message_id": f"{name}-{number}",
            "parent_id": name,
            "role": "assistant",
            "text": f"Answer {number} 🌍",
            "rank": number,
            "replies": [],
        }
        for number in range(width)
    ]
    prompt = {"message_id": name, "role": "prompter", "text": f"Why {name}?", "lang": "en"}
    return {
        "message_tree_id": name,
        "tree_state": "ready_for_export",
        "prompt": {**prompt, "replies": answers},
    }


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """Return a file of three trees."""
    path = tmp_path / "trees.jsonl"
    path.write_text("".join(json.dumps(tree(f"tree{n}", n)) + "\n" for n in (1, 2, 3)))
    return path


def test_files_go_in_and_come_out_as_they_were(
    here: Deployment, new_deployment: Callable[[], Deployment], trees: Path, tmp_path: Path
) -> None:
    assert here.run("import", str(trees)).stdout == "imported 3 conversations, 9 new messages\n"
    again = here.json("import", "--format", "oasst", str(trees))
    assert (again["messages"], again["new_messages"]) == (9, 0)
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    assert here.run("export", "--all", "-o", str(first)).exit_code == 0
    there = new_deployment()
    assert there.run("import", str(first)).exit_code == 0
    assert there.run("export", "--all", "-o", str(second)).exit_code == 0
    assert first.read_bytes() == second.read_bytes()
    for number in (1, 2, 3):
        out = there.run("export", f"tree{number}", "--format", "oasst").stdout
        assert json.loads(out) == tree(f"tree{number}", number)
    paths = [
        json.loads(there.run("export", "tree3", "-f", "ai-sdk", "--leaf", f"tree3-{n}").stdout)
        for n in range(3)
    ]
    assert [[message["id"] for message in path] for path in paths] == [
        ["tree3", f"tree3-{n}"] for n in range(3)
    ]


def test_real_trees(
    here: Deployment,
    new_deployment: Callable[[], Deployment],
    shared: Path,
    tmp_path: Path,
    long_run: bool,
) -> None:
    data = (shared / "data" / "oasst-100-trees.jsonl").read_bytes().splitlines(keepends=True)
    file = tmp_path / "some.jsonl"
    file.write_bytes(b"".join(data if long_run else data[:12]))
    done = here.json("import", "--format", "oasst", str(file))
    if long_run:
        assert (done["conversations"], done["new_messages"]) == (100, 1167)
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    here.run("export", "-o", str(first))
    there = new_deployment()
    there.run("import", str(first))
    there.run("export", "-o", str(second))
    assert first.read_bytes() == second.read_bytes()
    moved = there.json("migrate", "--all")
    assert len(moved["migrated"]) == done["conversations"]
    assert there.json("verify", "--all")["sound"] == done["conversations"]
    there.run("export", "-o", str(second))
    assert first.read_bytes() == second.read_bytes()


def test_everything_of_a_conversation_is_exported(
    here: Deployment, new_deployment: Callable[[], Deployment], tmp_path: Path
) -> None:
    source = FIXTURES / "durable-object.sqlite"
    done = here.json("import", "--format", "durable-object", str(source), "--name", "a/b 🎈")
    assert (done["conversations"], done["new_messages"], done["new_overlays"]) == (1, 10, 1)
    expected = json.loads((FIXTURES / "durable-object.json").read_text())
    shown = json.loads(here.run("export", "a/b 🎈", "--format", "ai-sdk").stdout)
    assert [message["id"] for message in shown] == [one["id"] for one in expected["history"]]
    drafts = json.loads(here.run("export", "a/b 🎈", "-f", "ai-sdk", "-s", "drafts").stdout)
    assert drafts == expected["drafts"]
    exported = here.run("export", "a/b 🎈").stdout_bytes
    file = tmp_path / "one.jsonl"
    file.write_bytes(exported)
    there = new_deployment()
    assert there.run("import", str(file)).exit_code == 0
    assert there.run("export", "a/b 🎈").stdout_bytes == exported
    assert there.json("verify", "a/b 🎈")["sound"] == 1
    found = there.json("search", "a/b 🎈", "deployment failed")
    assert "u2" in [result["id"] for result in found]
    again = there.json("import", "-f", "durable-object", str(source), "--name", "a/b 🎈")
    assert (again["new_messages"], again["new_overlays"]) == (0, 0)


def test_rows_that_cannot_be_lifted_are_reported(here: Deployment) -> None:
    done = here.run("import", str(FIXTURES / "legacy-chat-agent.sqlite"), "--name", "old")
    assert done.exit_code == 3
    assert "4 of 5 rows could be read" in done.stderr
    assert len(here.json("show", "old")["rows"]) == 4


def test_a_foreign_file_is_refused_in_one_line(here: Deployment, tmp_path: Path) -> None:
    file = tmp_path / "noise.sqlite"
    file.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 64)
    done = here.run("import", str(file))
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(("error: ", "warning: "))


def test_a_conversation_from_end_to_end(here: Deployment) -> None:
    first = here.json("append", "alice", "What is a tidal lock?", "--id", "q")
    assert first["inserted"]
    here.run("append", "alice", "It shows one face.", "--id", "a", "-r", "assistant")
    here.run("append", "alice", "The moon does.", "--id", "b", "-r", "assistant", "--parent", "q")
    shown = here.run("show", "alice").stdout
    assert "branch 1 of 2" in shown
    assert "● active leaf  b  The moon does." in shown
    assert [result["id"] for result in here.json("search", "alice", "tidal")] == ["q"]
    assert here.json("hibernate", "alice")["state"] == "hibernated"
    (info,) = here.json("ls")
    assert (info["name"], info["state"]) == ("alice", "hibernated")
    moved = here.json("migrate", "alice")["migrated"][0]
    assert moved["messages"] == 3
    assert here.run("verify", "alice").stdout == "1 conversation sound\n"
    status = here.json("status")
    assert status["conversations"]["total"] == 1
    assert status["nodes"]
    assert here.run("delete", "alice", "--yes").exit_code == 0
    assert here.run("show", "alice").exit_code == 4
    assert here.json("ls") == []


def test_a_node_that_is_not_there(here: Deployment) -> None:
    here.run("append", "alice", "Hello")
    done = here.run("drain", "feed")
    assert (done.exit_code, "no live node" in done.stderr) == (2, True)
    assert here.run("migrate", "alice", "--to", "feed").exit_code != 0
    assert here.json("show", "alice")["rows"]


def program(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start a command as a process of its own, outside any cluster."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    env |= {
        "PYTHONPATH": str(ROOT),
        "SESSIONS_ACTOR_STORAGE_ROOT": str(folder),
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments],
        env=env,
        cwd=folder.parent,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_the_demo_shows_what_it_measured_and_leaves_nothing(tmp_path: Path) -> None:
    started = program(tmp_path / "unused", "demo")
    out, err = started.communicate(timeout=PROGRAM_S)
    assert started.returncode == 0, err
    for words in ("messages appended", "▣ summary", "active leaf", "no fault found", "Done"):
        assert words in out
    assert not (tmp_path / "unused").exists()
    process = int(re.findall(r"it lives in process (\d+)", out)[0])
    deadline = time.monotonic() + PROGRAM_S  # a worker may outlive its cluster for a moment
    while Path(f"/proc/{process}").exists():
        assert time.monotonic() < deadline
        threading.Event().wait(0.1)


def test_up_serves_other_programs_until_it_is_told_to_stop(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    serving = program(folder, "up", "--json")
    try:
        assert serving.stdout is not None
        told = json.loads(serving.stdout.readline())
        assert told["storage_root"] == str(folder)
        for arguments in (("append", "alice", "Hello", "--id", "m1"), ("show", "alice")):
            out, err = program(folder, *arguments, "--json").communicate(timeout=PROGRAM_S)
            assert json.loads(out)["name"] == "alice", err
    finally:
        serving.send_signal(signal.SIGTERM)  # as systemd does, and `docker stop`
        out, err = serving.communicate(timeout=PROGRAM_S)
    assert serving.returncode == 0, err
    assert not (folder / "deployment.json").exists()


def test_top_and_doctor_look_at_what_runs(here: Deployment) -> None:
    assert here.run("append", "alice", "Hello").exit_code == 0
    seen = here.json("top", "--once")
    (alice,) = seen["active"]
    assert (alice["name"], alice["state"]) == ("alice", "active")
    assert alice["file_bytes"] > 0
    assert sum(node["active"] for node in seen["nodes"]) == 1
    found = {one["check"]: one for one in here.json("doctor")["findings"]}
    assert found["leases"]["level"] == found["directory and actors"]["level"] == "ok"
    assert "1 active conversation answered" in found["directory and actors"]["text"]
    assert found["versions"]["level"] == found["disks"]["level"] == "ok"
    assert "writable" in found["storage"]["text"]


def test_doctor_names_an_owner_that_does_not_answer(here: Deployment) -> None:
    assert here.run("append", "alice", "Hello").exit_code == 0
    pid = here.json("top", "--once")["active"][0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        done = here.run("doctor", "--json")
    finally:
        os.kill(pid, signal.SIGKILL)
    found = {one["check"]: one for one in json.loads(done.stdout)["findings"]}
    assert done.exit_code == 5
    assert "alice" in found["directory and actors"]["text"]
