"""A router with real replicas: moves, losses, restores. In one process, no Ray."""

import asyncio
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from router.administration import Administration
from router.directory import State
from router.migration import SEALED_COPY_BYTES_MAX
from router.replication.paths import conversation_key, line_key
from sessions_actor.actor import ConversationActor
from sessions_actor.errors import ConversationNotFoundError, NothingToRestoreError, StorageError
from tests.cluster.conftest import message

from .deployments import NAMESPACE, World


async def test_each_file_writes_a_replica_of_its_own(world: World) -> None:
    session = world.session("alice")
    await session.append_message(message("m0"))
    for target in ("b", "c", "b"):
        await world.relocation.migrate("alice", target)
        await session.append_message(message(f"on {target} {len(world.lines('alice'))}"))
        entry = world.router.entry("alice")
        assert entry.line == entry.generation, "the new file's replica is known to be complete"
    assert len(world.lines("alice")) == 4
    assert len(await world.stored("alice")) == 4


async def test_a_lost_node_is_followed_from_the_replica(world: World) -> None:
    for name in ("awake", "asleep"):
        session = world.session(name)
        await session.append_message(message("m0"))
        await world.relocation.migrate(name, "b")
        await session.append_message(message("m1"))
    await Administration(world.router).hibernate("asleep")
    before = {name: world.router.entry(name) for name in ("awake", "asleep")}
    await world.lose("b")
    for name, entry in before.items():
        assert await world.stored(name) == ["m0", "m1"]
        await world.session(name).append_message(message("m2"))
        after = world.router.entry(name)
        assert after.epoch > entry.epoch
        assert after.disk_id != entry.disk_id
        assert after.generation != entry.generation
        assert await world.session(name).get_message("m2") is not None


async def test_an_epoch_is_not_given_before_the_lease_ran_out(world: World) -> None:
    await world.session("alice").append_message(message("m0"))
    await world.relocation.migrate("alice", "b")
    granted = world.router.leases.renew("b")
    await world.lose("b")
    clock = asyncio.get_running_loop().time
    asked = clock()
    assert await world.stored("alice") == ["m0"]
    assert clock() - asked >= granted.ttl_s * 0.9


async def test_a_replica_that_is_gone_with_its_disk_is_an_error_not_an_empty_conversation(
    world: World,
) -> None:
    await world.session("alice").append_message(message("m0"))
    await world.relocation.migrate("alice", "b")
    await world.session("alice").append_message(message("m1"))
    await world.lose("b")
    shutil.rmtree(world.folder / "far" / NAMESPACE / conversation_key("alice"))
    with pytest.raises(StorageError, match="the replica is gone"):
        await world.stored("alice")
    assert world.router.entry("alice").state is State.HIBERNATED


async def test_a_new_conversation_whose_node_went_before_it_said_anything_begins_empty(
    world: World,
) -> None:
    world.router.pool.set_draining("a", True)
    address = await world.router.resolve("alice")
    entry = world.router.entry("alice")
    node = next(n for a, n in world.cluster.actors.values() if a is address.actor)
    assert node != "a"
    assert entry.line == entry.generation
    await world.lose(node)
    assert await world.stored("alice") == []


async def test_the_directory_comes_back_on_an_empty_disk(world: World) -> None:
    for number in range(3):
        await world.session(f"c{number}").append_message(message(f"m{number}"))
    await world.relocation.migrate("c1", "b")
    await Administration(world.router).delete("c2")
    generation = world.router.entry("c1").generation
    await world.upkeep.close()
    await world.lose("a")
    world.cluster.roots["a"] = world.folder / "a"
    await world.start()
    assert world.directory.page() == ["c0", "c1"]
    assert world.router.entry("c1").generation == generation
    for number in range(2):
        assert await world.stored(f"c{number}") == [f"m{number}"]
    # Numbers that the lost directory may have given are not given again.
    await world.session("new").append_message(message("x"))
    assert world.router.entry("new").generation > 1_000_000


