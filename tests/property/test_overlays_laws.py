"""Overlay planning agrees with a walk that tries every record at every position."""

from hypothesis import given
from hypothesis import strategies as st

from sessions_actor.overlays import Span, plan_overlays
from sessions_actor.records import Compaction

from .json_values import law

ids = st.integers(0, 12).map(lambda number: f"m{number}")
ranges = st.lists(st.tuples(ids, ids), max_size=12)
paths = st.lists(ids, unique=True)


def slow_plan(path: list[str], compactions: list[Compaction]) -> list[Span]:
    """Walk the path; at each position the newest record that starts there and ends later wins."""
    spans = []
    position = 0
    while position < len(path):
        found = [
            Span(position, path.index(compaction.to_message_id), compaction)
            for compaction in compactions
            if compaction.from_message_id == path[position]
            and compaction.to_message_id in path[position:]
        ]
        spans += found[-1:]
        position = found[-1].end + 1 if found else position + 1
    return spans


@law
@given(paths, ranges, st.booleans())
def test_plan(path: list[str], ranges: list[tuple[str, str]], sparse: bool) -> None:
    compactions = [
        Compaction(f"c{number}", "S", first, last, "2024-01-01T00:00:00.000Z")
        for number, (first, last) in enumerate(ranges)
    ]
    endpoints = {end for pair in ranges for end in pair}
    positions = {
        message_id: position
        for position, message_id in enumerate(path)
        if not sparse or message_id in endpoints
    }
    assert plan_overlays(positions, compactions) == slow_plan(path, compactions)
