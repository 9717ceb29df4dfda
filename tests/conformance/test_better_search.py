"""Better than the reference: search finds everything stored, in every script, and stays in step."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.support import Talk, grow, holding, opened, page_reads, said


async def found(talk: Talk, query: str, **options: Any) -> list[str]:
    """Search and take the ids."""
    return [hit.id for hit in await talk.session.search(query, **options)]


def assert_in_step(talk: Talk) -> None:
    """FTS5's own check and the comparison of index and messages find nothing."""
    sql = talk.storage.sql
    sql.exec("INSERT INTO cf_agents_session_fts (cf_agents_session_fts) VALUES ('integrity-check')")
    assert talk.problems() == []


# Row: the first search skips messages longer than a row and deep JSON.
@pytest.mark.parametrize("first", [True, False])
async def test_texts_of_any_length_and_depth_are_found(tmp_path: Path, first: bool) -> None:
    nested: Any = "x"
    for _ in range(2_000):
        nested = [nested]
    long = "lorem ipsum " * 300_000
    messages = [
        said("before", f"needle0 {long}"),
        said("after", f"{long} needle1"),
        holding("between", {"type": "text", "text": long[:1_572_700]},
                {"type": "text", "text": "needle2 needle3"}),
        holding("deep", {"type": "data-x", "data": nested}, {"type": "text", "text": "needle4"}),
        holding("wide", *[{"type": "text", "text": f"word{i}"} for i in range(20_000)]),
        said("emoji", "\U0001f4a5" * 500_000 + " needle5"),
        said("huge", "needle6", metadata={"n": 10**400, "lone": "\ud83d"}),
    ]  # fmt: skip
    async with opened(tmp_path) as talk:
        if first:
            await talk.session.search("anything")
        for message in messages:
            await talk.session.append_message(message)
        wanted = ["before", "after", "between", "between", "deep", "emoji", "huge"]
        assert [name for i in range(7) for name in await found(talk, f"needle{i}")] == wanted
        assert await found(talk, "needle2 needle3") == ["between"]
        assert await found(talk, "word19999") == ["wide"]
        [hit] = await talk.session.search("needle1")
        assert hit.content == messages[1]["parts"][0]["text"]
        assert_in_step(talk)


# Row: a changed role stays stale; index and rows agree after every write.
async def test_a_changed_role_shows(tmp_path: Path) -> None:
    async with opened(tmp_path) as talk:
        await talk.session.append_message(said("a", "same text", role="user"))
        await talk.session.search("same")
        await talk.session.update_message(said("a", "same text", role="assistant"))
        assert [hit.role for hit in await talk.session.search("same")] == ["assistant"]
        row = talk.storage.sql.exec("SELECT role FROM cf_agents_session_fts").one()
        assert row == {"role": "assistant"}
        assert_in_step(talk)


