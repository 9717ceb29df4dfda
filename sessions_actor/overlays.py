"""Which compaction overlays apply to a path, and what they render as. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .messages import SessionMessage
from .records import Compaction

COMPACTION_PREFIX = "compaction_"


@dataclass(frozen=True, slots=True)
class Span:
    """Positions `start` to `end` of a path, both included, that an overlay stands for."""

    start: int
    end: int
    compaction: Compaction


def plan_overlays(path: Mapping[str, int], compactions: Sequence[Compaction]) -> list[Span]:
    """Choose the overlays that apply, from the root.

    The earliest start wins; at one start the newest record; what starts inside a chosen span does
    not apply, nor does a record whose ends are not both on the path in this order.

    Args: `path` maps ids to positions on the path; only endpoints of overlays need be there.
    `compactions` are in the order they were recorded.
    Returns: spans in path order, disjoint. Cost: O(k log k) for k records.
    Source: Overlays.
    """
    newest: dict[int, Span] = {}
    for compaction in compactions:
        start = path.get(compaction.from_message_id)
        end = path.get(compaction.to_message_id)
        if start is not None and end is not None and start <= end:
            newest[start] = Span(start, end, compaction)
    spans: list[Span] = []
    free_from = -1
    for start in sorted(newest):
        if start >= free_from:
            spans.append(newest[start])
            free_from = newest[start].end + 1
    return spans


def overlay_message(compaction: Compaction) -> SessionMessage:
    """Render an overlay; `createdAt` is that of its record."""
    return {
        "id": COMPACTION_PREFIX + compaction.id,
        "role": "assistant",
        "parts": [{"type": "text", "text": compaction.summary}],
        "createdAt": compaction.created_at,
    }
