r"""JSON text, exactly: `loads` gives back what `dumps` was given, `dumps` the bytes it once wrote.

The text is compact UTF-8 with keys in order. Integers of any size, any depth of nesting and lone
surrogates (written as `\ud83d` escapes, as JavaScript does) are kept; a tuple is an array. What
JSON cannot hold is a `TypeError` that names the place, never a silent `null` or string.

orjson does the work. It stops short of this in known ways (64-bit integers, 254 levels, no
surrogates; NaN written as null, UUIDs and enums as strings), so each call checks for those cheaply
and hands such a value to the slow and exact code below, which is iterative: no value, however
deep, meets the interpreter's recursion limit.
"""

import decimal
import json
import marshal
import math
import re
import reprlib
from collections.abc import Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]
from json.encoder import encode_basestring
from typing import Any, NoReturn

import orjson

_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")

# ---------------------------------------------------------------------------------------- writing


def dumps(value: Any, where: str = "message") -> bytes:
    """Write a value as compact JSON.

    Args: `where` names the value in error texts.
    Raises: TypeError with the place ("message.parts[0].output: float nan is not JSON").
    Cost: linear; three to four times orjson's own for what orjson can write.
    """
    try:
        data = orjson.dumps(value)
        # marshal accepts exact built-in types only: what orjson would write although it is not
        # JSON (a UUID, an enum, a dataclass, a fragment) fails here, at C speed.
        marshal.dumps(value, 2)
    except (TypeError, ValueError):
        return _write(value, where)
    if b"null" in data and _holds_nonfinite((value,)):
        return _write(value, where)
    return data


def _holds_nonfinite(value: Any) -> bool:
    """Tell whether orjson wrote a float in a container as null; it has bounded the depth."""
    for entry in value.values() if type(value) is dict else value:
        kind = type(entry)
        if kind is float:
            if not math.isfinite(entry):
                return True
        elif (kind is dict or kind is list or kind is tuple) and _holds_nonfinite(entry):
            return True
    return False


class _Open:
    """A container being written, and the entry the writer has come to."""

    __slots__ = ("container", "entries", "is_object", "key", "value")

    def __init__(self, container: Any) -> None:
        self.container = container
        self.is_object = isinstance(container, dict)
        self.entries: Iterator[tuple[Any, Any]] = iter(
            container.items() if self.is_object else enumerate(container)
        )
        self.key: Any = None
        self.value: Any = None

    def advance(self, out: list[bytes]) -> bool:
        """Go on to the next entry and write what stands before its value; False at the end."""
        before = b"" if self.key is None else b","
        self.key = None
        entry = next(self.entries, None)
        if entry is None:
            return False
        key, self.value = entry
        if self.is_object:
            if not isinstance(key, str):
                raise TypeError(f"key {_short(key)} is no string")
            before += _text(key) + b":"
        out.append(before)
        self.key = key
        return True


def _write(value: Any, where: str) -> bytes:
    """Write what orjson cannot, or raise what `dumps` promises."""
    out: list[bytes] = []
    path: list[_Open] = []
    open_ids: set[int] = set()
    try:
        while True:
            scalar = _scalar(value)
            if scalar is not None:
                out.append(scalar)
            elif not isinstance(value, (dict, list, tuple)):
                raise TypeError(f"{_short(value)} is not JSON")
            elif id(value) in open_ids:
                raise TypeError(f"a {type(value).__name__} that holds itself is not JSON")
            else:
                path.append(_Open(value))
                open_ids.add(id(value))
                out.append(b"{" if path[-1].is_object else b"[")
            while path and not path[-1].advance(out):
                done = path.pop()
                open_ids.remove(id(done.container))
                out.append(b"}" if done.is_object else b"]")
            if not path:
                return b"".join(out)
            value = path[-1].value
    except TypeError as error:
        raise TypeError(f"{where}{_place(path)}: {error}") from None


def _scalar(value: Any) -> bytes | None:
    """Return the text of a scalar, None for anything else."""
    if value is None:
        return b"null"
    if isinstance(value, str):
        return _text(str.__str__(value))
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int):
        return _digits_of(int.__int__(value)).encode()
    if isinstance(value, float) and math.isfinite(value):
        return orjson.dumps(float.__float__(value))
    return None


def _text(text: str) -> bytes:
    """Write a string as JavaScript does: lone surrogates escaped, paired ones one character."""
    try:
        return orjson.dumps(text)
    except TypeError:
        return encode_basestring(_PAIR.sub(_join_pair, text)).encode("utf-8", "backslashreplace")


