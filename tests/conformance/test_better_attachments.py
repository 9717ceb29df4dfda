"""Better than the reference: attachments come back byte for byte and live as long as used."""

import base64
import hashlib
import random
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.support import (
    Message,
    Talk,
    holding,
    image,
    json_bytes,
    opened,
    said,
    written,
)

DATA = bytes(range(200))
TEXT = base64.b64encode(DATA).decode()
HASH = hashlib.sha256(DATA).hexdigest()
POINTER = f"attachment:sha256:{HASH}"
META = "SELECT hash, bytes FROM cf_agents_session_attachment_meta ORDER BY hash"


def tool(output: Any) -> dict[str, Any]:
    """Make a tool part that returned this."""
    return {"type": "tool-x", "toolCallId": "t", "state": "output-available", "output": output}


async def every_read(talk: Talk, message_id: str) -> list[Message]:
    """Read a message, the newest of its session, in every way there is."""
    session = talk.session
    found = [
        await session.get_message(message_id),
        await session.get_latest_leaf(),
        (await session.get_history())[-1],
        [m async for m in session.history()][-1],
        await anext(session.history(newest_first=True)),
        [batch async for batch in session.history_batches()][-1][-1],
        (await session.get_recent_history(0)).messages[-1],
        (await session.get_branches("root"))[-1],
        [row async for row in session.history_rows()][-1].message,
    ]
    return [message for message in found if message is not None]


async def assert_comes_back(talk: Talk, message: Message) -> None:
    """Append a message under the root; it must come back from every read and event as it was."""
    result = await talk.session.append_message(message, parent_id="root")
    assert result.message is message
    for seen in [talk.events[-1].message, *await every_read(talk, message["id"])]:
        assert written(seen) == written(message)


# Row: same bytes under two media types, a type only in the URL, parameters, whitespace, missing
# padding, stray bits, `data:;base64,`: reads back altered, keys added.
HEADERS = (
    "data:image/png;base64,",
    "data:image/webp;base64,",
    "data:image/png;name=x;base64,",
    "data:image/png;charset=utf-8;name=a b;base64,",
    "data:;base64,",
    "data:;name=x;base64,",
    "data: image/png ;base64,",
    "data:image/PNG;base64,",
    "data:application/octet-stream;base64,",
    'data:image/svg+xml;utf8="\u00e9";base64,',
    "data:text/plain;base64,",
    "data:image/png;BASE64,",
    "DATA:image/png;base64,",
    "data:image/png,",
    "data:image/png;base64",
    "data:,",
    "data:",
    "",
    "https://example.com/x.png?",
    "blob:",
)
PAYLOADS = (
    TEXT,
    "",
    "AA==",
    "AB==",  # stray bits
    "AAA",  # no padding
    "AAAA=",
    "A",
    "AA\n==",
    " AA==",
    "AA== ",
    "AA==AA==",
    "_-_-",
    "%41%41",
    "\u00e9\u00e9\u00e9\u00e9",
    "\ud83d",
    "\x00AAA",
)


@pytest.mark.parametrize("header", HEADERS)
async def test_a_url_comes_back_as_it_was(tmp_path: Path, header: str) -> None:
    media_types: tuple[Any, ...] = ("image/png", "audio/wav", "", "text/plain", None, 5, ())
    async with opened(tmp_path) as talk:
        await talk.session.append_message(said("root"))
        for number, payload in enumerate(PAYLOADS):
            parts: list[Any] = []
            for declared in media_types:
                part = {"type": "file", "url": header + payload, "filename": "f"}
                parts.append(part if declared == () else {"mediaType": declared, **part})
            message = holding(f"m{number}", *parts, tool(parts[:3]))
            await assert_comes_back(talk, message)
        before = await talk.session.get_history_row_stats()
    async with opened(tmp_path) as talk:
        assert await talk.session.get_history_row_stats() == before
        assert talk.problems() == []


