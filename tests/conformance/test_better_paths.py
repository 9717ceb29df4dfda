"""Better than the reference: deep paths, long deletions, cycles, reads while the tree changes."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.support import (
    Talk,
    grow,
    history,
    holding,
    ids,
    opened,
    page_reads,
    said,
)

REFERENCE_DEPTH = 10_001


# Row: a path deeper than 10,001 loses its oldest messages in every read, silently.
async def test_a_path_is_complete_at_any_depth(tmp_path: Path, long_run: bool) -> None:
    depth = 200_000 if long_run else REFERENCE_DEPTH + 1_500
    async with opened(tmp_path) as talk:
        session = talk.session
        names = await grow(talk, depth)
        assert await history(talk) == names
        assert await history(talk, newest_first=True) == names[::-1]
        assert [row.id for row in await session.get_history_row_stats()] == names
        batches = [ids(batch) async for batch in session.history_batches(batch_size=997)]
        assert [name for batch in batches for name in batch] == names
        recent = await session.get_recent_history(10**9)
        assert ids(recent.messages) == names
        assert not recent.truncated
        rows = [row.message["id"] async for row in session.history_rows()]
        assert rows == names
        assert [hit.id for hit in await session.search("m7")] == ["m7"]
        await session.add_compaction("the beginning", "m0", "m5")
        overlaid = await history(talk)
        assert overlaid[1:] == names[6:]
        assert await history(talk, newest_first=True) == overlaid[::-1]


async def test_a_deep_branch_is_complete_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as talk:
        names = await grow(talk, REFERENCE_DEPTH + 500)
        await talk.session.append_message(said("fork"), parent_id=names[-300])
        path = [*names[:-299], "fork"]
        assert await history(talk, leaf_id="fork") == path
        assert await history(talk, leaf_id="fork", newest_first=True) == path[::-1]
        assert await history(talk, leaf_id=names[-1]) == names


# Row: deleting 10,001 consecutive messages orphans what follows.
async def test_any_number_of_consecutive_messages_can_be_deleted(
    tmp_path: Path, long_run: bool
) -> None:
    depth, gone = (200_000, 50_000) if long_run else (REFERENCE_DEPTH + 2_000, REFERENCE_DEPTH)
    async with opened(tmp_path) as talk:
        names = await grow(talk, depth)
        first = 700
        await talk.session.delete_messages(names[first : first + gone])
        left = names[:first] + names[first + gone :]
        assert await history(talk) == left
        assert await history(talk, newest_first=True) == left[::-1]
        assert talk.problems() == []
        await talk.session.delete_messages(left[:first])
        assert await history(talk) == left[first:]
        rows = [row async for row in talk.session.history_rows()]
        assert rows[0].parent_id is None


async def test_every_fork_below_a_deleted_stretch_finds_its_ancestor(tmp_path: Path) -> None:
    async with opened(tmp_path) as talk:
        names = await grow(talk, 2_000)
        for index in range(100, 1_900, 50):
            await talk.session.append_message(said(f"fork{index}"), parent_id=names[index])
        await talk.session.delete_messages(names[50:1_950])
        for index in range(100, 1_900, 50):
            assert await history(talk, leaf_id=f"fork{index}") == [*names[:50], f"fork{index}"]
        assert talk.problems() == []


# Row: import can close a cycle; reading it repeats 10,001 times or hangs.
@pytest.mark.parametrize("length", [1, 2, 3, 50, 2_500])
@pytest.mark.parametrize("how", ["import", "append", "upsert", "batch"])
async def test_no_write_makes_a_message_its_own_ancestor(
    tmp_path: Path, length: int, how: str
) -> None:
    async with opened(tmp_path) as talk:
        session = talk.session
        names = [f"m{i}" for i in range(length)]
        # The first message is missing: its child names it as parent already.
        rows = [(said(name), parent, 1) for parent, name in pairwise(names)]
        await session.import_messages(rows)
        before, events = talk.counts(), len(talk.events)
        closing, parent = said(names[0]), names[-1]
        writing: Any
        if how == "import" or length == 1:
            writing = session.import_message(closing, parent_id=parent, created_at=1)
        elif how == "append":
            writing = session.append_message(closing)
        elif how == "upsert":
            writing = session.upsert_message(closing, parent_id=parent)
        else:
            writing = session.append_messages([said("other"), closing])
        with pytest.raises(ValueError, match="ancestor"):
            await writing
        assert talk.counts() == before
        assert len(talk.events) == events
        await session.import_message(closing, parent_id=None, created_at=1)
        assert await history(talk, leaf_id=parent) == names


async def test_an_import_of_a_whole_cycle_writes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as talk:
        with pytest.raises(ValueError, match="ancestor"):
            await talk.session.import_messages(
                [(said("a"), "c", 1), (said("b"), "a", 1), (said("c"), "b", 1)]
            )
        assert not any(talk.counts().values())
        assert talk.events == []


@pytest.mark.parametrize("length", [1, 2, 7, 1_500])
async def test_a_cycle_in_a_foreign_file_ends_the_walk(tmp_path: Path, length: int) -> None:
    async with opened(tmp_path) as talk:
        names = await grow(talk, length)
        await grow(talk, 3, "tail")
        talk.storage.sql.exec(
            "UPDATE cf_agents_session_messages SET parent_id = ? WHERE id = ?",
            names[-1], names[0],
        )  # fmt: skip
    async with opened(tmp_path) as talk:
        session = talk.session
        path = [*names, "tail0", "tail1", "tail2"]
        forward, backward = await history(talk), await history(talk, newest_first=True)
        assert backward == path[::-1], "each row once, from the leaf on"
        assert sorted(forward) == sorted(path)
        assert forward == backward[::-1]
        assert len(await session.get_history_row_stats()) == len(path)
        recent = await session.get_recent_history(10**9)
        assert sorted(ids(recent.messages)) == sorted(path)
        assert len([row async for row in session.history_rows()]) == len(path)
        assert await session.get_branches(names[-1])
        await session.append_message(said("more"))
        assert await history(talk, newest_first=True) == ["more", *path[::-1]]
        session.on_compaction(lambda messages: None)
        assert await session.compact() is None
        await session.add_compaction("S", names[0], names[-1])
        assert await history(talk)
        assert await history(talk, newest_first=True)
        assert await session.search("text")
        await session.delete_messages(names)
        assert await history(talk) == ["tail0", "tail1", "tail2", "more"]
        assert talk.problems() == []


# Row: deleting the next older message ends a newest-first loop early; an overlay whose end is an
# imported row hides everything older.
@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("taken", [1, 2, 9, 60])
@pytest.mark.parametrize("gone", [1, 3, 40])
async def test_a_loop_goes_on_when_what_comes_next_is_deleted(
    tmp_path: Path, newest_first: bool, taken: int, gone: int
) -> None:
    async with opened(tmp_path) as talk:
        names = await grow(talk, 200)
        order = names[::-1] if newest_first else names
        read = []
        async for message in talk.session.history(newest_first=newest_first):
            read.append(message["id"])
            if len(read) == taken:
                await talk.session.delete_messages(order[taken : taken + gone])
        # What was read ahead into one window may still come; nothing else may, nothing is lost.
        assert read[:taken] == order[:taken]
        assert set(order) - set(read) <= set(order[taken : taken + gone])
        assert read == [name for name in order if name in set(read)]


@pytest.mark.parametrize("seed", range(12))
async def test_newest_first_is_history_reversed_while_the_tree_changes(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    async with opened(tmp_path) as talk:
        session = talk.session
        names = await grow(talk, 120)
        gone: set[str] = set()
        read: list[str] = []
        async for message in session.history(newest_first=True):
            read.append(message["id"])
            older = [name for name in names[: names.index(read[-1])] if name not in gone]
            kind = rng.random()
            if kind < 0.25 and older:
                now = rng.sample(older, min(len(older), rng.randint(1, 6)))
                gone.update(now)
                await session.delete_messages(now)
            elif kind < 0.4:
                await session.append_message(said(f"new{len(read)}"))
            elif kind < 0.5:
                await session.update_message(said(read[-1], "changed"))
        assert read == [name for name in names[::-1] if name in set(read)]
        assert set(names) - set(read) <= gone


@pytest.mark.parametrize("imported", ["start", "inside", "end", "after", "before", "all"])
async def test_an_overlay_over_imported_rows_hides_its_span_and_no_more(
    tmp_path: Path, imported: str
) -> None:
    places = {"before": "m1", "start": "m2", "inside": "m3", "end": "m4", "after": "m5"}
    async with opened(tmp_path) as talk:
        session = talk.session
        parent = None
        for i in range(8):
            name = f"m{i}"
            if imported == "all" or places.get(imported) == name:
                await session.import_message(said(name), parent_id=parent, created_at=5)
            else:
                await session.append_message(said(name), parent_id=parent)
            parent = name
        overlay = await session.add_compaction("S", "m2", "m4")
        shown = ["m0", "m1", f"compaction_{overlay.id}", "m5", "m6", "m7"]
        assert await history(talk) == shown
        assert await history(talk, newest_first=True) == shown[::-1]


async def test_newest_first_reads_an_imported_chain_in_any_order_of_writing(tmp_path: Path) -> None:
    async with opened(tmp_path) as talk:
        rows = [(said(f"m{i}"), f"m{i - 1}" if i else None, 1) for i in range(30)]
        random.Random(1).shuffle(rows)
        await talk.session.import_messages(rows)
        names = [f"m{i}" for i in range(30)]
        overlay = await talk.session.add_compaction("S", "m4", "m20")
        shown = [*names[:4], f"compaction_{overlay.id}", *names[21:]]
        assert await history(talk, leaf_id="m29") == shown
        assert await history(talk, leaf_id="m29", newest_first=True) == shown[::-1]


# Row: recent window and first auto-compaction check walk the whole path.
async def cost_at(path: Path, length: int) -> tuple[int, int, int]:
    """Pages looked at by a recent read, by an append with a trigger, and by an update, warm."""
    async with opened(path) as talk:
        session = talk.session
        await grow(talk, length)
        session.on_compaction(lambda messages: None).compact_after(10**9)
        await session.get_recent_history(64 * 1024)
        await session.append_message(said("warm"))
        looked = page_reads(talk)
        await session.get_recent_history(64 * 1024)
        recent = looked()
        await session.append_message(said("next"))
        appended = looked() - recent
        await session.update_message(said("next", "changed"))
        return recent, appended, looked() - recent - appended


async def test_the_recent_window_and_the_trigger_cost_what_they_return(tmp_path: Path) -> None:
    small = await cost_at(tmp_path / "small.sqlite", 1_500)
    large = await cost_at(tmp_path / "large.sqlite", 15_000)
    for few, many in zip(small, large, strict=True):
        assert many <= 2 * few + 20, (small, large)


# Row: created_at of a row is exposed by no read.
async def test_history_rows_tell_what_an_export_needs(tmp_path: Path) -> None:
    async with opened(tmp_path / "source.sqlite") as source:
        await grow(source, 300)
        await source.session.append_message(said("fork"), parent_id="m10")
        await source.session.import_message(said("old"), parent_id="m3", created_at=-5)
        await source.session.add_compaction("S", "m1", "m2")
        await source.session.delete_messages(["m5", "m6"])
        rows = [row async for row in source.session.history_rows()]
        assert [row.seq for row in rows] == sorted({row.seq for row in rows})
        async with opened(tmp_path / "target.sqlite") as target:
            assert await target.session.import_messages(rows) == len(rows)
            copied = [row async for row in target.session.history_rows()]
            strip = [(row.message, row.parent_id, row.created_at) for row in rows]
            assert [(r.message, r.parent_id, r.created_at) for r in copied] == strip
            assert await history(target, leaf_id="fork") != []
            assert await target.session.import_messages(copied) == 0


async def test_an_overlay_carries_the_time_of_its_record_in_every_read(tmp_path: Path) -> None:
    async def times(talk: Talk) -> list[Any]:
        session = talk.session
        found = [
            await session.get_history(),
            [m async for m in session.history(newest_first=True)],
            [m async for batch in session.history_batches() for m in batch],
            (await session.get_recent_history(10**6)).messages,
        ]
        return [m["createdAt"] for messages in found for m in messages if "createdAt" in m]

    async with opened(tmp_path) as talk:
        await grow(talk, 6)
        overlay = await talk.session.add_compaction("S", "m1", "m3")
        assert await times(talk) == [overlay.created_at] * 4
        assert [o.created_at for o in await talk.session.get_compactions()] == [overlay.created_at]
    async with opened(tmp_path) as talk:
        assert await times(talk) == [overlay.created_at] * 4


async def test_the_walk_of_a_wide_tree_stays_on_its_path(tmp_path: Path) -> None:
    async with opened(tmp_path) as talk:
        await talk.session.append_message(said("root"))
        for i in range(300):
            await talk.session.append_message(holding(f"child{i}"), parent_id="root")
        assert await history(talk, leaf_id="child7") == ["root", "child7"]
        assert len(await talk.session.get_branches("root")) == 300
