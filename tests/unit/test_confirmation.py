"""Writes that wait for a replica: groups share confirmations, failures break nothing."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from sessions_actor.confirmation import Confirmation
from sessions_actor.errors import (
    OutputGateBrokenError,
    ReplicaUnavailableError,
    StaleEpochError,
)
from sessions_actor.storage import Storage


class FakeReplica:
    """Has, after each confirmation, what was committed before it began; answers when told to."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.rows: list[str] = []
        self.confirmations = 0
        self.error: Exception | None = None
        self._open = asyncio.Event()
        self._open.set()
        self.asked = asyncio.Event()

    def hold(self) -> None:
        """Leave confirmations unanswered from now on."""
        self._open.clear()

    def answer(self) -> None:
        """Answer those under way and to come."""
        self._open.set()

    async def confirm(self) -> None:
        seen = rows_of(self._storage)
        self.asked.set()
        await self._open.wait()
        if self.error is not None:
            raise self.error
        self.confirmations += 1
        self.rows = seen


def rows_of(storage: Storage) -> list[str]:
    return [row[0] for row in storage.fetch("SELECT text FROM notes ORDER BY id")]


async def add(storage: Storage, text: str) -> str:
    def op() -> str:
        storage.write("INSERT INTO notes (text) VALUES (?)", (text,))
        return text

    return await storage.submit(op)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    opened = Storage(tmp_path / "a.sqlite")
    opened.sql.exec("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT UNIQUE)")
    opened.flush()
    yield opened
    opened.close()


def attach(storage: Storage, timeout_s: float = 30.0) -> FakeReplica:
    replica = FakeReplica(storage)
    storage.replicate(Confirmation(replica.confirm, timeout_s))
    return replica


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_write_returns_once_the_replica_has_it(storage: Storage) -> None:
    replica = attach(storage)
    await add(storage, "a")
    assert replica.rows == ["a"]
    await add(storage, "b")
    assert replica.rows == ["a", "b"]


async def test_a_write_waits_while_the_replica_does(storage: Storage) -> None:
    replica = attach(storage)
    replica.hold()
    write = asyncio.create_task(add(storage, "a"))
    await replica.asked.wait()
    await turns()
    assert not write.done()
    assert rows_of(storage) == ["a"]
    replica.answer()
    assert await write == "a"


async def test_groups_committed_during_a_confirmation_share_the_next(storage: Storage) -> None:
    replica = attach(storage)
    replica.hold()
    first = asyncio.create_task(add(storage, "0"))
    await replica.asked.wait()
    later = []
    for number in range(1, 30):
        later.append(asyncio.create_task(add(storage, str(number))))
        await turns(3)
    replica.answer()
    await asyncio.gather(first, *later)
    assert replica.rows == [str(number) for number in range(30)]
    assert replica.confirmations == 2


async def test_what_a_confirmation_began_before_does_not_count_for_it(storage: Storage) -> None:
    replica = attach(storage)
    replica.hold()
    first = asyncio.create_task(add(storage, "a"))
    await replica.asked.wait()
    replica.asked.clear()
    second = asyncio.create_task(add(storage, "b"))
    await turns()
    replica.answer()
    await first
    await second
    assert replica.rows == ["a", "b"]


async def test_a_reader_of_unconfirmed_data_waits_as_its_writer_does(storage: Storage) -> None:
    replica = attach(storage)
    await storage.durable()
    replica.hold()
    replica.asked.clear()
    write = asyncio.create_task(add(storage, "a"))
    await replica.asked.wait()
    assert rows_of(storage) == ["a"]
    read = asyncio.create_task(storage.durable())
    await turns()
    assert not read.done()
    replica.answer()
    await asyncio.gather(write, read)


async def test_what_was_there_before_is_confirmed_before_anyone_is_told(storage: Storage) -> None:
    storage.sql.exec("INSERT INTO notes (text) VALUES ('old')")
    replica = attach(storage)
    await storage.durable()
    assert replica.rows == ["old"]
    await storage.durable()
    assert replica.confirmations == 1


async def test_an_outage_fails_the_waiting_writes_and_breaks_nothing(storage: Storage) -> None:
    replica = attach(storage, timeout_s=0.05)
    replica.error = ConnectionRefusedError("refused")
    with pytest.raises(ReplicaUnavailableError, match="refused") as caught:
        await add(storage, "a")
    assert caught.value.retryable
    assert storage.broken is None
    # A reader is not shown what may be lost with the disk.
    with pytest.raises(ReplicaUnavailableError):
        await storage.durable()
    replica.error = None
    await storage.durable()
    await add(storage, "b")
    assert replica.rows == ["a", "b"], "what was committed during the outage is not left out"


