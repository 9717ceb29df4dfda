"""Walkers over random trees, while the tree changes under them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions_actor import DurableObject, Lifecycle, Sessions, open_object
from sessions_actor.durable_object import ObjectState
from sessions_actor.sessions.paths import SURVEY_ROWS


class Conversation(DurableObject):
    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)
        self.sessions = Sessions()
        self.lifecycle = Lifecycle.install(self).use(self.sessions)
        self.session = self.sessions.session()


@contextlib.asynccontextmanager
async def conversation(path) -> AsyncIterator[Conversation]:
    async with open_object(Conversation, name="alice", path=path) as alice:
        yield alice


def text(message_id: str, body: str = "hi") -> dict:
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": body}]}


def slow_view(parents: dict, overlays: list, leaf: str | None) -> list[str]:
    """Render a path from the root as SPEC says, the obvious way."""
    path: list[str] = []
    while leaf is not None and leaf in parents:
        path.insert(0, leaf)
        leaf = parents[leaf]
    view, i = [], 0
    while i < len(path):
        for summary, start, end in reversed(overlays):
            if start == path[i] and end in path[i:]:
                view.append(summary)
                i = path.index(end) + 1
                break
        else:
            view.append(path[i])
            i += 1
    return view


def shown(message: dict) -> str:
    if message["id"].startswith("compaction_"):
        return message["parts"][0]["text"]
    return message["id"]


def splice(parents: dict, gone: list[str]) -> None:
    for message_id in parents:
        while parents[message_id] in gone:
            parents[message_id] = parents[parents[message_id]]
    for message_id in gone:
        parents.pop(message_id, None)


trees = st.lists(st.integers(0, 30), min_size=1, max_size=30)
spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=4)


async def build(session, choices: list[int], ranges: list[tuple[int, int]]):
    parents: dict[str, str | None] = {}
    for n, choice in enumerate(choices):
        parent = None if choice >= n else f"m{n - 1 - choice % 3 if choice > 2 else n - 1}"
        parent = parent if parent in parents else (f"m{n - 1}" if n else None)
        await session.append_message(text(f"m{n}"), parent_id=parent)
        parents[f"m{n}"] = parent
    overlays = []
    for k, (start, end) in enumerate(ranges):
        overlays.append((f"S{k}", f"m{start}", f"m{end}"))
        await session.add_compaction(*overlays[-1])
    return parents, overlays


@settings(max_examples=60, deadline=None)
@given(choices=trees, ranges=spans, data=st.data())
async def test_both_directions_render_what_the_obvious_way_renders(
    tmp_path_factory, choices, ranges, data
):
    path = tmp_path_factory.mktemp("paths") / "a.sqlite"
    async with conversation(path) as alice:
        parents, overlays = await build(alice.session, choices, ranges)
        leaf = data.draw(st.sampled_from(sorted(parents)))
        want = slow_view(parents, overlays, leaf)
        assert [shown(m) async for m in alice.session.history(leaf_id=leaf)] == want
        newest = [shown(m) async for m in alice.session.history(leaf_id=leaf, newest_first=True)]
        assert newest == want[::-1]
        batches = [b async for b in alice.session.history_batches(leaf_id=leaf, batch_size=3)]
        assert [shown(m) for b in batches for m in b] == want
        assert all(batches)
        recent = await alice.session.get_recent_history(10**9, leaf_id=leaf)
        assert [shown(m) for m in recent.messages] == want
        assert not recent.truncated


@settings(max_examples=80, deadline=None)
@given(
    length=st.integers(1, 40),
    newest_first=st.booleans(),
    resumed=st.booleans(),
    seed=st.integers(0, 2**32),
)
async def test_a_stream_neither_skips_nor_repeats_while_messages_are_deleted(
    tmp_path_factory, length, newest_first, resumed, seed
):
    """What survives is read exactly once, in order, wherever the deletions fall."""
    dice = random.Random(seed)
    path = tmp_path_factory.mktemp("paths") / "a.sqlite"
    async with conversation(path) as alice:
        session = alice.session
        ids = [f"m{n}" for n in range(length)]
        await session.append_messages([text(i) for i in ids])
        walker = await session.open_history(newest_first=newest_first)
        seen: list[str] = []
        deleted: list[str] = []
        while texts := await session.next_window(walker, max_rows=dice.randint(1, 4)):
            seen += [m["id"] for m in map(parse, texts)]
            if dice.random() < 0.5:
                gone = dice.sample(ids, dice.randint(0, max(1, length // 5)))
                deleted += gone
                await session.delete_messages(gone)
            if resumed and dice.random() < 0.5:
                with contextlib.suppress(RuntimeError):
                    walker = await session.open_history(
                        newest_first=newest_first, resume=walker.cursor()
                    )
        order = ids[::-1] if newest_first else ids
        assert seen == [i for i in order if i in seen]
        assert [i for i in order if i in seen or i not in deleted] == seen


def parse(data: bytes) -> dict:
    from sessions_actor.codec import loads

    return loads(data)


async def test_a_path_longer_than_many_stretches_reads_whole_both_ways(tmp_path):
    count = 12 * SURVEY_ROWS + 7
    async with conversation(tmp_path / "a.sqlite") as alice:
        ids = [f"m{n}" for n in range(count)]
        for start in range(0, count, 1000):
            await alice.session.append_messages([text(i) for i in ids[start : start + 1000]])
        assert [m["id"] async for m in alice.session.history()] == ids
        newest = [m["id"] async for m in alice.session.history(newest_first=True)]
        assert newest == ids[::-1]
        await alice.session.delete_messages(ids[500:11_000])
        left = ids[:500] + ids[11_000:]
        assert [m["id"] async for m in alice.session.history()] == left
        stats = await alice.session.get_history_row_stats()
        recent = await alice.session.get_recent_history(1)
        assert recent.total_content_bytes == sum(s.bytes for s in stats)
        assert [m["id"] for m in recent.messages] == [ids[-1]]


@pytest.mark.parametrize("bite", ["m0", "m3", "m9"])
@pytest.mark.parametrize("span", [(0, 0), (0, 4), (2, 5), (9, 9), (0, 9)])
async def test_a_cycle_under_an_overlay_ends_the_walk_too(tmp_path, bite, span):
    async with conversation(tmp_path / "a.sqlite") as alice:
        session = alice.session
        ids = [f"m{n}" for n in range(10)]
        await session.append_messages([text(i) for i in ids])
        await session.add_compaction("S", ids[span[0]], ids[span[1]])
        alice.storage.sql.exec(
            "UPDATE cf_agents_session_messages SET parent_id = ? WHERE id = 'm0'", bite
        )
        want = [*ids[: span[0]], "S", *ids[span[1] + 1 :]]
        assert [shown(m) async for m in session.history()] == want
        assert [shown(m) async for m in session.history(newest_first=True)] == want[::-1]


@pytest.mark.parametrize("bite", ["m0", "m3", "m9"])
async def test_a_cycle_in_a_damaged_file_ends_the_walk_each_row_once(tmp_path, bite):
    async with conversation(tmp_path / "a.sqlite") as alice:
        session = alice.session
        await session.append_messages([text(f"m{n}") for n in range(10)])
        alice.storage.sql.exec(
            "UPDATE cf_agents_session_messages SET parent_id = ? WHERE id = 'm0'", bite
        )
        forward = [m["id"] async for m in session.history()]
        backward = [m["id"] async for m in session.history(newest_first=True)]
        assert forward == [f"m{n}" for n in range(10)]
        assert backward == forward[::-1]
        stats = await session.get_history_row_stats()
        assert [s.id for s in stats] == forward
        recent = await session.get_recent_history(10**9)
        assert [m["id"] for m in recent.messages] == forward


async def test_a_consumer_that_stops_has_read_only_what_it_took(tmp_path):
    async with conversation(tmp_path / "a.sqlite") as alice:
        await alice.session.append_messages([text(f"m{n}") for n in range(2000)])
        rows = 0

        def count(_: object) -> None:
            nonlocal rows
            rows += 1

        alice.storage.connection.trace_v2(apsw.SQLITE_TRACE_ROW, count)
        async for _ in alice.session.history(newest_first=True):
            break
        alice.storage.connection.trace_v2(0, None)
        assert rows <= 30


async def test_cursor_survives_the_activation(tmp_path):
    path = tmp_path / "a.sqlite"
    ids = [f"m{n}" for n in range(300)]
    for newest_first in (False, True):
        seen: list[str] = []
        cursor = None
        going = True
        while going:
            async with conversation(path) as alice:
                if cursor is None and not newest_first:
                    await alice.session.append_messages([text(i) for i in ids])
                    await alice.session.add_compaction("S", "m100", "m150")
                walker = await alice.session.open_history(newest_first=newest_first, resume=cursor)
                texts = await alice.session.next_window(walker, max_rows=50)
                seen += [shown(parse(t)) for t in texts]
                cursor, going = walker.cursor(), bool(texts)
        want = [*ids[:100], "S", *ids[151:]]
        assert seen == (want[::-1] if newest_first else want)
