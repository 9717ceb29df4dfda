"""Small helpers of the statements: windows of ids, placeholders, what SQLite holds as TEXT."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

_T = TypeVar("_T")
IDS_PER_QUERY = 200

Database = Any
"""An `apsw.Connection`; its rows are typed too widely for code that knows its columns."""


def windows(items: Iterable[_T], size: int = IDS_PER_QUERY) -> Iterator[list[_T]]:
    """Cut into lists of at most `size` items."""
    window: list[_T] = []
    for item in items:
        window.append(item)
        if len(window) == size:
            yield window
            window = []
    if window:
        yield window


def marks(count: int) -> str:
    """Write the placeholders of an IN list."""
    return ",".join("?" * count)


def is_text(value: object) -> bool:
    """Tell whether SQLite can hold the value as TEXT: a string without lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
