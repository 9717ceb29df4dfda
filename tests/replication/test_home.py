"""The directory's replica: starts that are interrupted, stores that are away or not listed."""

import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from router.directory import Directory
from router.replicated_directory import ReplicatedDirectory
from router.replication import home
from router.replication.home import Home, Pending
from router.replication.paths import ReplicaUrl, conversation_key, directory_url
from router.replication.replicas import Record, Replicas
from sessions_actor.errors import StorageError
from sessions_actor.replica import Durability, ReplicaSpec, socket_path
from tests.cluster.conftest import message

from .deployments import NAMESPACE, World

SKIPPED = 1_000_000


class Breaking(Replicas):
    """Replicas whose listing breaks off after the first line."""

    async def records(self) -> AsyncIterator[tuple[str, int, Record | None]]:
        async for one in super().records():
            yield one
            raise OSError("the store went away")


@dataclass(frozen=True, slots=True)
class UnlistedUrl(ReplicaUrl):
    """A store that only the engine can list, as gs:// is."""

    @property
    def listed(self) -> bool:
        return False


class Unlisted(Replicas):
    """Replicas in such a store."""

    def __init__(self, settings: object, namespace: str) -> None:
        super().__init__(settings, namespace)  # type: ignore[arg-type]
        base = self.base
        self.base = UnlistedUrl(base.scheme, base.host, base.path, base.query)


async def test_a_rebuild_that_was_interrupted_is_done_again(world: World) -> None:
    for name in ("c0", "c1", "c2"):
        await world.session(name).append_message(message("m0"))
    await world.lose_head(directory=True)
    world.replicas_class = Breaking
    for _ in range(2):
        with pytest.raises(OSError, match="went away"):
            await world.start()
    world.replicas_class = Replicas
    await world.start()
    assert world.directory.page() == ["c0", "c1", "c2"]
    assert [await world.stored(f"c{n}") for n in range(3)] == [["m0"]] * 3
    await world.session("new").append_message(message("m0"))
    assert world.router.entry("new").generation > SKIPPED
    assert world.router.entry("new").epoch > SKIPPED


async def test_a_rebuild_that_was_interrupted_and_lost_is_done_again(world: World) -> None:
    """What it was copied as is no directory to go on with."""
    for name in ("c0", "c1", "c2"):
        await world.session(name).append_message(message("m0"))
    await world.lose_head(directory=True)
    root = world.folder / "a"
    root.mkdir()
    found = await home.prepare(root, world.replicas)
    assert found == Home(1, Pending.REBUILD)
    world.replicas_class = Breaking
    with pytest.raises(OSError, match="went away"):
        await world.start()
    # The part that was made reaches the store all the same.
    partial = ReplicatedDirectory(root)
    url = str(directory_url(world.replicas.base, found.line))
    spec = ReplicaSpec(url, Durability.REPLICATED, 20.0, socket_path(root))
    partial.replicate(spec, found.line, world.replicas.keep, found.pending)
    await partial.find_again("c0", epoch=1, generation=1, quota_bytes=None, created_at=0)
    partial.close()
    await world.lose("a")
    world.cluster.roots["a"] = root
    world.replicas_class = Replicas
    await world.start()
    assert world.directory.page() == ["c0", "c1", "c2"]


async def test_a_line_that_nobody_can_read_and_nobody_wrote_down_stops_each_start(
    world: World,
) -> None:
    for name in ("c0", "c1"):
        await world.session(name).append_message(message("m0"))
    await world.lose_head(directory=True)
    folder = world.folder / "far" / NAMESPACE / conversation_key("c1")
    for record in folder.glob("*.json"):
        record.unlink()
    (file,) = folder.glob("*/ltx/0/*-0000000000000001.ltx")
    sound = file.read_bytes()
    file.write_bytes(sound[:100])
    for _ in range(2):
        with pytest.raises(StorageError, match="no record says whose replica this is"):
            await world.start()
    file.write_bytes(sound)
    await world.start()
    assert world.directory.page() == ["c0", "c1"]


async def test_a_directory_that_was_brought_back_leaves_numbers_out_in_any_case(
    world: World,
) -> None:
    await world.session("c0").append_message(message("m0"))
    await world.lose_head(directory=False)
    root = world.folder / "a"
    root.mkdir()
    # This start ends when the file has come back.
    assert await home.prepare(root, world.replicas) == Home(2, Pending.SKIP)
    assert await home.prepare(root, world.replicas) == Home(2, Pending.SKIP)
    await world.start()
    await world.session("new").append_message(message("m0"))
    assert world.router.entry("new").generation > SKIPPED
    await world.upkeep.close()
    assert await home.prepare(root, world.replicas) == Home(2, None)
    await world.start()


async def test_a_store_that_cannot_be_listed_starts_and_never_gives_a_number_twice(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.replicas_class = Unlisted
    await world.start()
    try:
        await world.session("c0").append_message(message("m0"))
        before = world.router.entry("c0")
        await world.lose_head(directory=True)
        await world.start()
        assert world.directory.page() == []
        await world.session("c0").append_message(message("m1"))
        after = world.router.entry("c0")
        assert (after.epoch, after.generation) > (before.epoch, before.generation)
        assert after.generation > before.generation
        assert await world.stored("c0") == ["m1"]
    finally:
        await world.stop()


async def test_a_directory_that_was_local_is_copied_and_brought_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    root = tmp_path / "a"
    root.mkdir()
    Directory(root).close()
    assert await home.prepare(root, Replicas(world.settings, NAMESPACE)) == Home(1, Pending.COPY)
    await world.start()
    try:
        await world.session("c0").append_message(message("m0"))
        await world.lose_head(directory=False)
        root.mkdir()
        assert (await home.prepare(root, world.replicas)).pending is Pending.SKIP
        await world.start()
        assert world.directory.page() == ["c0"]
    finally:
        await world.stop()


async def test_line_zero_of_an_earlier_version_is_brought_back(world: World) -> None:
    await world.session("c0").append_message(message("m0"))
    await world.lose_head(directory=False)
    lines = world.folder / "far" / NAMESPACE / "directory"
    (lines / f"{1:016x}").rename(lines / f"{0:016x}")
    (world.folder / "a").mkdir()
    assert await home.prepare(world.folder / "a", world.replicas) == Home(1, Pending.SKIP)
    await world.start()
    assert world.directory.page() == ["c0"]


async def test_a_directory_whose_store_is_away_is_not_served(world: World) -> None:
    await world.session("c0").append_message(message("m0"))
    await world.upkeep.close()
    far, root = world.folder / "far", world.folder / "a"
    far.rename(world.folder / "away")
    far.mkdir()
    for _ in range(2):
        with pytest.raises(StorageError, match="mount or name the store"):
            await world.start()
    shutil.rmtree(far)
    (world.folder / "away").rename(far)
    await world.start()
    assert await world.stored("c0") == ["m0"]
    await world.upkeep.close()
    # It is lost for good, and said to be: all is copied to another.
    shutil.rmtree(far)
    far.mkdir()
    directory = Directory(root)
    directory.leave_replica()
    directory.close()
    await world.start()
    assert await world.stored("c0") == ["m0"]
    await world.lose_head(directory=False)
    await world.start()
    assert world.directory.page() == ["c0"]
