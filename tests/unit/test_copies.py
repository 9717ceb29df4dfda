"""Copies of conversations that are served: nothing cuts them short, and nothing of them stays."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from router.cli.operations import _each
from router.replication import chores
from router.replication.backup import back_up, compare
from router.replication.chores import Copied, copy_step, end_copy_step, read_copy_step
from router.replication.scratch import SPARE_BYTES, Scratch, clear_scratch
from sessions_actor import (
    ConversationNotFoundError,
    NoCapacityError,
    StaleEpochError,
    StorageError,
    open_object,
)
from sessions_actor.actor import Refusal
from sessions_actor.conversation import Conversation

from .deployments import Deployment, World, ids, message
from .fake_cluster import until


class Held:
    """Copies that wait, in their threads, until they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.go_on = threading.Event()
        copy = chores._copy

        def held(seen: Any, path: Path) -> tuple[int, str]:
            self.begun += 1
            assert self.go_on.wait(60)
            return copy(seen, path)

        monkeypatch.setattr(chores, "_copy", held)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    found = Held(monkeypatch)
    yield found
    found.go_on.set()


@pytest.fixture
async def life(world: World) -> Deployment:
    found = await world.start()
    await found.get("alice").append_message(message("m"))
    return found


def left(root: Path) -> list[Path]:
    return list(root.glob("conversations/*/scratch/*"))


async def step(life: Deployment, work: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    address = await life.resolve("alice", None)
    return await address.actor.transfer.remote(address.name, address.epoch, work, *args)


async def hibernate(life: Deployment, **how: Any) -> Any:
    address = await life.resolve("alice", None)
    return await address.actor.hibernate.remote(address.name, address.epoch, **how)


async def test_a_conversation_that_is_copied_is_not_idle(life, held, world) -> None:
    copying = asyncio.create_task(step(life, copy_step))
    await until(lambda: held.begun)
    wanted = {"idle_s": 0.0, "resident_s": 0.0}
    assert await hibernate(life, **wanted) == Refusal(0.0)
    held.go_on.set()
    copied: Copied = await copying
    assert await hibernate(life, **wanted) == Refusal(0.0), "its reader comes next"
    data = await step(life, read_copy_step, copied.key, 0, copied.bytes)
    assert len(data) == copied.bytes
    await step(life, end_copy_step, copied.key)
    assert left(world.root) == []
    assert not isinstance(await hibernate(life, **wanted), Refusal)


async def test_a_copy_that_nobody_reads_keeps_no_actor(life, monkeypatch, world) -> None:
    monkeypatch.setattr("sessions_actor.actor.STEP_PAUSE_S", 0.0)
    await step(life, copy_step)
    assert not isinstance(await hibernate(life, idle_s=0.0), Refusal)
    assert left(world.root) == []


async def test_a_copy_goes_when_nobody_reads_it_for_long(life, world, monkeypatch) -> None:
    monkeypatch.setattr(chores, "COPY_KEPT_S", 5.0)
    read: Copied = await step(life, copy_step)
    unread: Copied = await step(life, copy_step)
    for _ in range(3):
        await asyncio.sleep(3.0)
        assert await step(life, read_copy_step, read.key, 0, 10)
    with pytest.raises(KeyError):
        await step(life, read_copy_step, unread.key, 0, 10)
    await asyncio.sleep(5.5)
    assert left(world.root) == []


async def test_two_copies_at_once_are_whole(life, tmp_path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    reports = await asyncio.gather(*(back_up(life, folder, ["alice"], None) for folder in folders))
    assert [report.failed for report in reports] == [{}, {}]
    for folder in folders:
        (file,) = folder.rglob("*.sqlite")
        async with open_object(Conversation, name="alice", path=file) as alice:
            assert await ids(alice.session) == ["m"]


async def test_an_owner_that_lets_go_during_a_copy_is_a_stale_one(life, held, world) -> None:
    copying = asyncio.create_task(step(life, copy_step))
    await until(lambda: held.begun)
    await life.administration.hibernate("alice")
    held.go_on.set()
    with pytest.raises(StaleEpochError):
        await copying
    assert left(world.root) == []


async def test_a_copy_goes_on_at_the_next_owner(life, held, world, tmp_path) -> None:
    folder = tmp_path / "copies"
    copying = asyncio.create_task(back_up(life, folder, ["alice"], None))
    await until(lambda: held.begun)
    await life.administration.hibernate("alice")
    held.go_on.set()
    report = await copying
    assert (report.conversations, report.failed) == (1, {})
    assert left(world.root) == []


async def test_nothing_is_made_of_what_is_not_there(life, tmp_path) -> None:
    report = await back_up(life, tmp_path / "copies", ["alice", "typo"], None)
    assert report.conversations == 1
    assert list(report.failed) == ["typo"]
    assert "typo" in report.failed["typo"]
    with pytest.raises(ConversationNotFoundError):
        await compare(life, "typo")
    assert life.router.directory.page() == ["alice"]


async def test_what_is_deleted_after_it_was_listed_is_no_failure(life, tmp_path) -> None:
    report = await back_up(life, tmp_path / "copies", ["gone", "alice"], None, listed=True)
    assert (report.conversations, report.failed) == (1, {})
    assert life.router.directory.page() == ["alice"]


class Partly:
    """Finds all but one, for which the cluster fails in a way of its own."""

    def __init__(self, life: Deployment, error: Exception) -> None:
        self._life, self._error = life, error

    async def find(self, name: str, failed: Any) -> Any:
        if name == "bad":
            raise self._error
        return await self._life.find(name, failed)

    async def find_one(self, name: str) -> Any:
        return await self.find(name, None)


@pytest.mark.parametrize(
    "error", [NoCapacityError(3), RayTaskError("f", "t", OSError()), OSError()]
)
async def test_one_that_cannot_be_copied_ends_no_backup(life, tmp_path, error) -> None:
    report = await back_up(Partly(life, error), tmp_path / "copies", ["bad", "alice"], None)
    assert (report.conversations, list(report.failed)) == (1, ["bad"])
    assert report.failed["bad"]
    assert (tmp_path / "copies" / "backup.jsonl").read_text().count("\n") == 1
    found, failures = await _each(["bad", "alice"], Partly(life, error).find_one, print, at_once=2)
    assert list(found) == ["alice"]
    assert failures["bad"]


async def test_a_copy_leaves_room_for_those_who_are_served(life, world, monkeypatch) -> None:
    usage = shutil.disk_usage(world.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=SPARE_BYTES))
    with pytest.raises(StorageError, match="make room"):
        await step(life, copy_step)
    assert left(world.root) == []


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    beside = tmp_path / "conversations" / "aa" / "x.sqlite"
    beside.parent.mkdir(parents=True)
    code = f"""
import pathlib, sys
from router.replication.scratch import Scratch
scratch = Scratch(pathlib.Path({str(beside)!r}), 0)
for suffix in ("", "-journal", ".restoring"):
    scratch.path.with_name(scratch.path.name + suffix).write_bytes(b"half")
print("made", flush=True)
sys.stdin.read()
"""
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **piped) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"made\n"
        mine = Scratch(beside, 0)
        mine.path.write_bytes(b"mine")
        clear_scratch(tmp_path)
        assert len(left(tmp_path)) == 6, "both are worked on"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    clear_scratch(tmp_path)
    lock = mine.path.with_name(f"{mine.path.name}.lock")
    assert sorted(left(tmp_path)) == sorted([mine.path, lock])
    mine.close()
    mine.close()
    assert left(tmp_path) == []
