"""JSON text comes back as it was written, and malformed text never comes back at all."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessions_actor.codec import dumps, loads

from .json_values import law, texts, values


def same(a: Any, b: Any) -> bool:
    """Tell equal values of equal types with keys in equal order."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


def slow_loads(text: str) -> Any:
    """Read with the standard library, refusing what is not JSON."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    def finite(text: str) -> float:
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise ValueError(text)
        return number

    return json.loads(text, parse_constant=refuse, parse_float=finite)


@law
@given(values)
@example([10**700, -(10**700), 2**64, -(2**63) - 1, 1.0, -0.0, 1e16])
@example({"\ud83d": "\udca5", "a": ["\ud83d", "\udca5"]})
def test_what_is_written_is_read(value: Any) -> None:
    text = dumps(value)
    assert same(loads(text), value)
    assert same(loads(text.decode()), value)
    assert dumps(loads(text)) == text


@law
@given(values)
def test_the_text_is_that_of_a_simple_writer(value: Any) -> None:
    assert same(slow_loads(dumps(value).decode()), value)


@law
@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
        lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
        max_leaves=12,
    )
)
def test_well_formed_values_are_written_as_the_standard_library_does(value: Any) -> None:
    assert dumps(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@law
@given(values, st.integers(0, 200), texts, st.integers(0, 3), st.booleans())
@example("x", 0, "NaN", 10, True)
@example([1], 0, "01", 10, False)
@example([1], 0, "[1,]", 10, True)
@example([1], 0, '{"a":1,}', 10, True)
@example([1], 0, '{"a" 1}', 10, True)
@example([1], 0, "1e999", 10, True)
@example([1], 0, "[1 2]", 10, True)
@example([1], 0, "", 10, True)
def test_damaged_text_is_read_as_the_standard_library_reads_it(
    value: Any, position: int, inserted: str, removed: int, deep: bool
) -> None:
    text = dumps(value).decode()
    position = min(position, len(text))
    text = text[:position] + inserted + text[position + removed :]
    depth = 1_500 if deep else 0  # beyond what the decoders written in C follow
    nested = "[" * depth + text + "]" * depth
    try:
        expected = slow_loads(text)
    except ValueError:
        # Inside brackets some damaged text is an array's end or several items.
        if not deep:
            with pytest.raises(ValueError):  # noqa: PT011 (either reader's wording)
                loads(nested)
        return
    found = loads(nested)
    for _ in range(depth):
        (found,) = found
    assert same(found, expected)
