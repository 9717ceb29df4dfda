"""Commands against a deployment in memory: what they print, to whom, and their exit codes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from router.cli import app, deployment, with_options_last
from router.directory import Directory
from router.models import (
    ConversationInfo,
    JobInfo,
    JobReport,
    MigrationProgress,
    MigrationReport,
    NodeInfo,
    TableDigest,
)
from sessions_actor.errors import ConversationNotFoundError, MigrationFailedError, StorageError
from sessions_actor.records import LEAF, AppendResult, HistoryRow, SearchResult

from .formats_support import MemoryClient, MemoryConversation, MemorySession

TREE = {
    "message_tree_id": "p",
    "prompt": {
        "message_id": "p",
        "role": "prompter",
        "text": "How?",
        "replies": [
            {"message_id": "a", "role": "assistant", "text": "So.", "replies": []},
            {"message_id": "b", "role": "assistant", "text": "Or so.", "replies": []},
        ],
    },
}


JOB = JobInfo("drain-1", "drain", "n1", "running", 7, 2, 1, 4096, "2026-01-02T03:04:05.000Z", None)


class Session(MemorySession):
    """With what the commands call besides."""

    async def append_message(self, message: Any, *, parent_id: Any = LEAF) -> AppendResult:
        """Append below the newest row."""
        if not isinstance(message.get("role"), str):
            raise ValueError("message.role: a string is required")
        above = next(reversed(self.rows), None) if parent_id is LEAF else parent_id
        known = message["id"] in self.rows
        await self.import_messages([HistoryRow(message, above, 5, 0)])
        return AppendResult(not known, message)

    async def search(self, query: str, *, limit: int = 20) -> list[SearchResult]:
        """Find a word literally."""
        found = []
        for row in self.rows.values():
            text = row.message["parts"][0]["text"]
            if query in text:
                found.append(SearchResult(row.message["id"], row.message["role"], text))
        return found[:limit]


class Conversation(MemoryConversation):
    """With sessions of that kind."""

    def session(self, session_id: str = "") -> Session:
        """Return a session, made on first use."""
        held = self.sessions.setdefault(session_id, Session())
        assert isinstance(held, Session)
        return held


class Client(MemoryClient):
    """A whole client in memory; `broken` names what fails or is faulty."""

    owns_cluster = False

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[str] = set()
        self.hibernated: set[str] = set()

    def get(self, name: str) -> MemoryConversation:
        """Return a conversation, made on first use."""
        return self.conversations.setdefault(name, Conversation(name))

    async def list(self, prefix: str = "", limit: int | None = None) -> AsyncIterator[str]:
        """Yield the names in order."""
        names = sorted(name for name in self.conversations if name.startswith(prefix))
        for name in names[:limit]:
            yield name

    async def info(self, name: str) -> ConversationInfo:
        """Describe a conversation."""
        if name not in self.conversations:
            raise ConversationNotFoundError(name)
        state = "hibernated" if name in self.hibernated else "active"
        when = "2026-01-02T03:04:05.678Z"
        return ConversationInfo(name, state, 1, "n1", "a1", 7, 4096, 10**10, when, when)

    async def hibernate(self, name: str) -> None:
        """Let it sleep."""
        self.hibernated.add(name)

    async def delete(self, name: str) -> bool:
        """Forget it."""
        return self.conversations.pop(name, None) is not None

    async def nodes(self) -> list[NodeInfo]:
        """Describe the one node."""
        return [NodeInfo("n1", "127.0.0.1", "alive", "d1", 1, 1, 100)]

    async def disks(self) -> dict[str, int]:
        """Count them all on the one disk."""
        return {"d1": len(self.conversations)}

    async def replicas_behind(self) -> tuple[int, float]:
        """No replica lacks anything."""
        return 0, 0.0

    async def active(self, limit: int = 100) -> list[ConversationInfo]:
        """Describe those that do not sleep."""
        names = [name for name in self.conversations if name not in self.hibernated]
        return [await self.info(name) for name in sorted(names)[:limit]]

    async def migrate(
        self,
        name: str,
        node_id: str | None = None,
        *,
        progress: Callable[[MigrationProgress], object] | None = None,
    ) -> MigrationReport:
        """Pretend to move."""
        if progress is not None:
            progress(MigrationProgress(name, "waiting", 0, None, 0))
            progress(MigrationProgress(name, "copying", 4096, 4000, 3))
        if name in self.broken:
            raise MigrationFailedError(name, "verify", "digests differ")
        return MigrationReport(name, "n1", "n1", 2, {"t": TableDigest(3, "x")}, 3, 4096, 0.25)

    async def drain(
        self, node_id: str, *, progress: Callable[[JobInfo], object] | None = None
    ) -> JobReport:
        """Pretend to empty a node, with trouble where something is broken."""
        if progress is not None:
            progress(JOB)
        failed = dict.fromkeys(sorted(self.broken), "digests differ")
        return JobReport(
            "drain-1", "drain", node_id, "done", 2, 4096, (await self.migrate("a"),), failed, 1.5
        )

    async def rebalance(self, *, progress: Callable[[JobInfo], object] | None = None) -> JobReport:
        """Pretend that it was given up."""
        return JobReport("rebalance-1", "rebalance", None, "cancelled", 0, 0)

    async def undrain(self, node_id: str) -> None:
        """Pretend."""
        assert node_id == "n1"

    async def jobs(self) -> list[JobInfo]:
        """List one."""
        return [JOB]

    async def cancel_job(self, job_id: str) -> bool:
        """Know one."""
        if job_id != JOB.id:
            raise ValueError(f"job: none is {job_id!r}, see jobs()")
        return True

    async def cancel_migration(self, name: str) -> bool:
        """Pretend that some are under way."""
        return name in self.broken

    async def verify(self, name: str) -> list[str]:
        """List faults."""
        return ["message 'm1': its parent is missing"] if name in self.broken else []


Run = Callable[..., Result]


@pytest.fixture
def client() -> Client:
    """Return an empty deployment."""
    return Client()


@pytest.fixture
def run(client: Client, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a command against it."""

    @asynccontextmanager
    async def open_client(address: Any, namespace: str, settings: Any) -> AsyncIterator[Client]:
        if address == "nowhere:1":
            raise ConnectionError("nobody answers\nthere")
        if address == "broken":
            raise StorageError("/data", "cannot be written: choose another folder")
        yield client

    monkeypatch.setattr(deployment, "open_client", open_client)
    monkeypatch.delenv("SESSIONS_ACTOR_DEBUG", raising=False)

    def invoke(*arguments: str, text: str | None = None) -> Result:
        return CliRunner().invoke(app, with_options_last(list(arguments)), input=text)

    return invoke


