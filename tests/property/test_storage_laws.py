"""The gate and the key-value table against a dict."""

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sessions_actor.errors import QuotaExceededError
from sessions_actor.storage import Storage

KEYS = st.sampled_from(["a", "ab", "b", "\x00", "é", "\ud7ff", "\ue000", "𐀀", "\U0010ffff"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
).filter(lambda value: isinstance(value, bytes) or not holds_bytes(value))
Entries = dict[str, Any]


def holds_bytes(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(holds_bytes, value.values()))
    if isinstance(value, list):
        return any(map(holds_bytes, value))
    return isinstance(value, bytes)


@dataclass(frozen=True)
class Op:
    """Steps of one op; an inner op may fail and be caught; the whole may fail at its end."""

    steps: tuple["Put | Delete | Op", ...]
    fails: bool


@dataclass(frozen=True)
class Put:
    key: str
    value: Any


@dataclass(frozen=True)
class Delete:
    key: str


STEPS = st.builds(Put, KEYS, VALUES) | st.builds(Delete, KEYS)
INNER = st.builds(Op, st.lists(STEPS, max_size=3).map(tuple), st.booleans())
OPS = st.builds(Op, st.lists(STEPS | INNER, max_size=4).map(tuple), st.booleans())
TURNS = st.lists(st.tuples(st.lists(OPS, max_size=5), st.booleans()), max_size=6)


def apply(op: Op, entries: Entries) -> None:
    """The slow, obvious version: copy, and copy back."""
    work = dict(entries)
    for step in op.steps:
        match step:
            case Put(key, value):
                work[key] = value
            case Delete(key):
                work.pop(key, None)
            case Op():
                apply(step, work)
    if not op.fails:
        entries.clear()
        entries.update(work)


def as_op(storage: Storage, op: Op) -> Callable[[], None]:
    def run() -> None:
        for step in op.steps:
            match step:
                case Put(key, value):
                    storage.kv.put(key, value)
                case Delete(key):
                    storage.kv.delete(key)
                case Op():
                    try:
                        storage.transaction(as_op(storage, step))
                    except LookupError:
                        assert step.fails
        if op.fails:
            raise LookupError

    return run


@settings(max_examples=60, deadline=None)
@given(TURNS)
def test_groups_of_ops_are_what_a_dict_says_also_after_reopening(
    turns: list[tuple[list[Op], bool]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        storage = Storage(Path(folder) / "a.sqlite")
        entries: Entries = {}

        async def run_turn(ops: list[Op]) -> list[BaseException | None]:
            submitted = (storage.submit(as_op(storage, op)) for op in ops)
            return await asyncio.gather(*submitted, return_exceptions=True)

        for ops, reopen in turns:
            outcomes = asyncio.run(run_turn(ops))
            assert [isinstance(outcome, LookupError) for outcome in outcomes] == [
                op.fails for op in ops
            ]
            for op in ops:
                apply(op, entries)
            if reopen:
                storage.close()
                storage = Storage(Path(folder) / "a.sqlite")
            listed = storage.kv.list()
            assert listed == entries
            assert list(listed) == sorted(entries, key=str.encode)
        storage.close()


BOUNDS = st.none() | KEYS


@settings(max_examples=100, deadline=None)
@given(
    st.sets(KEYS | st.text(min_size=1, max_size=3).filter(lambda key: key.isprintable())),
    st.just("") | KEYS,
    st.fixed_dictionaries({"start": BOUNDS, "end": BOUNDS, "limit": st.none() | st.integers(0, 5)}),
    st.booleans(),
)
def test_list_is_a_filtered_sorted_dict(
    keys: set[str], prefix: str, bounds: dict[str, Any], reverse: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        storage = Storage(Path(folder) / "a.sqlite")
        storage.kv.put_many({key: key for key in keys})
        found = storage.kv.list(prefix=prefix, reverse=reverse, **bounds)
        storage.close()
    start, end = bounds["start"], bounds["end"]
    expected = sorted(
        (
            key
            for key in keys
            if key.startswith(prefix)
            and (start is None or key.encode() >= start.encode())
            and (end is None or key.encode() < end.encode())
        ),
        key=str.encode,
        reverse=reverse,
    )
    assert list(found) == expected[: bounds["limit"]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 60_000), max_size=6), max_size=10))
def test_the_quota_refuses_what_does_not_fit_and_only_that(turns: list[list[int]]) -> None:
    """Whatever the sizes: accepted rows are there, refused ones not, the file never too large."""
    quota = 150_000
    with tempfile.TemporaryDirectory() as folder:
        storage = Storage(Path(folder) / "a.sqlite", quota_bytes=quota)
        storage.sql.exec("CREATE TABLE rows (id INTEGER PRIMARY KEY, data BLOB)")
        kept: dict[int, int] = {}
        number = 0

        async def run_turn(sizes: list[int], first: int) -> list[int | BaseException]:
            def insert(row: int, size: int) -> int:
                storage.write("INSERT INTO rows VALUES (?, zeroblob(?))", (row, size))
                return size

            submitted = (
                storage.submit(lambda row=first + at, size=size: insert(row, size))
                for at, size in enumerate(sizes)
            )
            return await asyncio.gather(*submitted, return_exceptions=True)

        for sizes in turns:
            for at, outcome in enumerate(asyncio.run(run_turn(sizes, number))):
                if isinstance(outcome, int):
                    kept[number + at] = outcome
                else:
                    assert isinstance(outcome, QuotaExceededError)
                    assert outcome.used_bytes <= quota
            number += len(sizes)
            assert dict(storage.fetch("SELECT id, length(data) FROM rows")) == kept
            assert storage.database_size <= quota
        assert storage.check() == []
        storage.close()
