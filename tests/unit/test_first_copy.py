"""The first copy of a large file: it goes on while calls are told to come again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.directory import Owner
from router.entries import COPY_PENDING
from router.replicated_directory import ReplicatedDirectory
from router.spent import Keep
from sessions_actor import replica, wire
from sessions_actor.actor import ActivationSpec, ConversationActor, Refusal
from sessions_actor.errors import ReplicaUnavailableError
from sessions_actor.hosted import Ended
from sessions_actor.replica import Durability, ReplicaSpec, socket_path
from sessions_actor.storage import Storage

from .fake_cluster import standing_lease, until
from .test_actor import append, spec
from .test_replica import Daemon

TIMEOUT_S = 0.2


@pytest.fixture(autouse=True)
def slow_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of any size may take long."""
    monkeypatch.setattr(replica, "FIRST_COPY_BYTES_PER_S", 1)


class Slow(Daemon):
    """Copies for as long as it is not told to be done; a request that is given up begins anew."""

    def __init__(self) -> None:
        super().__init__((3, 3))
        self.done = asyncio.Event()

    async def _until_ready(self, target: str) -> None:
        if target == "/sync":
            await self.done.wait()


class Broken(Daemon):
    """Ends each connection that asks for a sync."""

    def __init__(self) -> None:
        super().__init__((3, 3))

    async def _until_ready(self, target: str) -> None:
        if target == "/sync":
            raise ConnectionResetError


class FailsOnce(Slow):
    """Reads what it is asked to first, ends the connection at the whole copy, then is slow."""

    async def _until_ready(self, target: str) -> None:
        if target == "/sync" and self.asked.count("/sync") in (2, 3):  # a kept one is tried twice
            raise ConnectionResetError
        if self.asked.count("/sync") > 3:
            await super()._until_ready(target)


def replicated(*, is_new: bool) -> ActivationSpec:
    kept = ReplicaSpec("file:///far", Durability.REPLICATED, TIMEOUT_S, is_new=is_new)
    return replace(spec("alice", 1), replica=kept)


@asynccontextmanager
async def actor_beside(root: Path, daemon: Daemon) -> AsyncIterator[ConversationActor]:
    async with daemon.listening(Path(socket_path(root))):
        yield ConversationActor(str(root), standing_lease)


async def outcome(actor: ConversationActor, message_id: str) -> Any:
    """Append a message and wait for what comes of it."""
    answer = await append(actor, "alice", 1, message_id)
    while answer.tag == wire.WAITING:
        later = await actor.collect("alice", 1, answer.data.decode(), 1.0)
        (answer,) = wire.unpack_reply(later)
    return answer


async def test_a_copy_that_takes_long_is_made_once_and_nothing_is_acknowledged_before(
    tmp_path: Path,
) -> None:
    daemon = Slow()
    async with actor_beside(tmp_path, daemon) as actor:
        assert await actor.activate(replicated(is_new=True)) == 0, "nothing is complete yet"
        for number in range(3):
            error = wire.load_error((await outcome(actor, f"m{number}")).data)
            assert isinstance(error, ReplicaUnavailableError)
            assert "first copy" in str(error)
        assert daemon.asked.count("/sync") == 1
        daemon.done.set()
        assert (await outcome(actor, "m3")).tag == wire.OK
        assert (await outcome(actor, "m0")).tag == wire.OK
        assert daemon.asked.count("/unregister") == 1
        found = await actor.hibernate("alice", 1)
        assert isinstance(found, Ended)
        assert (found.position, found.behind) == (3, False)


async def test_idleness_does_not_cut_it_short(
    tmp_path: Path,
) -> None:
    daemon = Slow()
    async with actor_beside(tmp_path, daemon) as actor:
        await actor.activate(replicated(is_new=True))
        wanted = {"idle_s": 0.0, "resident_s": 0.0}
        assert await actor.hibernate("alice", 1, **wanted) == Refusal(0.0)
        daemon.done.set()
        hosted = actor._hosted
        assert hosted is not None
        assert hosted.replica is not None
        await until(lambda: not hosted.replica.is_copying)
        assert isinstance(await actor.hibernate("alice", 1, **wanted), Ended)


