"""The JSON cursor: values are cut out as they stand, whatever the pieces the text arrives in."""

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.formats import json_stream
from router.formats.json_stream import JsonCursor, JsonTextError, TruncatedTextError

_SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
_VALUES = st.recursive(
    _SCALARS.filter(lambda value: value not in (float("inf"), float("-inf"))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def cursor_over(text: bytes, piece: int = 1 << 20) -> JsonCursor:
    """Return a cursor that is given at most `piece` bytes at a time."""
    stream = io.BytesIO(text)
    return JsonCursor(lambda size: stream.read(min(size, piece)))


@given(st.lists(_VALUES, max_size=5), st.integers(1, 7), st.sampled_from([None, 2]))
def test_items_of_any_array_arrive_as_they_were(
    values: list[Any], piece: int, indent: int | None
) -> None:
    cursor = cursor_over(json.dumps(values, indent=indent).encode(), piece)
    assert [cursor.value() for _ in cursor.items()] == values
    assert cursor.peek() == ""


@given(st.dictionaries(st.text(), _VALUES, max_size=5), st.integers(1, 7))
def test_members_of_any_object_arrive_as_they_were(value: dict[str, Any], piece: int) -> None:
    cursor = cursor_over(json.dumps(value, ensure_ascii=False).encode("utf-8"), piece)
    assert [(key, cursor.value()) for key in cursor.members()] == list(value.items())


@given(st.lists(_VALUES, max_size=5), st.sets(st.integers(1, 5)))
def test_what_is_left_unread_is_skipped(values: list[Any], wanted: set[int]) -> None:
    cursor = cursor_over(json.dumps(values).encode(), 3)
    taken = [cursor.value() for number in cursor.items() if number in wanted]
    assert taken == [value for number, value in enumerate(values, 1) if number in wanted]


@given(st.lists(_VALUES, min_size=1, max_size=4), st.data())
def test_any_cut_is_noticed_and_what_was_whole_before_is_kept(
    values: list[Any], data: st.DataObject
) -> None:
    text = json.dumps(values).encode()
    cut = data.draw(st.integers(0, len(text) - 1))
    cursor, taken = cursor_over(text[:cut], 5), []
    with pytest.raises(TruncatedTextError):  # noqa: PT012
        for _ in cursor.items():
            taken.append(cursor.take())
        cursor.take()
    whole = [json.dumps(value).encode() for value in values]
    # A number at the cut may look whole.
    assert taken == whole[: len(taken)] or taken[:-1] == whole[: len(taken) - 1]


def test_a_malformed_value_is_one_error_and_the_rest_is_read() -> None:
    cursor = cursor_over(b'[{"a":1},{"a":tru},{"a":NaN},{"a":"\xff"},{"a":2}]')
    good, bad = [], 0
    for _ in cursor.items():
        try:
            good.append(cursor.value())
        except JsonTextError:
            raise
        except ValueError:
            bad += 1
    assert good == [{"a": 1}, {"a": 2}]
    assert bad == 3


@pytest.mark.parametrize(
    ("text", "offset"),
    [(b'[1,{"a":[2}]', 10), (b"[1 2]", 3), (b'[1,{"a" 2}]', 8), (b"{1:2}", 1), (b"]", 0)],
)
def test_broken_structure_is_told_by_its_byte(text: bytes, offset: int) -> None:
    cursor = cursor_over(text)

    def walk() -> None:
        for _ in cursor.items() if text.startswith(b"[") else cursor.members():
            for _ in cursor.members() if cursor.peek() == "{" else ():
                cursor.take()

    with pytest.raises(JsonTextError) as caught:
        walk()
    assert caught.value.offset == offset


def test_values_that_other_readers_alter_stay_exact() -> None:
    text = b'["\\ud83d",123456789012345678901234567890,1.0,-0.0,{"b":1,"a":2}]'
    cursor = cursor_over(text, 2)
    values = [cursor.value() for _ in cursor.items()]
    assert values[:2] == ["\ud83d", 123456789012345678901234567890]
    assert [type(value) for value in values[2:4]] == [float, float]
    assert list(values[4]) == ["b", "a"]


def test_a_byte_order_mark_is_passed_over() -> None:
    assert cursor_over(b"\xef\xbb\xbf[1]").value() == [1]


def test_several_values_in_one_text() -> None:
    cursor = cursor_over(b'{"a":1}\n{"a":2} [3]')
    assert [cursor.value() for _ in cursor.documents()] == [{"a": 1}, {"a": 2}, [3]]


def test_nesting_beyond_the_recursion_limit() -> None:
    text = b"[" * 50_000 + b"]" * 50_000
    assert len(cursor_over(b"[" + text + b",1]").take()) == 100_004
    cursor = cursor_over(b"[" + text + b",7]")
    sizes = [len(cursor.take()) for _ in cursor.items()]
    assert sizes == [100_000, 1]


def test_only_one_value_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "READ_BYTES", 1024)
    monkeypatch.setattr(json_stream, "VALUE_BYTES_MAX", 4096)
    item = json.dumps({"text": "x" * 2000}).encode()
    cursor = cursor_over(b"[" + b",".join([item] * 200) + b"]")
    assert [cursor.take() for _ in cursor.items()] == [item] * 200
    cursor = cursor_over(b'["' + b"x" * 10_000 + b'"]')
    with pytest.raises(JsonTextError, match="longer than 4,096 bytes"):
        cursor.take()
