"""What a message weighs in tokens, by a heuristic that needs no tokenizer and never fails.

It is JavaScript's arithmetic throughout: lengths in UTF-16 units, its white space, JSON as
`JSON.stringify` measures it. So a row weighs the same here and on a real Durable Object. Integers
that JavaScript would round are measured as they are stored.
"""

import math
from typing import Any

from .codec import dumps
from .messages import JS_SPACE, SessionMessage

_CHARACTERS_PER_TOKEN = 4
_TOKENS_PER_WORD = 1.3
_TOKENS_PER_MESSAGE = 4
_IMAGE_TOKENS = 1_600
_FILE_TOKENS_MAX = 20_000

_WIDE_SPACES = [space for space in JS_SPACE if not space.isascii()]
_MARKS = bytes(0x20 if byte < 0x80 and chr(byte) in JS_SPACE else 0x78 for byte in range(256))
_ODD_FLOAT_SIGNS = (b".0,", b".0]", b".0}", b"e-6", b"e+1", b"e+20")


def estimate_text(text: str) -> int:
    """Return ceil(max(UTF-16 length / 4, words x 1.3))."""
    return _tokens(*_measure(text))


def estimate_message(message: SessionMessage) -> int:
    """Return a row's estimate: its content, and a weight per inline file.

    Cost: linear. The message is weighed as written, before attachments leave it.
    Source: Token estimate.
    """
    tokens = estimate_content(message)
    for part in message["parts"]:
        if isinstance(part, dict) and part.get("type") == "file":
            tokens += _estimate_file(part)
    return tokens


def estimate_content(message: SessionMessage) -> int:
    """Return the estimate of a message's text, reasoning and tool parts alone."""
    tokens = _TOKENS_PER_MESSAGE
    for part in message["parts"]:
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if kind in ("text", "reasoning"):
            tokens += _estimate_value(_first(part, "text", "reasoning"))
        elif is_tool_part(part):
            tokens += _estimate_value(part.get("input"))
            tokens += _estimate_value(_first(part, "output", "result"))
        elif "text" in part:
            tokens += _estimate_value(part["text"])
        elif "result" in part:
            tokens += _estimate_value(part["result"])
    return tokens


def is_tool_part(part: dict[str, Any]) -> bool:
    """Tell whether a part is a tool's call, its result, or both."""
    kind = part.get("type")
    return isinstance(kind, str) and (kind.startswith("tool-") or kind == "dynamic-tool")


def _first(part: dict[str, Any], key: str, otherwise: str) -> Any:
    value = part.get(key)
    return part.get(otherwise) if value is None else value


def _estimate_value(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, str):
        return estimate_text(value)
    try:
        data = dumps(value)
    except TypeError:
        return 0  # not JSON: the write itself refuses it, and says where
    length, words = _measure(data.decode())
    if data.endswith(b".0") or any(sign in data for sign in _ODD_FLOAT_SIGNS):
        length += _javascript_surplus(value)
    return _tokens(length, words)


def _estimate_file(part: dict[str, Any]) -> int:
    url, media_type = part.get("url"), part.get("mediaType")
    if not isinstance(url, str) or not url.startswith("data:"):
        return 0
    if isinstance(media_type, str) and media_type.startswith("image/"):
        return _IMAGE_TOKENS
    header, _, payload = url.partition(",")
    size = _utf16_length(payload)
    if header.removeprefix("data:").endswith(";base64"):
        size = size * 3 // 4
    return min(math.ceil(size / _CHARACTERS_PER_TOKEN), _FILE_TOKENS_MAX)


def _tokens(length: int, words: int) -> int:
    return math.ceil(max(length / _CHARACTERS_PER_TOKEN, words * _TOKENS_PER_WORD))


def _measure(text: str) -> tuple[int, int]:
    """Return the length in UTF-16 units and the number of words."""
    length = _utf16_length(text)
    if not text.isascii():
        for space in _WIDE_SPACES:
            text = text.replace(space, " ")
    marks = text.encode("utf-8", "surrogatepass").translate(_MARKS)  # "x" but for white space
    return length, marks.count(b" x") + marks.startswith(b"x")


def _utf16_length(text: str) -> int:
    if text.isascii():
        return len(text)
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _javascript_surplus(value: Any) -> int:
    """Return how much longer JavaScript writes the floats in a value than `dumps` does."""
    surplus = 0
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, float):
            text = dumps(value).decode()
            surplus += _javascript_length(value, text) - len(text)
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, (list, tuple)):
            pending += value
    return surplus


def _javascript_length(number: float, text: str) -> int:
    if number.is_integer() and abs(number) < 1e21:
        return len(str(int(number)))
    mantissa, _, exponent = text.partition("e")
    if exponent == "-6":  # 0.000001, where Python begins to write exponents one decade earlier
        return len("0.00000" + mantissa.replace(".", ""))
    return len(text)
