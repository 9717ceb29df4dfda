"""The output gate: ops, savepoints, groups, durability."""

import asyncio
import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from sessions_actor.errors import (
    MigratingError,
    OutputGateBrokenError,
    QuotaExceededError,
    StaleEpochError,
    StorageError,
)
from sessions_actor.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    opened = Storage(tmp_path / "a.sqlite")
    opened.sql.exec("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT UNIQUE)")
    opened.flush()
    yield opened
    opened.close()


def add(storage: Storage, text: str) -> Callable[[], str]:
    def op() -> str:
        storage.write("INSERT INTO notes (text) VALUES (?)", (text,))
        return text

    return op


def texts(storage: Storage) -> list[str]:
    return [row[0] for row in storage.fetch("SELECT text FROM notes ORDER BY id")]


def seen_from_outside(storage: Storage) -> list[str]:
    """Read what another process would: the durable rows."""
    other = apsw.Connection(storage.path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [row[0] for row in other.execute("SELECT text FROM notes ORDER BY id")]
    finally:
        other.close()


def fail(error: Exception) -> Any:
    raise error


# ------------------------------------------------------------------------------ without a loop


def test_without_a_loop_an_op_commits_before_it_returns(storage: Storage) -> None:
    assert storage.perform(add(storage, "a")) == "a"
    assert not storage.pending
    assert seen_from_outside(storage) == ["a"]


def test_without_a_loop_a_failed_op_leaves_nothing_open(storage: Storage) -> None:
    with pytest.raises(LookupError):
        storage.perform(lambda: (add(storage, "a")(), fail(LookupError())))
    assert not storage.pending
    assert texts(storage) == []


def test_a_group_left_by_a_loop_that_ended_is_committed_by_what_comes_next(
    storage: Storage,
) -> None:
    async def leave() -> None:
        storage.perform(add(storage, "a"))

    asyncio.run(leave())
    storage.perform(add(storage, "b"))
    assert seen_from_outside(storage) == ["a", "b"]


def test_a_group_left_by_a_loop_that_ended_is_committed_in_the_next_loop(storage: Storage) -> None:
    loop = asyncio.new_event_loop()

    async def leave() -> None:
        storage.perform(add(storage, "a"))
        loop.stop()

    loop.run_until_complete(leave())
    loop.close()
    assert storage.pending
    asyncio.run(storage.durable())
    assert seen_from_outside(storage) == ["a"]


def test_closing_commits_what_is_open(tmp_path: Path) -> None:
    async def main() -> None:
        storage = Storage(tmp_path / "b.sqlite")
        storage.kv.put("key", "kept")
        assert storage.pending
        storage.close()

    asyncio.run(main())
    reopened = Storage(tmp_path / "b.sqlite")
    assert reopened.kv.get("key") == "kept"
    reopened.close()


# ------------------------------------------------------------------------------------- groups


async def test_nothing_is_durable_before_submit_returns(storage: Storage) -> None:
    task = asyncio.create_task(storage.submit(add(storage, "a")))
    await asyncio.sleep(0)
    assert texts(storage) == ["a"], "the op ran at once"
    assert seen_from_outside(storage) == []
    assert not task.done()
    assert await task == "a"
    assert seen_from_outside(storage) == ["a"]


async def test_what_arrives_in_one_turn_commits_once(storage: Storage) -> None:
    commits: list[int] = []
    storage.on_commit(lambda: commits.append(len(texts(storage))))
    await asyncio.gather(*(storage.submit(add(storage, f"{n}")) for n in range(50)))
    assert commits == [50]
    await storage.submit(add(storage, "later"))
    assert commits == [50, 51]


async def test_one_failed_op_leaves_the_rest_of_its_group(storage: Storage) -> None:
    rollbacks: list[int] = []
    storage.on_rollback(lambda: rollbacks.append(1))
    outcomes = await asyncio.gather(
        storage.submit(add(storage, "a")),
        storage.submit(lambda: (add(storage, "b")(), fail(LookupError("no")))),
        storage.submit(add(storage, "a")),
        storage.submit(add(storage, "c")),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [str, LookupError, apsw.ConstraintError, str]
    assert seen_from_outside(storage) == ["a", "c"]
    assert rollbacks == [1, 1]


async def test_callers_wake_after_the_commit_callbacks_in_order(storage: Storage) -> None:
    trace: list[str] = []
    storage.on_commit(lambda: trace.append("commit"))

    async def write(text: str) -> None:
        await storage.submit(add(storage, text))
        trace.append(text)

    await asyncio.gather(*(write(text) for text in "abc"))
    assert trace == ["commit", "a", "b", "c"]


async def test_durable_returns_at_once_when_nothing_pends(storage: Storage) -> None:
    before = storage.durable()
    with pytest.raises(StopIteration):
        before.send(None)


async def test_a_reader_waits_for_the_writes_it_saw(storage: Storage) -> None:
    storage.perform(add(storage, "a"))
    assert texts(storage) == ["a"]
    await storage.durable()
    assert seen_from_outside(storage) == ["a"]


async def test_cancelling_one_caller_harms_no_other_and_undoes_nothing(storage: Storage) -> None:
    tasks = [asyncio.create_task(storage.submit(add(storage, text))) for text in "abc"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert outcomes[0] == "a"
    assert isinstance(outcomes[1], asyncio.CancelledError)
    assert outcomes[2] == "c"
    assert seen_from_outside(storage) == ["a", "b", "c"]


async def test_flush_commits_now(storage: Storage) -> None:
    storage.perform(add(storage, "a"))
    storage.flush()
    assert seen_from_outside(storage) == ["a"]
    await storage.durable()


async def test_reading_opens_no_write_transaction(storage: Storage) -> None:
    storage.fetch("SELECT * FROM notes")
    storage.fetch_one("SELECT * FROM notes")
    storage.sql.exec("SELECT * FROM notes; SELECT count(*) FROM notes")
    storage.kv.get("a")
    storage.kv.list()
    storage.kv.delete("a")
    assert storage.meta.get("epoch") is None
    await storage.get("a")
    assert not storage.pending


# -------------------------------------------------------------------------------- ops in ops


def test_an_op_in_an_op_is_undone_alone_when_its_error_is_caught(storage: Storage) -> None:
    def outer() -> str:
        add(storage, "kept")()
        with pytest.raises(LookupError):
            storage.transaction(lambda: (add(storage, "lost")(), fail(LookupError())))
        assert storage.transaction(add(storage, "inner")) == "inner"
        return "done"

    assert storage.transaction(outer) == "done"
    assert seen_from_outside(storage) == ["kept", "inner"]


def test_an_op_takes_its_inner_ops_along(storage: Storage) -> None:
    def outer() -> None:
        storage.transaction(add(storage, "inner"))
        raise LookupError

    with pytest.raises(LookupError):
        storage.transaction(outer)
    assert texts(storage) == []


@pytest.mark.parametrize("leave", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_an_op_is_undone_whatever_ends_it(storage: Storage, leave: type[BaseException]) -> None:
    def op() -> None:
        add(storage, "lost")()
        raise leave

    with pytest.raises(leave):
        storage.perform(op)
    assert texts(storage) == []
    storage.perform(add(storage, "next"))
    assert seen_from_outside(storage) == ["next"]


def test_an_op_cannot_await_commit_or_close(storage: Storage) -> None:
    async def waits() -> None:
        add(storage, "lost")()

    with pytest.raises(TypeError, match="cannot await"):
        storage.perform(waits)
    with pytest.raises(RuntimeError, match="cannot commit"):
        storage.perform(storage.flush)
    with pytest.raises(RuntimeError, match="cannot close"):
        storage.perform(storage.close)
    assert texts(storage) == []


def test_writing_outside_an_op_is_misuse(storage: Storage) -> None:
    with pytest.raises(RuntimeError, match=r"inside storage\.perform"):
        storage.write("DELETE FROM notes")
    with pytest.raises(RuntimeError, match=r"inside storage\.perform"):
        storage.write_many("DELETE FROM notes WHERE id = ?", [(1,)])


def test_ddl_in_an_op_is_undone(storage: Storage) -> None:
    with pytest.raises(LookupError):
        storage.perform(lambda: (storage.write("CREATE TABLE lost (a)"), fail(LookupError())))
    assert storage.data_tables() == ("notes",)


async def test_a_deferred_foreign_key_fails_its_own_op_only(storage: Storage) -> None:
    storage.sql.exec(
        "CREATE TABLE child (note INTEGER REFERENCES notes (id) DEFERRABLE INITIALLY DEFERRED)"
    )
    outcomes = await asyncio.gather(
        storage.submit(add(storage, "a")),
        storage.submit(lambda: storage.write("INSERT INTO child VALUES (77)")),
        storage.submit(add(storage, "b")),
        return_exceptions=True,
    )
    assert isinstance(outcomes[1], apsw.ConstraintError)
    assert seen_from_outside(storage) == ["a", "b"]


# ------------------------------------------------------------------------------------- refusals


def test_after_closing_everything_is_misuse(storage: Storage) -> None:
    storage.close()
    storage.close()
    for call in (
        lambda: storage.perform(lambda: None),
        lambda: storage.fetch("SELECT 1"),
        lambda: storage.sql.exec("SELECT 1"),
        lambda: storage.kv.put("a", 1),
        storage.flush,
        lambda: asyncio.run(storage.durable()),
    ):
        with pytest.raises(RuntimeError, match="is closed"):
            call()


def test_a_writer_from_outside_delays_and_then_refuses_but_breaks_nothing(
    storage: Storage,
) -> None:
    storage.connection.set_busy_timeout(1)
    other = apsw.Connection(storage.path)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="another program holds it"):
        storage.perform(add(storage, "a"))
    assert storage.broken is None
    other.execute("ROLLBACK")
    other.close()
    storage.perform(add(storage, "b"))
    assert texts(storage) == ["b"]


async def test_a_later_owner_fences_the_earlier_one(tmp_path: Path) -> None:
    """Without the lock, as on a file system that has none."""
    old = Storage(tmp_path / "a.sqlite", lock=False)
    old.meta.put({"epoch": 1})
    old.flush()
    old.fence(1)
    await old.put("written by", "old")

    new = Storage(tmp_path / "a.sqlite", lock=False)
    new.meta.put({"epoch": 2})
    new.flush()
    new.fence(2)

    reasons: list[Exception] = []
    old.on_broken(reasons.append)
    with pytest.raises(StaleEpochError) as caught:
        await old.put("written by", "old again")
    assert (caught.value.presented, caught.value.current) == (1, 2)
    assert caught.value.retryable
    with pytest.raises(StaleEpochError):
        await old.get("written by")
    assert len(reasons) == 1
    assert await new.get("written by") == "old"
    await new.put("written by", "new")
    old.close()
    assert await new.get("written by") == "new"
    new.close()


async def test_a_broken_gate_leaves_no_exception_unretrieved(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = asyncio.create_task(storage.submit(add(storage, "a")))
    await asyncio.sleep(0)
    waiting.cancel()
    storage.connection.execute("ROLLBACK")  # as SQLite does when it gives up
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(OutputGateBrokenError):
        await storage.submit(add(storage, "b"))
    del waiting
    gc.collect()
    assert caplog.records == []


# ----------------------------------------------------------------------------------------- quota


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Storage]:
    opened = Storage(tmp_path / "small.sqlite", quota_bytes=200_000)
    opened.sql.exec("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT UNIQUE)")
    yield opened
    opened.close()


def test_a_write_past_the_quota_fails_whole(small: Storage) -> None:
    small.perform(add(small, "a" * 20_000))
    used = small.used_bytes

    def too_much() -> None:
        for letter in "bcdefghij":
            add(small, letter * 20_000)()

    with pytest.raises(QuotaExceededError) as caught:
        small.perform(too_much)
    assert (caught.value.used_bytes, caught.value.limit_bytes) == (used, 200_000)
    assert caught.value.path == small.path
    assert len(texts(small)) == 1
    assert small.database_size <= 200_000
    assert small.broken is None


def test_at_the_quota_reads_deletes_and_identity_work(small: Storage) -> None:
    with contextlib.suppress(QuotaExceededError):
        for number in itertools.count():
            small.perform(add(small, f"{number}" + "x" * 900))
    full = small.used_bytes
    assert full > 180_000
    assert len(texts(small)) > 50
    small.meta.put({"epoch": 5, "name": "n" * 1024})
    assert small.meta.get("epoch") == 5
    with small.reserve():
        small.perform(lambda: small.write("DELETE FROM notes WHERE id <= 30"))
    assert small.used_bytes < full
    for number in range(20):
        small.perform(add(small, f"again {number}" + "x" * 900))
    assert small.check() == []


def test_the_reserve_covers_the_whole_op_that_asks_for_it_and_no_other(small: Storage) -> None:
    def much() -> None:
        for letter in "abcdefghij":
            add(small, letter * 20_000)()

    def frees() -> None:
        with small.reserve():
            pass
        much()

    with pytest.raises(QuotaExceededError):
        small.perform(much)
    small.perform(frees)
    assert small.used_bytes > 200_000
    with pytest.raises(QuotaExceededError):
        small.perform(add(small, "k" * 20_000))


async def test_the_reserve_of_one_task_is_not_another_task_s(small: Storage) -> None:
    async def keeps_reserve() -> None:
        with small.reserve():
            await small.submit(add(small, "a"))
            await asyncio.sleep(0)

    async def writes() -> None:
        await small.submit(lambda: [add(small, letter * 20_000)() for letter in "bcdefghijkl"])

    outcomes = await asyncio.gather(keeps_reserve(), writes(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), QuotaExceededError]


def test_a_loop_in_one_op_is_stopped_at_the_quota_not_at_its_end(small: Storage) -> None:
    done: list[int] = []

    def endless() -> None:
        while True:
            small.sql.exec("INSERT INTO notes (text) VALUES (?)", f"{len(done)}" + "x" * 5_000)
            done.append(1)

    with pytest.raises(QuotaExceededError):
        small.perform(endless)
    assert 10 < len(done) < 100
    assert texts(small) == []


def test_a_quota_is_a_positive_number_of_bytes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="quota_bytes"):
        Storage(tmp_path / "a.sqlite", quota_bytes=0)


async def test_a_frozen_gate_commits_what_is_open_and_takes_no_ops_until_it_thaws(
    storage: Storage,
) -> None:
    storage.perform(add(storage, "before"))
    storage.freeze(MigratingError("a", 1.0))
    assert not storage.pending
    with pytest.raises(MigratingError):
        storage.perform(add(storage, "during"))
    with pytest.raises(MigratingError):
        await storage.submit(add(storage, "during"))
    assert texts(storage) == ["before"]
    storage.thaw()
    await storage.submit(add(storage, "after"))
    assert texts(storage) == ["before", "after"]
    storage.freeze(MigratingError("a", 1.0))
