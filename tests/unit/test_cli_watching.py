"""The commands `top` and `doctor`, and the help of every command."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from typing import Any

import pytest
import typer
from ray.exceptions import TaskUnschedulableError
from rich.console import Console
from typer.testing import CliRunner

from router import Settings, checkup
from router.cli import app, doctor
from router.cli.watching import Sight, screen
from router.models import ConversationInfo, NodeInfo
from sessions_actor.replica import Durability

from .test_cli import Client, Run, client, run  # noqa: F401  (fixtures)

COMMANDS: dict[str, Any] = dict(typer.main.get_group(app).commands)
NODE = NodeInfo("n1" * 20, "127.0.0.1", "alive", "d1", 1, 1, 100)


def info(name: str, file_bytes: int = 4096, **more: Any) -> ConversationInfo:
    """Describe an active conversation."""
    when = "2026-01-02T03:04:05.678Z"
    fields = {"state": "active", "node_id": NODE.node_id, "actor_id": "a", "pid": 7, **more}
    return ConversationInfo(
        name=name,
        epoch=1,
        file_bytes=file_bytes,
        quota_bytes=10**10,
        created_at=when,
        last_active_at=when,
        **fields,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples_that_are_right(name: str) -> None:
    epilog = COMMANDS[name].epilog or ""
    examples = [line.strip()[2:] for line in epilog.split("\n\n")[1:]]
    assert examples, "each command shows how it is used"
    for example in examples:
        words = shlex.split(example.rpartition("| ")[2])
        assert words[0] == "sessions-actor"
        at = words.index(name)
        COMMANDS[name].make_context(name, words[at + 1 :], resilient_parsing=False)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("sessions-actor ver", {"verify"}),
        ("sessions-actor top --on", {"--once"}),
        ("sessions-actor export --format o", {"oasst", "openai"}),
    ],
)
def test_the_shell_completes(words: str, completed: set[str]) -> None:
    code = "import sys; sys.argv[0] = 'sessions-actor'; from router.cli import main; main()"
    asked = {
        "_SESSIONS_ACTOR_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(done.stdout.split()) == completed
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).stdout


def test_top_once_for_programs(run: Run, client: Client) -> None:  # noqa: F811
    client.get("alice"), client.get("bob")
    client.hibernated.add("bob")
    done = run("top", "--once", "--json")
    assert done.exit_code == 0, done.stderr
    seen = json.loads(done.stdout)
    assert [one["name"] for one in seen["active"]] == ["alice"]
    assert seen["active"][0]["idle_s"] > 0
    assert seen["nodes"][0]["active"] == 1
    assert seen["router_ms"] >= 0


def test_top_into_a_pipe_looks_once(run: Run, client: Client) -> None:  # noqa: F811
    client.get("al\x1bice")
    done = run("top")
    assert done.exit_code == 0, done.stderr
    assert "CONVERSATION" in done.stdout
    assert "\x1b" not in done.stdout


def test_top_on_a_terminal_looks_until_it_is_interrupted(
    run: Run,  # noqa: F811
    client: Client,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.get("alice")
    looks = 0

    async def nodes() -> list[NodeInfo]:
        nonlocal looks
        looks += 1
        if looks == 4:
            raise KeyboardInterrupt
        return [NODE]

    monkeypatch.setattr(client, "nodes", nodes)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    done = run("top", "--interval", "0.2")
    assert done.exit_code == 130
    assert done.stdout.count("CONVERSATION") == 3
    assert "alice" in done.stdout


def test_growth_is_what_came_since_the_look_before() -> None:
    sight = Sight(
        1.8e9, 0.001, [NODE], [info("alice", 5_000_000), info("bob", 4096, replica_lag_s=3.5)]
    )
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(screen(sight, {"alice": 1_000_000, "bob": 4096}, 2.0))
    lines = console.export_text().splitlines()
    (alice,) = [line for line in lines if "alice" in line]
    (bob,) = [line for line in lines if "bob" in line]
    assert "2.0 MB/s" in alice
    assert "/s" not in bob
    assert "3.5 s behind" in bob


VERSIONS = {"Python": "3.11", "Ray": "2.60", "sessions-actor": "1", "SQLite": "3.51"}


def facts(node_id: str = NODE.node_id, **more: Any) -> checkup.Facts:
    """Describe a node that is well."""
    fields: dict[str, Any] = {
        "host": "h",
        "versions": VERSIONS,
        "token_auth": True,
        "clock_s": 0.0,
        "open_files_max": 65536,
        "storage_root": "/data",
        "free_bytes": 10**12,
        "total_bytes": 2 * 10**12,
        "lease_left_s": 5.0,
    }
    return checkup.Facts(node_id=node_id, **{**fields, **more})


def judged(*nodes: checkup.Facts, **more: Any) -> list[checkup.Finding]:
    """Judge a deployment; returns what is not well."""
    fields = {"known": (NODE,), "durability": Durability.ASYNC, **more}
    found = checkup.judge(checkup.Deployment(here=facts("here"), nodes=nodes, **fields))
    assert all(finding.advice for finding in found if finding.level != "ok")
    return [finding for finding in found if finding.level != "ok"]


def test_a_deployment_that_is_well() -> None:
    assert judged(facts()) == []
    assert (
        checkup.worst(
            checkup.judge(checkup.Deployment(facts(), (facts(),), durability=Durability.REPLICATED))
        )
        == "ok"
    )


@pytest.mark.parametrize(
    ("check", "level", "changes"),
    [
        ("versions", "fault", {"versions": {**VERSIONS, "Ray": "2.59"}}),
        ("versions", "warning", {"versions": {**VERSIONS, "SQLite": "3.52"}}),
        ("authentication", "warning", {"token_auth": False}),
        ("storage", "fault", {"storage_error": "Read-only file system"}),
        ("storage", "warning", {"write_s": 2.0}),
        ("file modes", "warning", {"open_to_others": ("/data/x",)}),
        ("disk space", "fault", {"free_bytes": 10**6}),
        ("disk space", "warning", {"free_bytes": 10**11}),
        ("leases", "fault", {"lease_left_s": 0.0}),
        ("leases", "fault", {"lease_left_s": None}),
        ("clocks", "warning", {"skew_s": -3.0}),
        ("clocks", "fault", {"skew_s": 90.0}),
        ("open files", "warning", {"open_files_max": 1024}),
        ("replicas", "fault", {"replica_error": "its daemon does not answer"}),
    ],
)
def test_what_is_wrong_on_a_node(check: str, level: str, changes: dict[str, Any]) -> None:
    found = judged(facts(**changes))
    assert (check, level) in [(finding.check, finding.level) for finding in found]
    assert {finding.check for finding in found} == {check}
    assert all(NODE.node_id[:8] in finding.where for finding in found)


def test_a_silent_daemon_is_told_of_before_a_conversation_needs_it() -> None:
    idle = NodeInfo(NODE.node_id, "h", "alive", "d", 0, 0, 9)
    (found,) = judged(facts(replica_error="its daemon does not answer"), known=(idle,))
    assert (found.check, found.level) == ("replicas", "warning")


@pytest.mark.parametrize(
    ("check", "level", "changes"),
    [
        ("nodes", "fault", {"silent": {"n2": "timed out"}}),
        ("directory and actors", "fault", {"active": (info("alice", node_id=None, pid=None),)}),
        ("directory and actors", "fault", {"active": (info("alice", node_id="gone"),)}),
        ("capacity", "warning", {"known": (NodeInfo(NODE.node_id, "h", "alive", "d", 9, 0, 9),)}),
        (
            "capacity",
            "warning",
            {"known": (NodeInfo(NODE.node_id, "h", "draining", "d", 1, 0, 9),)},
        ),
        ("replicas", "warning", {"durability": Durability.LOCAL}),
        ("disks", "warning", {"disks": {"d1": 5, "gone": 3}}),
        ("replicas", "fault", {"active": (info("alice", replica_lag_s=60.0),)}),
        ("replicas", "warning", {"behind": (2, 90.0)}),
    ],
)
def test_what_is_wrong_with_the_whole(check: str, level: str, changes: dict[str, Any]) -> None:
    assert [(one.check, one.level) for one in judged(facts(), **changes)] == [(check, level)]


def test_conversations_whose_disk_is_gone_are_a_fault_without_replicas() -> None:
    disks = {"d1": 5, "0123456789": 3}
    found = judged(facts(), disks=disks, durability=Durability.LOCAL)
    assert [(one.check, one.level) for one in found] == [
        ("disks", "fault"),
        ("replicas", "warning"),
    ]
    assert found[0].where == "01234567"
    assert found[0].text.startswith("3 conversations")
    unseen = NodeInfo(NODE.node_id, "h", "alive", None, 0, 0, 9)
    (told,) = judged(facts(), disks=disks, known=(unseen,))
    assert (told.check, told.level) == ("disks", "warning")


def test_who_left_is_told_without_alarm() -> None:
    found = checkup.judge(checkup.Deployment(facts(), (facts(),), gone=("n2 (SIGTERM)",)))
    assert "1 left the cluster, last n2 (SIGTERM)" in found[0].text
    assert found[0].level == "ok"


def test_a_node_that_serves_nothing_needs_no_lease() -> None:
    idle = NodeInfo(NODE.node_id, "h", "alive", None, 0, 0, 9)
    assert judged(facts(lease_left_s=None), known=(idle,)) == []


def test_the_probe_of_a_storage_root(tmp_path: Any) -> None:
    root = tmp_path / "data"
    root.mkdir(mode=0o700)
    well = checkup.examine("n", str(root), "test", ["router"], Durability.LOCAL)
    assert (well.storage_error, well.open_to_others) == ("", ())
    assert well.write_s > 0
    assert well.total_bytes > 0
    assert list(root.iterdir()) == []
    (root / "readable").touch(mode=0o644)
    (root / "readable").chmod(0o644)
    assert checkup.examine("n", str(root), "test", ["router"], Durability.LOCAL).open_to_others == (
        f"{root}/readable",
    )
    missing = checkup.examine("n", str(tmp_path / "later"), "test", ["router"], Durability.LOCAL)
    assert (missing.storage_error, missing.total_bytes) == ("", 0)


def test_skew_is_what_no_delay_explains() -> None:
    assert doctor._skew(105.0, 100.0, 110.0) == 0.0
    assert doctor._skew(90.0, 100.0, 110.0) == -10.0
    assert doctor._skew(130.0, 100.0, 110.0) == 20.0


def test_doctor_reports_and_exits_by_what_it_finds(
    run: Run,  # noqa: F811
    client: Client,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.settings = Settings(storage_root="/data")  # type: ignore[attr-defined]
    full = facts("n1", free_bytes=1)

    async def ask(node_id: str, *rest: Any) -> checkup.Facts:
        return full

    monkeypatch.setattr(doctor, "_ask", ask)
    done = run("doctor", "--json")
    assert done.exit_code == 5
    found = json.loads(done.stdout)
    assert found["level"] == "fault"
    (space,) = [one for one in found["findings"] if one["check"] == "disk space"]
    assert "drain the node" in space["advice"]
    assert "✗ disk space n1 (h): " in run("doctor").stdout
    assert "✓ nodes 1 answered" in run("doctor").stdout

    async def silent(node_id: str, *rest: Any) -> checkup.Facts:
        raise TimeoutError

    monkeypatch.setattr(doctor, "_ask", silent)
    assert "does not answer: TimeoutError" in run("doctor").stdout

    async def lost(node_id: str, *rest: Any) -> checkup.Facts:
        raise TaskUnschedulableError("soft=False was specified. lease_id=0500ffff")

    monkeypatch.setattr(doctor, "_ask", lost)
    assert "does not answer: Ray has lost it" in run("doctor").stdout
