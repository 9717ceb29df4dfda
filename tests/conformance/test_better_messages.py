"""Better than the reference: ids, ill-formed messages, what JSON can hold, reasoning, metadata."""

import enum
import math
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.support import Message, Talk, holding, ids, opened, said, written

Write = Callable[[Talk, Message], Any]

WRITES: dict[str, Write] = {
    "append": lambda talk, m: talk.session.append_message(m),
    "append as client": lambda talk, m: talk.session.append_message(m, source="client"),
    "append to root": lambda talk, m: talk.session.append_message(m, parent_id=None),
    "batch": lambda talk, m: talk.session.append_messages([said("fine"), m, said("too")]),
    "update": lambda talk, m: talk.session.update_message(m),
    "upsert": lambda talk, m: talk.session.upsert_message(m),
    "import": lambda talk, m: talk.session.import_message(m, parent_id=None, created_at=1),
    "imports": lambda talk, m: talk.session.import_messages(
        [(said("fine"), None, 1), (m, None, 1)]
    ),
}


async def assert_refused(
    talk: Talk, write: Write, message: Any, error: type[Exception], place: str
) -> None:
    """The write fails with that error, which names the place, and nothing has happened."""
    before, events = talk.counts(), len(talk.events)
    indexed = talk.storage.sql.exec("SELECT COUNT(*) AS n FROM cf_agents_session_fts").one()
    with pytest.raises(error, match=place) as caught:
        await write(talk, message)
    assert type(caught.value) is error
    assert talk.counts() == before
    assert len(talk.events) == events
    now = talk.storage.sql.exec("SELECT COUNT(*) AS n FROM cf_agents_session_fts").one()
    assert now == indexed


# Row: empty id, numeric role, id with a lone surrogate, import without created_at: stored half,
# unreadable or dropped without a word.
BAD_IDS: tuple[Any, ...] = (
    "", None, 5, True, 1.5, [], {}, b"x", "\ud800", "a\udfff", "\udca5\ud83d",
)  # fmt: skip
BAD_ROLES: tuple[Any, ...] = (None, 5, True, [], {}, "\ud83d", b"user")
BAD_PARTS: tuple[Any, ...] = (None, "x", 5, {}, {"type": "text"}, True)
NO_PARTS: tuple[Any, ...] = (None, "x", 5, [], {}, {"type": None}, {"type": 5}, {"text": "x"})
ILL_FORMED: list[tuple[Any, str]] = [
    (None, "message"),
    ([], "message"),
    ("text", "message"),
    (7, "message"),
    ({}, "id"),
    ({"role": "user", "parts": []}, "id"),
    *(({"id": wrong, "role": "user", "parts": []}, "id") for wrong in BAD_IDS),
    ({"id": "a", "parts": []}, "role"),
    *(({"id": "a", "role": wrong, "parts": []}, "role") for wrong in BAD_ROLES),
    ({"id": "a", "role": "user"}, "parts"),
    *(({"id": "a", "role": "user", "parts": wrong}, "parts") for wrong in BAD_PARTS),
    *((holding("a", {"type": "text", "text": "x"}, wrong), r"parts\[1\]") for wrong in NO_PARTS),
]  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
async def test_an_ill_formed_message_is_a_value_error_that_names_the_field(
    tmp_path: Path, write: str
) -> None:
    async with opened(tmp_path) as talk:
        await talk.session.append_message(said("a"))
        await talk.session.search("anything")
        for message, place in ILL_FORMED:
            await assert_refused(talk, WRITES[write], message, ValueError, place)
        assert ids(await talk.session.get_history()) == ["a"]


@pytest.mark.parametrize(
    "wrong", [None, True, False, "1", [], math.nan, math.inf, -math.inf, b"1", 10**30]
)
async def test_an_import_needs_a_time(tmp_path: Path, wrong: Any) -> None:
    async with opened(tmp_path) as talk:
        with pytest.raises(ValueError, match="created_at"):
            await talk.session.import_message(said("a"), parent_id=None, created_at=wrong)
        with pytest.raises(ValueError, match="created_at"):
            await talk.session.import_messages([(said("a"), None, 1), (said("b"), "a", wrong)])
        assert not any(talk.counts().values())
        assert talk.events == []


async def test_an_import_names_its_parent_and_its_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as talk:
        importing: Any = talk.session.import_message
        with pytest.raises(TypeError, match="created_at"):
            await importing(said("a"), parent_id=None)
        with pytest.raises(TypeError, match="parent_id"):
            await importing(said("a"), created_at=1)
        with pytest.raises(ValueError, match="created_at"):
            await talk.session.import_messages([{"message": said("a"), "parent_id": None}])
        assert not any(talk.counts().values())