@pytest.mark.parametrize(
    ("part", "outside"),
    [
        (image(TEXT), True),
        (image(TEXT, "image/png;name=x"), True),
        ({"type": "file", "url": f"data:image/png;base64,{TEXT}"}, True),
        ({"type": "file", "url": f"data:;base64,{TEXT}"}, True),
        ({"type": "file", "mediaType": "audio/x", "url": f"data:image/png;base64,{TEXT}"}, True),
        ({"type": "file", "mediaType": "image/png", "url": f"data:text/plain;base64,{TEXT}"}, True),
        ({"type": "file", "mediaType": "image/png", "data": TEXT}, True),
        (tool({"mediaType": "application/sql", "data": TEXT}), True),
        (tool([[{"deep": {"mediaType": "image/png", "data": TEXT}}]]), True),
        ({"type": "file", "mediaType": "text/css", "url": f"data:image/png;base64,{TEXT}"}, False),
        ({"type": "file", "url": f"data:text/html;x=y;base64,{TEXT}"}, False),
        (image(TEXT + "\n"), False),
        (image(TEXT.rstrip("=")), False),
        ({"type": "file", "data": TEXT}, False),
        ({"type": "text", "text": f"data:image/png;base64,{TEXT}"}, False),
    ],
)
async def test_a_payload_is_outside_the_row_when_its_base64_is_canonical(
    tmp_path: Path, part: dict[str, Any], outside: bool
) -> None:
    async with opened(tmp_path) as talk:
        await talk.session.append_message(said("root"))
        await assert_comes_back(talk, holding("m", part))
        stored = TEXT[:100] not in talk.contents()["m"]
        assert stored is outside
        wanted = [{"hash": HASH, "bytes": len(DATA)}] if outside else []
        assert talk.storage.sql.exec(META).to_list() == wanted


async def test_each_place_keeps_its_own_header_for_one_payload(tmp_path: Path) -> None:
    types = ("image/png", "image/jpeg", "application/pdf", "IMAGE/PNG", "x/y;z=1")
    async with opened(tmp_path) as talk:
        await talk.session.append_message(said("root"))
        for number, kind in enumerate(types):
            await assert_comes_back(talk, holding(f"m{number}", image(TEXT, kind)))
        message = holding("all", *(image(TEXT, kind) for kind in types))
        await assert_comes_back(talk, message)
        assert len(talk.storage.sql.exec(META).to_list()) == 1
        await talk.session.delete_messages(["m0"])
        assert written(await talk.session.get_message("all")) == written(message)


# Row: {"mediaType": "application/sql", "data": "SELECT 1"} is taken for base64 and corrupted.
@pytest.mark.parametrize(
    "text",
    ["SELECT 1", "SELECT", "hello", "YES", "true", "null", "key=value", "abcd", "AAAA", "====", ""],
)
async def test_text_that_looks_like_base64_comes_back(tmp_path: Path, text: str) -> None:
    async with opened(tmp_path) as talk:
        await talk.session.append_message(said("root"))
        for number, kind in enumerate(("application/sql", "application/json", "x", "image/png")):
            record = {"mediaType": kind, "data": text}
            await assert_comes_back(talk, holding(f"m{number}", {"type": "data-x", **record}))
            await assert_comes_back(talk, holding(f"t{number}", tool(record)))


# Row: a user writes attachment:sha256:<hash> and reads another session's bytes, or its text
# changes later.
FOREIGN = (
    POINTER,
    POINTER + ";data:image/png;base64,",
    POINTER.upper(),
    POINTER + " ",
    "attachment:sha256:" + "0" * 64,
    "attachment:sha256:",
    "attachment:verbatim:" + POINTER,
    "attachment:verbatim:attachment:verbatim:x",
    "attachment:",
)


@pytest.mark.parametrize("text", FOREIGN)
async def test_a_pointer_from_outside_is_only_text(tmp_path: Path, text: str) -> None:
    shapes = [
        {"type": "file", "mediaType": "image/png", "url": text},
        {"type": "file", "url": text},
        {"type": "file", "mediaType": "image/png", "data": text},
        {"type": "text", "text": text},
        tool({"url": text}),
        tool([{"data": text, "mediaType": "image/png"}]),
        tool({"url": text, "data": TEXT, "mediaType": "image/png"}),
        tool({"nested": {"url": {"url": text}}}),
    ]
    message = holding("m", *shapes)
    victim = holding("v", image(TEXT))
    async with opened(tmp_path) as talk:
        other = talk.sessions.session("victim")
        await talk.session.append_message(said("root"))
        await assert_comes_back(talk, message)  # before the payload is there
        await other.append_message(victim)
        for seen in await every_read(talk, "m"):
            assert written(seen) == written(message)
        await talk.session.delete_messages(["m"])
        await assert_comes_back(talk, message)  # while it is there
        again = holding("m", *shapes, {"type": "text", "text": "changed"})
        await talk.session.update_message(again)
        assert written(await talk.session.get_message("m")) == written(again)
        await talk.session.import_message(holding("i", *shapes), parent_id="root", created_at=1)
        assert written(await talk.session.get_message("i")) == written(holding("i", *shapes))
        await other.clear_messages()  # and after it went
        assert written(await talk.session.get_message("m")) == written(again)
        await talk.session.delete_messages(["m", "i"])
        assert talk.storage.sql.exec(META).to_list() == []
        assert talk.problems() == []


