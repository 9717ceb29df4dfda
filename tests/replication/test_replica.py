"""A conversation and its replica, with the real engine: what is acknowledged comes back."""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import apsw
import pytest

from router.replication.chores import Source, bring_back, copy_asleep
from router.replication.daemon import Daemon
from router.replication.restore import (
    check_restored,
    restore,
    restore_points,
)
from sessions_actor import open_object
from sessions_actor import storage as storage_module
from sessions_actor.conversation import Conversation
from sessions_actor.database_file import engine_folder
from sessions_actor.errors import (
    NothingToRestoreError,
    ReplicaUnavailableError,
    StorageCorruptError,
    StorageError,
)
from sessions_actor.open_object import Activation
from sessions_actor.replica import (
    Durability,
    Replica,
    ReplicaSpec,
    forget_file,
    is_state_lost,
    socket_path,
)
from sessions_actor.storage import LOG_CUT
from tests.cluster.conftest import message, until
from tests.fault.alerts import Here, watching

from .deployments import TERMS, running, set_patience
from .test_daemon import engines_of


class Place:
    """A conversation's file on a disk and its replica elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.disk = folder / "disk"
        self.file = self.disk / "conversations" / "alice.1.sqlite"
        self.replica = folder / "far" / "alice" / "1"
        self.url = f"file://{self.replica}"
        self.folder = folder
        self.mark = ""
        self._restores = 0

    def activation(
        self, epoch: int, durability: Durability = Durability.REPLICATED, timeout_s: float = 20.0
    ) -> Activation[Conversation]:
        socket = socket_path(self.disk)
        spec = ReplicaSpec(self.url, durability, timeout_s, socket, self.mark)
        return Activation(Conversation, name="alice", path=self.file, epoch=epoch, replica=spec)

    def starting(self, *, timeout_s: float) -> Callable[[], Awaitable[object]]:
        """Return what starts an activation, a later one each time."""
        epochs = itertools.count(1)
        return lambda: self.activation(next(epochs), timeout_s=timeout_s).start()

    async def texts(self, at: datetime | None = None) -> list[str]:
        """Restore elsewhere and read all messages."""
        self._restores += 1
        target = self.folder / "restored" / f"{self._restores}.sqlite"
        found = await restore(self.url, target, at=at)
        check_restored(found, "alice", 99)
        async with open_object(Conversation, name="alice", path=target) as alice:
            return [m["id"] async for m in alice.session.history()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def append(activation: Activation[Conversation], *ids: str) -> None:
    for one in ids:
        await activation.host.session.append_message(message(one))


async def refused(asked: Callable[[], Awaitable[object]], why: str) -> None:
    """Have something refused until it is for that reason: patience may end before it is found."""

    async def told() -> bool:
        with pytest.raises(ReplicaUnavailableError) as caught:
            await asked()
        return why in str(caught.value)

    await until(told, f"it is said that there is {why}")


async def test_what_was_acknowledged_comes_back_without_the_disk(
    daemon: Daemon, place: Place
) -> None:
    alice = place.activation(1)
    await alice.start()
    ids = [f"m{number}" for number in range(20)]
    await append(alice, *ids)
    # Nothing was told to end: the disk is gone in the middle of everything.
    assert await place.texts() == ids
    await alice.close()


async def test_many_at_once_share_syncs(daemon: Daemon, place: Place) -> None:
    alice = place.activation(1)
    host = await alice.start()
    await asyncio.gather(
        *(host.sessions.session(str(n)).append_message(message(f"m{n}")) for n in range(200))
    )
    assert alice.replica is not None
    assert alice.replica.position < 20
    assert alice.replica.lag_s == 0
    await alice.close()


async def test_a_later_activation_goes_on_in_the_same_line(daemon: Daemon, place: Place) -> None:
    """A conversation of some size is copied whole once, and what the engine kept stays small."""
    sizes = []
    for epoch in (1, 2, 3):
        alice = place.activation(epoch)
        await alice.start()
        for number in range(120 if epoch == 1 else 5):
            text = os.urandom(30_000 if epoch == 1 else 1_500).hex()
            await alice.host.session.append_message(message(f"{epoch}-{number}", text))
        await alice.close()
        files = sorted((place.replica / "ltx" / "0").iterdir())
        sizes.append(sum(f.stat().st_size for f in files))
        kept = list((place.disk / "conversations").glob(".*-litestream/ltx/0/*"))
        assert len(kept) == 1
    assert len(await place.texts()) == 130
    assert sizes[2] - sizes[0] < sizes[0] / 5
    assert (await place.texts())[-1] == "3-4"


@pytest.mark.parametrize("damage", ["gone", "cut short", "garbled", "empty"])
async def test_what_the_engine_kept_may_be_lost_or_damaged(
    daemon: Daemon, place: Place, damage: str
) -> None:
    alice = place.activation(1)
    await alice.start()
    await append(alice, "m0")
    folder = Path(engine_folder(str(place.file)))
    last = max(folder.rglob("*.ltx"))
    if damage == "gone":
        shutil.rmtree(folder)
    else:
        last.write_bytes(
            {"cut short": last.read_bytes()[:50], "garbled": b"x" * 500}.get(damage, b"")
        )
    await append(alice, "m1")
    assert await place.texts() == ["m0", "m1"]
    await alice.close()


def test_a_store_that_fails_is_not_taken_for_damage_on_the_disk() -> None:
    path = "/disk/eof/conversations/alice.1.sqlite"
    folder = engine_folder(path)
    key = "deep/eof/alice/ltx/0/1.ltx"
    for elsewhere in (
        f'write ltx: Put "https://store/{key}": invalid timeout',
        f"write {folder}/ltx/0/1.ltx: no space left on device",
    ):
        assert not is_state_lost(elsewhere, path)
    assert is_state_lost(f"decode ltx file {folder}/ltx/0/1.ltx: ltx file corrupted: EOF", path)
    assert is_state_lost(f"open {folder}/ltx/0/1.ltx: no such file or directory", path)


async def test_writes_go_on_when_the_daemon_is_killed(daemon: Daemon, place: Place) -> None:
    alice = place.activation(1)
    await alice.start()
    for round_number in range(3):
        await append(alice, f"a{round_number}")
        os.kill(engines_of(place.disk)[0], signal.SIGKILL)
        await append(alice, f"b{round_number}")
    assert await place.texts() == ["a0", "b0", "a1", "b1", "a2", "b2"]
    await alice.close()


async def test_an_owner_that_died_leaves_a_line_that_goes_on(daemon: Daemon, place: Place) -> None:
    alice = place.activation(1)
    await alice.start()
    await append(alice, "a")
    # Dead: nothing is finished, the engine still has the file.
    alice.storage.close()
    successor = place.activation(2)
    await successor.start()
    await append(successor, "b")
    assert await place.texts() == ["a", "b"]
    await successor.close()


async def test_no_daemon_means_no_acknowledgement(place: Place) -> None:
    await refused(place.starting(timeout_s=0.3), "no replication daemon")
    assert await asyncio.to_thread(place.file.exists)


async def test_a_replica_out_of_reach_fails_writes_and_recovers_without_a_gap(
    daemon: Daemon, place: Place
) -> None:
    alice = place.activation(1)
    await alice.start()
    await append(alice, "a")
    set_patience(alice, 1.0)
    away = place.replica.with_name("away")
    place.replica.rename(away)
    async with watching(Here()) as watch:
        place.replica.write_text("in the way")
        with pytest.raises(ReplicaUnavailableError) as caught:
            await append(alice, "b")
        assert caught.value.retryable
        await watch.raised("a replica is out of reach")
    place.replica.unlink()
    away.rename(place.replica)

    async def again() -> bool:
        with contextlib.suppress(ReplicaUnavailableError):
            await append(alice, "b")
            return True
        return False

    await until(again, "the repeated write is confirmed")
    set_patience(alice, 20.0)
    await append(alice, "c")
    assert await place.texts() == ["a", "b", "c"]
    await alice.close()


async def test_async_acknowledges_at_once_and_follows_within_a_second(
    daemon: Daemon, place: Place
) -> None:
    alice = place.activation(1, Durability.ASYNC)
    await alice.start()
    await append(alice, *(f"m{n}" for n in range(10)))
    replica = alice.replica
    assert replica is not None
    await until(lambda: replica.lag_s == 0, "the replica caught up")
    assert len(await place.texts()) == 10
    await append(alice, "last")
    await alice.close()
    assert (await place.texts())[-1] == "last"


async def test_async_tells_its_lag_and_catches_up_without_a_gap(
    tmp_path: Path, place: Place
) -> None:
    alice = place.activation(1, Durability.ASYNC, timeout_s=1.0)
    await alice.start()
    await append(alice, "a", "b")
    replica = alice.replica
    assert replica is not None
    await until(lambda: replica.lag_s > 0.5, "the lag grows while there is no daemon")
    async with running(Daemon(place.disk, TERMS)):
        await until(lambda: replica.lag_s == 0, "caught up")
        await append(alice, "c")
        await alice.close()
    assert await place.texts() == ["a", "b", "c"]


async def test_a_moment_brings_back_what_was_acknowledged_by_then(
    daemon: Daemon, place: Place
) -> None:
    alice = place.activation(1)
    await alice.start()
    moments: list[datetime] = []
    ids = [f"m{n}" for n in range(8)]
    for one in ids:
        await append(alice, one)
        moments.append(datetime.now(UTC))
        await asyncio.sleep(0.02)
    for number in (0, 3, 7):
        assert await place.texts(moments[number]) == ids[: number + 1]
    assert await place.texts(datetime(2999, 1, 1, tzinfo=UTC)) == ids
    with pytest.raises(NothingToRestoreError):
        await place.texts(datetime(2001, 1, 1, tzinfo=UTC))
    points = await restore_points(place.url)
    assert points == sorted(points)
    assert points
    await alice.close()


async def test_a_restore_replaces_nothing_and_leaves_nothing_half(
    daemon: Daemon, place: Place, tmp_path: Path
) -> None:
    with pytest.raises(NothingToRestoreError):
        await restore(place.url, tmp_path / "out" / "x.sqlite")
    assert list((tmp_path / "out").iterdir()) == []
    alice = place.activation(1)
    await alice.start()
    await append(alice, "a")
    await alice.close()
    found = await restore(place.url, tmp_path / "out" / "x.sqlite", thorough=True)
    assert (found.name, found.epoch) == ("alice", 1)
    assert found.position > 0
    assert os.stat(found.path).st_mode & 0o777 == 0o600
    with pytest.raises(StorageError, match="there already"):
        await restore(place.url, tmp_path / "out" / "x.sqlite")
    with pytest.raises(StorageCorruptError, match="'bob'"):
        check_restored(found, "bob", 1)
    with pytest.raises(StorageCorruptError, match="epoch"):
        check_restored(found, "alice", 0)


async def test_a_gap_in_a_replica_is_found(daemon: Daemon, place: Place, tmp_path: Path) -> None:
    alice = place.activation(1)
    await alice.start()
    await append(alice, *(f"m{n}" for n in range(10)))
    await alice.close()
    files = sorted((place.replica / "ltx" / "0").iterdir())
    files[len(files) // 2].unlink()
    with pytest.raises(StorageError):
        await restore(place.url, tmp_path / "gap.sqlite")
    shutil.rmtree(place.replica)


@pytest.mark.parametrize("is_closed", [True, False])
async def test_another_url_is_heeded_and_gets_the_whole_file(
    daemon: Daemon, place: Place, is_closed: bool
) -> None:
    """Also by a daemon that knows the file still, of an activation that let nobody go."""
    before = place.activation(1)
    await before.start()
    for number in range(5):
        await append(before, f"m{number}")
    if is_closed:
        await before.close()
    else:
        assert before.replica is not None
        before.replica.abandon()
        before.storage.close()
    place.replica = place.folder / "elsewhere" / "alice" / "1"
    place.url = f"file://{place.replica}"
    after = place.activation(2)
    await after.start()
    await append(after, "m5")
    assert await place.texts() == [f"m{number}" for number in range(6)]
    await after.close()


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_node_that_lacks_the_share_confirms_nothing_and_makes_no_folder(
    daemon: Daemon, place: Place, is_there: bool
) -> None:
    """Whether the mount point is missing on it or only empty."""
    far = place.folder / "far"
    place.mark = str(far / "mark")
    if is_there:
        far.mkdir()
    await refused(place.starting(timeout_s=1.0), "not mounted on this node")
    assert far.exists() is is_there
    assert not is_there or list(far.iterdir()) == []
    far.mkdir(exist_ok=True)
    Path(place.mark).touch()
    alice = place.activation(50)  # after all of those
    await alice.start()
    await append(alice, "m0")
    assert await place.texts() == ["m0"]
    await alice.close()


async def test_what_was_written_while_the_share_was_away_is_in_it_once_it_is_back(
    daemon: Daemon, place: Place
) -> None:
    far, away = place.folder / "far", place.folder / "away"
    far.mkdir()
    place.mark = str(far / "mark")
    Path(place.mark).touch()
    alice = place.activation(1)
    await alice.start()
    await append(alice, "m0")
    set_patience(alice, 2.0)
    far.rename(away)
    await refused(lambda: append(alice, "m1"), "not mounted on this node")
    assert list(far.rglob("*.ltx")), "the engine wrote to this disk"

    def mounted_again() -> bool:
        shutil.rmtree(far, ignore_errors=True)
        with contextlib.suppress(OSError):  # the engine made it once more
            away.rename(far)
        return not away.exists()

    await until(mounted_again, "the share is back")
    set_patience(alice, 20.0)
    await append(alice, "m2")
    assert await place.texts() == ["m0", "m1", "m2"]
    await alice.close()


async def test_a_node_that_lacks_the_share_does_not_say_that_the_replica_is_gone(
    daemon: Daemon, place: Place
) -> None:
    (place.folder / "far").mkdir()
    place.mark = str(place.folder / "far" / "mark")
    Path(place.mark).touch()
    alice = place.activation(1)
    await alice.start()
    await append(alice, "m0")
    await alice.close()
    (place.folder / "far").rename(place.folder / "away")
    root, source = place.folder / "other", Source(place.url, 1, place.mark)
    with pytest.raises(ReplicaUnavailableError, match="not mounted on this node"):
        await bring_back(root, "alice.2.sqlite", "alice", None, [source])
    (place.folder / "away").rename(place.folder / "far")
    assert await bring_back(root, "alice.2.sqlite", "alice", None, [source]) is not None


@pytest.mark.parametrize("many", [False, True])
async def test_what_was_never_synced_reaches_the_replica_of_a_file_that_nobody_writes_to_again(
    daemon: Daemon, place: Place, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """Its owner could not bring it up to date at its end, and the daemon still has the file."""
    alice = place.activation(1, Durability.ASYNC)
    await alice.start()
    await append(alice, "m0")
    assert alice.replica is not None
    await alice.replica.sync()

    async def in_vain(self: Replica) -> bool:
        self.abandon()
        return False

    ids = ["m1", "m2"]
    with monkeypatch.context() as outage:
        outage.setattr(Replica, "sync", in_vain)
        outage.setattr(Replica, "finish", in_vain)
        if many:  # its log is longer than the file, which has pages to use again
            ids = [f"m{number}" for number in range(1, 300)]
        await append(alice, *ids)
        await alice.close()
    assert alice.behind
    spec = ReplicaSpec(place.url, Durability.ASYNC, 20.0)
    file = str(place.file.relative_to(place.disk))
    assert await copy_asleep(place.disk, file, spec) > 0
    assert await place.texts() == ["m0", *ids]


MARKED = "SELECT count(*), sum(text LIKE 'unseen%') FROM notes"


@pytest.mark.parametrize("known", ["daemon has it", "daemon let go", "no daemon"])
@pytest.mark.parametrize("cut", ["restart", "truncate", "truncate, and nothing after"])
async def test_what_was_written_while_nobody_copied_is_copied_whatever_became_of_the_log(
    tmp_path: Path, cut: str, known: str
) -> None:
    """On pages of its own, so that none comes along with what is written later."""
    root, file = tmp_path, tmp_path / "a.sqlite"
    spec = ReplicaSpec(f"file://{tmp_path}/far/a", Durability.ASYNC, 20.0)
    db = apsw.Connection(str(file))
    db.pragma("journal_mode", "wal")
    db.wal_autocheckpoint(0)
    db.execute("CREATE TABLE notes (text)")
    for number in range(300):
        db.execute("INSERT INTO notes VALUES (?)", (f"{number} {'x' * 300}",))
    async with contextlib.AsyncExitStack() as first:
        await first.enter_async_context(running(Daemon(root, TERMS)))
        assert await copy_asleep(root, file.name, spec) > 0
        if known == "daemon let go":
            await forget_file(root, file.name)
        elif known == "no daemon":
            await first.aclose()
        for number in (5, 100, 200):
            db.execute("UPDATE notes SET text = 'unseen' WHERE rowid = ?", (number,))
        way = "RESTART" if cut == "restart" else "TRUNCATE"
        db.wal_checkpoint(mode=getattr(apsw, f"SQLITE_CHECKPOINT_{way}"))
        if "nothing" not in cut:
            db.execute("INSERT INTO notes VALUES ('after')")
        if known == "no daemon":
            await first.enter_async_context(running(Daemon(root, TERMS)))
        await copy_asleep(root, file.name, replace(spec, is_new=True, is_stale=True))
        await restore(spec.url, tmp_path / "restored.sqlite")
    with contextlib.closing(apsw.Connection(str(tmp_path / "restored.sqlite"))) as restored:
        assert restored.execute(MARKED).fetchall() == db.execute(MARKED).fetchall()
    db.close()


@pytest.mark.parametrize("by", ["its owner", "its next owner", "nobody who opens it"])
async def test_a_log_that_had_to_be_cut_back_unread_leaves_no_gap(
    daemon: Daemon, place: Place, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(storage_module, "REPLICATED_WAL_PAGES_MAX", 16)
    alice = place.activation(1, Durability.ASYNC)
    host = await alice.start()
    session, text = host.session, "x" * 3000
    for number in range(30):
        await session.append_message(message(f"m{number}", text))
    assert alice.replica is not None
    await alice.replica.sync()
    (engine,) = engines_of(place.disk)
    os.kill(engine, signal.SIGSTOP)
    try:
        for number in range(0, 30, 3):
            await session.update_message(message(f"m{number}", "unseen"))
        for number in range(30, 40):
            await session.append_message(message(f"m{number}", text))
    finally:
        os.kill(engine, signal.SIGCONT)
    history = await session.get_history()
    if by != "its owner":  # it was killed before it could have anything copied
        alice.replica.abandon()
        await alice.close()
    if by == "its next owner":
        alice = place.activation(2, Durability.ASYNC)
        await alice.start()
    if by == "nobody who opens it":
        spec = ReplicaSpec(place.url, Durability.ASYNC, 20.0)
        await copy_asleep(place.disk, str(place.file.relative_to(place.disk)), spec)
    else:
        assert alice.replica is not None
        await alice.replica.sync()
    found = await restore(place.url, place.folder / "restored.sqlite")
    async with open_object(Conversation, name="alice", path=Path(found.path)) as restored:
        assert await restored.session.get_history() == history
    await alice.close()
    async with open_object(Conversation, name="alice", path=place.file) as left:
        assert LOG_CUT not in left.storage.meta.get_all(), "that is over"


async def test_the_log_stays_bounded_while_the_engine_copies_it(
    daemon: Daemon, place: Place
) -> None:
    """It is the engine that cuts it back: the connection leaves checkpoints to it."""
    alice = place.activation(1)
    await alice.start()
    log, text, largest = place.file.with_name(place.file.name + "-wal"), "x" * (1 << 20), 0
    for number in range(32):
        await alice.host.session.append_message(message(f"m{number}", text))
        largest = max(largest, log.stat().st_size)
    await alice.close()
    assert place.file.stat().st_size > 32 << 20
    assert largest < 16 << 20
    assert await place.texts() == [f"m{number}" for number in range(32)]