@pytest.mark.parametrize("parent", [5, True, "\ud800", [], b"x"])
async def test_an_import_needs_a_parent_that_can_be_one(tmp_path: Path, parent: Any) -> None:
    async with opened(tmp_path) as talk:
        with pytest.raises(ValueError, match="parent_id"):
            await talk.session.import_message(said("a"), parent_id=parent, created_at=1)
        assert not any(talk.counts().values())


# Row: any id beginning `compaction_` is dropped without a word.
@pytest.mark.parametrize(
    "name", ["compaction_", "compaction_x", "compaction_\x00", "compaction_1-2"]
)
@pytest.mark.parametrize("write", ["append", "append as client", "batch", "update", "upsert"])
async def test_an_id_like_an_overlay_s_is_refused(tmp_path: Path, write: str, name: str) -> None:
    async with opened(tmp_path) as talk:
        await talk.session.append_messages([said("a"), said("b")])
        await talk.session.search("anything")
        await talk.session.add_compaction("S", "a", "b")
        await assert_refused(talk, WRITES[write], said(name), ValueError, "compaction_|id")
        foreign = await talk.sessions.session("other").add_compaction("S", "a", "b")
        name = f"compaction_{foreign.id}"
        await assert_refused(talk, WRITES[write], said(name), ValueError, "compaction_|id")


@pytest.mark.parametrize("write", ["append", "append as client", "update", "upsert"])
async def test_the_session_s_own_overlay_is_dropped(tmp_path: Path, write: str) -> None:
    async with opened(tmp_path) as talk:
        await talk.session.append_messages([said(name) for name in "abc"])
        overlay = await talk.session.add_compaction("S", "a", "b")
        before, events = talk.counts(), len(talk.events)
        posted = said(f"compaction_{overlay.id}", "posted back")
        result = await WRITES[write](talk, posted)
        if write == "update":
            assert result is None
        else:
            assert not result.inserted
            assert result.message is posted
        assert talk.counts() == before
        assert len(talk.events) == events


async def test_a_transcript_posted_back_adds_only_what_is_new(tmp_path: Path) -> None:
    async with opened(tmp_path) as talk:
        await talk.session.append_messages([said(name) for name in "abcd"])
        await talk.session.add_compaction("S", "b", "c")
        transcript = [*await talk.session.get_history(), said("new")]
        results = await talk.session.append_messages(transcript)
        assert [result.inserted for result in results] == [False, False, False, True]
        assert ids(await talk.session.get_history())[-1] == "new"


async def test_an_imported_summary_keeps_its_id_and_can_be_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path) as talk:
        await talk.session.import_message(said("compaction_x"), parent_id=None, created_at=1)
        await talk.session.append_message(said("a"))
        assert ids(await talk.session.get_history()) == ["compaction_x", "a"]
        await talk.session.delete_messages(["compaction_x"])
        assert ids(await talk.session.get_history()) == ["a"]


# Row: a `reasoning` part that carries its text in `reasoning` is dropped; `providerMetadata.openai`
# that is no object is mangled.
@pytest.mark.parametrize("text", ["thought", " x ", "\u200b", "\x1c", "\x85", "\ud83d", "0"])
@pytest.mark.parametrize("more", [{}, {"text": ""}, {"text": None}, {"providerMetadata": {}}])
async def test_a_reasoning_part_keeps_a_text_in_reasoning(
    tmp_path: Path, text: str, more: dict[str, Any]
) -> None:
    message = holding("m", {"type": "reasoning", "reasoning": text, **more})
    async with opened(tmp_path) as talk:
        result = await talk.session.append_message(message)
        assert written(result.message) == written(message)
        assert written(await talk.session.get_message("m")) == written(message)


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\ufeff", "\u2003\u3000", None, 5, [], {}])
async def test_a_blank_reasoning_part_is_dropped(tmp_path: Path, text: Any) -> None:
    keys: tuple[dict[str, Any], ...] = ({"text": text}, {"reasoning": text}, {})
    mores: tuple[dict[str, Any], ...] = (
        {},
        {"providerMetadata": {}},
        {"providerMetadata": {"openai": {"itemId": 1}}},
    )
    async with opened(tmp_path) as talk:
        for number, key in enumerate(keys):
            for more in mores:
                message = holding(f"{number}{more}", {"type": "reasoning", **key, **more})
                assert (await talk.session.append_message(message)).message["parts"] == []
        kept = holding(
            "kept", {"type": "reasoning", "text": "", "providerMetadata": {"a": {"s": 1}}}
        )
        assert (await talk.session.append_message(kept)).message is kept


