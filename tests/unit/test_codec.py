"""JSON beyond what a fast writer and reader cover, and what is refused."""

import dataclasses
import datetime
import decimal
import enum
import sys
import uuid
from collections import OrderedDict
from typing import Any, NamedTuple

import orjson
import pytest

from sessions_actor.codec import dumps, loads, loads_array


class Colour(enum.Enum):
    RED = 1


class Name(str, enum.Enum):  # noqa: UP042 (the older spelling is what people have)
    RED = "red"


class Number(enum.IntEnum):
    TWO = 2


@dataclasses.dataclass
class Record:
    a: int = 1


class Point(NamedTuple):
    x: int
    y: int


def nested(depth: int) -> Any:
    value: Any = 0
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, False, None]}, b'{"b":1,"a":[true,false,null]}'),
        ('quote " back \\ slash /', b'"quote \\" back \\\\ slash /"'),
        ("\n\r\t\b\f\x00\x1f\x7f", b'"\\n\\r\\t\\b\\f\\u0000\\u001f\x7f"'),
        ("é\u2028💥", '"é\u2028💥"'.encode()),
        ([1.0, -0.0, 0.1, 1e22], b"[1.0,-0.0,0.1,1e+22]"),
        ((1, (2,)), b"[1,[2]]"),
        (2**64, b"18446744073709551616"),
        (-(2**63) - 1, b"-9223372036854775809"),
        ("\ud800", b'"\\ud800"'),
        ("a\udfffb\ud83d", b'"a\\udfffb\\ud83d"'),
        ({"\ud800": "\ud800"}, b'{"\\ud800":"\\ud800"}'),
        ("\ud83d" + "\udca5", '"💥"'.encode()),
        (["\ud83d", "\udca5"], b'["\\ud83d","\\udca5"]'),
        (OrderedDict(a=1), b'{"a":1}'),
        (Point(1, 2), b"[1,2]"),
        ([Name.RED, Number.TWO], b'["red",2]'),
        ({Name.RED: 1}, b'{"red":1}'),
        ("the word null", b'"the word null"'),
        ({}, b"{}"),
        ([[], {}, ""], b'[[],{},""]'),
    ],
    ids=lambda value: ascii(value)[:30],
)  # fmt: skip
def test_written_text(value: Any, text: bytes) -> None:
    assert dumps(value) == text
    assert dumps(loads(text)) == text


CYCLE: list[Any] = []
CYCLE.append({"again": CYCLE})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"parts": [{"output": float("nan")}]}, "message.parts[0].output: float nan is not JSON"),
        (float("inf"), "message: float inf is not JSON"),
        ([None, -float("inf")], "message[1]: float -inf is not JSON"),
        ({"null": [float("nan")]}, "message.null[0]: float nan is not JSON"),
        ({"a b": {1, 2}}, "message['a b']: set {1, 2} is not JSON"),
        ({"a": {1: 2}}, "message.a: key int 1 is no string"),
        ({"a": {None: 2}}, "message.a: key NoneType None is no string"),
        ([b"x"], "message[0]: bytes b'x' is not JSON"),
        ([bytearray(b"x")], "message[0]: bytearray"),
        ([Colour.RED], "message[0]: Colour <Colour.RED: 1> is not JSON"),
        ([uuid.UUID(int=5)], "message[0]: UUID "),
        ([Record()], "message[0]: Record "),
        ([datetime.datetime(2024, 1, 1)], "message[0]: datetime "),
        ([datetime.date(2024, 1, 1)], "message[0]: date "),
        ([decimal.Decimal(1)], "message[0]: Decimal "),
        ([orjson.Fragment(b"{}")], "message[0]: Fragment "),
        ([object()], "message[0]: object "),
        ([1j], "message[0]: complex 1j is not JSON"),
        ([...], "message[0]: ellipsis "),
        (CYCLE, "message[0].again: a list that holds itself is not JSON"),
        (nested(300) and [nested(300), {"x": set()}], "message[1].x: set "),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_json_cannot_hold_is_refused_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        dumps(value)
    assert str(caught.value).startswith(message)