@pytest.fixture
def tree_file(tmp_path: Path) -> Path:
    """Return a file with one good tree and one broken line."""
    path = tmp_path / "trees.jsonl"
    path.write_text(json.dumps(TREE) + "\n")
    return path


def test_append_show_and_list(run: Run, client: Client) -> None:
    assert run("append", "alice", "Hello", "--id", "m1").exit_code == 0
    again = run("append", "alice", "Hello", "--id", "m1")
    assert "was there already" in again.stdout
    assert run("append", "alice", "Hi [bold]there", "--role", "assistant", "--id", "m2").stdout == (
        "appended m2\n"
    )
    run("append", "alice", "Or not", "--parent", "m1", "--id", "m3")
    shown = run("show", "alice").stdout
    assert "assistant  m2  Hi [bold]there" in shown
    assert "● active leaf  m3  Or not" in shown
    listed = run("ls").stdout
    assert "alice" in listed
    assert "4.1 KB" in listed


def test_a_whole_message_and_standard_input(run: Run, client: Client) -> None:
    whole = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "x"}], "n": 1}
    assert run("append", "alice", "--message", json.dumps(whole)).exit_code == 0
    assert client.rows("alice")[0].message == whole
    run("append", "alice", "-", "--id", "m2", text="from a pipe")
    assert client.rows("alice")[1].message["parts"][0]["text"] == "from a pipe"
    done = run("append", "alice", "--message", '{"id": "m3"}')
    assert (done.exit_code, done.stderr) == (2, "error: message.role: a string is required\n")


def test_json_is_one_value_and_exact(run: Run, client: Client) -> None:
    run("append", "a\u202eb", "half \U0001f600", "--id", "m1")
    rows = json.loads(run("show", "a\u202eb", "--json").stdout)
    assert rows["rows"][0]["message"]["parts"][0]["text"] == "half \U0001f600"
    assert rows["rows"][0]["parent_id"] is None
    (info,) = json.loads(run("ls", "--json").stdout)
    assert (info["name"], info["file_bytes"]) == ("a\u202eb", 4096)
    assert json.loads(run("ls", "zzz", "--json").stdout) == []
    found = json.loads(run("search", "a\u202eb", "half", "--json").stdout)
    assert found == [{"id": "m1", "role": "user", "content": "half \U0001f600"}]
    status = json.loads(run("status", "--json").stdout)
    assert status["conversations"] == {"total": 1, "active": 1}
    assert status["nodes"][0]["node_id"] == "n1"


