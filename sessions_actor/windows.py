"""Bounded groups: how much of a path one read takes, by count and by bytes. Pure arithmetic."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from .limits import WINDOW_BYTES_MAX, WINDOW_ROWS_MAX

Item = TypeVar("Item")


def recent_suffix(sizes_newest_first: Iterable[int], budget: float) -> int:
    """Count the newest rows whose bytes fit the budget together; the newest always counts.

    Reads no size beyond the first that does not fit. Returns 0 only when there is no row.
    """
    count = used = 0
    for size in sizes_newest_first:
        used += size
        if count and used > budget:
            break
        count += 1
    return count


class Batcher(Generic[Item]):
    """Collect items into batches of at most so many items and bytes.

    No batch is empty, and an item larger than the bound stands alone. For a source that is not an
    ordinary iterable; `group_batches` serves the others.
    """

    __slots__ = ("_bytes", "_bytes_max", "_items", "_items_max")

    def __init__(
        self, batch_size: int = WINDOW_ROWS_MAX, max_bytes: int = WINDOW_BYTES_MAX
    ) -> None:
        self._items_max = max(1, int(batch_size))
        self._bytes_max = max(1, int(max_bytes))
        self._items: list[Item] = []
        self._bytes = 0

    def push(self, size: int, item: Item) -> list[list[Item]]:
        """Take one item and return the batches it completes: none, one or two."""
        done: list[list[Item]] = []
        if self._bytes + size > self._bytes_max:
            done += self.rest()
        self._items.append(item)
        self._bytes += size
        if len(self._items) >= self._items_max or self._bytes >= self._bytes_max:
            done += self.rest()
        return done

    def rest(self) -> list[list[Item]]:
        """Return what is left as a batch, unless nothing is."""
        return [self._take()] if self._items else []

    def _take(self) -> list[Item]:
        batch, self._items, self._bytes = self._items, [], 0
        return batch


def group_batches(
    items: Iterable[tuple[int, Item]],
    batch_size: int = WINDOW_ROWS_MAX,
    max_bytes: int = WINDOW_BYTES_MAX,
) -> Iterator[list[Item]]:
    """Group (bytes, item) pairs as `Batcher` does."""
    batcher: Batcher[Item] = Batcher(batch_size, max_bytes)
    for size, item in items:
        yield from batcher.push(size, item)
    yield from batcher.rest()
