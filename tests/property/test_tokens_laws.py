"""Token estimates agree with a transcription of the reference's arithmetic."""

import math
import re
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from sessions_actor.messages import JS_SPACE
from sessions_actor.tokens import estimate_message, estimate_text

from .json_values import floats, joined, law, messages_of, texts, values

_NOT_SPACE = re.compile(f"[^{JS_SPACE}]+")


def units(text: str) -> int:
    return sum(2 if character > "\uffff" else 1 for character in text)


def slow_text(text: str) -> int:
    return math.ceil(max(units(text) / 4, len(_NOT_SPACE.findall(text)) * 1.3))


def slow_number(number: float) -> str:
    """Write a number as ECMAScript's Number::toString does."""
    if number == 0:
        return "0"
    if number < 0:
        return "-" + slow_number(-number)
    mantissa, exponent = f"{number!r}e0".split("e")[:2]
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        return digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    sign = "+" if point > 0 else "-"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{rest}e{sign}{abs(point - 1)}"


def slow_json(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int):
        return f"{value:d}"
    if isinstance(value, float):
        return slow_number(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{slow_json(k)}:{slow_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(slow_json, value)) + "]"
    short = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    escaped = "".join(
        f"\\{c}"
        if c in '"\\'
        else short.get(c) or (f"\\u{ord(c):04x}" if c < " " or "\ud800" <= c <= "\udfff" else c)
        for c in value
    )
    return f'"{escaped}"'


def slow_value(value: Any) -> int:
    if value is None:
        return 0
    return slow_text(value if isinstance(value, str) else slow_json(value))


def first(part: Any, *keys: str) -> Any:
    return next((part[key] for key in keys if part.get(key) is not None), None)


def slow_message(message: Any) -> int:
    tokens = 4
    for part in message["parts"]:
        kind = part["type"]
        if kind in ("text", "reasoning"):
            tokens += slow_value(first(part, "text", "reasoning"))
        elif kind.startswith("tool-") or kind == "dynamic-tool":
            tokens += slow_value(part.get("input")) + slow_value(first(part, "output", "result"))
        elif "text" in part:
            tokens += slow_value(part["text"])
        elif "result" in part:
            tokens += slow_value(part["result"])
        url, media = part.get("url"), part.get("mediaType", "")
        if kind == "file" and isinstance(url, str) and url.startswith("data:"):
            if isinstance(media, str) and media.startswith("image/"):
                tokens += 1600
            elif "," in url:
                header, payload = url[5:].split(",", 1)
                size = units(payload)
                size = size * 3 // 4 if header.endswith(";base64") else size
                tokens += min(math.ceil(size / 4), 20_000)
    return tokens


_spaced = st.text(st.sampled_from(JS_SPACE + "\x1c\x1f\x85\u200bax東💥\ud800"), max_size=30)
_inputs = st.one_of(values, floats, st.lists(floats), st.floats(1e-9, 1e-3), st.floats(1e14, 1e23))
_parts = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ("text", "reasoning", "tool-x", "dynamic-tool", "tool", "file", "data-x")
        )
    },
    optional={
        "text": _inputs,
        "reasoning": _inputs,
        "input": _inputs,
        "output": _inputs,
        "result": _inputs,
        "mediaType": st.sampled_from(("image/png", "IMAGE/png", "text/plain", 5)),
        "url": st.builds(
            lambda header, text: header + text,
            st.sampled_from(("data:a/b;base64,", "data:,", "data:", "https://x", "data:;base64,")),
            texts,
        ),
    },
)


@law
@given(st.one_of(texts, _spaced.map(joined)))
def test_text(text: str) -> None:
    assert estimate_text(text) == slow_text(text)


@law
@given(messages_of(_parts))
@example({"parts": [{"type": "tool-x", "input": [1.0, 1e-6, 1.5e-6, 1e16, 1e20, 1e21, -0.0]}]})
@example({"parts": [{"type": "tool-x", "input": 1.0, "output": -1e-6}]})
def test_message(message: Any) -> None:
    assert estimate_message(message) == slow_message(message)