async def test_an_older_directory_that_comes_back_is_put_aside(world: World) -> None:
    await world.session("first").append_message(message("m0"))
    await world.upkeep.close()
    ignored = shutil.ignore_patterns("*.sock")
    shutil.copytree(world.folder / "a", world.folder / "copy", ignore=ignored)
    await world.lose("a")
    world.cluster.roots["a"] = world.folder / "a"
    await world.start()
    await world.session("second").append_message(message("m0"))
    await world.upkeep.close()
    await world.lose("a")
    # The machine that was lost first is back with its disk.
    (world.folder / "copy").rename(world.folder / "a")
    world.cluster.roots["a"] = world.folder / "a"
    await world.start()
    assert world.directory.page() == ["first", "second"]
    assert (world.folder / "a" / "directory.sqlite.old-1").exists()


async def test_moments_across_moves_are_restored(world: World) -> None:
    session = world.session("alice")
    moments = []
    for number, target in enumerate(("b", "c", "a")):
        await session.append_message(message(f"m{number}"))
        moments.append(datetime.now(UTC))
        await asyncio.sleep(0.05)
        await world.relocation.migrate("alice", target)
    for number, moment in enumerate(moments):
        to = f"alice {number}"
        await world.recovery.restore("alice", moment, to, in_place=False)
        assert await world.stored(to) == [f"m{n}" for n in range(number + 1)]
    with pytest.raises(NothingToRestoreError, match="begins at 20"):
        await world.recovery.restore("alice", datetime(2001, 1, 1, tzinfo=UTC), "x", in_place=False)
    assert world.directory.get("x") is None