# Row: a pointer beside an image hides the image's payload; a duplicate import leaks a payload.
@pytest.mark.parametrize("order", [0, 1])
async def test_a_pointer_hides_nothing_that_stands_beside_it(tmp_path: Path, order: int) -> None:
    pair = [{"url": POINTER}, {"mediaType": "image/png", "data": TEXT}]
    nested = {"url": POINTER, "inner": {"mediaType": "image/png", "data": TEXT}}
    message = holding("m", tool(pair[:: -1 if order else 1]), tool(nested), image("eHl6"))
    async with opened(tmp_path) as talk:
        await talk.session.append_message(said("root"))
        await assert_comes_back(talk, message)
        assert TEXT[:100] not in talk.contents()["m"]
        assert len(talk.storage.sql.exec(META).to_list()) == 2
        await talk.session.delete_messages(["m"])
        assert talk.storage.sql.exec(META).to_list() == []


@pytest.mark.parametrize("seed", range(8))
async def test_payloads_live_exactly_as_long_as_a_message_holds_them(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    texts = [base64.b64encode(bytes([i]) * (i + 1)).decode() for i in range(6)]
    async with opened(tmp_path) as talk:
        held: dict[tuple[str, str], set[str]] = {}
        for _ in range(120):
            session_id, name = rng.choice(["", "other"]), f"m{rng.randrange(8)}"
            session, key = talk.sessions.session(session_id), (session_id, name)
            chosen = rng.sample(texts, rng.randrange(4))
            message = holding(name, *(image(t) for t in chosen), {"type": "file", "url": POINTER})
            kind = rng.randrange(8)
            if kind < 2:
                if (await session.append_message(message)).inserted:
                    held[key] = set(chosen)
            elif kind < 4:
                await session.upsert_message(message)
                held[key] = set(chosen)
            elif kind < 5:
                if await session.update_message(message) is not None:
                    held[key] = set(chosen)
            elif kind < 6:
                if await session.import_messages([(message, None, 1)]):
                    held[key] = set(chosen)
            elif kind < 7 or rng.random() < 0.8:
                await session.delete_messages([name, "unknown"])
                held.pop(key, None)
            else:
                await session.clear_messages()
                held = {k: v for k, v in held.items() if k[0] != session_id}
            wanted = {text for texts in held.values() for text in texts}
            digests = sorted(hashlib.sha256(base64.b64decode(t)).hexdigest() for t in wanted)
            found = [row["hash"] for row in talk.storage.sql.exec(META)]
            assert found == digests
        assert talk.problems() == []


# Row: an image repeated 50 times in one message, a 5 MB overlay summary: charged once or not at
# all by the budget.
async def test_an_image_is_charged_as_often_as_it_is_shown(tmp_path: Path) -> None:
    once = holding("once", image(TEXT * 40))
    often = holding("often", *[image(TEXT * 40)] * 50)
    async with opened(tmp_path) as talk:
        await talk.session.append_messages([once, often, said("end")])
        stats = {row.id: row.bytes for row in await talk.session.get_history_row_stats()}
        assert stats["often"] >= json_bytes(often)
        assert stats["once"] >= json_bytes(once)
        budget = json_bytes(often) // 2
        recent = await talk.session.get_recent_history(budget)
        assert [m["id"] for m in recent.messages] == ["end"]
        assert recent.total_content_bytes == sum(stats.values())


@pytest.mark.parametrize("seed", range(6))
async def test_what_the_recent_window_returns_is_within_its_budget(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    async with opened(tmp_path) as talk:
        session = talk.session
        for i in range(40):
            parts: list[Any] = [{"type": "text", "text": "x" * rng.randrange(200)}]
            parts += [image(TEXT)] * rng.choice([0, 0, 0, 1, 9])
            await session.append_message(holding(f"m{i}", *parts))
        for _ in range(4):
            first = rng.randrange(38)
            size = rng.choice([1, 50, 5_000, 200_000])
            last = rng.randrange(first, 40)
            await session.add_compaction("s" * size, f"m{first}", f"m{last}")
        path = await session.get_history_row_stats()
        for budget in [0, 100, 1_000, 5_000, 20_000, 60_000, 250_000, 10**7]:
            recent = await session.get_recent_history(budget)
            returned = sum(map(json_bytes, recent.messages))
            assert returned <= budget or len(recent.messages) == 1
            assert recent.total_content_bytes == sum(row.bytes for row in path)
            assert recent.messages
