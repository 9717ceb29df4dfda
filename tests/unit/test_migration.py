"""The copy of a migration, between two files of this process: sealed, and while it is written."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest

from router import migration
from sessions_actor import MigrationFailedError, Storage, open_object
from sessions_actor.transfer import digests
from tests.unit.test_transfer import Conversation, fill, text


class Local:
    """An end of a copy whose actor is this process."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.kept: dict = {}
        self.transfer = SimpleNamespace(remote=self.remote, options=lambda **_: self.split)
        self.split = SimpleNamespace(remote=self.remote_split)

    def remote(self, name, epoch, step, *args):
        return asyncio.ensure_future(self._run(step, args))

    async def _run(self, step, args):
        args = [await a if isinstance(a, asyncio.Future) else a for a in args]
        return await step(self, *args)

    def remote_split(self, name, epoch, step, *args):
        both = self.remote(name, epoch, step, *args)

        async def part(index):
            return (await both)[index]

        return asyncio.ensure_future(part(0)), asyncio.ensure_future(part(1))


async def write_at_random(alice: Conversation, dice: random.Random) -> None:
    """One change somewhere in the conversation."""
    session, sql = alice.sessions.session(), alice.storage.sql
    n = dice.randrange(1100)
    match dice.randrange(9):
        case 0:
            await session.append_message(text(f"new{dice.randrange(10**9)}"))
        case 1:
            await session.update_message(text(f"m{n}", f"changed {dice.random()}"))
        case 2:
            await session.delete_messages([f"m{n}", f"m{n + 1}"])
        case 3:
            await session.add_compaction("later", f"m{n}", f"m{n + 9}")
        case 4:
            await alice.storage.put(f"k{n % 7}", dice.random())
        case 5:
            sql.exec("UPDATE notes SET n = n + 1 WHERE id = ?", n)
        case 6:
            sql.exec("INSERT INTO notes (body) VALUES (?)", f"late {dice.random()}")
        case 7:
            sql.exec("DELETE FROM pairs WHERE a = ?", f"a{n}")
        case 8:
            await alice.sessions.session("drafts \U0001f600").clear_messages()
    await alice.storage.durable()


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("seed", range(3))
async def test_a_copy_holds_what_the_source_holds_when_it_is_sealed(
    tmp_path, monkeypatch, live, seed
):
    monkeypatch.setattr(migration, "SEALED_COPY_BYTES_MAX", 0 if live else 10**9)
    monkeypatch.setattr(migration, "LIVE_WINDOW_BYTES", 20_000)
    dice, sealed, writes = random.Random(seed), asyncio.Event(), 0
    async with open_object(Conversation, name="alice", path=tmp_path / "a.sqlite") as alice:
        await fill(alice)
        target = Storage(tmp_path / "b.sqlite")

        async def write_until_sealed() -> None:
            nonlocal writes
            while not sealed.is_set():
                await write_at_random(alice, dice)
                writes += 1
                await asyncio.sleep(0)

        async def seal() -> None:
            sealed.set()
            await writer

        writer = asyncio.create_task(write_until_sealed())
        source, there = Local(alice.storage), Local(target)
        ends = migration.End(source, "alice", 1), migration.End(there, "alice", 2)
        gauge = migration.Gauge()
        copied = await migration.copy("alice", *ends, seal, gauge)
        assert gauge.phase == ("sealed" if live else "verifying")
        assert copied.bytes <= gauge.bytes
        assert gauge.rows >= copied.messages
        assert gauge.bytes_total
        assert writes > (20 if live else -1)
        assert await digests(target) == await digests(alice.storage)
        assert copied.messages
        source.kept["outgoing"].close()
        target.close()
    async with open_object(Conversation, name="alice", path=tmp_path / "b.sqlite") as alice:
        found = alice.sessions.engine.problems()
        assert not [line for line in found if "its parent" not in line]
        assert list(alice.storage.check()) == []
        await write_at_random(alice, dice)


async def test_a_lost_row_is_noticed_before_the_switch(tmp_path, monkeypatch):
    for live in (True, False):
        monkeypatch.setattr(migration, "SEALED_COPY_BYTES_MAX", 0 if live else 10**9)
        folder = tmp_path / str(live)
        async with open_object(Conversation, name="alice", path=folder / "a.sqlite") as alice:
            await fill(alice)
            target = Storage(folder / "b.sqlite")
            there = Local(target)
            write = migration.steps.write_step

            async def lossy(site, window):
                window = [(k, n, r[1:] if n == "pairs" else r) for k, n, r in window]
                return await write(site, window)  # noqa: B023

            monkeypatch.setattr(migration.steps, "write_step", lossy)
            source = Local(alice.storage)

            async def seal() -> None: ...

            ends = migration.End(source, "alice", 1), migration.End(there, "alice", 2)
            with pytest.raises(MigrationFailedError, match="pairs"):
                await migration.copy("alice", *ends, seal, migration.Gauge())
            monkeypatch.setattr(migration.steps, "write_step", write)
            source.kept["outgoing"].close()
            target.close()


async def test_tables_made_during_a_live_copy_end_it(tmp_path, monkeypatch):
    monkeypatch.setattr(migration, "SEALED_COPY_BYTES_MAX", 0)
    async with open_object(Conversation, name="alice", path=tmp_path / "a.sqlite") as alice:
        await fill(alice)
        target = Storage(tmp_path / "b.sqlite")
        source = Local(alice.storage)

        async def seal() -> None:
            alice.storage.sql.exec("CREATE TABLE late (x)")

        ends = migration.End(source, "alice", 1), migration.End(Local(target), "alice", 2)
        with pytest.raises(RuntimeError, match="ask again"):
            await migration.copy("alice", *ends, seal, migration.Gauge())
        source.kept["outgoing"].close()
        target.close()