def test_the_place_begins_with_the_given_name() -> None:
    with pytest.raises(TypeError, match=r"^value\.a: set "):
        dumps({"a": set()}, where="value")


def test_a_place_far_down_is_shortened() -> None:
    value: Any = float("nan")
    for _ in range(5000):
        value = [value]
    with pytest.raises(TypeError) as caught:
        dumps(value)
    assert len(str(caught.value)) < 200


def test_the_same_object_twice_is_no_cycle() -> None:
    shared: list[Any] = [2**70]
    assert dumps([shared, shared]) == b"[[%d],[%d]]" % (2**70, 2**70)


def test_any_depth() -> None:
    limit = sys.getrecursionlimit()
    for depth in (200, 300, 1_100, 100_000):
        text = dumps(nested(depth))
        assert dumps(loads(text)) == text
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize("digits", [19, 20, 25, 600, 601, 640, 641, 5_000, 50_000])
def test_integers_of_any_size(digits: int) -> None:
    for number in (10 ** (digits - 1), 10**digits - 1, -(10**digits) + 1):
        text = dumps([number])
        assert loads(text) == [number]
        assert len(text) == digits + 2 + (number < 0)
        assert type(loads(text)[0]) is int


def test_integers_beside_texts_that_look_like_them() -> None:
    run = "12345678901234567890"
    for number in (int(run), -int(run)):
        assert loads(str(number)) == number
        for gap in ("", " ", "\n", "\t", "\r"):
            text = f'{{"id":"{run}","-{run}":[{gap}{number}{gap},{gap}{number}],"n":{gap}{number}}}'
            value = {"id": run, f"-{run}": [number, number], "n": number}
            assert loads(text) == value
            assert [type(one) for one in loads(text)[f"-{run}"]] == [int, int]
    texts = [f"a-{run}", f"{run}, {run}", f"x: {run}", f"0.{run}", run * 40]
    assert loads(dumps([*texts, float(f"0.{run}")])) == [*texts, float(f"0.{run}")]


def test_reading_a_pair_of_escapes_and_halves_of_it() -> None:
    assert loads(b'"\\ud83d\\udca5"') == "💥"
    assert loads(b'"\\ud83d"') == "\ud83d"
    assert loads('"\ud83d"') == "\ud83d"  # raw in a string, as other decoders leave it


@pytest.mark.parametrize(
    "text",
    [
        "NaN", "-Infinity", "[Infinity]", "1e999", "[-1e999]", "", " ", "{", "[", "]", "[1,]",
        "[,1]", '{"a":1,}', '{"a"}', '{"a":}', "{1:2}", "{a:1}", "[1 2]", "01", "+1", "1.", ".5",
        "'a'", "nul", '"a', '"\n"', '"\\x"', '"\\u12"', "\ufeff1", b"\xff", b'"\xed\xa0\x80"',
        "1 2", "[1]]",
    ],
)  # fmt: skip
@pytest.mark.parametrize("depth", [0, 2_000])
def test_malformed_text_is_refused(text: str | bytes, depth: int) -> None:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(ValueError):  # noqa: PT011 (any reader's wording)
        loads(b"[0," * depth + data + b"]" * depth)


def test_white_space_and_repeated_keys() -> None:
    for depth in (0, 2_000):
        text = "[" * depth + ' { "a" : 1 ,\n"b":[ ] ,\t"a" : 2 } ' + "]" * depth
        value = loads(text)
        for _ in range(depth):
            (value,) = value
        assert list(value.items()) == [("a", 2), ("b", [])]


def test_loads_array() -> None:
    assert loads_array(b'[{"a":1},2]') == [{"a": 1}, 2]
    assert loads_array(b"[]") == []
    with pytest.raises(ValueError, match="array was expected, not dict"):
        loads_array(b"{}")
