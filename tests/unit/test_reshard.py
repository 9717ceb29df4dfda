"""A directory that is split anew: nothing is lost, whenever it is interrupted."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from router import reshard as module
from router.directory import Directory
from router.entries import Entry, Owner, Waste
from router.replicated_directory import ReplicatedDirectory
from router.reshard import Resharded, reshard
from router.shards import Shard, shard_of
from router.spent import Keep
from sessions_actor.errors import StorageError
from sessions_actor.replica import Durability, ReplicaSpec

OWNER = Owner("node-1", "actor-1", "disk-1")


async def fill(root: Path, names: list[str], count: int = 1) -> dict[str, Entry]:
    """Make conversations that hibernate, and one deleted, in a directory of so many parts."""
    found = {}
    for shard in Shard(0, count).all:
        with closing(Directory(root, shard=shard)) as directory:
            mine = [name for name in names if shard.holds(name)]
            for name in mine:
                assert await directory.create(name, OWNER)
                await directory.hibernate(name, 1, file_bytes=len(name), last_active_at=5)
                entry = directory.get(name)
                assert entry is not None
                for _ in range(shard.index + 1):
                    await directory.activate(name, entry.epoch, OWNER)
                    entry = directory.get(name)
                    assert entry is not None
                    await directory.hibernate(name, entry.epoch, file_bytes=7, last_active_at=6)
                entry = directory.get(name)
                assert entry is not None
                found[name] = entry
            gone = f"gone-{shard.index}"
            made = await directory.create(gone, OWNER)
            assert made is not None
            await directory.begin_delete(gone, made.epoch)
            await directory.finish_delete(gone, made.epoch)
            await directory.note_node("node-1", "disk-1", draining=False)
    return found


def held(root: Path, count: int) -> dict[str, Entry]:
    """Everything that a directory of so many parts holds, each where it belongs."""
    found: dict[str, Entry] = {}
    for shard in Shard(0, count).all:
        with closing(Directory(root, shard=shard)) as directory:
            for name in directory.page("", None, 10_000):
                assert shard_of(name, count) == shard.index
                entry = directory.get(name)
                assert entry is not None
                assert name not in found
                found[name] = entry
    return found


NAMES = [f"c{i}" for i in range(40)] + ["é", "a/b", "\U0001f600"]


async def test_everything_is_found_again_and_back(tmp_path: Path) -> None:
    before = await fill(tmp_path, NAMES)
    last = 1
    for count in (3, 5, 2, 1):
        assert reshard(tmp_path, count) == Resharded(len(NAMES), last, count)
        assert held(tmp_path, count) == before
        files = {shard.directory_file for shard in Shard(0, count).all}
        assert {file.name for file in tmp_path.glob("*.sqlite")} == files
        assert not (tmp_path / "resharding").exists()
        with pytest.raises(StorageError, match=f"over {count} routers"):
            Directory(tmp_path, shard=Shard(0, count + 1))
        last = count
    assert reshard(tmp_path, 1) == Resharded(len(NAMES), 1, 1)


async def test_epochs_and_waste_go_on(tmp_path: Path) -> None:
    await fill(tmp_path, NAMES, 3)
    reshard(tmp_path, 2)
    waste = []
    for shard in Shard(0, 2).all:
        with closing(Directory(tmp_path, shard=shard)) as directory:
            waste += directory.waste("disk-1")
            used = max(entry.epoch for entry in held_of(directory))
            gone = "gone-0" if shard.holds("gone-0") else f"new-{shard.index}"
            made = await directory.create(gone, OWNER)
            assert made is not None
            assert made.epoch > 1  # above those of the deleted
            assert made.generation > max(entry.generation for entry in held_of(directory)[:-1])
            assert used >= 2
            assert "node-1" in directory.nodes()
    assert len(waste) == len(set(waste)) == 3
    assert all(isinstance(one, Waste) for one in waste)


def held_of(directory: Directory) -> list[Entry]:
    found = [directory.get(name) for name in directory.page("", None, 10_000)]
    return sorted((e for e in found if e is not None), key=lambda e: e.generation)


@pytest.mark.parametrize("step", range(12))
async def test_interrupted_at_any_step_it_is_as_before_or_finished_when_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    before = await fill(tmp_path, NAMES, 3)
    steps = 0

    def killed(work: Any) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps > step:
                raise KeyboardInterrupt
            return work(*args, **options)

        return run

    with monkeypatch.context() as patched:
        for name in ("_fill", "_note", "_sync"):
            patched.setattr(module, name, killed(getattr(module, name)))
        patched.setattr(Path, "unlink", killed(Path.unlink))
        patched.setattr(Path, "replace", killed(Path.replace))
        try:
            reshard(tmp_path, 2)
        except KeyboardInterrupt:
            if (tmp_path / "resharding" / "ready").exists():
                with pytest.raises(StorageError, match="interrupted"):
                    Directory(tmp_path, shard=Shard(0, 2))
                with pytest.raises(ValueError, match="finish that first"):
                    reshard(tmp_path, 4)
            else:
                assert held(tmp_path, 3) == before
        else:
            assert steps <= step
    assert reshard(tmp_path, 2).after == 2
    assert held(tmp_path, 2) == before


async def test_what_is_in_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no directory here"):
        reshard(tmp_path, 2)
    await fill(tmp_path, ["a"], 2)
    with pytest.raises(ValueError, match="from 1 to 64"):
        reshard(tmp_path, 0)
    with (
        closing(Directory(tmp_path, shard=Shard(1, 2))) as directory,
        pytest.raises(StorageError, match="open already"),
    ):
        reshard(tmp_path, 3)
    name = next(f"x{i}" for i in range(100) if shard_of(f"x{i}", 2) == 1)
    with closing(Directory(tmp_path, shard=Shard(1, 2))) as directory:
        await directory.create(name, OWNER)
    with pytest.raises(StorageError, match="1 conversations are not hibernated"):
        reshard(tmp_path, 3)
    with closing(Directory(tmp_path, shard=Shard(1, 2))) as directory:
        await directory.hibernate(name, 1, file_bytes=None, last_active_at=None)
        entry = directory.get(name)
        assert entry is not None
        await directory.hibernate(name, entry.epoch, file_bytes=None, last_active_at=None)
        await directory.jobs.begin("j", "rebalance")
    with pytest.raises(StorageError, match="1 jobs have not ended"):
        reshard(tmp_path, 3)
    assert set(held(tmp_path, 2)) == {"a", name}


async def test_a_directory_that_was_ever_replicated_is_refused(tmp_path: Path) -> None:
    """The store's copies would be taken for newer than its parts."""
    await fill(tmp_path, ["a"])
    spec = ReplicaSpec("file:///nowhere", Durability.ASYNC, 1.0, str(tmp_path / "socket"))
    with closing(ReplicatedDirectory(tmp_path)) as directory:
        directory.replicate(spec, 1, Keep(0, 0), None)
    with pytest.raises(StorageError, match="has one router"):
        reshard(tmp_path, 2)
    assert set(held(tmp_path, 1)) == {"a"}