@pytest.mark.parametrize(
    "arguments",
    [("show", "x"), ("search", "x", "q"), ("export", "x"), ("verify", "x"), ("migrate", "x"),
     ("hibernate", "x"), ("delete", "x", "--yes")],
)  # fmt: skip
def test_an_unknown_conversation_is_said_and_not_made(
    run: Run, client: Client, arguments: tuple[str, ...]
) -> None:
    done = run(*arguments)
    assert done.exit_code == deployment.NOT_FOUND
    assert done.stderr.startswith("error: no conversation is named 'x'")
    assert done.stdout == ""
    assert not client.conversations


def test_no_deployment_is_one_line_with_a_way_out(run: Run) -> None:
    done = run("--address", "nowhere:1", "ls")
    assert done.exit_code == deployment.UNREACHABLE
    text = done.stderr
    assert text.count("\n") == 1
    assert "nobody answers there" in text
    assert "sessions-actor up" in text
    failed = json.loads(run("ls", "--address=nowhere:1", "--json").stderr)
    assert failed["type"] == "UnreachableError"


def test_a_cluster_for_one_command_alone_is_told_of(run: Run, client: Client) -> None:
    client.owns_cluster = True
    done = run("ls")
    assert done.stderr.startswith("No cluster runs here: one was started")
    assert "sessions-actor up" in done.stderr
    assert run("ls", "--json").stderr == ""
    client.owns_cluster = False
    assert "No cluster" not in run("ls").stderr


def test_trouble_of_the_deployment_is_one_line(run: Run) -> None:
    done = run("ls", "--address", "broken")
    assert (done.exit_code, done.stderr) == (
        deployment.FAILED,
        "error: /data: cannot be written: choose another folder\n",
    )


def test_import_and_export(run: Run, client: Client, tree_file: Path, tmp_path: Path) -> None:
    done = run("import", str(tree_file))
    assert (done.exit_code, done.stdout) == (0, "imported 1 conversation, 3 new messages\n")
    again = run("import", "--format", "oasst", str(tree_file), "--json")
    assert json.loads(again.stdout)["new_messages"] == 0
    target = tmp_path / "out.jsonl"
    done = run("export", "--all", "-o", str(target))
    assert done.exit_code == 0
    whole = target.read_bytes()
    assert whole.count(b'"type":"message"') == 3
    assert run("export", "p").stdout_bytes == whole
    assert json.loads(run("export", "p", "--format", "oasst").stdout) == TREE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "trees.jsonl"]


def test_a_partly_broken_file_is_told_by_exit_code(run: Run, tree_file: Path) -> None:
    tree_file.write_text('{"message_tree_id": \n' + tree_file.read_text())
    done = run("import", "--format", "oasst", str(tree_file))
    assert done.exit_code == deployment.PARTLY
    assert "line 1: not JSON" in done.stderr
    assert done.stdout == "imported 1 conversation, 3 new messages, 1 problem\n"
    listed = json.loads(run("import", str(tree_file), "-f", "oasst", "--json").stdout)
    assert listed["problem_count"] == 1
    assert "line 1" in listed["problems"][0]


