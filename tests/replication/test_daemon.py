"""The replication daemon: one per disk, watched, gone with its owner."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from router import Settings
from router.replication import daemon as module
from router.replication.daemon import Daemon, answers
from router.replication.engine import config
from router.replication.replicas import Replicas
from sessions_actor.errors import StorageError
from sessions_actor.replica import SOCKET_PATH_BYTES_MAX, Durability, socket_path
from tests.cluster.conftest import until

from .deployments import DAY_S, TERMS, running


def new(root: Path) -> Daemon:
    return Daemon(root, TERMS)


def engines_of(root: Path) -> list[int]:
    """The running engines whose configuration lies below a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if os.fsencode(root / module.CONFIG_FILE) in line and b"/bin/sh" not in line:
                found.append(int(entry.name))
    return found


async def test_it_answers_and_ends_with_its_owner(tmp_path: Path) -> None:
    async with running(new(tmp_path)) as daemon:
        assert await answers(daemon.socket)
        assert os.stat(daemon.socket).st_mode & 0o777 == 0o600
        assert len(engines_of(tmp_path)) == 1
    assert not await answers(daemon.socket)
    await until(lambda: not engines_of(tmp_path), "the engine is gone")


async def test_one_that_is_killed_is_started_again(tmp_path: Path) -> None:
    async with running(new(tmp_path)) as daemon:
        for _ in range(2):
            starts = daemon.starts
            os.kill(engines_of(tmp_path)[0], signal.SIGKILL)
            await until(lambda seen=starts: daemon.starts > seen, "started again")
            await daemon.ready(30.0)
        assert len(engines_of(tmp_path)) == 1


async def test_two_owners_of_one_disk_run_one_daemon_and_the_second_takes_over(
    tmp_path: Path,
) -> None:
    first, second = new(tmp_path), new(tmp_path)
    leading = asyncio.create_task(first.run())
    try:
        await first.ready(30.0)
        async with running(second):
            await asyncio.sleep(3 * module.LOCK_LOOK_S)
            assert (first.starts, second.starts) == (1, 0)
            leading.cancel()
            await asyncio.wait([leading])
            await until(lambda: second.starts == 1, "the second took over")
            await second.ready(30.0)
            assert len(engines_of(tmp_path)) == 1
    finally:
        leading.cancel()


async def test_it_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path;"
        "from router.replication.daemon import Daemon, DaemonTerms;"
        f"d = Daemon(Path({str(tmp_path)!r}), DaemonTerms(9e4, 9e4));"
        "asyncio.run(d.run())"
    )
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    try:
        await until(lambda: answers(socket_path(tmp_path)), "it answers", 60.0)
        owner.kill()
        await owner.wait()
        await until(lambda: not engines_of(tmp_path), "the engine is gone")
    finally:
        with contextlib.suppress(ProcessLookupError):
            owner.kill()


async def test_a_long_path_still_has_a_socket(tmp_path: Path) -> None:
    root = tmp_path / ("x" * 120)
    assert len(socket_path(root)) <= SOCKET_PATH_BYTES_MAX
    assert socket_path(root) != socket_path(tmp_path / ("y" * 120))
    async with running(new(root)) as daemon:
        assert os.stat(os.path.dirname(daemon.socket)).st_mode & 0o777 == 0o700


def test_a_missing_engine_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from router.replication import engine

    monkeypatch.setattr(engine, "PROGRAM", "no-such-program")
    with pytest.raises(StorageError, match=r"sessions-actor\[replication\]"):
        new(tmp_path)


@pytest.mark.parametrize(
    ("url", "missing"),
    [
        ("file:///tmp", "the engine"),
        ("s3://bucket/path", "the engine"),
        ("s3://bucket/path", "boto3"),
    ],
)
async def test_a_deployment_without_the_extra_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, missing: str
) -> None:
    from router.replication import engine

    if missing == "the engine":
        monkeypatch.setattr(engine, "PROGRAM", "no-such-program")
    else:
        monkeypatch.setitem(sys.modules, "boto3", None)
    settings = Settings(storage_root=tmp_path, durability=Durability.ASYNC, replica_url=url)
    with pytest.raises(StorageError, match=r"sessions-actor\[replication\]"):
        await Replicas(settings, "here").check()


def test_an_old_engine_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from router.replication import engine

    monkeypatch.setattr(engine, "VERSION_MIN", (99, 0, 0))
    with pytest.raises(StorageError, match="too old"):
        new(tmp_path)


def test_the_configuration_keeps_whole_copies_longer_than_it_promises() -> None:
    assert '"retention": "691200s"' in config("/s", retention_s=7 * DAY_S, exact_s=3600)


async def test_one_whose_folder_was_removed_is_started_anew(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    async with running(new(root)) as daemon:
        shutil.rmtree(root)
        await until(lambda: daemon.starts == 2, "started again")
        await daemon.ready(30.0)
        assert len(engines_of(root)) == 1


async def test_a_disk_that_refuses_for_a_while_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "disk"
    async with running(new(root)) as daemon:
        config_file = root / module.CONFIG_FILE
        config_file.unlink()
        config_file.mkdir()
        assert daemon.pid is not None
        os.killpg(daemon.pid, signal.SIGKILL)
        await until(lambda: "replication.failed" in caplog.text, "that is told of")
        assert not await module.answers(daemon.socket)
        config_file.rmdir()
        await daemon.ready(30.0)
        assert caplog.text.count("replication.failed") == 1


async def test_a_node_without_the_engine_goes_on_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from router.replication import engine

    rounds = 0

    class EnoughError(Exception):
        pass

    def pause(_: float) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            raise EnoughError

    monkeypatch.setattr(engine, "PROGRAM", "no-such-program")
    monkeypatch.setattr(module.time, "sleep", pause)
    with pytest.raises(EnoughError):
        await asyncio.to_thread(module.keep_running, tmp_path, TERMS)
    assert [str(record.msg).split()[0] for record in caplog.records] == ["replication.failed"]