@pytest.mark.parametrize("openai", ["itemId", 7, True, None, [{"itemId": 1}], [], 0.5, ""])
@pytest.mark.parametrize("key", ["providerMetadata", "callProviderMetadata"])
async def test_openai_metadata_that_is_no_object_is_kept(
    tmp_path: Path, openai: Any, key: str
) -> None:
    part: Any = {"type": "text", key: {"openai": openai, "other": {"itemId": 1}}, "text": "x"}
    message = holding("m", part, {"type": "tool-x", key: {"openai": openai}, "input": 1})
    async with opened(tmp_path) as talk:
        assert (await talk.session.append_message(message)).message is message
        assert written(await talk.session.get_message("m")) == written(message)


async def test_only_two_keys_are_dropped_and_all_else_stays_in_order(tmp_path: Path) -> None:
    openai = {
        "z": 1,
        "itemId": "i",
        "a": {"itemId": 2},
        "reasoningEncryptedContent": "r",
        "b": None,
    }
    part = {"type": "text", "text": "x", "providerMetadata": {"x": {"itemId": 3}, "openai": openai}}
    message: Message = {"zz": {"itemId": 4}, **holding("m", part), "metadata": {"openai": openai}}
    async with opened(tmp_path) as talk:
        given = written(message)
        await talk.session.append_message(message)
        assert written(message) == given, "what was passed in is not touched"
        stored: Message = await talk.session.get_message("m")
        assert list(stored) == list(message)
        kept = stored["parts"][0]["providerMetadata"]
        assert kept["openai"] == {"z": 1, "a": {"itemId": 2}, "b": None}
        assert kept["x"] == {"itemId": 3}
        assert written(stored["metadata"]) == written(message["metadata"])
        assert stored["zz"] == {"itemId": 4}


# Row: NaN, Infinity become null.
class Colour(enum.Enum):
    """A value that JSON does not know."""

    RED = "red"


NOT_JSON: list[tuple[Any, str]] = [
    (math.nan, "nan"),
    (math.inf, "inf"),
    (-math.inf, "inf"),
    (b"bytes", "bytes"),
    ({1, 2}, "set"),
    (1j, "complex"),
    (datetime(2024, 1, 1, tzinfo=UTC), "datetime"),
    (uuid.UUID(int=1), "UUID"),
    (Colour.RED, "Colour"),
    (object(), "object"),
    ({5: "x"}, "5|key"),
    ({None: "x"}, "None|key"),
]


@pytest.mark.parametrize("write", WRITES)
async def test_what_is_not_json_is_a_type_error_that_names_the_place(
    tmp_path: Path, write: str
) -> None:
    async with opened(tmp_path) as talk:
        await talk.session.append_message(said("a"))
        await talk.session.search("anything")
        for wrong, _ in NOT_JSON:
            tool = holding(
                "a", {"type": "text", "text": "x"}, {"type": "tool-x", "output": [0, wrong]}
            )
            place = r"parts\[1\]\.output\[1\]"
            await assert_refused(talk, WRITES[write], tool, TypeError, place)
            await assert_refused(
                talk, WRITES[write], said("a", metadata={"k": {"deep": wrong}}), TypeError,
                r"metadata\.k\.deep",
            )  # fmt: skip
            await assert_refused(talk, WRITES[write], said("a", extra=wrong), TypeError, "extra")


NUMBERS = (
    0, -1, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**64) - 1, 10**40, -(10**400), 0.1, -0.5, 1e300,
    5e-324, 1.0, -0.0,
)  # fmt: skip
STRINGS = (
    "",
    "\x00",
    "\ud83d",
    "\udca5",
    "a\ud800b",
    "\U0001f4a5",
    "\u2028",
    '"\\/\b\f\n\r\t',
    "\x7f",
)


async def test_numbers_and_strings_of_every_kind_are_kept(tmp_path: Path) -> None:
    nested: Any = "leaf"
    for _ in range(3_000):
        nested = [nested]
    values: list[Any] = [
        *NUMBERS,
        *STRINGS,
        True,
        False,
        None,
        {},
        [],
        {"": ""},
        {"\ud83d": "\udca5"},
    ]
    message = said("m", STRINGS[1], metadata={"values": values}, plain=values)
    deep = holding("deep", {"type": "data-x", "data": nested})
    async with opened(tmp_path) as talk:
        await talk.session.append_message(message)
        await talk.session.append_message(deep)
        await talk.session.search("x")
        await talk.session.append_message(message | {"id": "n"})
    async with opened(tmp_path) as talk:
        for name in ("m", "n"):
            stored = await talk.session.get_message(name)
            assert written(stored) == written(message | {"id": name})
        read = await talk.session.get_message("deep")
        assert read is not None
        value, levels = read["parts"][0]["data"], 0
        while isinstance(value, list):
            [value], levels = value, levels + 1
        assert (value, levels) == ("leaf", 3_000)
        history = await talk.session.get_history()
        assert [m["id"] for m in history] == ["m", "deep", "n"]
        assert talk.problems() == []
