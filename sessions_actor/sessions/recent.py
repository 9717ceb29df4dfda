"""Choosing a recent window: sizes of rows, and of the overlays that apply within it.

Source: specification, "Read history": a byte-budgeted recent window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..codec import dumps
from ..overlays import overlay_message, plan_overlays
from ..records import Compaction
from .walks import PathRow


def sizes_of(
    rows: Iterable[tuple[int, PathRow]], taken: list[tuple[int, PathRow]]
) -> Iterator[int]:
    """Give the sizes of rows, keeping the rows."""
    for item in rows:
        taken.append(item)
        yield item[1].bytes


def overlaid_start(rows: Sequence[PathRow], overlays: Sequence[Compaction], budget: float) -> int:
    """Find the first row of a window whose overlays, rendered, fit the budget as well."""
    start = 0
    while start < len(rows) - 1:
        spans = plan_overlays({row.id: i for i, row in enumerate(rows[start:], start)}, overlays)
        if not spans:
            break
        size = sum(len(dumps(overlay_message(span.compaction))) for span in spans)
        covered = {i for span in spans for i in range(span.start, span.end + 1)}
        size += sum(rows[i].bytes for i in range(start, len(rows)) if i not in covered)
        while size > budget and start < spans[0].start:
            size -= rows[start].bytes
            start += 1
        if size <= budget:
            break
        start = spans[0].start + 1  # without its first row the overlay no longer applies
    return min(start, max(len(rows) - 1, 0))
