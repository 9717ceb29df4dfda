"""Files of conversations over the life of a router: never another's, never silently empty."""

from typing import Any

import pytest

from router import migration, relocation, sweeping
from router.agent import NodeFacts
from router.relocation import Relocation
from sessions_actor.disk import disk_id
from sessions_actor.errors import MigrationFailedError, StorageError

from .deployments import World, ids, message
from .fake_cluster import FakeActor


async def test_a_migration_asked_again_does_not_take_over_the_waste_of_the_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that could not be cleaned up leaves a file behind, which is swept later."""
    monkeypatch.setattr(relocation, "DISCARD_TIMEOUT_S", 0.05)
    life = await world.start()
    session = life.get("alice")
    await session.append_message(message("m"))
    orphans: list[FakeActor] = []

    async def copy(name: str, source: Any, target: Any, *rest: Any) -> Any:
        if not orphans:
            orphans.append(target.actor)
            target.actor.silent = True
            target.actor.die = lambda: None  # its node is gone, nobody can end it
            raise OSError("the network is gone")
        return await migration.copy(name, source, target, *rest)

    life.relocation = Relocation(life.router, copy)
    with pytest.raises(MigrationFailedError):
        await life.relocation.migrate("alice")
    (orphan,) = orphans
    FakeActor.die(orphan)  # now it noticed by itself
    assert life.directory.waste(life.router.disk_id), "its file lies there still"
    await life.relocation.migrate("alice")
    await session.append_message(message("n"))
    await life.administration.hibernate("alice")
    await life.router.sweeping.sweep(life.router.disk_id)
    entry = life.directory.get("alice")
    assert entry is not None
    assert list(world.root.glob("conversations/*/*.sqlite")) == [world.root / entry.file]
    assert await ids(session) == ["m", "n"]


async def test_a_file_that_is_made_again_by_one_who_comes_late_is_removed_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = await world.start()
    files = []
    for name in ("alice", "bob"):
        await life.get(name).append_message(message("m"))
        entry = life.directory.get(name)
        assert entry is not None
        files.append(world.root / entry.file)
        await life.administration.delete(name)
    assert not any(file.exists() for file in files)
    files[0].write_bytes(b"of an order that was long on its way")
    disk_id = life.router.disk_id
    await life.router.sweeping.sweep(disk_id)
    assert files[0].exists(), "not yet: it is looked after in its time"
    monkeypatch.setattr(sweeping, "LATE_S", 0.0)
    await life.router.sweeping.sweep(disk_id)
    assert not files[0].exists()
    assert life.directory.waste(disk_id) == []


async def test_more_files_are_removed_than_are_kept_in_mind_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "SWEEP_MAX", 2)
    life = await world.start()
    for number in range(5):
        await life.get(f"c{number}").append_message(message("m"))
    for number in range(5):
        await life.administration.delete(f"c{number}")
    for _ in range(3):
        await life.router.sweeping.sweep(life.router.disk_id)
    assert not list(world.root.glob("conversations/*/*.sqlite"))


async def test_a_conversation_whose_file_is_missing_does_not_start_empty(world: World) -> None:
    life = await world.start()
    session = life.get("alice")
    await session.append_message(message("m"))
    await life.administration.hibernate("alice")
    (file,) = world.root.glob("conversations/*/*.sqlite")
    file.rename(world.root / "elsewhere")
    with pytest.raises(StorageError, match="file is missing"):
        await session.append_message(message("n"))
    assert not file.exists()
    (world.root / "elsewhere").rename(file)
    assert await ids(session) == ["m"]
    file.unlink()
    life.owner("alice").die()
    with pytest.raises(StorageError, match="file is missing"):
        await ids(session)
    assert await life.administration.delete("alice")
    assert await ids(session) == []  # a new one


async def test_a_disk_that_came_in_place_of_another_is_named_by_what_is_made_on_it(
    world: World,
) -> None:
    """The actor that stands ready knew the disk before: it would be noted as the new file's."""
    life = await world.start()
    await life.get("alice").append_message(message("m"))
    await life.administration.hibernate("alice")
    (world.root / "disk-id").unlink()
    new = disk_id(world.root)
    life.router.renew(NodeFacts("node-0", new, "machine"))
    await life.get("bob").append_message(message("m"))
    entry = life.directory.get("bob")
    assert entry is not None
    assert entry.disk_id == new