def _join_pair(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _place(path: list[_Open]) -> str:
    """Name where the writer stands: `.parts[0].output`."""
    steps = [_step(frame.key) for frame in path if frame.key is not None]
    if len(steps) > 20:
        steps[10:-10] = ["…"]
    return "".join(steps)


def _step(key: Any) -> str:
    if isinstance(key, str) and key.isidentifier() and len(key) <= 60:
        return f".{key}"
    return f"[{reprlib.repr(key)}]"


def _short(value: Any) -> str:
    return f"{type(value).__name__} {reprlib.repr(value)}"


# ---------------------------------------------------------------------------------------- reading

_DIGITS_ONLY = bytes(0x30 if chr(byte) in "0123456789" else 0 for byte in range(256))
_LONG_RUN = b"0" * 19
_BEFORE_NUMBERS = b"[:, \t\n\r"


def loads(data: bytes | str) -> Any:
    """Read one JSON text.

    Raises: ValueError when it is malformed, NaN and Infinity included.
    Cost: about 1.5 times orjson's own; ten times as much for what orjson cannot read.
    """
    try:
        raw = data.encode() if isinstance(data, str) else data
        value = orjson.loads(raw)
    except ValueError:
        return _read(data)
    if _maybe_beyond_64_bits(raw):
        return _read(data)  # orjson reads such an integer as a float
    return value


def loads_for_texts(data: bytes) -> Any:
    """Read one JSON text for its strings, numbers aside: a large integer may come as a float.

    Raises: ValueError when it is malformed.
    """
    try:
        return orjson.loads(data)
    except ValueError:
        return _read(data)


def _maybe_beyond_64_bits(raw: bytes) -> bool:
    """Tell whether a long run of digits stands where a number begins.

    Ids made of digits, which many systems use, are such runs as well, but behind a quote.
    """
    digits = raw.translate(_DIGITS_ONLY)
    at = digits.find(_LONG_RUN)
    while at >= 0:
        before = at - 2 if raw[at - 1 : at] == b"-" else at - 1
        if before < 0 or raw[before] in _BEFORE_NUMBERS:
            return True
        end = digits.find(b"\0", at)
        at = digits.find(_LONG_RUN, end) if end >= 0 else -1
    return False


def loads_array(data: bytes | str) -> list[Any]:
    """Read one JSON array, such as a window of messages.

    Raises: ValueError when it is malformed or no array.
    """
    value = loads(data)
    if not isinstance(value, list):
        raise ValueError(f"a JSON array was expected, not {type(value).__name__}")
    return value


def _read(data: bytes | str) -> Any:
    text = data if isinstance(data, str) else data.decode()
    try:
        return _DECODER.decode(text)
    except RecursionError:
        return _read_deep(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is no finite number")
    return number


_VALUE = "{[sv"
_FIRST_ITEM, _FIRST_KEY, _KEY, _COLON = _VALUE + "]", "s}", "s", ":"
_AFTER_ITEM, _AFTER_MEMBER, _END = ",]", ",}", ""


def _read_deep(text: str) -> Any:
    """Read a text nested too deep for the C decoder: one loop, the open containers on a list."""
    outer: list[tuple[Any, Any]] = []
    container: Any = None
    key: Any = None
    result: Any = None
    allowed = _VALUE
    for kind, item, position in _tokens(text):
        if kind not in allowed:
            raise ValueError(f"malformed JSON at character {position}")
        if kind == ":":
            allowed = _VALUE
        elif kind == ",":
            allowed = _KEY if isinstance(container, dict) else _VALUE
        elif allowed is _KEY or (allowed is _FIRST_KEY and kind == "s"):
            key, allowed = item, _COLON
        elif kind in "{[":
            outer.append((container, key))
            container, allowed = ({}, _FIRST_KEY) if kind == "{" else ([], _FIRST_ITEM)
        else:
            if kind in "}]":
                item, (container, key) = container, outer.pop()
            if container is None:
                result, allowed = item, _END
            elif isinstance(container, dict):
                container[key], allowed = item, _AFTER_MEMBER
            else:
                container.append(item)
                allowed = _AFTER_ITEM
    if allowed is not _END:
        raise ValueError("malformed JSON: it ends too early")
    return result


_SPACE = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r"(true|false|null)|(-?(?:0|[1-9][0-9]*))((?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)")
_WORDS = {"true": True, "false": False, "null": None}


def _tokens(text: str) -> Iterator[tuple[str, Any, int]]:
    """Yield (kind, value, position): kind is the punctuation, `s` a string, `v` a scalar."""
    position = _SPACE.match(text).end()  # type: ignore[union-attr]
    while position < len(text):
        start, character = position, text[position]
        if character in "{}[],:":
            kind, item, position = character, None, position + 1
        elif character == '"':
            kind = "s"
            item, position = scanstring(text, position + 1, True)
        elif (found := _SCALAR.match(text, position)) is not None:
            kind, position = "v", found.end()
            word, whole, rest = found.groups()
            item = _WORDS[word] if word else _finite(whole + rest) if rest else _int_of(whole)
        else:
            raise ValueError(f"malformed JSON at character {position}")
        yield kind, item, start
        position = _SPACE.match(text, position).end()  # type: ignore[union-attr]


# --------------------------------------------------------------------------------- large integers
# The interpreter refuses conversions beyond a settable number of digits (never below 640), and its
# own are quadratic. These split the number in halves.

_PLAIN_DIGITS, _PLAIN_BITS = 600, 1_990
_EXACT = decimal.Context(
    prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[decimal.Inexact]
)


def _digits_of(number: int) -> str:
    if number.bit_length() <= _PLAIN_BITS:
        return str(number)
    with decimal.localcontext(_EXACT):
        digits = str(_decimal_of(abs(number)))
    return "-" + digits if number < 0 else digits


def _decimal_of(number: int) -> decimal.Decimal:
    bits = number.bit_length()
    if bits <= _PLAIN_BITS:
        return decimal.Decimal(number)
    half = bits // 2
    high = number >> half
    return _decimal_of(number - (high << half)) + _decimal_of(high) * decimal.Decimal(2) ** half


def _int_of(digits: str) -> int:
    if len(digits) <= _PLAIN_DIGITS:
        return int(digits)
    if digits[0] == "-":
        return -_int_of(digits[1:])
    half = len(digits) // 2
    scale: int = 10**half
    return _int_of(digits[:-half]) * scale + _int_of(digits[-half:])


_DECODER = json.JSONDecoder(parse_int=_int_of, parse_float=_finite, parse_constant=_refuse_constant)