def test_many_problems_are_counted_not_all_shown(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("{\n" * 100)
    done = run("import", "-f", "oasst", str(path))
    assert done.exit_code == deployment.FAILED
    assert "and 80 more problems" in done.stderr


def test_files_that_cannot_be_imported(run: Run, tmp_path: Path) -> None:
    odd = tmp_path / "odd.txt"
    odd.write_text("hello")
    done = run("import", str(odd), str(tmp_path / "missing.json"))
    assert done.exit_code == deployment.FAILED
    text = done.stderr
    assert "not a format known here" in text
    assert "No such file" in text


@pytest.mark.parametrize(
    "arguments",
    [("import", "x", "--format", "y"), ("export", "--format", "y", "x"),
     ("export", "x", "--all"), ("migrate",), ("append", "", "x"), ("append", "x" * 1025, "y"),
     ("append", "a", "b", "--root", "--parent", "c"), ("import", "a", "b", "--name", "n"),
     ("delete", "here")],
)  # fmt: skip
def test_wrong_use_is_exit_code_2_and_one_line(
    run: Run, client: Client, arguments: tuple[str, ...]
) -> None:
    client.get("here")
    done = run(*arguments)
    assert done.exit_code == deployment.USAGE
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_migrate_and_verify_report_each_failure(run: Run, client: Client) -> None:
    for name in ("a", "b"):
        client.get(name)
    client.broken.add("b")
    done = run("migrate", "--all")
    assert done.exit_code == deployment.PARTLY
    assert "0.25 s" in done.stdout
    assert "b: conversation 'b' was not migrated" in done.stderr
    moved = json.loads(run("migrate", "a", "--json").stdout)
    assert moved["migrated"][0]["tables"] == {"t": {"rows": 3, "digest": "x"}}
    given_up = json.loads(run("migrate", "--all", "--cancel", "--json").stdout)
    assert given_up == {"cancelled": ["b"], "failed": {}}
    assert run("migrate", "a", "--cancel").stdout == "0 migrations given up\n"
    done = run("verify", "--all")
    assert done.exit_code == deployment.UNSOUND
    assert "its parent is missing" in done.stdout
    assert run("verify", "a").stdout == "1 conversation sound\n"
    checked = json.loads(run("verify", "--prefix", "b", "--json").stdout)
    assert checked["problems"] == {"b": ["message 'm1': its parent is missing"]}


def test_jobs_tell_what_they_did(run: Run, client: Client) -> None:
    client.get("a")
    done = run("drain", "n")
    assert done.exit_code == 0
    assert "0.25 s" in done.stdout
    assert "2 conversations moved" in done.stderr
    client.broken.add("b")
    done = run("drain", "n1", "--json")
    assert done.exit_code == deployment.PARTLY
    assert json.loads(done.stdout)["failed"] == {"b": "digests differ"}
    assert run("drain", "n1", "--undo").stdout == "n1 takes conversations again\n"
    assert run("drain", "other").exit_code == deployment.USAGE
    done = run("rebalance")
    assert done.exit_code == deployment.FAILED
    assert "rebalance-1 was cancelled" in done.stderr
    shown = run("jobs").stdout
    assert "drain-1" in shown
    assert "1 job under way" in shown
    (job,) = json.loads(run("jobs", "--json").stdout)
    assert (job["state"], job["moved"], job["total"]) == ("running", 2, 7)
    assert run("jobs", "--cancel", "drain-1").stdout == "drain-1 is given up\n"
    done = run("jobs", "--cancel", "x")
    assert (done.exit_code, "none is 'x'" in done.stderr) == (deployment.USAGE, True)


def test_reshard_needs_no_deployment(run: Run, tmp_path: Path) -> None:
    done = run("reshard", "2", "--storage-root", str(tmp_path))
    assert (done.exit_code, "no directory here" in done.stderr) == (deployment.FAILED, True)
    Directory(tmp_path).close()
    told = json.loads(run("reshard", "2", "--storage-root", str(tmp_path), "--json").stdout)
    assert told == {"conversations": 0, "before": 1, "after": 2}
    done = run("reshard", "0", "--storage-root", str(tmp_path))
    assert (done.exit_code, "from 1 to 64" in done.stderr) == (deployment.USAGE, True)


def test_hibernate_and_delete(run: Run, client: Client) -> None:
    client.get("a")
    assert run("hibernate", "a").stdout == "a is hibernated\n"
    assert run("delete", "a", "-y").stdout == "a is deleted\n"
    assert not client.conversations


def test_status_for_people(run: Run, client: Client) -> None:
    client.get("a")
    shown = run("status").stdout
    assert "1 (1 active)" in shown
    assert "127.0.0.1" in shown


def test_names_cannot_act_on_the_terminal(run: Run, client: Client) -> None:
    client.get("evil\x1b[2J")
    assert "\x1b" not in run("ls").stdout
    assert json.loads(run("ls", "--json").stdout)[0]["name"] == "evil\x1b[2J"


def test_settings_that_do_not_fit_name_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONS_ACTOR_QUOTA_BYTES", "many")
    done = CliRunner().invoke(app, ["ls"])
    assert done.exit_code == deployment.USAGE
    assert "quota_bytes" in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["import", "--help"], ["-h"]])
def test_help_says_what_there_is(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0
    assert "Usage" in done.stdout


def test_every_command_has_a_help_and_the_common_options() -> None:
    names = [command.name for command in app.registered_commands]
    assert names == [
        "demo", "up", "health", "ls", "show", "append", "search", "hibernate", "delete", "import",
        "export", "status", "migrate", "verify", "drain", "rebalance", "jobs", "reshard",
        "restore", "restore-points", "backup", "top", "doctor",
    ]  # fmt: skip
    for name in names:
        shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(name), "--help"]).stdout
        assert "--address" in shown
        assert "--json" in shown


def test_options_before_the_command_mean_the_same() -> None:
    before = ["--address", "x", "--json", "--namespace=y", "ls", "-n", "3"]
    assert with_options_last(before) == [
        "ls",
        "--address",
        "x",
        "--json",
        "--namespace=y",
        "-n",
        "3",
    ]
    assert with_options_last(["--help"]) == ["--help"]
    assert with_options_last([]) == []


def test_the_version_is_printed() -> None:
    assert CliRunner().invoke(app, ["--version"]).exit_code == 0
