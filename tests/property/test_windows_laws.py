"""Grouping by count and bytes agrees with the obvious way of doing it."""

from hypothesis import given
from hypothesis import strategies as st

from sessions_actor.windows import group_batches, recent_suffix

from .json_values import law

sizes = st.lists(st.integers(0, 50), max_size=40)


def slow_recent_suffix(sizes_newest_first: list[int], budget: int) -> int:
    """Try every length, longest first."""
    for count in range(len(sizes_newest_first), 1, -1):
        if sum(sizes_newest_first[:count]) <= budget:
            return count
    return min(1, len(sizes_newest_first))


def slow_batches(sizes: list[int], batch_size: int, max_bytes: int) -> list[list[int]]:
    """Put each item into the last batch unless that is full or would burst."""
    batches: list[list[int]] = []
    for size in sizes:
        last = batches[-1] if batches else []
        full = len(last) >= batch_size or sum(last) >= max_bytes or sum(last) + size > max_bytes
        if not batches or full:
            batches.append([])
        batches[-1].append(size)
    return batches


@law
@given(sizes, st.integers(-5, 300))
def test_recent_suffix(sizes: list[int], budget: int) -> None:
    assert recent_suffix(sizes, budget) == slow_recent_suffix(sizes, budget)


@law
@given(sizes, st.integers(1, 10), st.integers(1, 120))
def test_batches(sizes: list[int], batch_size: int, max_bytes: int) -> None:
    found = list(group_batches(((size, size) for size in sizes), batch_size, max_bytes))
    assert found == slow_batches(sizes, batch_size, max_bytes)
    assert [] not in found
    assert [size for batch in found for size in batch] == sizes
