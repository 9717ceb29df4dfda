"""A conversation's file after death, on a full disk and on a failing one.

A crash test accepts the state before or the state after, nothing else.
"""

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from sessions_actor.errors import OutputGateBrokenError, QuotaExceededError, StorageError
from sessions_actor.storage import Storage

from .faulty_vfs import MAIN, WAL, FaultyVfs, fail_with
from .storage_child import AT_ONCE, BATCHES

ROOT = Path(__file__).resolve().parents[2]
_names = (f"faulty-{number}" for number in itertools.count())


@pytest.fixture
def vfs() -> Iterator[FaultyVfs]:
    faulty = FaultyVfs(next(_names))
    yield faulty
    faulty.unregister()


def open_notes(path: Path, vfs: FaultyVfs | None = None, **options: int) -> Storage:
    storage = Storage(path, vfs=vfs.name if vfs else None, **options)
    storage.sql.exec("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT)")
    return storage


def add(storage: Storage, text: str) -> None:
    storage.write("INSERT INTO notes (text) VALUES (?)", (text,))


def texts(storage: Storage) -> list[str]:
    return [row[0] for row in storage.fetch("SELECT text FROM notes ORDER BY id")]


# ---------------------------------------------------------------------------------------- death


def run_child(path: Path, first: int, point: int, seed: int) -> tuple[int, int]:
    """Run the writing process; return its exit code and the highest number it called durable."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fault.storage_child", path, *map(str, (first, point, seed))],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    acknowledged = [int(line) for line in done.stdout.split()]
    return done.returncode, max(acknowledged, default=first - 1)


def check_pairs(path: Path, acknowledged: int) -> int:
    """Every acknowledged pair is there, every pair is whole, no gap; return the next number."""
    storage = Storage(path)
    try:
        assert storage.check() == []
        if "pairs" not in storage.data_tables():
            assert acknowledged < 0
            return 0
        rows = storage.fetch("SELECT number, count(*) FROM pairs GROUP BY number ORDER BY number")
        numbers = [number for number, _ in rows]
        assert {sides for _, sides in rows} <= {2}
        assert numbers == list(range(len(numbers)))
        assert len(numbers) % AT_ONCE == 0, "a group is durable whole or not at all"
        assert len(numbers) > acknowledged
        return len(numbers)
    finally:
        storage.close()


@pytest.mark.parametrize("power_loss", [False, True], ids=["killed", "power lost"])
def test_death_at_any_write_leaves_the_state_before_or_after(
    tmp_path: Path, power_loss: bool
) -> None:
    path = tmp_path / "a.sqlite"
    chance = random.Random(20)
    following, point = 0, 1
    for _ in range(14):
        seed = chance.randrange(1000) if power_loss else -1
        code, acknowledged = run_child(path, following, point, seed)
        assert code == -signal.SIGKILL
        following = check_pairs(path, acknowledged)
        # Small steps first, then far enough to die within checkpoints.
        point += 1 if point < 5 else chance.randrange(1, 120)


def test_a_process_that_is_not_killed_writes_everything(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    code, acknowledged = run_child(path, 0, 0, -1)
    assert (code, acknowledged) == (0, AT_ONCE * BATCHES - 1)
    assert check_pairs(path, acknowledged) == AT_ONCE * BATCHES


def test_kill_from_outside_frees_the_lock_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.fault.storage_child", path, "0", "0", "-1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    acknowledged = int(child.stdout.readline())
    try:
        with pytest.raises(StorageError, match=f"process {child.pid} on "):
            Storage(path)
    finally:
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split()
        child.wait()
        child.stdout.close()
    check_pairs(path, max([acknowledged, *map(int, rest)]))
    assert not os.path.exists(f"{path}.lock")


# --------------------------------------------------------------------------- full disk, bad disk

FAULTS = [
    pytest.param(apsw.FullError, "write", id="disk full"),
    pytest.param(apsw.IOError, "write", id="write fails"),
    pytest.param(apsw.IOError, "sync", id="sync fails"),
]


@pytest.mark.parametrize(("error", "action"), FAULTS)
async def test_a_commit_that_fails_breaks_the_gate_for_everyone(
    tmp_path: Path, vfs: FaultyVfs, error: type[apsw.Error], action: str
) -> None:
    storage = open_notes(tmp_path / "a.sqlite", vfs)
    broken: list[Exception] = []
    storage.on_broken(broken.append)
    await storage.submit(lambda: add(storage, "before"))
    vfs.arm(fail_with(error, action, WAL))

    waiting = [storage.submit(lambda n=n: add(storage, f"lost {n}")) for n in range(5)]
    outcomes = await asyncio.gather(*waiting, storage.durable(), return_exceptions=True)
    # `durable` ran last, so it saw the five writes.
    assert [type(outcome) for outcome in outcomes] == [OutputGateBrokenError] * 6
    assert len({id(outcome) for outcome in outcomes}) == 6
    assert isinstance(storage.broken, OutputGateBrokenError)
    assert broken == [storage.broken]

    vfs.disarm()
    for later in (
        lambda: storage.perform(lambda: None),
        lambda: storage.fetch("SELECT 1"),
        lambda: storage.sql.exec("SELECT 1"),
        lambda: storage.kv.get("a"),
        storage.flush,
    ):
        with pytest.raises(OutputGateBrokenError, match="the output gate is broken"):
            later()
    with pytest.raises(OutputGateBrokenError):
        await storage.durable()
    with pytest.raises(OutputGateBrokenError):
        await storage.get("a")
    storage.close()

    reopened = open_notes(tmp_path / "a.sqlite")
    before, after = ["before"], ["before", *(f"lost {n}" for n in range(5))]
    assert texts(reopened) in (before, after)
    assert reopened.check() == []
    reopened.close()


def test_without_a_loop_the_failed_commit_raises_at_once(tmp_path: Path, vfs: FaultyVfs) -> None:
    storage = open_notes(tmp_path / "a.sqlite", vfs)
    vfs.arm(fail_with(apsw.IOError, "sync", WAL))
    with pytest.raises(OutputGateBrokenError, match="commit failed"):
        storage.perform(lambda: add(storage, "lost"))
    storage.close()


def test_a_commit_that_fails_while_closing_is_told_and_frees_the_file(
    tmp_path: Path, vfs: FaultyVfs
) -> None:
    storage = open_notes(tmp_path / "a.sqlite", vfs)

    async def write_and_leave() -> None:
        storage.perform(lambda: add(storage, "lost"))
        vfs.arm(fail_with(apsw.FullError, "write", WAL))
        storage.close()

    with pytest.raises(OutputGateBrokenError):
        asyncio.run(write_and_leave())
    storage.close()
    vfs.disarm()
    reopened = open_notes(tmp_path / "a.sqlite")
    assert texts(reopened) == []
    reopened.close()


def test_an_error_in_the_middle_of_an_op_breaks_the_gate(tmp_path: Path, vfs: FaultyVfs) -> None:
    """What does not fit the page cache is written before the commit."""
    storage = open_notes(tmp_path / "a.sqlite", vfs)

    def write_much() -> None:
        vfs.arm(fail_with(apsw.FullError, "write", WAL))
        for _ in range(40):
            add(storage, "z" * 1_000_000)

    with pytest.raises(OutputGateBrokenError):
        storage.perform(write_much)
    storage.close()
    vfs.disarm()
    reopened = open_notes(tmp_path / "a.sqlite")
    assert texts(reopened) == []
    reopened.close()


def test_an_op_that_hides_the_loss_of_its_transaction_is_found_out(
    tmp_path: Path, vfs: FaultyVfs
) -> None:
    storage = open_notes(tmp_path / "a.sqlite", vfs)

    def hide() -> str:
        vfs.arm(fail_with(apsw.IOError, "write", WAL))
        try:
            for _ in range(40):
                add(storage, "z" * 1_000_000)
        except apsw.IOError:
            vfs.disarm()
        return "all is well"

    with pytest.raises(OutputGateBrokenError):
        storage.perform(hide)
    storage.close()


def test_a_checkpoint_that_fails_loses_nothing(tmp_path: Path, vfs: FaultyVfs) -> None:
    storage = open_notes(tmp_path / "a.sqlite", vfs)
    storage.perform(lambda: add(storage, "kept"))
    vfs.arm(fail_with(apsw.IOError, "write", MAIN))
    storage.close()
    assert vfs.calls["write", MAIN] > 0
    vfs.disarm()
    reopened = open_notes(tmp_path / "a.sqlite")
    assert texts(reopened) == ["kept"]
    reopened.close()


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
async def test_a_file_that_vanished_is_not_written_to_in_vain(
    tmp_path: Path, replaced: bool
) -> None:
    path = tmp_path / "a.sqlite"
    storage = open_notes(path)
    await storage.submit(lambda: add(storage, "before"))
    path.rename(tmp_path / "moved")
    if replaced:
        path.touch()
    with pytest.raises(OutputGateBrokenError, match="removed or replaced"):
        await storage.submit(lambda: add(storage, "lost"))
    storage.close()


async def test_what_arrives_together_shares_one_sync(tmp_path: Path, vfs: FaultyVfs) -> None:
    storage = open_notes(tmp_path / "a.sqlite", vfs)
    await storage.durable()
    vfs.arm(lambda action, kind: None)
    await asyncio.gather(*(storage.submit(lambda: add(storage, "x")) for _ in range(64)))
    assert vfs.calls["sync", WAL] == 1
    for _ in range(3):
        await storage.submit(lambda: add(storage, "alone"))
    assert vfs.calls["sync", WAL] == 4
    await storage.durable()
    storage.fetch("SELECT count(*) FROM notes")
    assert vfs.calls["sync", WAL] == 4
    storage.close()


# ---------------------------------------------------------------------------------------- quota


async def test_near_the_quota_only_what_does_not_fit_fails(tmp_path: Path) -> None:
    storage = open_notes(tmp_path / "a.sqlite", quota_bytes=1_000_000)
    sizes = [1_000 if n % 3 else 90_000 for n in range(200)]
    runs = [0] * len(sizes)

    def op(number: int) -> int:
        runs[number] += 1
        storage.write("INSERT INTO notes (id, text) VALUES (?, ?)", (number, "q" * sizes[number]))
        return number

    outcomes = await asyncio.gather(
        *(storage.submit(lambda n=n: op(n)) for n in range(len(sizes))), return_exceptions=True
    )
    assert runs == [1] * len(sizes), "an op runs exactly once, whatever happens to the others"
    kept = [row[0] for row in storage.fetch("SELECT id FROM notes ORDER BY id")]
    assert kept == [outcome for outcome in outcomes if isinstance(outcome, int)]
    failed = [outcome for outcome in outcomes if not isinstance(outcome, int)]
    assert {type(error) for error in failed} == {QuotaExceededError}
    assert all(
        error.limit_bytes == 1_000_000 and 0 < error.used_bytes <= 1_000_000 for error in failed
    )
    assert len(kept) > 10
    assert len(failed) > 10
    assert storage.database_size <= 1_000_000

    storage.perform(lambda: storage.write("DELETE FROM notes WHERE id < 20"))
    await storage.submit(lambda: add(storage, "fits again" * 1000))
    storage.close()
    reopened = open_notes(tmp_path / "a.sqlite", quota_bytes=1_000_000)
    assert texts(reopened)[-1].startswith("fits again")
    assert reopened.check() == []
    reopened.close()


def test_a_file_past_its_quota_opens_reads_shrinks_and_is_written_again(tmp_path: Path) -> None:
    storage = open_notes(tmp_path / "a.sqlite")
    for number in range(30):
        storage.perform(lambda n=number: add(storage, f"{n}" + "r" * 50_000))
    storage.close()

    small = open_notes(tmp_path / "a.sqlite", quota_bytes=500_000)
    assert len(texts(small)) == 30
    with pytest.raises(QuotaExceededError) as caught:
        small.perform(lambda: add(small, "s" * 50_000))
    assert caught.value.used_bytes > caught.value.limit_bytes == 500_000
    # Within a page that is there already, nothing grows.
    small.perform(lambda: add(small, "tiny"))
    small.perform(lambda: small.write("DELETE FROM notes WHERE id <= 28"))
    small.perform(lambda: add(small, "s" * 50_000))
    assert small.used_bytes < 500_000
    small.close()


def test_one_huge_statement_is_stopped_by_sqlite_and_undone_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions_actor.gate.QUOTA_SLACK_BYTES", 32 * 1024 * 1024)
    storage = open_notes(tmp_path / "a.sqlite", quota_bytes=1_000_000)

    async def main() -> list[object]:
        endless = (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
            " INSERT INTO notes (text) SELECT hex(zeroblob(5000)) FROM n"
        )
        return await asyncio.gather(
            storage.submit(lambda: add(storage, "one")),
            storage.submit(lambda: storage.write(endless)),
            storage.submit(lambda: add(storage, "two")),
            return_exceptions=True,
        )

    outcomes = asyncio.run(main())
    assert isinstance(outcomes[1], QuotaExceededError)
    assert texts(storage) == ["one", "two"]
    storage.close()
