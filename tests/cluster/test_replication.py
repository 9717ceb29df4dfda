"""Replicas of a deployment on a real cluster: restores, backups, and a directory made again.

Nodes that are lost with their disks under load are in `tests/fault/test_losses.py`.
"""

import asyncio
import hashlib
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import ray

from router.replication.paths import conversation_key
from router.shards import ROUTER_NAME
from sessions_actor import open_object
from sessions_actor.conversation import Conversation
from sessions_actor.errors import ConversationNotFoundError, StorageError
from tests.replication.stores import skip_without_engine

from .conftest import Deploy, message, until
from .test_crash import Writer

LEASE_S = 3.0

EnterReplicated = Callable[..., Any]


@pytest.fixture(autouse=True)
def engine() -> None:
    skip_without_engine()


@pytest.fixture
def replicated(deploy: Deploy, tmp_path: Path) -> EnterReplicated:
    """Enter a deployment whose replicas lie in a folder beside its own."""

    (tmp_path / "far").mkdir()

    def enter(**settings: Any) -> Any:
        return deploy(
            **(
                {
                    "durability": "replicated",
                    "replica_url": f"file://{tmp_path}/far",
                    "lease_ttl_s": LEASE_S,
                }
                | settings
            )
        )

    return enter


def remove(folder: Path) -> None:
    """Delete a folder, also while processes that are ending still write to it."""
    deadline = time.monotonic() + 30
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        assert time.monotonic() < deadline


@asynccontextmanager
async def writing(client: Any, names: list[str]) -> AsyncIterator[dict[str, Writer]]:
    writers = {name: Pausing(client.get(name).session()) for name in names}
    try:
        yield writers
    finally:
        for writer in writers.values():
            writer.task.cancel()


class Pausing(Writer):
    """A writer between whose appends there is a moment at which a file is compared."""

    async def _run(self) -> None:
        while not self._stop:
            name = f"{self._prefix}{len(self.acknowledged)}"
            await self._session.append_message(message(name))
            self.acknowledged.append(name)
            await asyncio.sleep(0.02)


async def stored(client: Any, name: str) -> list[str]:
    return [m["id"] async for m in client.get(name).session().history()]


def router_of(client: Any) -> Any:
    return ray.get_actor(ROUTER_NAME, client._namespace)


async def test_a_directory_without_any_replica_is_made_again_from_the_conversations(
    replicated: EnterReplicated, tmp_path: Path
) -> None:
    async with replicated() as client:
        for number in range(4):
            await client.get(f"c{number}").session().append_message(message(f"m{number}"))
        await client.set_quota("c1", 5_000_000)
        await client.delete("c3")
        await router_of(client).shut_down.remote()
        remove(tmp_path / "data")
        namespace = next(iter((tmp_path / "far").iterdir()))
        shutil.rmtree(namespace / "directory")
        # One without a record: it is opened to tell its name.
        next((namespace / conversation_key("c0")).glob("*.json")).unlink()
        names = await client.list()
        assert names == ["c0", "c1", "c2"]
        for number in range(3):
            assert await stored(client, f"c{number}") == [f"m{number}"]


async def test_an_unusable_replica_url_is_told_at_the_start(deploy: Deploy, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="replicas cannot be written"):
        async with deploy(durability="async", replica_url=f"file://{tmp_path}/file/far"):
            pass


