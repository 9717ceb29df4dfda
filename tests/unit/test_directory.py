"""The directory: who owns what, by compare-and-set, in a file."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from router.directory import (
    DIRECTORY_FILE,
    TRANSITIONS,
    Directory,
    NodeRow,
    Owner,
    State,
    Waste,
    file_of,
    sources,
)
from sessions_actor.errors import StorageError

ONE = Owner("node-1", "actor-1", "disk-1")
TWO = Owner("node-2", "actor-2", "disk-2")


class Clock:
    """Milliseconds, as told."""

    def __init__(self) -> None:
        self.ms = 1000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(tmp_path: Path, clock: Clock) -> Iterator[Directory]:
    found = Directory(tmp_path, now_ms=clock)
    yield found
    found.close()


def test_transitions_are_complete() -> None:
    assert set(TRANSITIONS) == set(State)
    assert State.DELETING in TRANSITIONS[State.HIBERNATED]
    assert sources(State.MIGRATING) == (State.ACTIVE,)


async def test_a_conversation_is_made_once(directory: Directory, clock: Clock) -> None:
    entry = await directory.create("alice", ONE)
    assert entry is not None
    assert (entry.state, entry.epoch, entry.actor) == (State.ACTIVE, 1, "actor-1")
    assert (entry.created_at, entry.disk_id, entry.quota_bytes) == (1000, "disk-1", None)
    assert await directory.create("alice", TWO) is None
    assert directory.get("alice") == entry
    assert directory.get("bob") is None


async def test_every_activation_raises_the_epoch_and_one_of_two_wins(directory: Directory) -> None:
    await directory.create("alice", ONE)
    won = await directory.activate("alice", 1, ONE._replace(actor="b"))
    assert won is not None
    assert (won.epoch, won.actor) == (2, "b")
    assert await directory.activate("alice", 1, ONE._replace(actor="c")) is None
    assert directory.get("alice") == won
    # Only a node that mounts the file's disk may have it.
    assert await directory.activate("alice", 2, TWO) is None


async def test_hibernation_keeps_the_epoch(directory: Directory) -> None:
    await directory.create("alice", ONE)
    assert await directory.hibernate("alice", 9, file_bytes=1, last_active_at=1) is None
    entry = await directory.hibernate("alice", 1, file_bytes=4096, last_active_at=5000)
    assert entry is not None
    assert (entry.state, entry.epoch, entry.node_id, entry.actor) == (
        State.HIBERNATED, 1, None, None,
    )  # fmt: skip
    assert (entry.file_bytes, entry.last_active_at) == (4096, 5000)
    assert directory.unsettled() == []


async def test_the_target_of_a_migration_owns_from_the_switch_on(directory: Directory) -> None:
    await directory.create("alice", ONE)
    entry = await directory.begin_migration("alice", 1, TWO)
    assert entry is not None
    assert (entry.state, entry.epoch, entry.actor) == (State.MIGRATING, 1, "actor-1")
    assert entry.target == {**TWO._asdict(), "epoch": 2, "generation": 2}
    assert await directory.switch("alice", 2, TWO) is None
    after = await directory.switch("alice", 1, TWO)
    assert after is not None
    assert (after.state, after.epoch, after.generation) == (State.ACTIVE, 2, 2)
    assert (after.actor, after.disk_id, after.target) == ("actor-2", "disk-2", None)
    assert after.file == file_of("alice", 2) != entry.file
    assert directory.waste("disk-1") == [Waste("disk-1", entry.file)]
    assert await directory.switch("alice", 1, TWO) is None


async def test_a_migration_given_up_leaves_the_source(directory: Directory) -> None:
    await directory.create("alice", ONE)
    await directory.begin_migration("alice", 1, TWO)
    entry = await directory.abandon_migration("alice", 1)
    assert entry is not None
    assert (entry.state, entry.epoch, entry.actor, entry.target) == (
        State.ACTIVE, 1, "actor-1", None,
    )  # fmt: skip
    assert directory.waste("disk-2") == [Waste("disk-2", file_of("alice", 2))]
    assert directory.waste("disk-1") == []


async def test_a_migration_tried_again_does_not_use_the_file_of_the_one_given_up(
    directory: Directory,
) -> None:
    # Its removal may come at any time later: a file under that name would be lost.
    await directory.create("alice", ONE)
    await directory.begin_migration("alice", 1, TWO)
    await directory.abandon_migration("alice", 1)
    await directory.begin_migration("alice", 1, TWO)
    entry = await directory.switch("alice", 1, TWO)
    assert entry is not None
    assert (entry.epoch, entry.generation) == (3, 3)
    assert Waste("disk-2", entry.file) not in directory.waste("disk-2")


async def test_no_two_files_are_given_one_number(directory: Directory) -> None:
    names = ("alice", "bob", "alice")
    numbers = []
    for name in names:
        entry = await directory.create(name, ONE)
        assert entry is not None
        numbers.append(entry.generation)
        await directory.forget_new(name, entry.epoch)
    assert numbers == sorted(set(numbers))


async def test_the_epoch_a_target_was_promised_is_given_to_nobody_else(
    directory: Directory,
) -> None:
    """Orders to a target that was given up may arrive late: they must meet nobody."""
    await directory.create("alice", ONE)
    for epoch in (2, 3):
        entry = await directory.begin_migration("alice", 1, TWO)
        assert entry is not None
        assert entry.target is not None
        assert entry.target["epoch"] == epoch
        await directory.abandon_migration("alice", 1)
    await directory.begin_migration("alice", 1, TWO)
    after = await directory.switch("alice", 1, TWO)
    assert after is not None
    assert after.epoch == 4
    await directory.begin_migration("alice", 4, ONE)
    await directory.hibernate("alice", 4, file_bytes=1, last_active_at=None)
    again = await directory.activate("alice", 4, TWO)
    assert again is not None
    assert again.epoch == 6
    await directory.begin_migration("alice", 6, ONE)
    await directory.abandon_migration("alice", 6)
    await directory.begin_delete("alice", 6)
    await directory.finish_delete("alice", 6)
    new = await directory.create("alice", ONE)
    assert new is not None
    assert new.epoch == 8


async def test_a_file_is_there_from_the_first_owner_on(directory: Directory) -> None:
    created = await directory.create("alice", ONE)
    assert created is not None
    assert not created.has_file
    await directory.note_file("alice", 2)
    assert not directory.get("alice").has_file  # type: ignore[union-attr]
    await directory.note_file("alice", 1)
    assert directory.get("alice").has_file  # type: ignore[union-attr]
    await directory.begin_migration("alice", 1, TWO)
    switched = await directory.switch("alice", 1, TWO)
    assert switched is not None
    assert switched.has_file


async def test_epochs_never_return_after_a_deletion(directory: Directory) -> None:
    await directory.create("alice", ONE)
    for epoch in range(1, 7):
        await directory.activate("alice", epoch, ONE)
    first = directory.get("alice")
    assert first is not None
    await directory.begin_delete("alice", 7)
    assert directory.page() == []
    await directory.finish_delete("alice", 7)
    assert directory.get("alice") is None
    assert directory.waste("disk-1") == [Waste("disk-1", first.file)]
    again = await directory.create("alice", ONE)
    assert again is not None
    assert again.epoch > 7
    assert again.file != first.file


async def test_what_failed_to_start_is_forgotten(directory: Directory) -> None:
    await directory.create("alice", ONE)
    await directory.forget_new("alice", 1)
    assert directory.get("alice") is None
    assert directory.count() == 0


async def test_a_file_that_is_ahead_raises_the_epoch(directory: Directory) -> None:
    await directory.create("alice", ONE)
    entry = await directory.raise_epoch("alice", 1, 40)
    assert entry is not None
    assert entry.epoch == 40
    assert await directory.raise_epoch("alice", 40, 7) is None


async def test_names_are_listed_in_order_page_by_page(directory: Directory) -> None:
    names = ["", "a", "a/b", "a\0", "aa", "b", "z", "é", "東京", "\U0001f600", "\uffff", "n" * 1024]
    names.remove("")
    for name in names[::-1]:
        await directory.create(name, ONE)
    ordered = sorted(names, key=str.encode)
    assert directory.page(limit=100) == ordered
    seen: list[str] = []
    while page := directory.page(after=seen[-1] if seen else None, limit=2):
        seen += page
    assert seen == ordered
    for prefix in ("a", "a/", "東", "\uffff", "x", "n" * 1024):
        assert directory.page(prefix) == [n for n in ordered if n.startswith(prefix)]
    assert directory.page("a", after="a/b") == [n for n in ordered if n > "a/b" and n[0] == "a"]


async def test_conversations_made_in_one_instant_have_a_stable_order(directory: Directory) -> None:
    for i in range(300):
        await directory.create(f"c{i}", ONE)
    once = directory.page(limit=1000)
    assert once == directory.page(limit=1000) == sorted(f"c{i}" for i in range(300))


async def test_it_is_durable(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    await directory.create("alice", ONE)
    await directory.set_quota("alice", 5_000_000)
    await directory.note_node("node-1", "disk-1", draining=True)
    directory.close()
    directory = Directory(tmp_path)
    entry = directory.get("alice")
    assert entry is not None
    assert (entry.quota_bytes, entry.state) == (5_000_000, State.ACTIVE)
    assert directory.nodes() == {"node-1": NodeRow("disk-1", True, "", 1)}
    assert [e.name for e in directory.unsettled()] == ["alice"]
    assert [e.name for e in directory.on_disk("disk-1", None, 10)] == ["alice"]
    assert directory.on_disk("disk-1", "alice", 10) == directory.on_disk("disk-2", None, 10) == []
    await directory.hibernate("alice", 1, file_bytes=None, last_active_at=None)
    await directory.forget_nodes(["node-1"])
    assert directory.nodes() == {}
    directory.close()


async def test_a_node_is_remembered_while_a_conversation_names_it(directory: Directory) -> None:
    await directory.create("alice", ONE)
    await directory.note_term("node-1", 3)
    await directory.note_term("node-1", 2)
    await directory.note_node("node-1", "disk-1", draining=False, machine_id="m")
    await directory.forget_nodes(["node-1"])
    assert directory.nodes() == {"node-1": NodeRow("disk-1", False, "m", 3)}


def test_a_directory_of_the_first_version_is_brought_up(tmp_path: Path) -> None:
    Directory(tmp_path).close()
    with closing(apsw.Connection(str(tmp_path / DIRECTORY_FILE))) as db:
        db.execute("DROP TABLE nodes")
        db.execute(
            "CREATE TABLE nodes (node_id TEXT PRIMARY KEY NOT NULL, disk_id TEXT NOT NULL,"
            " draining INTEGER NOT NULL) WITHOUT ROWID"
        )
        db.execute("INSERT INTO nodes VALUES ('node-1', 'disk-1', 1)")
    directory = Directory(tmp_path)
    assert directory.nodes() == {"node-1": NodeRow("disk-1", True, "", 1)}
    directory.close()


async def test_waste_is_struck_off_when_it_is_gone(directory: Directory) -> None:
    await directory.create("alice", ONE)
    await directory.forget_new("alice", 1)
    (waste,) = directory.waste("disk-1")
    await directory.removed([waste])
    assert directory.waste("disk-1") == []


def test_a_second_router_is_kept_out(tmp_path: Path, directory: Directory) -> None:
    with pytest.raises(StorageError, match="open already"):
        Directory(tmp_path)
