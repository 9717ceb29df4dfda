"""Importers hold a conversation's skeleton, not its content, however large the file."""

import io
import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

import pytest

from router.formats import IMPORTERS, Problem, Reader, Source

MESSAGES = 2_000
TEXT = "0123456789abcdef" * 1_000  # 16 kB: 32 MB in all
SESSION = "0a0b0c0d-1111-4222-8333-444455556666"


def joined(opening: str, items: Iterator[str], separator: str, closing: str) -> Iterator[str]:
    """Yield the pieces of a large text one by one."""
    yield opening
    for number, item in enumerate(items):
        yield (separator if number else "") + item
    yield closing


def chatgpt() -> Iterator[str]:
    """One conversation of many nodes, its id at the very end."""

    def nodes() -> Iterator[str]:
        for n in range(MESSAGES):
            node: dict[str, Any] = {
                "parent": f"n{n - 1}" if n else None,
                "children": [f"n{n + 1}"],
                "message": {
                    "author": {"role": "user"},
                    "content": {"content_type": "text", "parts": [TEXT]},
                },
            }
            yield f'"n{n}":{json.dumps(node)}'

    return joined('[{"mapping":{', nodes(), ",", '},"conversation_id":"c"}]')


def claude_code() -> Iterator[str]:
    """One transcript of many lines."""
    for n in range(MESSAGES):
        entry = {
            "type": "user",
            "uuid": f"n{n}",
            "parentUuid": f"n{n - 1}" if n else None,
            "sessionId": SESSION,
            "message": {"role": "user", "content": TEXT},
        }
        yield json.dumps(entry) + "\n"


def messages(**fields: Any) -> Iterator[str]:
    """Many messages of a list."""
    for n in range(MESSAGES):
        yield json.dumps({"id": f"n{n}", "role": "user", **fields})


def jsonl() -> Iterator[str]:
    """One conversation of our own export."""
    head = {"type": "conversation", "format": "sessions-actor", "version": 1, "name": "c"}
    yield json.dumps(head) + "\n"
    for n in range(MESSAGES):
        message = {"id": f"n{n}", "role": "user", "parts": [{"type": "text", "text": TEXT}]}
        row = {"session": "", "parent_id": None, "created_at": 1, "message": message}
        yield json.dumps({"type": "message", **row}) + "\n"
    yield json.dumps({"type": "end", "messages": MESSAGES, "compactions": 0}) + "\n"


FILES: dict[str, tuple[str, Callable[[], Iterator[str]]]] = {
    "chatgpt": ("chatgpt", chatgpt),
    "claude-code": ("claude-code", claude_code),
    "jsonl": ("jsonl", jsonl),
    "ai-sdk": (
        "ai-sdk",
        lambda: joined("[", messages(parts=[{"type": "text", "text": TEXT}]), ",", "]"),
    ),
    "openai": ("openai", lambda: joined("[", messages(content=TEXT), ",", "]")),
    "openai chat": (
        "openai",
        lambda: joined('{"messages":[', messages(content=TEXT), ",\n", '],"id":"c"}'),
    ),
}


class Pieces(io.RawIOBase):
    """A file that is made while it is read."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces = pieces
        self._left = b""

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes."""
        while len(self._left) < size and (piece := next(self._pieces, None)) is not None:
            self._left += piece.encode()
        data, self._left = self._left[:size], self._left[size:]
        return data


@pytest.mark.parametrize("name", FILES)
def test_memory_does_not_follow_the_size_of_a_conversation(name: str) -> None:
    form, pieces = FILES[name]
    problems: list[Problem] = []
    source = Source(cast(BinaryIO, Pieces(pieces())), label="large", stem="large")
    found = 0
    tracemalloc.start()
    try:
        for conversation in IMPORTERS[form](Reader(source, problems.append)):
            for item in cast(Iterator[Any], conversation.items):
                found += hasattr(item, "message")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not problems
    assert found == MESSAGES
    assert peak < len(TEXT) * MESSAGES / 2
    assert peak < 12_000_000
