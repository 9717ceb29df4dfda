"""Files of conversations over the life of a router: never another's, never silently empty."""

from typing import Any

import pytest

from router import migration, relocation
from router.relocation import Relocation
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
    await life.router.sweep(life.router.disk_id)
    assert life.directory.waste(life.router.disk_id) == []
    assert await ids(session) == ["m", "n"]


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