@pytest.mark.parametrize("seed", range(6))
async def test_the_index_is_in_step_after_every_write(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    words = ["kiwi", "mango", "\u6771\u4eac", "", "\x00", "\ud83d", "zorb kiwi", "caf\u00e9"]
    async with opened(tmp_path) as talk:
        for step in range(100):
            session = talk.sessions.session(rng.choice(["", "other"]))
            name = f"m{rng.randrange(9)}"
            texts = [{"type": "text", "text": rng.choice(words)} for _ in range(rng.randrange(4))]
            message = holding(name, *texts, role=rng.choice(["user", "assistant"]))
            kind = rng.randrange(7)
            if kind == 0:
                await session.append_message(message)
            elif kind == 1:
                await session.update_message(message)
            elif kind == 2:
                await session.upsert_message(message)
            elif kind == 3:
                await session.import_messages([(message, None, 1)])
            elif kind == 4:
                await session.delete_messages([name])
            elif kind == 5 and rng.random() < 0.2:
                await session.clear_messages()
            else:
                await session.search(rng.choice(words))
            if step > 10:
                await session.search("kiwi")
                assert_in_step(talk)


# Row: \0 in a query is an error.
@pytest.mark.parametrize(
    "query",
    ["\0", "a\0b", "\0kiwi", "kiwi\0", "\ud800", "\ud83d kiwi", '"', '""', "'", "*", "-x", "NEAR(",
     "NEAR(a b)", "a AND", "OR", "NOT", "^", "{", "}", "content:", "(", ")", "a*", "\\", ";", "--",
     "\u2028", "\ufeff", "\uffff", "\U0010ffff", "a" * 100_000, "kiwi " * 2_000, "%", "_", "+"],
)  # fmt: skip
async def test_any_query_is_an_answer(tmp_path: Path, query: str) -> None:
    async with opened(tmp_path) as talk:
        await talk.session.append_message(said("a", "kiwi"))
        hits = await found(talk, query)
        assert hits in ([], ["a"])
        await talk.session.append_message(said("b", f"before {query} after"))
        assert set(await found(talk, query)) <= {"a", "b"}
        assert_in_step(talk)


@pytest.mark.parametrize("text", ["foo\0bar", "foo \0\0 bar", "foo\x00\x00bar"])
async def test_a_nul_parts_words_in_texts_and_in_queries(tmp_path: Path, text: str) -> None:
    async with opened(tmp_path) as talk:
        await talk.session.append_message(said("a", text))
        for query in ("foo", "bar", "foo bar", "foo\0bar", "\0foo\0"):
            assert await found(talk, query) == ["a"], query
        assert await found(talk, "bar\0foo") == []


# Row: an update after the index exists scans the whole index.
async def cost_at(path: Path, count: int) -> tuple[int, int]:
    """Pages looked at by 40 updates and by 40 appends once the index stands.

    One alone proves nothing: now and then FTS5 merges what it has written.
    """
    async with opened(path) as talk:
        await grow(talk, count)
        await talk.session.search("m1")
        await talk.session.append_message(said("warm"))
        looked = page_reads(talk)
        for i in range(0, count, count // 40):
            await talk.session.update_message(said(f"m{i}", f"changed words {i}"))
        updated = looked()
        for i in range(40):
            await talk.session.append_message(said(f"new{i}", f"a few new words {i}"))
        return updated, looked() - updated


async def test_a_write_costs_no_scan_of_the_index(tmp_path: Path) -> None:
    small = await cost_at(tmp_path / "small.sqlite", 1_000)
    large = await cost_at(tmp_path / "large.sqlite", 12_000)
    for few, many in zip(small, large, strict=True):
        assert many <= 3 * few, (small, large)


# Row: CJK runs are one token.
CJK = (
    ("\u6771\u4eac\u30bf\u30ef\u30fc", ["\u6771\u4eac", "\u30bf\u30ef\u30fc", "\u4eac\u30bf"]),
    (
        "\u91cd\u8dd1gen-itgc\u540e",
        ["itgc", "gen", "\u91cd\u8dd1", "\u540e", "\u8dd1gen"],
    ),
    (
        "\u8bf7\u901a\u77e5\u7528\u6237\u767b\u5f55",
        ["\u7528\u6237", "\u767b\u5f55", "\u77e5\u7528"],
    ),
    ("\ud55c\uad6d\uc5b4\ub85c \uc4f4\ub2e4", ["\ud55c\uad6d", "\uad6d\uc5b4", "\uc4f4"]),
    ("abc\u6f22\u5b57def 12\u500b", ["abc", "def", "\u6f22\u5b57", "12", "\u500b", "abc\u6f22"]),
    ("\u30c7\u30fc\u30bf\u30d9\u30fc\u30b9", ["\u30c7\u30fc\u30bf", "\u30d9\u30fc\u30b9"]),
    ("\U00020000\U00020001\u3042", ["\U00020001", "\u3042", "\U00020000"]),
    ("\uff76\uff80\uff76\uff85", ["\uff80\uff76"]),
)


@pytest.mark.parametrize(("text", "queries"), CJK)
@pytest.mark.parametrize("first", [True, False])
async def test_substrings_of_cjk_and_of_mixed_text_are_found(
    tmp_path: Path, text: str, queries: list[str], first: bool
) -> None:
    async with opened(tmp_path) as talk:
        if first:
            await talk.session.search("anything")
        await talk.session.append_message(said("a", f"before {text} after"))
        await talk.session.append_message(said("b", "nothing of the kind"))
        for query in [text, *queries]:
            assert await found(talk, query) == ["a"], query
            [hit] = await talk.session.search(query)
            assert hit.content == f"before {text} after", "the text as it was written"
        assert await found(talk, text[::-1]) in ([], ["a"] if text == text[::-1] else [])
        await talk.session.update_message(said("a", "changed"))
        assert await found(talk, queries[0]) == []
        assert_in_step(talk)


async def test_words_of_other_scripts_stay_whole(tmp_path: Path) -> None:
    async with opened(tmp_path) as talk:
        await talk.session.append_message(
            said(
                "a",
                "Deployment \u03a9\u03bc\u03ad\u03b3\u03b1 \u043f\u0440\u0438\u0432\u0435\u0442 12",
            )
        )
        assert await found(talk, "deployment") == ["a"]
        assert await found(talk, "\u043f\u0440\u0438\u0432\u0435\u0442") == ["a"]
        for part in ("deploy", "ment", "\u043f\u0440\u0438", "1"):
            assert await found(talk, part) == []


# An index that is out of step is made anew; one that another program made is taken over.
async def test_a_damaged_index_is_found_out_and_rebuilt(tmp_path: Path) -> None:
    async with opened(tmp_path) as talk:
        await grow(talk, 30)
        assert await found(talk, "m7") == ["m7"]
        talk.storage.sql.exec("DELETE FROM cf_agents_session_fts WHERE id = 'm7'")
        assert await found(talk, "m7") == []
        assert any("m7" in problem for problem in talk.problems())
        await talk.sessions.engine.index.rebuild()
        assert await found(talk, "m7") == ["m7"]
        assert_in_step(talk)


async def test_an_index_of_another_program_is_taken_over(tmp_path: Path) -> None:
    async with opened(tmp_path) as talk:
        await talk.session.append_messages(
            [said("a", "\u6771\u4eac\u30bf\u30ef\u30fc"), said("b", "kiwi")]
        )
        talk.storage.sql.exec(
            "CREATE VIRTUAL TABLE cf_agents_session_fts USING fts5(id UNINDEXED, session_id"
            " UNINDEXED, role UNINDEXED, content, tokenize='porter unicode61')"
        )
        talk.storage.sql.exec(
            "INSERT INTO cf_agents_session_fts (id, session_id, role, content)"
            " VALUES ('b', '', 'user', 'kiwi'), ('gone', '', 'user', 'kiwi')"
        )
    async with opened(tmp_path) as talk:
        assert await found(talk, "kiwi") == ["b"]
        assert await found(talk, "\u6771\u4eac") == ["a"]
        await talk.session.update_message(said("b", "mango"))
        assert await found(talk, "kiwi") == []
        assert_in_step(talk)