async def test_what_is_confirmed_late_is_told_of_once(storage: Storage) -> None:
    replica = FakeReplica(storage)
    confirmation = Confirmation(replica.confirm, 0.05)
    late: list[list[str]] = []
    confirmation.on_late = lambda: late.append(list(replica.rows))
    storage.replicate(confirmation)
    await add(storage, "a")
    replica.error = ConnectionRefusedError("refused")
    for text in ("b", "c"):
        with pytest.raises(ReplicaUnavailableError):
            await add(storage, text)
    assert late == []
    replica.error = None
    await add(storage, "d")
    await add(storage, "e")
    assert late == [["a", "b", "c", "d"]]


async def test_a_silent_replica_is_waited_for_as_long_as_set(storage: Storage) -> None:
    replica = attach(storage, timeout_s=0.05)
    replica.hold()
    with pytest.raises(ReplicaUnavailableError) as caught:
        await add(storage, "a")
    assert caught.value.waited_s == 0.05
    # The confirmation under way counts when it comes.
    replica.answer()
    await add(storage, "b")
    assert replica.rows == ["a", "b"]


async def test_a_short_outage_is_only_a_delay(storage: Storage) -> None:
    replica = attach(storage)
    replica.error = ConnectionRefusedError("refused")
    write = asyncio.create_task(add(storage, "a"))
    await replica.asked.wait()
    await turns()
    replica.error = None
    assert await write == "a"
    assert replica.rows == ["a"]


async def test_each_waits_its_own_time(storage: Storage) -> None:
    replica = attach(storage, timeout_s=0.2)
    replica.hold()
    clock = asyncio.get_running_loop().time
    began = clock()
    first = asyncio.create_task(add(storage, "a"))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(add(storage, "b"))
    with pytest.raises(ReplicaUnavailableError):
        await first
    assert not second.done(), "who came later has not waited long enough"
    with pytest.raises(ReplicaUnavailableError):
        await second
    assert clock() - began >= 0.3 - 0.02


async def test_a_cancelled_write_holds_up_nobody(storage: Storage) -> None:
    replica = attach(storage)
    replica.hold()
    first = asyncio.create_task(add(storage, "a"))
    await replica.asked.wait()
    first.cancel()
    replica.answer()
    await add(storage, "b")
    assert replica.rows == ["a", "b"]


async def test_a_gate_that_breaks_tells_those_who_wait_for_the_replica(storage: Storage) -> None:
    replica = attach(storage)
    storage.meta.put({"epoch": 1})
    await storage.durable()
    storage.fence(1)
    replica.hold()
    replica.asked.clear()
    write = asyncio.create_task(add(storage, "a"))
    await replica.asked.wait()
    storage.meta.put({"epoch": 2})
    storage.flush()
    with pytest.raises(StaleEpochError):
        await add(storage, "b")
    with pytest.raises((StaleEpochError, OutputGateBrokenError)):
        await write


def test_without_a_loop_writes_are_confirmed_by_whoever_waits_next(storage: Storage) -> None:
    async def wait() -> list[str]:
        await storage.durable()
        return replica.rows

    async def make() -> FakeReplica:
        return attach(storage)

    replica = asyncio.run(make())
    storage.sql.exec("INSERT INTO notes (text) VALUES ('a')")
    assert asyncio.run(wait()) == ["a"]


async def test_the_log_stays_for_the_engine_when_a_replicated_file_closes(tmp_path: Path) -> None:
    path = tmp_path / "b.sqlite"
    storage = Storage(path)
    replica = FakeReplica(storage)
    storage.sql.exec("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)")
    storage.replicate(Confirmation(replica.confirm, 1.0))
    await add(storage, "x" * 1_000_000)
    storage.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    await add(storage, "a")
    storage.close()
    log = tmp_path / "b.sqlite-wal"
    assert 0 < log.stat().st_size < path.stat().st_size
    again = Storage(path)
    assert rows_of(again)[1:] == ["a"]
    again.close()
    assert not log.exists()


@pytest.mark.parametrize("copied", [True, False])
async def test_a_log_that_outgrew_its_file_is_folded_at_its_end_once_all_of_it_is_copied(
    tmp_path: Path, copied: bool
) -> None:
    path = tmp_path / "b.sqlite"
    storage = Storage(path)
    replica = FakeReplica(storage)
    storage.sql.exec("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)")
    storage.replicate(Confirmation(replica.confirm, 1.0))
    for number in range(20):
        await add(storage, str(number))
    if copied:
        storage.copied()
    storage.close()
    assert (tmp_path / "b.sqlite-wal").exists() is not copied


async def test_nothing_waits_for_a_confirmation_that_has_ended(storage: Storage) -> None:
    confirmation = Confirmation(FakeReplica(storage).confirm, 1000.0)
    storage.replicate(confirmation)
    waits = asyncio.create_task(storage.durable())
    await asyncio.sleep(0)
    confirmation.end(ReplicaUnavailableError("it is over", 0.0))
    with pytest.raises(ReplicaUnavailableError, match="over"):
        await asyncio.wait_for(add(storage, "late"), 10)
    with pytest.raises(ReplicaUnavailableError, match="over"):
        await asyncio.wait_for(storage.durable(), 10)
    await asyncio.gather(waits, return_exceptions=True)