async def test_a_large_conversation_is_copied_to_its_new_replica_before_it_is_sealed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = world.session("alice")
    long = "x" * 100_000
    for number in range(SEALED_COPY_BYTES_MAX // len(long) + 1):
        await session.append_message(message(f"m{number}", text=long))
    sealed: list[int] = []
    lines: list[int] = []
    seal = ConversationActor.seal

    async def noted(self: ConversationActor, *args: Any) -> None:
        await session.append_message(message("last"))
        lines.append(len(world.lines("alice")))
        folder = world.folder / "far" / NAMESPACE / conversation_key("alice")
        newest = folder / world.lines("alice")[-1]
        sealed.append(sum(path.stat().st_size for path in newest.rglob("*.ltx")))
        await seal(self, *args)

    monkeypatch.setattr(ConversationActor, "seal", noted)
    before = world.lines("alice")
    await world.relocation.migrate("alice", "b")
    assert len(world.lines("alice")) == len(before) + 1
    assert lines == [len(before) + 1]
    assert sealed[0] > 0, "its line begins before the seal"
    assert (await world.stored("alice"))[-1] == "last"
    await world.lose("b")
    assert (await world.stored("alice"))[-1] == "last"


async def test_what_a_migration_left_that_was_given_up_is_nobodys_past(world: World) -> None:
    session = world.session("alice")
    await session.append_message(message("m0"))
    # Its target started and wrote its replica, then the switch did not come.
    left = await world.recovery.restore("alice", None, "left", in_place=False)
    assert left.name == "left"
    stray = world.folder / "far" / NAMESPACE / conversation_key("left")
    (line,) = [path for path in stray.iterdir() if path.is_dir()]
    later = world.router.entry("left").generation + 1000
    shutil.copytree(line, world.folder / "far" / NAMESPACE / line_key("alice", later))
    await session.append_message(message("m1"))
    moment = datetime.now(UTC)
    await world.recovery.restore("alice", moment, "then", in_place=False)
    assert await world.stored("then") == ["m0", "m1"]
    await world.upkeep.close()
    await world.lose("a")
    shutil.rmtree(world.folder / "far" / NAMESPACE / "directory")
    world.cluster.roots["a"] = world.folder / "a"
    await world.start()
    assert world.directory.page() == ["alice", "left", "then"]
    assert await world.stored("alice") == ["m0", "m1"]
    await world.session("new").append_message(message("m0"))
    assert world.router.entry("new").generation > later, "its number is not given again"


async def test_a_deleted_conversation_can_be_restored_until_its_grace_is_over(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.settings = world.settings.model_copy(update={"replica_delete_grace_s": 3600.0})
    await world.start()
    try:
        assert world.router.failover is not None
        spent, hours = world.directory.spent, 0
        now_ms = spent._now_ms
        spent._now_ms = lambda: now_ms() + hours * 3_600_000
        await world.session("alice").append_message(message("m0"))
        await Administration(world.router).delete("alice")
        # In time, and under its own name: what is kept is bound to the file that it was in.
        await world.recovery.restore("alice", None, "alice", in_place=False)
        assert await world.stored("alice") == ["m0"]
        hours += 1
        await world.router.failover.keeping.remove_spent()
        assert len(world.lines("alice")) == 1
        assert await world.stored("alice") == ["m0"]
        await Administration(world.router).delete("alice")
        hours += 1
        await world.router.failover.keeping.remove_spent()
        assert world.lines("alice") == []
        with pytest.raises(ConversationNotFoundError):
            await world.recovery.points("alice")
    finally:
        await world.stop()


async def test_a_directory_made_again_leaves_out_what_was_deleted(world: World) -> None:
    for name in ("kept", "deleted"):
        await world.session(name).append_message(message("m0"))
    await world.relocation.migrate("kept", "b")
    await Administration(world.router).delete("deleted")
    await world.upkeep.close()
    await world.lose("a")
    shutil.rmtree(world.folder / "far" / NAMESPACE / "directory")
    world.cluster.roots["a"] = world.folder / "a"
    await world.start()
    assert world.directory.page() == ["kept"]
    assert await world.stored("kept") == ["m0"]


async def test_a_file_that_was_removed_comes_back(world: World) -> None:
    await world.session("alice").append_message(message("m0"))
    await Administration(world.router).hibernate("alice")
    before = world.router.entry("alice")
    for root in world.cluster.roots.values():
        for file in filter(Path.is_file, root.glob("conversations/*/*.sqlite*")):
            file.unlink()
    assert await world.stored("alice") == ["m0"]
    assert world.router.entry("alice").generation != before.generation


async def test_in_place_keeps_what_was_there(world: World) -> None:
    session = world.session("alice")
    await session.append_message(message("m0"))
    moment = datetime.now(UTC)
    await asyncio.sleep(0.02)
    await session.append_message(message("m1"))
    report = await world.recovery.restore("alice", moment, "before", in_place=True)
    assert (report.name, report.kept_as) == ("alice", "before")
    assert await world.stored("alice") == ["m0"]
    assert await world.stored("before") == ["m0", "m1"]
    await session.append_message(message("m2"))
    assert await world.stored("alice") == ["m0", "m2"]


async def test_in_place_asks_for_another_name_and_waits_for_nobody(world: World) -> None:
    for name in ("alice", "bob"):
        await world.session(name).append_message(message("m0"))
    for taken in ("alice", "bob"):
        with pytest.raises(ValueError, match=taken):
            await asyncio.wait_for(
                world.recovery.restore("alice", None, taken, in_place=True), timeout=20
            )
    crossed = [
        world.recovery.restore("alice", None, "bob", in_place=True),
        world.recovery.restore("bob", None, "alice", in_place=True),
    ]
    outcomes = await asyncio.wait_for(asyncio.gather(*crossed, return_exceptions=True), 20)
    assert all(isinstance(outcome, ValueError) for outcome in outcomes)
    for name in ("alice", "bob"):
        assert await world.stored(name) == ["m0"]


async def test_in_place_keeps_all_or_restores_nothing(world: World) -> None:
    session = world.session("alice")
    await session.append_message(message("m0"))
    moment = datetime.now(UTC)
    await asyncio.sleep(0.02)
    await session.append_message(message("m1"))
    await Administration(world.router).hibernate("alice")
    entry = world.router.entry("alice")
    [*_, last] = sorted(world.folder.glob("far/**/conversations/**/ltx/0/*.ltx"))
    last.unlink()  # the store lost what came last
    with pytest.raises(StorageError):
        await world.recovery.restore("alice", moment, "before", in_place=True)
    assert world.router.entry("alice").generation == entry.generation
    assert await world.stored("alice") == ["m0", "m1"]
    assert world.directory.get("before") is None


async def test_a_folder_that_is_not_there_is_told_at_the_start_and_never_made(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    (tmp_path / "far").rmdir()
    with pytest.raises(StorageError, match="mount the share"):
        await world.start()
    assert not (tmp_path / "far").exists()
    await asyncio.gather(*(daemon.aclose() for daemon in world.daemons.values()))


async def test_a_folder_of_replicas_is_marked_once(world: World) -> None:
    marks = list((world.folder / "far" / NAMESPACE).glob("mark-*"))
    await world.upkeep.close()
    await world.start()
    assert list((world.folder / "far" / NAMESPACE).glob("mark-*")) == marks
    assert world.replicas.spec("alice", 1, 0).mark == str(marks[0])
