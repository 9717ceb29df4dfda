"""Token estimates: the arithmetic of the specification on cases worked out by hand."""

import math
from typing import Any

import pytest

from sessions_actor.tokens import estimate_content, estimate_message, estimate_text, is_tool_part


def message(*parts: Any) -> Any:
    return {"id": "m", "role": "user", "parts": list(parts)}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 2),  # one word
        ("abcdefgh", 2),
        ("abcdefghi", 3),
        ("a b c d", 6),
        (" \t\n", 1),  # three characters, no word
        ("a" * 400, 100),
        ("💥" * 10, 5),  # two units each
        ("東" * 10, 3),
        ("a\ufeffb", 3),  # JavaScript's white space
        ("a\u3000b\u2028c", 4),
        ("a\x1cb\x85c", 2),  # Python's alone
        ("\ud800" * 8, 2),
    ],
)
def test_text(text: str, tokens: int) -> None:
    assert estimate_text(text) == tokens


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        ({"type": "text", "text": "abcdefghijkl"}, 3),
        ({"type": "reasoning", "text": "abcdefghijkl"}, 3),
        ({"type": "reasoning", "reasoning": "abcdefghijkl"}, 3),
        ({"type": "text", "text": None, "reasoning": "abcdefghijkl"}, 3),
        ({"type": "text"}, 0),
        ({"type": "tool-x", "input": {"a": 1, "b": "two words"}}, 6),
        ({"type": "tool-x", "input": "plain string"}, 3),
        ({"type": "tool-x", "output": None, "result": "hello there"}, 3),
        ({"type": "tool-x", "output": "abcdefgh", "result": "hello there"}, 2),
        ({"type": "dynamic-tool", "input": 0}, 2),
        ({"type": "tool-x", "input": False}, 2),
        ({"type": "tool-x", "input": ""}, 0),
        ({"type": "tool-x", "errorText": "some long error text here"}, 0),
        ({"type": "tool", "input": "not a tool-"}, 0),
        ({"type": "data-x", "data": {"a": "lots of stuff here"}}, 0),
        ({"type": "data-x", "text": "hello there"}, 3),
        ({"type": "data-x", "text": None, "result": "hello there"}, 0),
        ({"type": "data-x", "result": "hello there"}, 3),
        ({"type": "step-start"}, 0),
    ],
)
def test_parts(part: Any, tokens: int) -> None:
    assert estimate_message(message(part)) == 4 + tokens
    assert estimate_content(message(part)) == 4 + tokens


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        ({"mediaType": "image/png", "url": "data:image/png;base64,eA=="}, 1600),
        ({"mediaType": "image/png", "url": "data:image/png"}, 1600),
        ({"mediaType": "image/png", "url": "https://x/y.png"}, 0),
        ({"mediaType": "IMAGE/png", "url": "data:image/png;base64," + "A" * 16}, 3),
        ({"mediaType": 5, "url": "data:image/png;base64," + "A" * 16}, 3),
        ({"url": "data:image/png;base64," + "A" * 16}, 3),
        ({"mediaType": "a/b", "url": "data:a/b,abcdefgh"}, 2),
        ({"mediaType": "a/b", "url": "data:a/b;base64,"}, 0),
        ({"mediaType": "a/b", "url": "data:a/b;base64," + "A" * 106_668}, 20_000),
        ({"mediaType": "a/b", "url": "data:a/b;base64," + "A" * 900_000}, 20_000),
        ({"mediaType": "image/png", "data": "eA=="}, 0),
        ({"mediaType": "image/png", "url": 5}, 0),
    ],
)
def test_files(part: Any, tokens: int) -> None:
    assert estimate_message(message({"type": "file", **part})) == 4 + tokens
    assert estimate_content(message({"type": "file", **part})) == 4


@pytest.mark.parametrize(
    ("value", "length"),
    [
        (12345678.0, 8),
        (-0.0, 1),
        (1e-6, 8),
        (1.25e-6, 10),
        (1e16, 17),
        (1e20, 21),
        (1e21, 5),
        (1e-7, 4),
        ([1.0, 2.0, 3.5], 9),
        ({"a": 1.0, "b": [2.0]}, 15),
        (10**30, 31),
        ("\ud800", len('"\\ud800"')),
    ],
)
def test_values_weigh_what_their_javascript_text_does(value: Any, length: int) -> None:
    filler = "x" * 400
    estimate = estimate_message(message({"type": "tool-x", "input": [filler, value]}))
    total = len(f'["{filler}",]') + length
    assert estimate == 4 + math.ceil(total / 4)


def test_odd_values_never_fail() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep, 1.0]
    for value in (deep, {1, 2}, float("nan"), 10**5_000, {1: 2}, object(), [float("inf"), 1.0]):
        assert estimate_message(message({"type": "tool-x", "input": value})) >= 4
    assert estimate_message(message(None, "x", {}, {"type": 5}, {"type": "text", "text": 5})) == 6


def test_is_tool_part() -> None:
    assert is_tool_part({"type": "tool-"})
    assert is_tool_part({"type": "dynamic-tool"})
    assert not is_tool_part({"type": "tool"})
    assert not is_tool_part({"type": None})
