"""Replicas in an S3-compatible store that fails: delays and retryable errors, never a gap."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from router import Settings
from router.replication.daemon import Daemon
from router.replication.objects import S3Objects, open_objects
from router.replication.paths import ReplicaUrl, conversation_key, line_key
from router.replication.replicas import Record, Replicas
from router.replication.restore import check_restored, restore
from sessions_actor import open_object
from sessions_actor.conversation import Conversation
from sessions_actor.errors import ReplicaUnavailableError, StorageError
from sessions_actor.open_object import Activation
from sessions_actor.replica import Durability, ReplicaSpec, socket_path
from tests.cluster.conftest import message

from .deployments import TERMS, running, set_patience
from .stores import BUCKET, KEY_VARIABLES, s3_server, s3_url


class Relay:
    """A way to the store that can be cut, and that can break now and then."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open: set[asyncio.StreamWriter] = set()
        self.is_cut = False
        self.chance: random.Random | None = None
        self.broken = 0
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Relay"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()

    def cut(self) -> None:
        """Drop every connection, and each that comes."""
        self.is_cut = True
        for writer in list(self._open):
            writer.transport.abort()

    def mend(self) -> None:
        """Let everything through again."""
        self.is_cut = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        if self._breaks():
            writer.write(
                b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._open |= {writer, far_writer}
        try:
            await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))
        finally:
            self._open -= {writer, far_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if self._breaks():
                    writer.transport.abort()
                    break
                writer.write(data)
                await writer.drain()
        writer.close()

    def _breaks(self) -> bool:
        breaks = self.chance is not None and self.chance.random() < 0.05
        self.broken += breaks
        return breaks


@pytest.fixture(scope="module")
def store() -> Iterator[int]:
    """A local S3 server; returns its port."""
    with s3_server() as port:
        yield port


@pytest.fixture
async def relay(store: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Relay]:
    for name in KEY_VARIABLES:
        monkeypatch.setenv(name, "testing")
    async with Relay(store).serving() as opened:
        yield opened


def url_of(relay: Relay, path: str) -> str:
    return s3_url(relay.port, path)


@asynccontextmanager
async def conversation(
    relay: Relay, root: Path, *, timeout_s: float = 20.0
) -> AsyncIterator[tuple[Activation[Conversation], str]]:
    """A replicated conversation with its daemon: it, and its replica's URL."""
    url = url_of(relay, f"deep/{root.name}/alice")
    spec = ReplicaSpec(url, Durability.REPLICATED, timeout_s, socket_path(root))
    async with running(Daemon(root, TERMS)):
        alice = Activation(
            Conversation, name="alice", path=root / "a.sqlite", epoch=1, replica=spec
        )
        await alice.start()
        yield alice, url
        relay.chance = None
        relay.mend()
        await alice.close()


async def texts(url: str, target: Path, at: datetime | None = None) -> list[str]:
    check_restored(await restore(url, target, at=at), "alice", 1)
    async with open_object(Conversation, name="alice", path=target) as alice:
        return [m["id"] async for m in alice.session.history()]


class Caller:
    """Appends one message after another, each again until it is acknowledged."""

    def __init__(self, alice: Activation[Conversation]) -> None:
        self._session = alice.host.session
        self.acknowledged: list[str] = []
        self.refused = 0

    async def run(self, seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while clock() < deadline:
            one = f"m{len(self.acknowledged)}"
            try:
                await self._session.append_message(message(one))
            except ReplicaUnavailableError:
                self.refused += 1
            else:
                self.acknowledged.append(one)
            await asyncio.sleep(0.01)


async def outage(relay: Relay, seconds: float) -> None:
    await asyncio.sleep(0.5)
    relay.cut()
    await asyncio.sleep(seconds)
    relay.mend()


async def test_what_was_acknowledged_is_in_the_store(relay: Relay, tmp_path: Path) -> None:
    async with conversation(relay, tmp_path) as (alice, url):
        caller = Caller(alice)
        await caller.run(1.0)
        moment = datetime.now(UTC)
        then = list(caller.acknowledged)
        await asyncio.sleep(0.05)
        await caller.run(0.5)
        assert await texts(url, tmp_path / "now.sqlite") == caller.acknowledged
        assert await texts(url, tmp_path / "then.sqlite", moment) == then


async def test_a_short_outage_is_a_delay(relay: Relay, tmp_path: Path) -> None:
    async with conversation(relay, tmp_path) as (alice, url):
        caller = Caller(alice)
        await asyncio.gather(caller.run(4.0), outage(relay, 2.0))
        await caller.run(0.5)
        while len(caller.acknowledged) <= 2:
            await caller.run(0.5)
        assert caller.refused == 0
        assert await texts(url, tmp_path / "x.sqlite") == caller.acknowledged


async def test_an_outage_beyond_patience_refuses_and_loses_nothing(
    relay: Relay, tmp_path: Path
) -> None:
    async with conversation(relay, tmp_path) as (alice, url):
        set_patience(alice, 0.5)
        caller = Caller(alice)
        await asyncio.gather(caller.run(5.0), outage(relay, 2.0))
        assert caller.refused > 0
        reached = len(caller.acknowledged)
        while len(caller.acknowledged) == reached:
            await caller.run(0.5)
        assert await texts(url, tmp_path / "x.sqlite") == caller.acknowledged


async def test_a_minute_without_the_store(relay: Relay, tmp_path: Path, long_run: bool) -> None:
    if not long_run:
        pytest.skip("a minute's outage: --long")
    async with conversation(relay, tmp_path, timeout_s=10.0) as (alice, url):
        caller = Caller(alice)
        await asyncio.gather(caller.run(75.0), outage(relay, 60.0))
        assert caller.refused > 0
        assert await texts(url, tmp_path / "x.sqlite") == caller.acknowledged


async def test_errors_now_and_then_lose_nothing(relay: Relay, tmp_path: Path) -> None:
    async with conversation(relay, tmp_path) as (alice, url):
        relay.chance = random.Random(7)
        caller = Caller(alice)
        await caller.run(6.0)
        assert relay.broken > 0
        relay.chance = None
        await caller.run(0.5)
        assert await texts(url, tmp_path / "x.sqlite") == caller.acknowledged


async def test_objects_are_written_listed_and_removed(relay: Relay) -> None:
    objects = open_objects(ReplicaUrl.parse(url_of(relay, "objects")))

    def use() -> None:
        for key in ("a/1", "a/2/x", "a/2/y", "b"):
            objects.put(key, key.encode())
        assert objects.names("a") == ["1", "2/"]
        assert objects.get("a/2/x") == b"a/2/x"
        assert objects.get("a/none") is None
        objects.remove("a/2/")
        objects.remove("none")
        assert objects.names("a") == ["1"]
        assert objects.names("nothing") == []

    await asyncio.to_thread(use)


async def test_objects_that_the_store_does_not_remove_are_an_error(relay: Relay) -> None:
    """Its answer to a removal of many is a success, with what failed in it."""
    objects = open_objects(ReplicaUrl.parse(url_of(relay, "kept")))
    assert isinstance(objects, S3Objects)

    def miss(params: dict[str, Any], **_: Any) -> None:
        for one in params["Delete"]["Objects"]:
            one["Key"] = one["Key"].replace("kept", "elsewhere")

    def answer(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Errors"] = [{"Key": "kept/a/1", "Code": "AccessDenied", "Message": "Access Denied"}]

    def use() -> None:
        objects.put("a/1", b"1")
        events = objects._s3.meta.events
        events.register("provide-client-params.s3.DeleteObjects", miss)
        events.register("after-call.s3.DeleteObjects", answer)
        with pytest.raises(OSError, match="Access Denied"):
            objects.remove("a/")
        assert objects.names("a") == ["1"]

    await asyncio.to_thread(use)


async def test_a_store_that_cannot_be_used_is_told_at_the_start(
    relay: Relay, tmp_path: Path
) -> None:
    def replicas(url: str) -> Replicas:
        settings = Settings(
            storage_root=tmp_path,
            durability=Durability.REPLICATED,
            replica_url=url,
        )
        found = Replicas.open(settings, "sessions")
        assert found is not None
        return found

    await replicas(url_of(relay, "fine")).check()
    no_bucket = url_of(relay, "x").replace(BUCKET, "no-such-bucket")
    with pytest.raises(StorageError, match="cannot be written"):
        await replicas(no_bucket).check()


@pytest.mark.parametrize("namespace", ["sessions", "team a:1/b+c~é"])
@pytest.mark.parametrize("scheme", ["s3", "file"])
async def test_records_and_lines_are_found_and_removed(
    relay: Relay, tmp_path: Path, scheme: str, namespace: str
) -> None:
    """The engine and this package mean the same place, whatever characters lead there."""
    path = f"far/{tmp_path.name}/a-b.c_d~e+f=g@h,i:j"
    (tmp_path / path).mkdir(parents=True)
    url = url_of(relay, path) if scheme == "s3" else f"file://{tmp_path}/{path}"
    settings = Settings(storage_root=tmp_path, durability=Durability.REPLICATED, replica_url=url)
    replicas = Replicas(settings, namespace)
    async with running(Daemon(tmp_path, TERMS)):
        for generation in (3, 8):
            alice = Activation(
                Conversation,
                name="alice",
                path=tmp_path / f"{generation}.sqlite",
                epoch=generation,
                replica=ReplicaSpec(
                    replicas.url("alice", generation),
                    Durability.REPLICATED,
                    20.0,
                    socket_path(tmp_path),
                ),
            )
            await alice.start()
            await alice.close()
            await replicas.note(Record("alice", generation, generation, 5, None))
    found = [(g, record) async for _, g, record in replicas.records()]
    assert [g for g, _ in found] == [3, 8]
    assert all(record is not None and record.name == "alice" for _, record in found)
    assert [line.generation for line in await replicas.lines("alice")] == [3, 8]
    await replicas.remove("alice", 3)
    left = await asyncio.to_thread(replicas.objects.names, conversation_key("alice"))
    assert left == ["0000000000000008.json", "0000000000000008/"]
    assert [line.generation for line in await replicas.lines("alice")] == [8]
    assert [g async for _, g, _ in replicas.records()] == [8]
    # A removal that is cut short between a line and its record is finished by the next.
    await asyncio.to_thread(replicas.objects.remove, line_key("alice", 8) + "/")
    await replicas.remove("alice", 8)
    assert await asyncio.to_thread(replicas.objects.names, conversation_key("alice")) == []
