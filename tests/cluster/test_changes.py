"""The change feed of a remote conversation: in order, complete, across its owners."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

from .conftest import Deploy, message, until


async def take(feed: Any, count: int, within_s: float = 40.0) -> list[Any]:
    """Take so many events."""
    found: list[Any] = []

    async def run() -> None:
        while len(found) < count:
            found.append(await anext(feed))

    await asyncio.wait_for(run(), within_s)
    return found


async def take_until(feed: Any, ends: Callable[[Any], bool]) -> list[Any]:
    """Take events up to one."""
    found: list[Any] = []
    while not (found and ends(found[-1])):
        found += await take(feed, 1)
    return found


def told(events: list[Any]) -> list[tuple[str, Any]]:
    """Say what events tell: type, and the id of the message."""
    return [(e.type, None if e.message is None else e.message["id"]) for e in events]


async def test_every_write_from_the_call_on_is_told(deploy: Deploy) -> None:
    async with deploy() as client:
        alice = client.get("alice")
        session, drafts = alice.session(), alice.session("drafts")
        await session.append_message(message("before"))
        feed, everything = session.changes(), alice.changes()
        await asyncio.gather(*(session.append_message(message(f"m{i}")) for i in range(50)))
        await drafts.append_message(message("d"), parent_id=None)
        await session.append_message(message("m0"))
        await session.append_message(message("b"), parent_id="m0")
        await session.update_message(message("b", "changed"))
        await session.delete_messages(["b", "x", "b"])
        await session.import_message(message("i"), parent_id="m1", created_at=3)
        overlay = await session.add_compaction("sum", "m0", "m1")
        await session.clear_messages()
        events = await take(feed, 57)
        assert told(events[:50]) == [("append", f"m{i}") for i in range(50)]
        rest = events[50:]
        assert told(rest) == [
            ("append", "m0"), ("append", "b"), ("update", "b"), ("delete", None), ("import", "i"),
            ("compaction", None), ("clear", None),
        ]  # fmt: skip
        assert [e.inserted for e in rest[:2]] == [False, True]
        assert repr(events[0].parent_id) == "<leaf>"
        assert rest[1].parent_id == "m0"
        assert rest[2].message == message("b", "changed")
        assert list(rest[3].message_ids) == ["b", "x", "b"]
        assert rest[5].compaction == overlay
        mixed = await take(everything, 58)
        assert [e.session_id for e in mixed].count("drafts") == 1
        assert [e for e in mixed if e.session_id == ""] == events
        (draft,) = [e for e in mixed if e.session_id == "drafts"]
        assert draft.parent_id is None
        await feed.aclose()
        await everything.aclose()


async def test_the_feed_goes_on_through_hibernation_and_migration(deploy: Deploy) -> None:
    async with deploy() as client:
        session = client.get("alice").session()
        feed = session.changes()
        expected = []
        for turn in range(4):
            for i in range(20):
                await session.append_message(message(f"t{turn}-{i}"))
                expected.append(("append", f"t{turn}-{i}"))
            if turn == 1:
                assert told(await take(feed, 10)) == expected[:10]
            if turn % 2:
                await client.migrate("alice")
            else:
                await client.hibernate("alice")
        assert told(await take(feed, len(expected) - 10)) == expected[10:]
        await feed.aclose()


async def test_a_follower_does_not_keep_a_conversation_awake(deploy: Deploy) -> None:
    async with deploy(idle_timeout_s=0.3) as client:
        session = client.get("alice").session()
        feed = session.changes()
        await feed.begun()
        waiting = asyncio.create_task(take(feed, 1))
        await until(lambda: _state(client, "hibernated"), "it hibernates while it is followed")
        await session.append_message(message("late"))
        assert told(await waiting) == [("append", "late")]
        await feed.aclose()


async def test_a_crash_is_told_as_a_gap(deploy: Deploy) -> None:
    async with deploy() as client:
        session = client.get("alice").session()
        feed = session.changes()
        await session.append_message(message("one"))
        assert told(await take(feed, 1)) == [("append", "one")]
        os.kill((await client.info("alice")).pid, signal.SIGKILL)
        await session.append_message(message("two"))
        events = told(await take_until(feed, lambda e: e.type == "gap"))
        assert events[-1] == ("gap", None)

        waiting = asyncio.create_task(take_until(feed, lambda e: e.type == "append"))

        async def reached() -> bool:
            await session.append_message(message(f"probe{os.urandom(4).hex()}"))
            return waiting.done()

        await until(reached, "the feed follows the next owner")
        await waiting
        await feed.aclose()


async def test_a_slow_reader_is_told_what_it_missed(deploy: Deploy) -> None:
    async with deploy() as client:
        session = client.get("alice").session()
        feed = session.changes()
        await session.append_message(message("first"))
        assert told(await take(feed, 1)) == [("append", "first")]
        # More than an owner keeps; it does not pile up in the actor.
        for start in range(0, 5000, 500):
            await session.append_messages([message(f"m{start + i}") for i in range(500)])
        events = told(await take_until(feed, lambda e: e.message and e.message["id"] == "m4999"))
        assert events.count(("gap", None)) == 1
        assert [kind for kind, _ in events].count("append") >= 1000
        await feed.aclose()


async def _state(client: Any, state: str) -> bool:
    return bool((await client.info("alice")).state == state)
