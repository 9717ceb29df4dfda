"""How many rows a budget takes, and how batches are filled."""

from collections.abc import Iterator

from sessions_actor.windows import Batcher, group_batches, recent_suffix


def test_the_newest_row_always_counts() -> None:
    assert recent_suffix([], 10) == 0
    assert recent_suffix([50], 10) == 1
    assert recent_suffix([50, 1], 10) == 1
    assert recent_suffix([5], -1) == 1


def test_the_budget_is_a_ceiling() -> None:
    assert recent_suffix([4, 3, 3, 1], 10) == 3
    assert recent_suffix([4, 3, 4, 1], 10) == 2
    assert recent_suffix([0, 0, 0], 0) == 3


def test_no_size_is_read_beyond_the_first_that_does_not_fit() -> None:
    read: list[int] = []

    def sizes() -> Iterator[int]:
        for size in (4, 7, 1):
            read.append(size)
            yield size

    assert recent_suffix(sizes(), 10) == 1
    assert read == [4, 7]


def groups(sizes: list[int], batch_size: int, max_bytes: int) -> list[list[int]]:
    return list(group_batches(((size, size) for size in sizes), batch_size, max_bytes))


def test_batches_are_bounded_by_count_and_by_bytes() -> None:
    assert groups([1, 1, 1, 1, 1], 2, 100) == [[1, 1], [1, 1], [1]]
    assert groups([4, 4, 4], 10, 8) == [[4, 4], [4]]
    assert groups([4, 5, 4], 10, 8) == [[4], [5], [4]]
    assert groups([], 2, 8) == []


def test_an_item_larger_than_a_batch_stands_alone() -> None:
    assert groups([1, 20, 1], 10, 8) == [[1], [20], [1]]


def test_bounds_below_one_are_one() -> None:
    assert groups([5, 5], 0, -3) == [[5], [5]]


def test_one_push_may_complete_two_batches() -> None:
    batcher: Batcher[str] = Batcher(10, 8)
    assert batcher.push(5, "a") == []
    assert batcher.push(9, "b") == [["a"], ["b"]]
    assert batcher.rest() == []
