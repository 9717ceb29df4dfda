"""What outlives a seal: a call or a task that goes on while the last of its file is copied."""

import asyncio
import contextlib
from typing import Any

import pytest

from router import migration, relocation
from router.relocation import Relocation
from sessions_actor import hosted
from sessions_actor.conversation import Conversation
from sessions_actor.errors import MigratingError
from sessions_actor.handle import ConversationHandle

from .deployments import Deployment, World, ids, message


class Stubborn(Conversation):
    """Goes on although it was cancelled, and writes when it is told to."""

    begun: asyncio.Event
    go: asyncio.Event
    ended: asyncio.Event

    @classmethod
    def prepare(cls) -> None:
        cls.begun, cls.go, cls.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def write_late(self) -> str:
        self.begun.set()
        try:
            while not self.go.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await self.go.wait()
            await self.session.append_message(message("late"))
        finally:
            self.ended.set()
        return "stored"

    async def write_in_a_task(self) -> None:
        self.kept = asyncio.create_task(self.write_late())


async def migrated(life: Deployment, *, fails: bool = False) -> None:
    """Migrate; what goes on writes at the very end, when everything has been compared."""

    async def copy(*args: Any) -> Any:
        found = await migration.copy(*args)
        Stubborn.go.set()
        await Stubborn.ended.wait()
        if fails:
            raise OSError("the network is gone")
        return found

    life.relocation = Relocation(life.router, copy)
    await life.relocation.migrate("alice")


@pytest.fixture
async def life(world: World, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setattr(hosted, "CANCEL_WAIT_S", 0.1)
    monkeypatch.setattr(relocation, "SEAL_PATIENCE_S", 0.01)
    Stubborn.prepare()
    found = await world.start(object_class=f"{__name__}:Stubborn")
    await found.get("alice").append_message(message("m"))
    return found


@pytest.mark.parametrize("sealed_copy_bytes_max", [0, migration.SEALED_COPY_BYTES_MAX])
@pytest.mark.parametrize("method", ["write_late", "write_in_a_task"])
async def test_what_outlives_a_seal_is_not_acknowledged(
    life: Deployment, monkeypatch: pytest.MonkeyPatch, method: str, sealed_copy_bytes_max: int
) -> None:
    monkeypatch.setattr(migration, "SEALED_COPY_BYTES_MAX", sealed_copy_bytes_max)
    source = life.owner("alice").target._hosted
    assert source is not None
    call = asyncio.ensure_future(ConversationHandle("alice", life).call(method))
    await Stubborn.begun.wait()
    await migrated(life)
    if method == "write_late":
        with pytest.raises(MigratingError):
            await call
    else:
        await call
        with pytest.raises(MigratingError):
            await source.host.kept  # type: ignore[attr-defined]
    assert await ids(life.get("alice")) == ["m"]
    assert (await life.get("alice").append_message(message("n"))).inserted


async def test_a_source_whose_move_was_given_up_writes_again(life: Deployment) -> None:
    call = asyncio.ensure_future(ConversationHandle("alice", life).call("write_late"))
    await Stubborn.begun.wait()
    with pytest.raises(Exception, match="the network is gone"):
        await migrated(life, fails=True)
    with pytest.raises(MigratingError):
        await call
    assert (await life.get("alice").append_message(message("n"))).inserted
    assert await ids(life.get("alice")) == ["m", "n"]
    assert await ConversationHandle("alice", life).call("write_late") == "stored"


async def test_a_source_that_was_left_frozen_writes_at_its_end(life: Deployment) -> None:
    """A router that died in a migration is followed by one that has the source let go."""
    target = life.owner("alice").target
    await target.seal("alice", 1, 0.0)
    host = target._hosted.host

    dispose = host.sessions.on_dispose

    async def on_dispose() -> None:
        await host.storage.put("last", 1)
        await dispose()

    host.sessions.on_dispose = on_dispose
    await life.administration.hibernate("alice")
    assert await ids(life.get("alice")) == ["m"]
    assert await life.owner("alice").target._hosted.storage.get("last") == 1