async def test_a_conversation_is_restored_beside_and_in_place(
    replicated: EnterReplicated,
) -> None:
    async with replicated() as client:
        session = client.get("alice").session()
        moments = []
        for number in range(4):
            await session.append_message(message(f"m{number}"))
            moments.append(datetime.now(UTC))
            await asyncio.sleep(0.05)
        points = await client.restore_points("alice")
        assert points
        beside = await client.restore("alice", at=moments[1], to="alice then")
        assert (beside.name, beside.source, beside.kept_as) == ("alice then", "alice", None)
        assert await stored(client, "alice then") == ["m0", "m1"]
        await client.get("alice then").session().append_message(message("another"))
        assert await stored(client, "alice") == ["m0", "m1", "m2", "m3"]
        with pytest.raises(ValueError, match="exists already"):
            await client.restore("alice", to="alice then")
        in_place = await client.restore("alice", at=moments[0], in_place=True)
        assert in_place.kept_as is not None
        assert await stored(client, "alice") == ["m0"]
        assert await stored(client, in_place.kept_as) == ["m0", "m1", "m2", "m3"]
        # What came before the restore in place can still be restored, and so can it.
        await session.append_message(message("after"))
        assert (await client.restore("alice", at=moments[2], to="x")).name == "x"
        assert await stored(client, "x") == ["m0", "m1", "m2"]
        assert await stored(client, "alice") == ["m0", "after"]
        for name in await client.list():
            assert await client.get(name).verify() == []


async def test_a_deleted_conversation_comes_back_within_its_grace_and_not_after(
    replicated: EnterReplicated, tmp_path: Path
) -> None:
    async with replicated(replica_delete_grace_s=0.0) as client:
        await client.get("short").session().append_message(message("m0"))
        lines = list((tmp_path / "far").glob("*/conversations/*/*/*"))
        assert lines
        await client.delete("short")
        await until(lambda: not any(line.exists() for line in lines), "its replica is removed", 60)
        with pytest.raises(ConversationNotFoundError):
            await client.restore("short")


async def test_backups_are_whole_and_replicas_equal_while_writers_go_on(
    replicated: EnterReplicated, tmp_path: Path
) -> None:
    async with replicated() as client:
        names = [f"conversation-{number}" for number in range(4)]
        for name in names:
            await client.get(name).session().append_messages([message(f"m{i}") for i in range(50)])
        async with writing(client, names[:2]) as writers:
            await asyncio.gather(*(writer.came_to(5) for writer in writers.values()))
            before = {name: await stored(client, name) for name in names}
            report = await client.back_up(tmp_path / "backup")
            found = await asyncio.gather(*(client.verify_replica(name) for name in names))
            assert found == [[]] * 4
            for writer in writers.values():
                await writer.stop()
        assert (report.conversations, report.failed) == (4, {})
        lines = [json.loads(line) for line in (tmp_path / "backup/backup.jsonl").open()]
        assert [line["name"] for line in lines] == names
        for line in lines:
            path = tmp_path / "backup" / line["file"]
            assert hashlib.sha256(path.read_bytes()).hexdigest() == line["sha256"]
            async with open_object(Conversation, name=line["name"], path=path) as opened:
                assert opened.storage.check() == []
                copied = [m["id"] async for m in opened.session.history()]
                now = await stored(client, line["name"])
                assert copied == now[: len(copied)]
                assert len(copied) >= len(before[line["name"]])


async def test_a_replica_that_differs_is_told(replicated: EnterReplicated, tmp_path: Path) -> None:
    async with replicated() as client:
        await client.get("alice").session().append_message(message("m0"))
        assert await client.verify_replica("alice") == []
        for file in (tmp_path / "far").glob("*/conversations/*/*/*/ltx/0/*.ltx"):
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 0xFF
            file.write_bytes(data)
        with pytest.raises(StorageError):
            await client.verify_replica("alice")


async def test_without_replicas_it_is_said_so(deploy: Deploy) -> None:
    async with deploy() as client:
        await client.get("alice").session().append_message(message("m0"))
        with pytest.raises(RuntimeError, match="durability"):
            await client.restore("alice")
        with pytest.raises(RuntimeError, match="durability"):
            await client.verify_replica("alice")


async def test_a_file_that_was_removed_comes_back(
    replicated: EnterReplicated, tmp_path: Path
) -> None:
    async with replicated() as client:
        session = client.get("alice").session()
        await session.append_messages([message("m0"), message("m1")])
        await client.hibernate("alice")
        files = (tmp_path / "data").glob("conversations/*/*.sqlite*")
        for file in filter(Path.is_file, files):
            file.unlink()
        assert await stored(client, "alice") == ["m0", "m1"]
        await session.append_message(message("m2"))
        assert await client.verify_replica("alice") == []
