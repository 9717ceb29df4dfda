"""Which overlays apply to a path."""

from sessions_actor.overlays import COMPACTION_PREFIX, overlay_message, plan_overlays
from sessions_actor.records import Compaction

PATH = {f"m{number}": number for number in range(10)}


def plan(*ranges: tuple[str, str]) -> list[tuple[int, int, str]]:
    compactions = [
        Compaction(f"c{number}", f"S{number}", first, last, "2024-01-01T00:00:00.000Z")
        for number, (first, last) in enumerate(ranges)
    ]
    return [(span.start, span.end, span.compaction.id) for span in plan_overlays(PATH, compactions)]


def test_none() -> None:
    assert plan() == []


def test_one_and_a_single_message() -> None:
    assert plan(("m2", "m5")) == [(2, 5, "c0")]
    assert plan(("m2", "m2")) == [(2, 2, "c0")]


def test_reversed_and_unknown_ends_do_not_apply() -> None:
    assert plan(("m4", "m1"), ("zz", "m3"), ("m3", "zz")) == []


def test_the_earliest_start_wins() -> None:
    assert plan(("m2", "m5"), ("m4", "m7")) == [(2, 5, "c0")]
    assert plan(("m2", "m5"), ("m1", "m8")) == [(1, 8, "c1")]


def test_at_one_start_the_newest_wins_even_if_shorter() -> None:
    assert plan(("m2", "m8"), ("m2", "m4")) == [(2, 4, "c1")]


def test_a_newer_record_that_does_not_apply_does_not_hide_an_older_one() -> None:
    assert plan(("m2", "m8"), ("m2", "zz")) == [(2, 8, "c0")]


def test_one_may_begin_right_after_another() -> None:
    assert plan(("m6", "m9"), ("m2", "m5")) == [(2, 5, "c1"), (6, 9, "c0")]


def test_rendering() -> None:
    compaction = Compaction("c", "S", "a", "b", "2024-01-02T03:04:05.678Z")
    assert list(overlay_message(compaction).items()) == [
        ("id", COMPACTION_PREFIX + "c"),
        ("role", "assistant"),
        ("parts", [{"type": "text", "text": "S"}]),
        ("createdAt", "2024-01-02T03:04:05.678Z"),
    ]
