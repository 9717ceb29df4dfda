"""What the demo brings along: its conversation is well formed, its summariser needs no model."""

import struct
import zlib

from router.demo_talk import KEEP_RECENT_TOKENS, PICTURE, REST, SECOND_ANSWER, TALK, summarize
from sessions_actor.compaction import create_compact_function
from sessions_actor.messages import sanitize, validate_message

PATH = [*TALK[:-1], SECOND_ANSWER, *REST]


def test_its_messages_are_stored_as_they_are() -> None:
    for message in [*TALK, SECOND_ANSWER, *REST]:
        validate_message(message)
        assert sanitize(message) is message
    ids = [message["id"] for message in [*TALK, SECOND_ANSWER, *REST]]
    assert len(set(ids)) == len(ids)


def test_its_picture_is_a_picture() -> None:
    assert PICTURE.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", PICTURE[16:24])
    begin = PICTURE.index(b"IDAT") + 4
    (length,) = struct.unpack(">I", PICTURE[begin - 8 : begin - 4])
    assert len(zlib.decompress(PICTURE[begin : begin + length])) == height * (1 + 3 * width)


async def test_its_middle_is_worth_a_summary_of_what_was_said() -> None:
    compact = create_compact_function(summarize=summarize, keep_recent_tokens=KEEP_RECENT_TOKENS)
    result = await compact(PATH)
    assert result is not None
    said = " ".join(str(part.get("text", "")) for message in PATH for part in message["parts"])
    for sentence in result.summary.removeprefix("Earlier: ").split(". "):
        assert sentence.rstrip(".") in said


def test_a_summary_of_nothing_is_short() -> None:
    assert summarize("") == "Earlier: "
