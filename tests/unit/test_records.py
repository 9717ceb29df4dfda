"""Records are frozen, picklable and equal by value; times are written as JavaScript writes them."""

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions_actor.records import (
    LEAF,
    AppendResult,
    ChangeEvent,
    Compaction,
    HistoryRow,
    RecentHistory,
    iso_from_ms,
    ms_from_iso,
)

MESSAGE = {"id": "m", "role": "user", "parts": []}
RECORDS = [
    AppendResult(True, MESSAGE),  # type: ignore[arg-type]
    RecentHistory([MESSAGE], False, 40),  # type: ignore[list-item]
    Compaction("c", "S", "a", "b", "2024-01-01T00:00:00.000Z"),
    HistoryRow(MESSAGE, None, 1, 2),  # type: ignore[arg-type]
    ChangeEvent("clear", ""),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_are_frozen_and_survive_pickling(record: AppendResult) -> None:
    assert pickle.loads(pickle.dumps(record)) == record
    field = dataclasses.fields(record)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, field, None)


def test_leaf_is_one_object() -> None:
    assert pickle.loads(pickle.dumps(LEAF)) is LEAF
    assert repr(LEAF) == "<leaf>"
    assert ChangeEvent("append", "").parent_id is LEAF


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_704_164_645_678, "2024-01-02T03:04:05.678Z"),
        (1.9, "1970-01-01T00:00:00.001Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "+010000-01-01T00:00:00.000Z"),
        (8_640_000_000_000_000, "+275760-09-13T00:00:00.000Z"),
        (-8_640_000_000_000_000, "-271821-04-20T00:00:00.000Z"),
        (-62_167_219_200_000, "0000-01-01T00:00:00.000Z"),
    ],
)
def test_iso_from_ms(ms: float, text: str) -> None:
    assert iso_from_ms(ms) == text


@given(st.integers(-(10**15), 10**15))
def test_a_time_survives_its_text(ms: int) -> None:
    assert ms_from_iso(iso_from_ms(ms)) == ms


@pytest.mark.parametrize(
    "text", ["", "2026-01-31", "2026-13-01T00:00:00.000Z", None, "٢٠٢٦-01-01T00:00:00.000Z"]
)
def test_what_is_no_time_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"created_at|month"):
        ms_from_iso(text)  # type: ignore[arg-type]