async def test_somebody_who_asks_for_that_cuts_it_short(tmp_path: Path) -> None:
    async with actor_beside(tmp_path, Slow()) as actor:
        await actor.activate(replicated(is_new=True))
        found = await actor.hibernate("alice", 1)
        assert isinstance(found, Ended)
        assert found.behind


@pytest.mark.parametrize(("daemon", "is_new"), [(Slow, False), (Broken, True), (Broken, False)])
async def test_without_a_copy_under_way_a_start_fails_as_ever(
    tmp_path: Path, daemon: type[Daemon], is_new: bool
) -> None:
    async with actor_beside(tmp_path, daemon()) as actor:
        with pytest.raises(ReplicaUnavailableError):
            await actor.activate(replicated(is_new=is_new))
        assert actor._hosted is None


async def test_a_directory_is_copied_for_as_long_as_that_takes_before_it_is_used(
    tmp_path: Path,
) -> None:
    daemon = Slow()
    async with daemon.listening(tmp_path / "s"):
        kept = ReplicaSpec("file:///far", Durability.REPLICATED, TIMEOUT_S, str(tmp_path / "s"))
        directory = ReplicatedDirectory(tmp_path)
        directory.replicate(replace(kept, is_new=True), 1, Keep(0, 0), COPY_PENDING)
        await directory.skip_ahead(epoch=5)
        settling = asyncio.create_task(directory.settled())
        await asyncio.sleep(20 * TIMEOUT_S)
        assert not settling.done()
        daemon.done.set()
        await settling
        directory.hold_back()
        assert daemon.asked.count("/sync") == 1
        assert await directory.create("alice", Owner("node", "actor", "disk")) is not None
        assert daemon.asked.count("/sync") > 1, "it waits for its replica from now on"
        directory.close()


async def test_a_store_that_hangs_is_asked_again_in_time_for_its_size(tmp_path: Path) -> None:
    daemon = Slow()
    async with daemon.listening(tmp_path / "s"):
        kept = ReplicaSpec("file:///far", Durability.REPLICATED, TIMEOUT_S, str(tmp_path / "s"))
        (tmp_path / "small").write_bytes(b"x")
        (tmp_path / "small-wal").write_bytes(b"x")
        copied = replica.Replica(str(tmp_path / "small"), replace(kept, is_new=True))
        began = asyncio.get_running_loop().time()
        with pytest.raises(ReplicaUnavailableError, match="silent"):
            await copied.sync()
        assert asyncio.get_running_loop().time() - began < 10.0
        assert daemon.asked.count("/sync") == 1, "who waited in vain does not ask twice"
        copied.abandon()


async def test_a_whole_copy_that_failed_once_has_the_same_time_again(tmp_path: Path) -> None:
    """A log that was cut back makes the daemon copy the file anew, though its line is complete."""
    daemon = FailsOnce()
    async with daemon.listening(tmp_path / "s"):
        path = tmp_path / "large.sqlite"
        storage = Storage(path, quota_bytes=10_000_000)
        storage.meta.put({"name": "alice"})
        storage.flush()
        kept = ReplicaSpec("file:///far", Durability.REPLICATED, TIMEOUT_S, str(tmp_path / "s"))
        copied = replica.Replica(str(path), replace(kept, is_stale=True))
        copied.start(storage)
        with pytest.raises(ReplicaUnavailableError):
            await copied.sync()
        again = asyncio.create_task(copied.sync())
        await asyncio.sleep(20 * TIMEOUT_S)
        assert not again.done()
        assert copied.is_copying
        daemon.done.set()
        await again
        assert not copied.is_copying
        assert daemon.asked.count("/sync") == 4, "the second copy was not given up"
        copied.abandon()
        storage.close()


async def test_whoever_has_let_go_asks_nothing_any_more(tmp_path: Path) -> None:
    """A copy that is under way at the end of its owner must not go on in its name."""
    daemon = Slow()
    async with actor_beside(tmp_path, daemon) as actor:
        await actor.activate(replicated(is_new=True))
        waits = asyncio.create_task(outcome(actor, "m0"))
        await until(lambda: daemon.asked.count("/sync") == 1)
        found = await actor.hibernate("alice", 1)
        assert isinstance(found, Ended)
        asked = list(daemon.asked)
        await asyncio.sleep(100.0)
        assert daemon.asked == asked
        await asyncio.gather(waits, return_exceptions=True)
