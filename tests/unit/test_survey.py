"""What a plan is made from: all that disks hold, the largest of each, and whatever is active."""

import pytest

from router import survey as module
from router.balance import DiskLoad, Held
from router.survey import survey

from .deployments import World, message


async def test_a_survey_counts_everything_and_offers_the_largest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE_ROWS", 2)
    monkeypatch.setattr(module, "CANDIDATES_MAX", 2)
    life = await world.start()
    for i in range(5):
        await life.get(f"c{i}").append_message(message("m"))
        await life.administration.hibernate(f"c{i}")
    awake = await life.router.resolve("c0")
    disk = life.router.disk_id
    known = {name: size for name, _, size in life.directory.sizes(None, 100)}
    life.directory._storage.sql.exec(
        "UPDATE conversations SET file_bytes = file_bytes + 1000 * (name IN (?, ?))", b"c3", b"c4"
    )
    disks, held = await survey(life.router)
    [active, *asleep] = held
    assert (active.name, active.disk_id, active.node_id) == ("c0", disk, "node-0")
    assert asleep == [
        Held(name, disk, known[name] + 1000) for name in sorted(("c3", "c4"), key=known.__getitem__)
    ]
    total = active.bytes + sum(known[f"c{i}"] for i in range(1, 5)) + 2000
    assert disks == {disk: DiskLoad(total, 5)}
    assert awake.epoch == 2


async def test_an_owner_that_is_silent_counts_as_it_was_last_known(world: World) -> None:
    life = await world.start()
    await life.get("alice").append_message(message("m"))
    await life.administration.hibernate("alice")
    await life.router.resolve("alice")
    entry = life.directory.get("alice")
    assert entry is not None
    assert entry.file_bytes > 0
    life.owner("alice").silent = True
    _, held = await survey(life.router)
    assert [(one.name, one.bytes) for one in held] == [("alice", entry.file_bytes)]
    life.owner("alice").silent = False
